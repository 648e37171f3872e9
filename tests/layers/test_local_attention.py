"""Attention in a window, and of tokens that all see, beside the reference's modules and a mask over all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transept.layers.attention.kernels import eager, sdpa
from transept.layers.attention.local import GlobalTokens, SlidingAttention, in_blocks, out_of_blocks
from transept.layers.context import Context, Pattern

B, T, D, H, REACH = 2, 12, 16, 2, 3
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
GLOBALS = {f"{name}_global": f"global_{own}" for name, own in PROJECTIONS.items()}


@pytest.fixture
def attention() -> SlidingAttention:
    torch.manual_seed(0)
    made = SlidingAttention(D, H, pattern=Pattern(window=REACH + 1)).double().eval()
    nn.init.eye_(made.o_proj.weight)
    nn.init.zeros_(made.o_proj.bias)
    return made


def _inputs(length: int = T) -> tuple[Tensor, Tensor, Tensor]:
    """States, which are real, and which have global attention."""
    x = torch.randn(B, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    real, chosen = torch.ones(B, length, dtype=torch.bool), torch.zeros(B, length, dtype=torch.bool)
    real[1, length - 2 :], chosen[0, [0, length - 1]], chosen[1, 1:3] = False, True, True
    return x, real, chosen


def _context(real: Tensor | None, chosen: Tensor | None, length: int, shown: bool = False) -> Context[Any]:
    ctx: Context[Any] = Context(eager if shown else sdpa, queries=length, keys=length, padding=real)
    ctx.own = None if chosen is None else GlobalTokens.of(chosen, real)
    ctx.attentions = [] if shown else None
    return ctx


def test_blocks_and_back() -> None:
    x = torch.arange(2 * 3 * 7 * 2).view(2, 3, 7, 2)
    assert torch.equal(out_of_blocks(in_blocks(x, 3), 2, 7), x)
    first, second, third = in_blocks(x[:1], 3, 1)[:, 0, :, 0]
    assert first.tolist() == [0, 0, 0, 0, 2, 4, 6, 8, 10]
    assert second.tolist() == [0, 2, 4, 6, 8, 10, 12, 0, 0]
    assert third.tolist() == [6, 8, 10, 12, 0, 0, 0, 0, 0]


@pytest.mark.reference
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_equals_the_reference(attention: SlidingAttention, padded: bool, some: bool) -> None:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(hidden_size=D, num_attention_heads=H, attention_window=[2 * REACH], num_hidden_layers=1)
    theirs = LongformerSelfAttention(config, 0).double().eval()
    for name, own in (PROJECTIONS | GLOBALS).items():
        getattr(theirs, name).load_state_dict(getattr(attention, own).state_dict())
    x, real, chosen = _inputs()
    real, chosen = real if padded else torch.ones_like(real), chosen if some else torch.zeros_like(chosen)
    mask = torch.where(real, chosen.double(), -1.0) * 10000
    seen = {"is_index_masked": ~real, "is_index_global_attn": chosen, "is_global_attn": some, "output_attentions": True}
    out, *weights = theirs(x, mask, **seen)
    ctx = _context(real if padded else None, chosen, T, shown=True)
    torch.testing.assert_close(attention(x, ctx)[0], out, rtol=1e-6, atol=1e-6)  # its softmax is of float32
    assert ctx.attentions is not None
    torch.testing.assert_close(ctx.attentions[0].transpose(1, 2), weights[0], rtol=1e-6, atol=1e-6)
    if some:
        torch.testing.assert_close(ctx.own.attentions[0].transpose(2, 3), weights[1], rtol=1e-6, atol=1e-6)
    fast = attention(x, _context(real if padded else None, chosen, T))[0]
    torch.testing.assert_close(fast, out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [2, 3, 4, 7, 13])
def test_equals_a_mask_over_all_pairs(attention: SlidingAttention, length: int) -> None:
    x, real, chosen = _inputs(length)
    real[1] = True
    chosen[1] = torch.arange(length) == 1  # and two in the first row
    apart = (torch.arange(length) - torch.arange(length)[:, None]).abs()
    q, k, v = attention.project(x)
    dense = sdpa(q, k, v, (apart <= REACH) | chosen[:, None, None], False, attention.scale, 0.0)[0]
    q, k, v = (
        attention.split(layer(x)) for layer in (attention.global_q_proj, attention.global_k_proj, attention.global_v_proj)
    )
    wide = sdpa(q, k, v, None, False, attention.scale, 0.0)[0]
    expected = torch.where(chosen[:, None, :, None], wide, dense).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x, _context(None, chosen, length))[0], expected)


def test_compiles_whole(attention: SlidingAttention) -> None:
    x, _, chosen = _inputs(7)
    found = torch.compile(lambda x, chosen: attention(x, _context(None, chosen, 7))[0], fullgraph=True, backend="eager")
    torch.testing.assert_close(found(x, chosen), attention(x, _context(None, chosen, 7))[0])
