"""Backbones over pixels: what they accept, and how images become positions.

Shapes: B batch, C channels, H height, W width, T positions (patches), D hidden size.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.errors import InputError
from transept.layers.context import Context, read_mask
from transept.layers.grids import PatchEmbeddings

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
    """A network over patches of images, made by its ``embeddings``; its config has ``image_size`` and ``patch_size`` beside."""

    embeddings: PatchEmbeddings

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model was made for."""
        return pair(self.config.image_size)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return pair(self.config.patch_size)

    @property
    def prefix_tokens(self) -> int:
        """How many positions there are before the patches, such as a class token's."""
        return self.embeddings.prefix_tokens

    @property
    def reduction(self) -> int:
        """How many patches, in height and in width, one state of the last layer stands for."""
        return 1

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in an image."""
        return self.embeddings.grid(height, width)

    def embedding_table(self) -> nn.Module:
        return self.embeddings.patches

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.embeddings.patches = table  # type: ignore[assignment]

    def begin(
        self,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, Context]:
        """Embed images (B, C, H, W); an ``attention_mask`` may be (B, T), or as for text.

        The other ``inputs``, of those in ``reads``, are what ``embeddings`` takes: ``bool_masked_pos`` (B, N), which is true
        for patches that the mask token replaces, and ``interpolate_pos_encoding``, with which images may be of any size, for
        which the grid of positions is resized.

        Raises:
            InputError: images of another shape or size, a mask of another shape.
        """
        pixels = self.check_pixels(pixel_values)
        x = self.embeddings(pixels, **inputs)
        ctx = self.context(output_attentions, output_hidden_states, return_dict)
        ctx.grid = self.grid(*pixels.shape[2:])
        if attention_mask is not None:
            ctx.padding, ctx.full_mask = read_mask(attention_mask, x.shape[0], x.shape[1], x.shape[1])
        return x, ctx
