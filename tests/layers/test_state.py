"""The scan and the convolution of state-space layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transept.layers.recurrent import causal_conv, gated_delta_scan, linear_scan, selective_scan, state_space_scan


def parts(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    x, step, decay = draw(2, length, 5), draw(2, length, 5).exp(), -draw(5, 3).exp()
    return x, step, decay, draw(2, length, 3), draw(2, length, 3)


def by_hand(x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(x.shape[1]):
        factor = torch.exp(step[:, t, :, None] * decay)
        state = factor * state + step[:, t, :, None] * x[:, t, :, None] * write[:, t, None, :]
        outputs.append(torch.einsum("bcn,bn->bc", state, read[:, t]))
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 50])
def test_the_scan_is_the_recurrence(length: int) -> None:
    given, start = parts(length), torch.randn(2, 5, 3, dtype=torch.float64)
    for state in (None, start):
        expected = by_hand(*given, torch.zeros_like(start) if state is None else state)
        for mine, other in zip(selective_scan(*given, state), expected, strict=True):
            torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scanned_in_float32(dtype: torch.dtype) -> None:
    x, step, decay, write, read = parts(40, dtype)
    y, state = selective_scan(x, step, decay, write, read)
    wide = selective_scan(x.float(), step.float(), decay.float(), write.float(), read.float())
    assert y.dtype == state.dtype == torch.float32
    assert torch.equal(y, wide[0])


def test_gradients_of_the_scan_are_right() -> None:
    given = tuple(part.requires_grad_() for part in parts(18))
    assert torch.autograd.gradcheck(selective_scan, (*given, torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)))


def test_large_steps_forget_and_stay_finite() -> None:
    x, step, decay, write, read = parts(20, torch.float32)
    y, state = selective_scan(x, step * 1e6, decay, write, read)
    assert torch.isfinite(y).all()
    torch.testing.assert_close(state, step[:, -1, :, None] * 1e6 * x[:, -1, :, None] * write[:, -1, None, :])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_convolutions_go_on_where_they_stopped(width: int) -> None:
    x, weight, bias = torch.randn(2, 5, 9), torch.randn(5, 1, width), torch.randn(5)
    whole, last = causal_conv(x, weight, bias)
    expected = torch.stack([(x[:, :, max(t - width + 1, 0) : t + 1] * weight[:, 0, -(t + 1) :]).sum(2) for t in range(9)], 2)
    torch.testing.assert_close(whole, expected + bias[:, None])
    assert last.shape == (2, 5, width - 1)
    kept, pieces = None, []
    for piece in x.split([1, 2, 6], dim=2):
        out, kept = causal_conv(piece, weight, bias, kept)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole)
    assert torch.equal(kept if kept is not None else last[:, :, :0], last)


def by_heads(x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    write, read = (part.repeat_interleave(x.shape[2] // write.shape[2], dim=2) for part in (write, read))
    outputs = []
    for t in range(x.shape[1]):
        factor = torch.exp(step[:, t] * decay)[..., None, None]
        state = factor * state + (step[:, t, :, None] * x[:, t])[..., None] * write[:, t, :, None]
        outputs.append((state * read[:, t, :, None]).sum(-1))
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_scan_by_heads_is_the_recurrence_in_any_pieces(length: int) -> None:
    torch.manual_seed(length)
    x, step, decay = torch.randn(2, length, 6, 5).double(), torch.rand(2, length, 6).double(), -torch.rand(6).double() * 30
    write, read, start = (
        torch.randn(2, length, 2, 3).double(),
        torch.randn(2, length, 2, 3).double(),
        torch.randn(2, 6, 5, 3).double(),
    )
    for state in (None, start):
        expected = by_heads(x, step, decay, write, read, torch.zeros_like(start) if state is None else state)
        found = state_space_scan(x, step, decay, write, read, state)
        torch.testing.assert_close(found, expected)
        cut = length // 3
        if cut:
            _, state = state_space_scan(x[:, :cut], step[:, :cut], decay, write[:, :cut], read[:, :cut], state)
            _, state = state_space_scan(x[:, cut:], step[:, cut:], decay, write[:, cut:], read[:, cut:], state)
            torch.testing.assert_close(state, expected[1])


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_gated_delta_rule_learns_what_keys_give_in_any_pieces(length: int) -> None:
    torch.manual_seed(length)
    q, k = (torch.nn.functional.normalize(torch.randn(2, length, 2, 5).double(), dim=-1) for _ in range(2))
    v, logs, share = (
        torch.randn(2, length, 4, 3).double(),
        -torch.rand(2, length, 4).double() * 5,
        torch.rand(2, length, 4).double(),
    )
    start, outputs = torch.randn(2, 4, 5, 3).double(), []
    state = start
    for t in range(length):
        key, query = (part[:, t].repeat_interleave(2, dim=1) for part in (k, q))
        state = state * logs[:, t].exp()[..., None, None]
        missing = v[:, t] - torch.einsum("bhn,bhnp->bhp", key, state)
        state = state + torch.einsum("bhn,bhp->bhnp", key, missing * share[:, t, :, None])
        outputs.append(torch.einsum("bhn,bhnp->bhp", query, state))
    torch.testing.assert_close(gated_delta_scan(q, k, v, logs, share, start), (torch.stack(outputs, dim=1), state))
    if cut := length // 3:
        pieces = [[part[:, a:b] for part in (q, k, v, logs, share)] for a, b in ((0, cut), (cut, length))]
        _, between = gated_delta_scan(*pieces[0], start)
        torch.testing.assert_close(gated_delta_scan(*pieces[1], between)[1], state)


@pytest.mark.parametrize("length", [1, 2, 5, 64, 77])
def test_the_linear_scan_is_the_recurrence(length: int) -> None:
    torch.manual_seed(length)
    x, factor, start = torch.randn(2, length, 5).double(), torch.rand(2, length, 5).double(), torch.randn(2, 5).double()
    outputs, state = [], start
    for t in range(length):
        state = factor[:, t] * state + x[:, t]
        outputs.append(state)
    torch.testing.assert_close(linear_scan(x, factor, start), (torch.stack(outputs, dim=1), state))
