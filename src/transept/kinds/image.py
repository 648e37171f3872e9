"""Backbones over pixels: what they accept, and how images become positions.

Shapes: B batch, C channels, H height, W width, T positions (patches), D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.config.model import Config
from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.errors import InputError

_PROCESS = 'Use the image processor of this model: processor(images, return_tensors="pt").'


def pair(size: int | list[int]) -> tuple[int, int]:
    """(height, width) of a size that a config gives as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def check_patches(config: Config) -> None:
    """Refuse an ``image_size`` or ``patch_size`` that is no size, and patches that do not fit into images (``ConfigError``)."""
    for name in ("image_size", "patch_size"):
        size = getattr(config, name)
        if isinstance(size, list) and len(size) != 2:
            config.fail(name, "must be one number or [height, width]")
    for image, patch in zip(pair(config.image_size), pair(config.patch_size), strict=True):
        if not 1 <= patch <= image <= 2**16:
            config.fail("patch_size", f"must fit into `image_size` ({config.image_size})")


def check_images(pixels: Tensor | None, channels: int, dtype: torch.dtype) -> Tensor:
    """Images (B, C, H, W) of so many channels, checked, in a model's type."""
    pixels = check_tensor("pixel_values", pixels, (), "(batch, channels, height, width)", _PROCESS)
    if pixels.shape[1] != channels:
        what = f"`pixel_values` has {pixels.shape[1]} channels, but the model takes {channels}."
        raise InputError(what, hint=_PROCESS)
    if 0 in pixels.shape:
        raise InputError(f"`pixel_values` is empty: its shape is {tuple(pixels.shape)}.", hint="Leave empty batches out.")
    check_finite(pixels, "pixel_values")
    return pixels.to(dtype)


class ImageBackbone(Backbone):
    """A network over images; its config has ``num_channels``."""

    reads: ClassVar[tuple[str, ...]] = ("pixel_values", "labels")

    def check_pixels(self, pixels: Tensor | None) -> Tensor:
        """Images (B, C, H, W) in the model's type, checked."""
        return check_images(pixels, self.config.num_channels, self.dtype)


class PatchBackbone(ImageBackbone):
    """A network over patches of images; its config has ``image_size`` and ``patch_size`` beside.

    ``prefix_tokens`` is the number of positions before the patches, such as a class token.
    """

    prefix_tokens: ClassVar[int] = 1
    table_name = "embed_patches"
    mask_token: nn.Parameter | None

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

    def check_size(self, pixels: Tensor, any_size: bool) -> Tensor:
        """The images, which must have the model's size, or with ``any_size`` at least that of a patch."""
        height, width = pixels.shape[2:]
        if not any_size and (height, width) != self.image_size:
            made = f"the model is made for {self.image_size[0]} x {self.image_size[1]}"
            what = f"`pixel_values` are images of {height} x {width} pixels, but {made}."
            raise InputError(what, hint="Resize them, or pass interpolate_pos_encoding=True.")
        if 0 in self.grid(height, width):
            raise InputError(f"images of {height} x {width} pixels hold no patch of {self.patch_size}.", hint="Enlarge them.")
        return pixels

    @property
    def reduction(self) -> int:
        """How many patches, in height and in width, one state of the last layer stands for."""
        return 1

    def hide(self, x: Tensor, masked: Tensor) -> Tensor:
        """States (B, T, D) of patches, with the mask token in the place of those where ``masked`` (B, T) is true."""
        if self.mask_token is None:
            name = type(self).__name__
            hint = f"Use {name.removesuffix('Model')}ForMaskedImageModeling, or pass use_mask_token=True to the model's class."
            hint = "Set `use_mask_token` in its config." if hasattr(self.config, "use_mask_token") else hint
            raise InputError(f"this {name} has no embedding for masked patches.", hint=hint)
        if masked.shape != x.shape[:2]:
            raise InputError(f"`bool_masked_pos` has the shape {tuple(masked.shape)}, but must be {tuple(x.shape[:2])}.")
        return torch.where((masked != 0)[:, :, None], self.mask_token, x)


def resized_positions(
    table: Tensor, first: int, old: Sequence[int], new: Sequence[int], mode: str = "bicubic", antialias: bool = False
) -> Tensor:
    """Learned positions (1, first + rows * columns, D) for another grid, by interpolation of all but the first ones."""
    if tuple(old) == tuple(new):
        return table
    patches = table[:, first:].view(1, *old, -1).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, size=tuple(new), mode=mode, align_corners=False, antialias=antialias)
    return torch.cat([table[:, :first], patches.flatten(2).transpose(1, 2)], dim=1)
