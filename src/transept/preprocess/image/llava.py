"""LLaVA's image processor (Liu et al. 2023, arXiv:2304.08485)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transept.errors import InputError
from transept.preprocess.features import needed
from transept.preprocess.image.arrays import MAX_PIXELS
from transept.preprocess.image.clip import BitImageProcessor

if TYPE_CHECKING:
    from PIL.Image import Image


class LlavaImageProcessor(BitImageProcessor):
    """As CLIP's: RGB, the shorter edge bicubic to 224, cropped to 224 x 224.

    With ``do_pad`` pictures are first padded to a square in the mean colour, with the picture in the middle.
    """

    model_types = ("llava",)

    do_pad: bool | None = False

    def _image(self, image: Image) -> Image:
        return super()._image(self._squared(image) if self.do_pad else image)

    def canvases(self, sizes: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [(size, (0, 0)) for size in sizes]  # padding comes first

    def _squared(self, image: Image) -> Image:
        side = max(image.size)
        if image.width == image.height:
            return image
        if side**2 > MAX_PIXELS:
            wrong = f"padding makes an image of {side} x {side} pixels, more than the {MAX_PIXELS} allowed."
            raise InputError(wrong, hint="Crop it, or cut it into pieces.")
        from transept.preprocess.media import to_rgb

        image = to_rgb(image, "white" if self.do_convert_rgb else "drop")
        mean = self.image_mean if isinstance(self.image_mean, list) else [self.image_mean] * 3
        pillow = needed("PIL.Image", "pillow", "vision", "Preparing images")
        square: Image = pillow.new("RGB", (side, side), tuple(min(max(int(level * 255), 0), 255) for level in mean))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square


LlavaImageProcessorFast = LlavaImageProcessor
