"""Pictures to classes."""

from __future__ import annotations

from transept.core.auto import AutoModelForImageClassification
from transept.pipelines.labels import ClassifyingPipeline, LabelOptions
from transept.pipelines.media import ImagePipeline


class ImageClassificationPipeline(ImagePipeline[LabelOptions], ClassifyingPipeline):
    """For a picture, a list of ``{"label": str, "score": float}``, the best first.

    A picture is a path, bytes, a file object, a PIL image or an array; see :func:`transept.preprocess.media.load_image`.
    """

    task, auto, options_class = "image-classification", AutoModelForImageClassification, LabelOptions
