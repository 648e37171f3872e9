"""Patches of pictures as states: their projection, the tokens before them, and the positions of a grid.

Shapes: B batch, C channels, H height, W width, N patches, T positions (tokens and patches), D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.conv import conv_length
from transept.layers.links import Linked

bicubic = partial(F.interpolate, mode="bicubic", align_corners=False)


class Patches(Linked):
    """One state for each patch of a picture; what remains at the right and at the bottom is left out.

    Args:
        channels, dim: C and D.
        size: height and width of a patch.
        stride: how far apart patches begin, downwards and to the right; as far as they are large, when absent.
        padding: rows and columns of zeros around the picture.
        bias: whether the projection has one.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        size: tuple[int, int],
        stride: tuple[int, int] | None = None,
        *,
        padding: tuple[int, int] = (0, 0),
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.size, self.stride, self.padding, self.dim = size, stride or size, padding, dim
        self.projection = nn.Conv2d(channels, dim, size, self.stride, padding, bias=bias)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        out: Tensor = self.projection(pixel_values).flatten(2).transpose(1, 2)
        return out

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in a picture of H x W."""
        sizes = zip((height, width), self.size, self.stride, self.padding, strict=True)
        rows, columns = (conv_length(*each) for each in sizes)
        return rows, columns


class GridPositions(Linked):
    """A learned vector for each of some tokens and each place of a grid; for other grids the places are resized.

    Args:
        grid: rows and columns.
        dim: D.
        first: how many tokens there are.
        resize: makes maps (1, D, rows, columns) of another ``size``.
        initialize: fills the table.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        first: int = 0,
        resize: Callable[..., Tensor] = bicubic,
        initialize: Callable[[Tensor], Any] = nn.init.zeros_,
    ) -> None:
        super().__init__()
        self.grid, self.first, self.resize, self.initialize = grid, first, resize, initialize
        self.table = self.make_table(first + grid[0] * grid[1], dim)

    def make_table(self, count: int, dim: int) -> Any:
        return nn.Parameter(torch.empty(1, count, dim))

    def reset_parameters(self) -> None:
        self.initialize(self.table)

    def vectors(self) -> Tensor:
        """(1, T, D)."""
        table: Tensor = self.table
        return table

    def forward(self, grid: Sequence[int]) -> Tensor:
        """(1, T, D) for a grid."""
        table = self.vectors()
        if tuple(grid) == self.grid:
            return table
        maps = self.resize(table[:, self.first :].view(1, *self.grid, -1).permute(0, 3, 1, 2), size=tuple(grid))
        return torch.cat([table[:, : self.first], maps.flatten(2).transpose(1, 2)], dim=1)


class EmbeddedGridPositions(GridPositions):
    """The same, where the vectors are the weight of an embedding."""

    def make_table(self, count: int, dim: int) -> Any:
        return nn.Embedding(count, dim)

    def vectors(self) -> Tensor:
        weight: Tensor = self.table.weight
        return weight[None]


def learned_tokens(dim: int, *names: str) -> dict[str, nn.Parameter]:
    """Parameters (1, 1, D) of these names."""
    return {name: nn.Parameter(torch.empty(1, 1, dim)) for name in names}


