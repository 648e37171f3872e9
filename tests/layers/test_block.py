"""The standard blocks: where their norms stand, what they leave out, and which layers add to the residual stream."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.layers.attention import Attention
from transept.layers.attention.kernels import kernel_named
from transept.layers.block import Block, Parallel, PostNorm, PreNorm, adds_to_stream, standard_layers
from transept.layers.context import Context, Pattern
from transept.layers.conv import ScaledBranch
from transept.layers.mlp import MLP


def made(kind: type[Block], **settings: float) -> Block:
    torch.manual_seed(0)
    cross = Attention(8, 2, cross=True)
    return kind(Attention(8, 2), MLP(8, 16, "gelu"), lambda: nn.LayerNorm(8), cross=cross, **settings)


def by_hand(block: Block, x: Tensor, ctx: Context) -> Tensor:
    attend, feed, norms = block.self_attn, block.mlp, (block.self_attn_norm, block.mlp_norm)
    if isinstance(block, PostNorm):
        x = norms[0](x + attend(x, ctx)[0])
        return norms[1](x + feed(x))
    if isinstance(block, PreNorm):
        x = x + attend(norms[0](x), ctx)[0]
        return x + feed(norms[1](x))
    return x + attend(norms[0](x), ctx)[0] + feed(norms[1](x))


@pytest.mark.parametrize("kind", [PostNorm, PreNorm, Parallel])
def test_parts_are_put_together_as_the_name_says(kind: type[Block]) -> None:
    block, x, ctx = made(kind), torch.randn(2, 5, 8), Context(kernel=kernel_named("eager"), queries=5, keys=5)
    torch.testing.assert_close(block(x, ctx), by_hand(block, x, ctx))


class DoubledAttention(Attention):
    def whole(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor | None]:
        out, weights = super().whole(x, ctx)
        return 2 * out, weights


def test_layers_are_of_the_parts_that_a_family_passes_in() -> None:
    attention = partial(DoubledAttention, 8, 2, scale=0.25, pattern=Pattern(causal=True, window=3))
    mlp, norm = partial(MLP, 8, 24, "relu", dropout=0.2), partial(nn.LayerNorm, 8, 1e-3)
    block = partial(PreNorm, dropout=0.1, layerdrop=0.4)
    layers: Any = standard_layers(EncoderConfig(chunk_size_feed_forward=5), block, attention, mlp, norm, count=2)
    assert len(layers) == 2
    for layer in layers:
        assert isinstance(layer, PreNorm)
        assert isinstance(layer.self_attn, DoubledAttention)
        assert (layer.self_attn.scale, layer.self_attn.pattern) == (0.25, Pattern(causal=True, window=3))
        assert (layer.mlp.dropout.p, layer.mlp.chunk_size, layer.dropout.p, layer.layerdrop) == (0.2, 5, 0.1, 0.4)
        assert (layer.mlp_norm.eps, layer.cross_attn) == (1e-3, None)


def test_what_encoder_layers_would_ignore_is_refused() -> None:
    config = EncoderConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    with pytest.raises(TypeError, match="window"):
        encoder_layers(config, window=3)  # type: ignore[call-arg]
    layers = encoder_layers(config, attention=DoubledAttention)
    assert isinstance(layers[0].self_attn, DoubledAttention)
    assert encoder_layers(config, cross=6)[0].cross_attn.k_proj.in_features == 6  # type: ignore[union-attr,operator]


def test_each_part_has_its_dropout() -> None:
    both, one = made(PreNorm, dropout=0.3), made(PreNorm, dropout=0.3, mlp_dropout=0.0)
    assert (both.dropout.p, both.mlp_dropout.p) == (0.3, 0.3)
    assert (one.dropout.p, one.mlp_dropout.p) == (0.3, 0.0)


@pytest.mark.parametrize("kind", [PostNorm, PreNorm, Parallel])
def test_branches_are_scaled_before_they_are_added(kind: type[Block]) -> None:
    ctx, x = Context(kernel=kernel_named("eager"), queries=5, keys=5), torch.randn(2, 5, 8)
    block = kind(Attention(8, 2), MLP(8, 16, "gelu"), lambda: nn.LayerNorm(8), branch=lambda: ScaledBranch(8, 0.5, rate=0.5))
    for part in (block.dropout, block.mlp_dropout):
        assert isinstance(part, ScaledBranch)
        part.reset_parameters()
        assert (part.scale == 0.5).all()
    for layer in (block.self_attn.o_proj, block.mlp.down_proj):
        nn.init.zeros_(layer.bias)
    out = block.eval()(x, ctx)
    for part, layer in ((block.dropout, block.self_attn.o_proj), (block.mlp_dropout, block.mlp.down_proj)):
        part.scale, layer.weight = None, nn.Parameter(0.5 * layer.weight)
    torch.testing.assert_close(block(x, ctx), out)


def test_a_branch_is_left_out_for_whole_rows() -> None:
    torch.manual_seed(0)
    branch = ScaledBranch(4, 0.0, rate=0.25).train()
    assert branch.scale is None
    out = branch(torch.ones(4000, 3, 4))
    assert ((out == 0) | (out == 1 / 0.75)).all()
    assert (out == out[:, :1, :1]).all()
    assert out.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(branch.eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))
    assert (ScaledBranch(4, 0.0, rate=1.0).train()(torch.ones(2, 3, 4)) == 0).all()


def test_a_block_is_left_out_in_training_alone() -> None:
    block, x, ctx = made(PreNorm, layerdrop=1.0), torch.randn(1, 3, 8), Context(kernel=kernel_named("eager"), queries=3, keys=3)
    assert block(x, ctx) is x
    assert not torch.equal(block.eval()(x, ctx), x)


def test_what_adds_to_the_residual_stream() -> None:
    block = made(PostNorm)
    adders = [name for name, module in block.named_modules() if adds_to_stream(module, [nn.Identity(), block])]
    assert adders == ["self_attn.o_proj", "cross_attn.o_proj", "mlp.down_proj"]
