"""Pictures to what is seen in them: boxes of objects (Carion et al. 2020), masks of segments, and the depth of each pixel.

Shapes: H height and W width of the picture as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import (
    AutoModelForDepthEstimation,
    AutoModelForImageSegmentation,
    AutoModelForObjectDetection,
)
from transept.errors import InputError, InputTypeError
from transept.heads.segment import ForSemanticSegmentation
from transept.pipelines.base import choice, share, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImageOptions, ImagePipeline
from transept.pipelines.tasks.classification import label_of
from transept.preprocess.features import needed
from transept.preprocess.media import open_image

SUBTASKS = ("panoptic", "instance", "semantic")
# What models tell of their images, of which image processors make answers.
_MAPS = ("logits", "pred_boxes", "pred_masks", "predicted_depth")


class ProcessedImagePipeline(ImagePipeline):
    """A task whose answers the image processor makes of the model's output, for pictures in the size that they came in."""

    methods: ClassVar[tuple[str, ...]]  # of image processors
    drawable = True

    def check_model(self) -> None:
        super().check_model()
        wanted = self.wanted()
        if not any(hasattr(self.image_processor, name) for name in wanted):
            kind, lacks = type(self.image_processor).__name__, " or ".join(wanted)
            hint = "Pass the image processor of this model."
            raise InputTypeError(f"{kind} makes no answers of the task {self.task!r}: it has no {lacks}.", hint=hint)

    def wanted(self) -> tuple[str, ...]:
        """The methods of the image processor of which this model needs one."""
        return self.methods

    def read(self, item: Any, options: Any) -> list[Sample]:
        """As of every picture, with its ``size`` (height, width)."""
        settings = getattr(options, "image_processor_kwargs", None) or {}
        axes = settings.get("input_data_format", self.image_processor.input_data_format)
        image = open_image(item, input_data_format=axes)
        (sample,) = super().read(image, options)
        sample.inputs["size"] = image.height, image.width
        return [sample]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        output = self.run(self.collate(samples))
        maps = {name: value for name in _MAPS if (value := output.get(name)) is not None}
        for value in maps.values():
            to_numpy(value)  # refuses what is not finite
        # Places in pictures have more digits than types of sixteen bits.
        rows = (type(output)({n: x[i : i + 1].float() for n, x in maps.items()}) for i in range(len(samples)))
        # One by one, since maps of many classes in the size of a picture take much memory.
        return [self.processed(row, [sample.inputs["size"]], options) for row, sample in zip(rows, samples, strict=True)]

    def processed(self, output: Any, sizes: list[tuple[int, int]], options: Any) -> Any:
        """What the image processor makes of the output for one picture."""
        raise NotImplementedError


class DetectionOptions(ImageOptions):
    """Options of ``object-detection``.

    Args:
        threshold: the score above which an object is maps of, from 0 to 1.
    """

    threshold: float = share(0.5)


class ObjectDetectionPipeline(ProcessedImagePipeline):
    """For a picture, a list of ``{"score": float, "label": str, "box": {"xmin": int, "ymin": ..., "xmax": ..., "ymax": ...}}``.

    Boxes are in pixels of the picture, and may reach beyond it; the order is that of the model's queries.
    """

    task, auto, options_class = "object-detection", AutoModelForObjectDetection, DetectionOptions
    methods = ("post_process_object_detection",)

    def processed(self, output: Any, sizes: list[tuple[int, int]], options: Any) -> tuple[list[Any], ...]:
        (found,) = self.image_processor.post_process_object_detection(output, options.threshold, sizes)
        return tuple(found[name].tolist() for name in ("scores", "labels", "boxes"))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        scores, labels, boxes = results[0]
        sides = [dict(zip(("xmin", "ymin", "xmax", "ymax"), map(int, box), strict=True)) for box in boxes]
        names = [label_of(self.model.config, label) for label in labels]
        return [{"score": s, "label": name, "box": box} for s, name, box in zip(scores, names, sides, strict=True)]


