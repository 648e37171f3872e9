"""ConvNeXt's image processor (Liu et al. 2022, arXiv:2201.03545), which ResNet's files name too."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from transept.config.fields import Positive
from transept.preprocess.image.arrays import MAX_PIXELS, Size, output_size
from transept.preprocess.image.base import BICUBIC, BaseImageProcessor

if TYPE_CHECKING:
    from PIL.Image import Image

_WARPED = 384  # from this size on pictures are read whole


class ConvNextImageProcessor(BaseImageProcessor):
    """Square pictures, bicubic: of 384 and more by warping, else by resizing the shorter edge and cropping the middle.

    Args:
        size: ``{"shortest_edge": side}``, the side of the square.
        crop_pct: which share of the shorter edge remains where the picture is cropped.
    """

    model_types = ("convnext", "resnet")
    default_to_square: ClassVar[bool] = False

    size: Any = field(default_factory=lambda: {"shortest_edge": 384})
    resample: int = BICUBIC
    crop_pct: Positive = 224 / 256

    def validate(self) -> None:
        super().validate()
        if self.do_resize and "shortest_edge" not in self.size:
            self.fail("size", "must hold shortest_edge, the side of the square")
        if self.size.get("shortest_edge", 0) ** 2 > MAX_PIXELS:
            self.fail("size", f"must make a square of at most {MAX_PIXELS} pixels")

    def target(self, height: int, width: int) -> Size:
        side = self.size["shortest_edge"]
        if side >= _WARPED:
            return side, side
        return output_size(height, width, {"shortest_edge": max(1, int(side / self.crop_pct))})

    def resize(self, image: Image, resample: int | None = None) -> Image:
        image, side = super().resize(image, resample), self.size["shortest_edge"]
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image if image.size == (side, side) else image.crop((left, top, left + side, top + side))

    def fixed_size(self) -> Size | None:
        side = self.size.get("shortest_edge")
        return (side, side) if self.do_resize and not self.do_center_crop else super().fixed_size()


ConvNextImageProcessorFast = ConvNextImageProcessor
