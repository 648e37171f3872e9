"""DETR's image processor (Carion et al. 2020, arXiv:2005.12872): pictures of any shape, boxes and masks, and back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from transept.config.fields import derived
from transept.errors import InputError
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.annotations import Target, coco_objects, coco_segments, fitted
from transept.preprocess.image.answers import Segmenter, class_scores, found_boxes, run_lengths, semantic_maps, taken
from transept.preprocess.image.arrays import Size
from transept.preprocess.image.base import IMAGENET_MEAN, IMAGENET_STD, BaseImageProcessor
from transept.preprocess.settings import need
from transept.preprocess.workers import in_order

PANOPTIC = "coco_panoptic"
_EDGES = {"shortest_edge": 800, "longest_edge": 1333}


class DetrImageProcessor(BaseImageProcessor):
    """The shorter edge bilinear to 800, the longer to 1,333 at most; ImageNet's means and standard deviations.

    Smaller pictures of a batch are padded with zeros at the right and at the bottom; ``pixel_mask`` (B, H, W) is 1 where a
    picture is. Older files call ``do_pad`` ``pad_and_return_pixel_mask``, and the longest edge ``max_size``.

    Args:
        format: of annotations: ``"coco_detection"`` or ``"coco_panoptic"``.
        do_convert_annotations: whether boxes become (x, y, width, height) of their centre, as shares of the padded size;
            else they are (left, top, right, bottom) in pixels. As ``do_normalize``, unless it is set.
    """

    model_types = ("detr",)
    model_input_names: ClassVar[list[str]] = ["pixel_values", "pixel_mask"]
    default_to_square: ClassVar[bool] = False
    aliases: ClassVar[dict[str, str]] = {"pad_and_return_pixel_mask": "do_pad"}

    size: Any = field(default_factory=lambda: dict(_EDGES))
    image_mean: float | list[float] = field(default_factory=lambda: list(IMAGENET_MEAN))
    image_std: float | list[float] = field(default_factory=lambda: list(IMAGENET_STD))
    do_pad: bool | None = True
    format: Literal["coco_detection", "coco_panoptic"] = "coco_detection"
    do_convert_annotations: bool = derived(lambda settings: bool(settings.do_normalize))

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        longest = values.pop("max_size", None)
        size = values.get("size")
        if longest is not None and (size is None or isinstance(size, int)):
            values["size"] = {"shortest_edge": size or _EDGES["shortest_edge"], "longest_edge": longest}
        return super().upgrade(values)

    def validate(self) -> None:
        if isinstance(self.size, int) and not isinstance(self.size, bool):
            self.size = {"shortest_edge": self.size, "longest_edge": _EDGES["longest_edge"]}
        super().validate()

    def __call__(
        self,
        images: Any,
        annotations: Any = None,
        return_segmentation_masks: bool | None = None,
        masks_path: str | os.PathLike[str] | None = None,
        *,
        return_tensors: str | None = None,
        **overrides: Any,
    ) -> BatchFeature:
        """Prepare pictures, and what is known of the objects in them as ``labels``, a list of mappings.

        These hold ``class_labels`` (n), ``boxes`` (n, 4), ``area`` (n), ``iscrowd`` (n), ``image_id`` (1), ``orig_size``
        (2) and ``size`` (2), the padded one; and ``masks`` (n, H, W) or ``keypoints`` (n · k, 3) of the unscaled picture.

        Args:
            images: see :meth:`BaseImageProcessor.__call__`.
            annotations: for each picture ``{"image_id": ..., "annotations": [...]}``, or, where ``format`` is
                ``"coco_panoptic"``, ``{"image_id": ..., "file_name": ..., "segments_info": [...]}``.
            return_segmentation_masks: whether ``labels`` have masks; ``None`` for those of panoptic annotations alone.
            masks_path: the folder of panoptic annotations' pictures.
            return_tensors: as for pictures alone.
            overrides: settings for this call alone.

        Raises:
            InputError: also where an annotation is no such mapping, or there are more or fewer of them than pictures.
        """
        settings = self.for_call(return_tensors, overrides)
        prepared = settings.prepare(images)
        found = BatchFeature(settings.inputs(prepared, return_tensors), return_tensors)
        if annotations is None:
            return found
        listed = [annotations] if isinstance(annotations, Mapping) else annotations
        need("annotations", listed, list | tuple, "a mapping, or a list of one for each image")
        if len(listed) != len(prepared.opened):
            raise InputError(f"there are {len(listed)} annotations for {len(prepared.opened)} images.")
        if settings.do_center_crop:
            raise InputError("boxes are not cropped with their image.", hint="Set do_center_crop to False.")

        def one(item: tuple[Any, Size, Size, Size]) -> Target:
            target = settings.target_of(item[0], item[1], return_segmentation_masks, masks_path)
            return fitted(target, item[2], item[3], settings.do_convert_annotations)

        items = list(zip(listed, prepared.opened, prepared.resized, prepared.padded, strict=True))
        found["labels"] = [BatchFeature(_tensors(each, return_tensors)) for each in in_order(one, items, "annotations")]
        return found

    def target_of(
        self, annotation: Any, size: Size, with_masks: bool | None, folder: str | os.PathLike[str] | None = None
    ) -> Target:
        """One annotation in the pixels of its picture, whose (height, width) is given."""
        if self.format == PANOPTIC:
            return coco_segments(annotation, size, folder, with_masks is None or with_masks)
        return coco_objects(annotation, size, bool(with_masks))

    def post_process_object_detection(
        self, outputs: Any, threshold: float = 0.5, target_sizes: Any = None
    ) -> list[dict[str, Any]]:
        """For each picture the ``scores`` (n), ``labels`` (n) and ``boxes`` (n, 4) of the objects above the threshold.

        Args:
            outputs: what the model returned, with ``logits`` (B, Q, K + 1) and ``pred_boxes`` (B, Q, 4).
            threshold: of an object's probability.
            target_sizes: (height, width) of each picture, as a list or as a tensor (B, 2): boxes are (left, top, right,
                bottom) in its pixels, or as shares where it is ``None``.
        """
        return found_boxes(taken(outputs, "logits"), taken(outputs, "pred_boxes"), threshold, target_sizes)

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: Any = None, return_segmentation_scores: bool = False
    ) -> list[Any]:
        """The class of each pixel: see :meth:`SegmentationImageProcessor.post_process_semantic_segmentation`."""
        scores = class_scores(taken(outputs, "logits"), taken(outputs, "pred_masks"))
        return semantic_maps(scores, target_sizes, return_segmentation_scores)

    def post_process_instance_segmentation(
        self,
        outputs: Any,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        target_sizes: Any = None,
        return_coco_annotation: bool | None = False,
    ) -> list[dict[str, Any]]:
        """As :meth:`post_process_panoptic_segmentation`, where nothing is fused.

        With ``return_coco_annotation`` a ``segmentation`` is a list of runs for each number in it, 0 among them.
        """
        segment = Segmenter(threshold, mask_threshold, overlap_mask_area_threshold)
        found = segment(taken(outputs, "logits"), taken(outputs, "pred_masks"), target_sizes)
        for each in found if return_coco_annotation else ():
            each["segmentation"] = run_lengths(each["segmentation"])
        return found

    def post_process_panoptic_segmentation(
        self,
        outputs: Any,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        label_ids_to_fuse: Iterable[int] | None = None,
        target_sizes: Any = None,
    ) -> list[dict[str, Any]]:
        """For each picture a map ``segmentation`` (height, width) of segments, and what these are, ``segments_info``.

        The map holds each pixel's segment from 1 on, 0 for none, and only -1 where no query is above the threshold. Of a
        segment are told ``id``, ``label_id``, ``score`` and ``was_fused``.

        Args:
            outputs: what the model returned, with ``logits`` (B, Q, K + 1) and ``pred_masks`` (B, Q, h, w).
            threshold: of the probability of a query's class.
            mask_threshold: from which probability on, times the class's, a pixel is one of the query's own.
            overlap_mask_area_threshold: the share of its own pixels that a segment must be left with.
            label_ids_to_fuse: classes that are one segment wherever they are, as the sky is; it is told once, with the
                score of its first query.
            target_sizes: (height, width) of each picture, as a list or as a tensor (B, 2); the masks' own where ``None``.
        """
        segment = Segmenter(threshold, mask_threshold, overlap_mask_area_threshold, frozenset(label_ids_to_fuse or ()))
        return segment(taken(outputs, "logits"), taken(outputs, "pred_masks"), target_sizes)


def _tensors(target: Target, return_tensors: str | None) -> Target:
    """Arrays as tensors, where these are asked for; empty ones keep their type."""
    if return_tensors != "pt":
        return target
    import torch

    return {name: torch.from_numpy(value) for name, value in target.items()}


DetrImageProcessorFast = DetrImageProcessor