class SegmentationOptions(ImageOptions):
    """Options of ``image-segmentation``. All but the first are for panoptic and instance segments.

    Args:
        subtask: ``panoptic`` (each pixel belongs to one object or region), ``instance`` (objects) or ``semantic`` (classes);
            when absent the first of these that the model and its image processor can do.
        threshold: the score above which a segment is maps of, from 0 to 1.
        mask_threshold: the probability from which a pixel belongs to a mask.
        overlap_mask_area_threshold: the share of its mask that a segment must keep where others lie over it.
    """

    subtask: str | None = choice(None, *SUBTASKS)
    threshold: float = share(0.9)
    mask_threshold: float = share(0.5)
    overlap_mask_area_threshold: float = share(0.5)


class ImageSegmentationPipeline(ProcessedImagePipeline):
    """For a picture, a list of ``{"score": float, "label": str, "mask": image}``; masks (H, W) are 255 inside and 0 outside.

    Semantic segments, one for each class that is there, have no score: it is ``None``.
    """

    task, auto, options_class = "image-segmentation", AutoModelForImageSegmentation, SegmentationOptions
    methods = tuple(f"post_process_{name}_segmentation" for name in SUBTASKS)

    def wanted(self) -> tuple[str, ...]:
        return self.methods[-1:] if isinstance(self.model, ForSemanticSegmentation) else self.methods

    @property
    def subtasks(self) -> list[str]:
        """The subtasks that the model and its image processor can do."""
        return [name.split("_")[2] for name in self.wanted() if hasattr(self.image_processor, name)]

    def check_options(self, options: Any) -> None:
        if options.subtask not in (None, *self.subtasks):
            who = f"{type(self.model).__name__} with {type(self.image_processor).__name__}"
            hint = f"They can do: {', '.join(self.subtasks)}."
            raise InputError(f"`subtask` is {options.subtask!r}, which {who} cannot do.", hint=hint)

    def processed(self, output: Any, sizes: list[tuple[int, int]], options: Any) -> tuple[Any, list[Any]]:
        """The segments' numbers (H, W), and ``{"id", "label_id", "score"}``."""
        subtask = options.subtask or self.subtasks[0]
        method = getattr(self.image_processor, f"post_process_{subtask}_segmentation")
        if subtask == "semantic":
            numbers = small(method(output, target_sizes=sizes)[0])
            return numbers, [{"id": number, "label_id": number} for number in np.unique(numbers).tolist()]
        names = ("threshold", "mask_threshold", "overlap_mask_area_threshold")
        (found,) = method(output, **{name: getattr(options, name) for name in names}, target_sizes=sizes)
        return small(found["segmentation"]), found["segments_info"]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        numbers, segments = results[0]
        made = needed("PIL.Image", "pillow", "vision", "Segmenting images").fromarray
        masks = [made((numbers == segment["id"]).astype(np.uint8) * np.uint8(255)) for segment in segments]
        names = [label_of(self.model.config, segment["label_id"]) for segment in segments]
        parts = zip(segments, names, masks, strict=True)
        return [{"score": segment.get("score"), "label": name, "mask": mask} for segment, name, mask in parts]


def small(numbers: Tensor) -> NDArray[Any]:
    """Whole numbers (H, W) in the smallest type that holds them, since those of many pictures wait for their answers."""
    array = numbers.cpu().numpy()
    return array.astype(np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max())))


class DepthOptions(ImageOptions):
    """Options of ``depth-estimation``."""


class DepthEstimationPipeline(ProcessedImagePipeline):
    """For a picture, ``{"predicted_depth": tensor (H, W), "depth": image}``; the image is gray, from the least to the most."""

    task, auto, options_class = "depth-estimation", AutoModelForDepthEstimation, DepthOptions
    methods = ("post_process_depth_estimation",)

    def processed(self, output: Any, sizes: list[tuple[int, int]], options: Any) -> Tensor:
        found: Tensor = self.image_processor.post_process_depth_estimation(output, target_sizes=sizes)[0]["predicted_depth"]
        return found.cpu()

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> dict[str, Any]:
        depth: Tensor = results[0]
        values = depth.numpy()
        low, high = values.min(), values.max()
        shares = (values - low) / (high - low) if high > low else np.zeros_like(values)
        made = needed("PIL.Image", "pillow", "vision", "Estimating depth").fromarray
        return {"predicted_depth": depth, "depth": made((shares * 255).astype(np.uint8))}
