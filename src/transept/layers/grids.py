"""Patches of pictures as states, with tokens before them and positions of a grid, and attention over a grid.

Shapes: B batch, C channels, H height, W width (of a picture or a grid), N patches or windows, T positions (tokens and patches),
D hidden size, w side of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.attention import Attention
from transept.layers.context import Attended, Context
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
        tokens = [getattr(self, name).expand(x.shape[0], 1, -1) for name in self.tokens]
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


def windows(x: Tensor, side: int) -> Tensor:
    """A grid (B, H, W, D), whose sides are multiples of w, as windows (B * N, w * w, D)."""
    b, h, w, d = x.shape
    return x.view(b, h // side, side, w // side, side, d).transpose(2, 3).reshape(-1, side * side, d)


def from_windows(x: Tensor, side: int, height: int, width: int) -> Tensor:
    """Windows (B * N, w * w, D) as the grid (B, H, W, D) again."""
    x = x.view(-1, height // side, width // side, side, side, x.shape[-1])
    return x.transpose(2, 3).reshape(-1, height, width, x.shape[-1])


class GridAttention(Attention):
    """Attention over a grid, (B, H, W, D) -> (B, H, W, D), for the blocks that sequences have.

    Subclasses say what each place sees. ``out_dropout`` is the dropout after the output projection.
    """

    def __init__(self, dim: int, heads: int, *, out_dropout: float = 0.0, **settings: Any) -> None:
        super().__init__(dim, heads, **settings)
        self.out_dropout = nn.Dropout(out_dropout)

    def gather(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ctx: Context) -> Attended:
        """(B, T, D) and weights, for queries, keys and values of heads and a mask that is added to the scores."""
        out, weights = self.attend(q, k, v, mask, False, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights)
        return self.out_dropout(self.o_proj(out.transpose(1, 2).flatten(2))), weights


class WindowAttention(GridAttention):
    """Attention within windows of a grid, with a learned bias for each distance of rows and columns (Liu et al. 2021).

    Args:
        dim, heads: D and H.
        side: w; grids are padded to whole windows.
        shift: by how many rows and columns windows are shifted; states of a window that come from different ends of the grid
            do not see each other.
        settings: those of :class:`GridAttention`.
    """

    def __init__(self, dim: int, heads: int, side: int, *, shift: int = 0, **settings: Any) -> None:
        super().__init__(dim, heads, **settings)
        self.side, self.shift = side, shift
        self.distance_bias = nn.Parameter(torch.empty((2 * side - 1) ** 2, heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.distance_bias)

    def shift_for(self, height: int, width: int, ctx: Context) -> int:
        """The shift over a grid of H x W: none where one window is as high or as wide."""
        return self.shift if min(height, width) > self.side else 0

    def whole(self, x: Tensor, ctx: Context) -> Attended:
        height, width = x.shape[1:3]
        side, shift = self.side, self.shift_for(height, width, ctx)
        x = F.pad(x, (0, 0, 0, -width % side, 0, -height % side))
        rows, columns = x.shape[1:3]
        mask = self.bias()[None]
        if shift:
            mask = (mask + self.between_ends(rows, columns, shift, x)[:, None]).repeat(x.shape[0], 1, 1, 1)
        q, k, v = self.project(windows(x.roll((-shift, -shift), (1, 2)), side))
        out, weights = self.gather(q, k, v, mask, ctx)
        return from_windows(out, side, rows, columns).roll((shift, shift), (1, 2))[:, :height, :width], weights

    def bias(self) -> Tensor:
        """(heads, w * w, w * w)."""
        place = torch.arange(self.side, device=self.distance_bias.device)
        apart = place[:, None] - place + self.side - 1  # (w, w), of rows as of columns
        index = apart[:, None, :, None] * (2 * self.side - 1) + apart[None, :, None, :]
        return self.distance_bias[index.flatten()].view(self.side**2, self.side**2, -1).permute(2, 0, 1)

    def between_ends(self, rows: int, columns: int, shift: int, x: Tensor) -> Tensor:
        """(N, w * w, w * w): -100 between states of a window that come from different ends of the grid, else 0."""
        regions = []
        for size in (rows, columns):
            place = torch.arange(size, device=x.device)
            regions.append((place >= size - self.side).to(x.dtype) + (place >= size - shift).to(x.dtype))
        region = windows((regions[0][:, None] * 3 + regions[1])[None, :, :, None], self.side)[..., 0]
        return torch.where(region[:, None] == region[:, :, None], 0.0, -100.0).to(x.dtype)


class ReducedAttention(GridAttention):
    """Attention whose keys and values come from a grid that a convolution has made smaller (Wang et al. 2021).

    ``ratio`` rows and as many columns are made one, which is then normed.
    """

    def __init__(self, dim: int, heads: int, ratio: int, **settings: Any) -> None:
        super().__init__(dim, heads, **settings)
        self.reduce = nn.Conv2d(dim, dim, ratio, ratio) if ratio > 1 else None
        self.reduce_norm = nn.LayerNorm(dim) if ratio > 1 else None

    def whole(self, x: Tensor, ctx: Context) -> Attended:
        keys = x
        if self.reduce is not None and self.reduce_norm is not None:
            height, width, ratio = *x.shape[1:3], self.reduce.stride[0]
            if min(height, width) < ratio:
                wrong = f"the images are so small that a stage has {height} x {width} places, of which attention joins"
                raise InputError(f"{wrong} {ratio} x {ratio}.", hint="Enlarge them.")
            keys = self.reduce_norm(self.reduce(x.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2))
        q, k, v = self.q_proj(x), self.k_proj(keys), self.v_proj(keys)
        q, k, v = (self.split(each.flatten(1, -2)) for each in (q, k, v))
        out, weights = self.gather(q, k, v, None, ctx)
        return out.view(x.shape), weights
