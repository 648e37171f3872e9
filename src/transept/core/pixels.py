"""Backbones over pixels: what they accept, and how images become positions.

Shapes: B batch, C channels, H height, W width, T positions (patches), D hidden size.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.errors import InputError


def pair(size: int | list[int]) -> tuple[int, int]:
    """(height, width) of a size that a config gives as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class ImageBackbone(Backbone):
    """A network over patches of images; its config has ``image_size``, ``patch_size`` and ``num_channels``.

    ``prefix_tokens`` is the number of positions before the patches, such as a class token.
    """

    prefix_tokens: ClassVar[int] = 1
    table_name = "embed_patches"

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model was made for."""
        return pair(self.config.image_size)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return pair(self.config.patch_size)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in an image."""
        return height // self.patch_size[0], width // self.patch_size[1]

    def check_pixels(self, pixels: Tensor | None, any_size: bool) -> Tensor:
        """Images (B, C, H, W) in the model's type, checked; with ``any_size`` they may be of another size than the model's."""
        hint = 'Use the image processor of this model: processor(images, return_tensors="pt").'
        pixels = check_tensor("pixel_values", pixels, (), "(batch, channels, height, width)", hint)
        channels, height, width = pixels.shape[1:]
        if channels != (wanted := self.config.num_channels):
            raise InputError(f"`pixel_values` has {channels} channels, but the model takes {wanted}.", hint=hint)
        if not any_size and (height, width) != self.image_size:
            made = f"the model is made for {self.image_size[0]} x {self.image_size[1]}"
            what = f"`pixel_values` are images of {height} x {width} pixels, but {made}."
            raise InputError(what, hint="Resize them, or pass interpolate_pos_encoding=True.")
        if 0 in self.grid(height, width):
            raise InputError(f"images of {height} x {width} pixels hold no patch of {self.patch_size}.", hint="Enlarge them.")
        check_finite(pixels, "pixel_values")
        return pixels.to(self.dtype)