class PatchEmbeddings(Linked):
    """The states that go into the first layer of a network over patches (Dosovitskiy et al. 2021).

    Args:
        patches: makes states (B, N, D) of pictures, and tells their grid, as :class:`Patches` does.
        tokens: parameters, (1, 1, D) or (D), that stand before the patches, by their names.
        positions: gives (1, T, D) for a grid, as :class:`GridPositions` does; nothing is added where it is ``None``.
        norm: the norm of the sum, where there is one.
        dropout: share of the numbers that are dropped in training.
        image_size: H and W of the pictures that positions were learned for, where others are taken on request alone.
        initialize: fills the tokens.
    """

    def __init__(
        self,
        patches: Patches,
        *,
        tokens: Mapping[str, nn.Parameter] | None = None,
        positions: nn.Module | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        image_size: tuple[int, int] | None = None,
        initialize: Callable[[Tensor], Any] = nn.init.zeros_,
    ) -> None:
        super().__init__()
        self.tokens, self.image_size, self.initialize = tuple(tokens or ()), image_size, initialize
        for name, token in (tokens or {}).items():
            self.register_parameter(name, token)
        self.patches, self.positions, self.norm, self.dropout = patches, positions, norm, nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        for name in self.tokens:
            self.initialize(getattr(self, name))

    @property
    def prefix_tokens(self) -> int:
        """How many positions there are before the patches."""
        return len(self.tokens)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in a picture of H x W."""
        return self.patches.grid(height, width)

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool | None = None) -> Tensor:
        """(B, C, H, W) -> (B, T, D); with ``interpolate_pos_encoding`` pictures may be of any size.

        Raises:
            InputError: pictures of another size than the network takes, or smaller than a patch.
        """
        grid = self.grid_of(pixel_values, interpolate_pos_encoding)
        return self.dropout(self.embed(self.patches(pixel_values), grid))

    def grid_of(self, pixels: Tensor, any_size: bool | None) -> tuple[int, int]:
        """Rows and columns of patches in pictures, whose size is checked."""
        height, width = pixels.shape[-2:]
        if self.image_size is not None and not any_size and (height, width) != self.image_size:
            made = f"the model is made for {self.image_size[0]} x {self.image_size[1]}"
            what = f"`pixel_values` are images of {height} x {width} pixels, but {made}."
            raise InputError(what, hint="Resize them, or pass interpolate_pos_encoding=True.")
        grid = self.grid(height, width)
        if min(grid) < 1:
            raise InputError(f"images of {height} x {width} pixels hold no patch of {self.patches.size}.", hint="Enlarge them.")
        return grid

    def embed(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """States (B, N, D) of patches -> (B, T, D): tokens before them, positions, and a norm."""
        tokens = [getattr(self, name).expand(len(x), 1, -1) for name in self.tokens]
        x = torch.cat([*tokens, x], dim=1) if tokens else x
        x = x if self.positions is None else x + self.positions(grid)
        return x if self.norm is None else self.norm(x)


class MaskedPatchEmbeddings(PatchEmbeddings):
    """The same, where a learned ``mask_token``, if there is one, can stand in the place of patches."""

    def __init__(self, patches: Patches, *, mask_token: nn.Parameter | None, **parts: Any) -> None:
        super().__init__(patches, **parts)
        self.mask_token = mask_token

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.mask_token is not None:
            nn.init.zeros_(self.mask_token)

    def forward(  # type: ignore[override]
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
    ) -> Tensor:
        """(B, C, H, W) -> (B, T, D), where ``bool_masked_pos`` (B, N) is true with the mask token in the place of the patch.

        Raises:
            InputError: pictures of another size; a mask of another shape, or for a network without a mask token.
        """
        grid = self.grid_of(pixel_values, interpolate_pos_encoding)
        x = self.patches(pixel_values)
        x = x if bool_masked_pos is None else self.hide(x, bool_masked_pos)
        return self.dropout(self.embed(x, grid))

    def hide(self, x: Tensor, masked: Tensor) -> Tensor:
        """States (B, N, D) of patches, with the mask token in the place of those where ``masked`` (B, N) is true."""
        if self.mask_token is None:
            hint = "Set `use_mask_token` in the config, or pass use_mask_token=True to the model's class."
            raise InputError("there is no embedding for masked patches.", hint=hint)
        if masked.shape != x.shape[:2]:
            raise InputError(f"`bool_masked_pos` has the shape {tuple(masked.shape)}, but must be {tuple(x.shape[:2])}.")
        return torch.where((masked != 0)[:, :, None], self.mask_token, x)
