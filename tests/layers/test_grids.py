"""Patches as states, positions of a grid, and attention over a grid."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.attention.kernels import kernel_named
from transept.layers.context import Context
from transept.layers.grids import (
    EmbeddedGridPositions,
    GridPositions,
    MaskedPatchEmbeddings,
    PatchEmbeddings,
    Patches,
    ReducedAttention,
    WindowAttention,
    from_windows,
    learned_tokens,
    windows,
)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "picture", "grid"),
    [
        ((4, 2), None, (0, 0), (9, 7), (2, 3)),
        ((3, 3), (2, 1), (1, 1), (8, 5), (4, 5)),
        ((4, 4), (3, 2), (0, 0), (10, 8), (3, 3)),
    ],
)
def test_the_grid_is_that_of_the_patches(size, stride, padding, picture, grid) -> None:  # type: ignore[no-untyped-def]
    patches = Patches(3, 5, size, stride, padding=padding)
    assert patches.grid(*picture) == grid
    x = torch.randn(2, 3, *picture)
    assert patches(x).shape == (2, grid[0] * grid[1], 5)
    assert torch.equal(patches(x)[:, grid[1]], patches.projection(x)[:, :, 1, 0])


@pytest.mark.parametrize("kind", [GridPositions, EmbeddedGridPositions])
def test_positions_of_places_are_resized_and_those_of_tokens_are_not(kind: type[GridPositions]) -> None:
    positions = kind((2, 3), 4, first=2, resize=partial(F.interpolate, mode="nearest"))
    nn.init.normal_(next(positions.parameters()))
    own, larger = positions((2, 3)), positions((4, 6))
    assert own.shape == (1, 8, 4)
    assert torch.equal(larger[:, :2], own[:, :2])
    doubled = own[:, 2:].view(1, 2, 3, 4).repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    assert torch.equal(larger[:, 2:].view(1, 4, 6, 4), doubled)


def test_tokens_positions_and_norm_are_put_together() -> None:
    positions, norm = GridPositions((2, 2), 6, first=2, initialize=nn.init.normal_), nn.LayerNorm(6)
    tokens = {"one": nn.Parameter(torch.randn(1, 1, 6)), "two": nn.Parameter(torch.randn(6))}
    made = PatchEmbeddings(Patches(3, 6, (4, 4)), tokens=tokens, positions=positions, norm=norm, image_size=(8, 8))
    positions.reset_parameters()
    x = torch.randn(2, 3, 8, 8)
    first = torch.stack([tokens["one"][0, 0], tokens["two"]]).expand(2, -1, -1)
    assert torch.equal(made(x), norm(torch.cat([first, made.patches(x)], dim=1) + positions((2, 2))))
    assert made.prefix_tokens == 2
    with pytest.raises(InputError, match="12 x 8 pixels, but the model is made for 8 x 8"):
        made(torch.randn(2, 3, 12, 8))
    assert made(torch.randn(2, 3, 12, 8), interpolate_pos_encoding=True).shape == (2, 8, 6)
    with pytest.raises(InputError, match=r"3 x 8 pixels hold no patch of \(4, 4\)"):
        made(torch.randn(2, 3, 3, 8), True)


def test_the_mask_token_stands_for_patches() -> None:
    made = partial(MaskedPatchEmbeddings, Patches(3, 6, (4, 4)), tokens=learned_tokens(6, "cls_token"))
    plain, hiding = made(mask_token=None), made(mask_token=nn.Parameter(torch.ones(1, 6)))
    for each in (plain, hiding):
        each.reset_parameters()
    x, masked = torch.randn(2, 3, 8, 8), torch.tensor([[True, False, False, True], [False] * 4])
    found, states = hiding(x, masked), plain(x)
    assert (found[0, [1, 4]] == 0).all()
    assert torch.equal(found[1], states[1])
    assert torch.equal(found[0, [0, 2, 3]], states[0, [0, 2, 3]])
    with pytest.raises(InputError, match="no embedding for masked patches"):
        plain(x, masked)
    with pytest.raises(InputError, match=r"has the shape \(2, 3\), but must be \(2, 4\)"):
        hiding(x, masked[:, :3])


def test_a_graph_for_any_number_of_pictures() -> None:
    made = PatchEmbeddings(
        Patches(3, 6, (4, 4)), tokens=learned_tokens(6, "cls_token"), positions=GridPositions((2, 2), 6, first=1)
    )
    initialize(made)
    any_batch = {"pixel_values": {0: torch.export.Dim("batch")}, "interpolate_pos_encoding": None}
    graph = torch.export.export(made, (torch.randn(2, 3, 8, 12), None), dynamic_shapes=any_batch, strict=False).module()
    x = torch.randn(5, 3, 8, 12)
    assert torch.equal(graph(x, None), made(x))


def test_a_graph_of_windows_for_any_number_of_grids() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = WindowAttention(4, 2, 3, shift=1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, context())[0]
            return out

    whole = Whole().eval()
    initialize(whole)
    any_batch = {"x": {0: torch.export.Dim("batch")}}
    graph = torch.export.export(whole, (torch.randn(2, 6, 9, 4),), dynamic_shapes=any_batch, strict=False).module()
    x = torch.randn(5, 6, 9, 4)
    torch.testing.assert_close(graph(x), whole(x))


def initialize(model: nn.Module) -> None:
    """Random values for every parameter: those that a model initializes hold what the memory held."""
    for parameter in model.parameters():
        nn.init.normal_(parameter)


def context() -> Context:
    return Context(kernel=kernel_named("eager"))


def test_windows_are_cut_and_joined() -> None:
    x = torch.randn(2, 6, 9, 4)
    assert torch.equal(windows(x, 3)[1], x[0, :3, 3:6].flatten(0, 1))
    assert torch.equal(from_windows(windows(x, 3), 3, 6, 9), x)


@pytest.mark.parametrize(("height", "width", "shift"), [(6, 6, 0), (6, 9, 1), (5, 7, 1), (3, 9, 1)])
def test_places_see_their_window(height: int, width: int, shift: int) -> None:
    """A place sees those of its window that do not come from another end of the grid: by which inputs it depends on."""
    attention = WindowAttention(4, 2, 3, shift=shift).double().eval()
    nn.init.normal_(attention.distance_bias)
    x = torch.randn(1, height, width, 4, dtype=torch.float64, requires_grad=True)
    out: Tensor = attention(x, context())[0]
    assert out.shape == x.shape
    moved = shift if min(height, width) > 3 else 0
    for row, column in ((0, 0), (height - 1, 2), (1, width - 1)):
        (gradient,) = torch.autograd.grad(out[0, row, column].sum(), x, retain_graph=True)
        seen = gradient[0].abs().sum(-1) > 1e-12
        down, right = ((torch.arange(size) - moved) // 3 for size in (height, width))
        expected = (down[:, None] == down[row]) & (right == right[column])
        assert torch.equal(seen, expected)


def test_keys_come_from_a_smaller_grid() -> None:
    attention = ReducedAttention(4, 2, 2).eval()
    x = torch.randn(1, 4, 6, 4)
    ctx = context()
    ctx.attentions = []
    assert attention(x, ctx)[0].shape == x.shape
    assert ctx.attentions[0].shape == (1, 2, 24, 6)
    with pytest.raises(InputError, match="1 x 6 places, of which attention joins 2 x 2"):
        attention(x[:, :1], context())
