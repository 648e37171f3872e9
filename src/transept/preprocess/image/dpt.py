"""DPT's image processor (Ranftl et al. 2021, arXiv:2103.13413), which Depth Anything uses too."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.config.fields import Count
from transept.preprocess.image.answers import depth_maps, taken
from transept.preprocess.image.arrays import Size, checked_target
from transept.preprocess.image.base import BICUBIC
from transept.preprocess.image.label_maps import SegmentationImageProcessor


class DPTImageProcessor(SegmentationImageProcessor):
    """Bicubic to 384 x 384, or near to it in the picture's own shape; mean and standard deviation of one half.

    Args:
        keep_aspect_ratio: scale both sides alike, by that side's scale which is nearer to 1.
        ensure_multiple_of: both sides are rounded to multiples of it, half to even.
        do_pad, size_divisor: whether to pad with zeros to multiples of ``size_divisor``: half before, the rest after.
    """

    model_types = ("depth_anything", "dpt")

    size: Any = field(default_factory=lambda: {"height": 384, "width": 384})
    resample: int = BICUBIC
    do_pad: bool | None = False
    keep_aspect_ratio: bool | None = False
    ensure_multiple_of: Count = 1
    size_divisor: Count | None = None

    def validate(self) -> None:
        super().validate()
        if self.do_resize and "height" not in self.size:
            self.fail("size", "must hold height and width")

    def target(self, height: int, width: int) -> Size:
        scales = self.size["height"] / height, self.size["width"] / width
        if self.keep_aspect_ratio:
            scales = (min(scales, key=lambda scale: abs(1 - scale)),) * 2
        step = self.ensure_multiple_of
        sides = [round(scale * side / step) * step for scale, side in zip(scales, (height, width), strict=True)]
        return checked_target((height, width), (sides[0], sides[1]), step)

    def fixed_size(self) -> Size | None:
        varies = self.keep_aspect_ratio or any(side % self.ensure_multiple_of for side in self.size.values())
        return None if varies and self.do_resize and not self.do_center_crop else super().fixed_size()

    def canvas(self, size: Size, largest: Size) -> tuple[Size, Size]:
        if self.size_divisor is None:
            return size, (0, 0)
        height, width = (-(-side // self.size_divisor) * self.size_divisor for side in size)
        return (height, width), ((height - size[0]) // 2, (width - size[1]) // 2)

    def post_process_depth_estimation(self, outputs: Any, target_sizes: Any = None) -> list[dict[str, Any]]:
        """``predicted_depth`` (B, h, w) as a mapping with ``predicted_depth`` (height, width) for each picture.

        Args:
            outputs: what the model returned.
            target_sizes: (height, width) of each picture, to which depths are resized (bicubic), as a list or as a tensor
                (B, 2); depths keep their size where it is ``None``.
        """
        return depth_maps(taken(outputs, "predicted_depth"), target_sizes)


DPTImageProcessorFast = DPTImageProcessor
