"""Pictures to classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForImageClassification
from transept.pipelines.base import chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.labels import LabelOptions, labelled
from transept.pipelines.media import ImagePipeline
from transept.pipelines.parts import Parts
from transept.preprocess.image.auto import AutoImageProcessor


@dataclass(frozen=True)
class ImageClassificationOptions(LabelOptions):
    """Options of ``image-classification``: see :class:`transept.pipelines.labels.LabelOptions`."""


class ImageClassificationPipeline(ImagePipeline[ImageClassificationOptions]):
    """For a picture, a list of ``{"label": str, "score": float}``, the best first.

    A picture is a path, bytes, a file object, a PIL image or an array; see :func:`transept.preprocess.media.load_image`.
    """

    task = "image-classification"

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the classifier and its image processor."""
        model = parts.model(AutoModelForImageClassification)
        processor = parts.part("image_processor", AutoImageProcessor.from_pretrained)
        return cls(model, processor, chosen_options(ImageClassificationOptions(), options, cls.task), **batching)

    def forward(self, samples: Sequence[Sample], options: ImageClassificationOptions) -> Sequence[NDArray[np.float32]]:
        """Logits (C) of each row."""
        return list(to_numpy(self.model(**self.collate(samples)).logits))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: ImageClassificationOptions) -> Any:
        """The best classes."""
        return labelled(results[0], self.model.config, options)
