"""LongT5 (Guo et al. 2022): T5 for long texts, whose encoder's positions see near ones, and sums of blocks of all positions.

With ``encoder_attention_type="local"`` they see near ones alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from transept.checkpoint.keys import Table
from transept.config.fields import Count
from transept.config.model import Config
from transept.errors import InputError
from transept.layers import Context, Pattern
from transept.layers.attention.local import for_blocks, in_blocks, near, out_of_blocks
from transept.layers.context import Attended
from transept.layers.positions import distance_buckets
from transept.models.t5 import (
    ScaledGeneration,
    T5Attention,
    T5Block,
    T5Config,
    T5Decoder,
    T5Encoder,
    T5EncoderModel,
    T5Model,
    T5Norm,
)


class LongT5Config(T5Config):
    """Settings of LongT5; the defaults are those of a model as large as t5-small.

    Positions of the encoder see those at most ``local_radius`` away. With ``transient-global`` attention they also see sums of
    ``global_block_size`` positions each.
    """

    model_type = "longt5"

    local_radius: Count = 127
    global_block_size: Count = 16
    encoder_attention_type: Literal["local", "transient-global"] = "local"


@dataclass(eq=False)
class Surroundings:
    """What positions of the encoder see, which is the same in all layers."""

    bias: Tensor  # (B * N, H, size, keys): for distances, and the lowest number for what is not seen
    blocks: Tensor | None = None  # (B, T) numbers of the blocks that positions are summed with, below 0 for none; G of them
    count: int = 0  # G


class LocalAttention(T5Attention):
    """Attention to near positions and, with ``global_norm``, to the normed sums of blocks.

    Weights that are shown are those of blocks, (B, N, H, size, keys).
    """

    is_prepared, heads_apart = True, False

    def gathered(self, x: Tensor, ctx: Context[Surroundings]) -> Attended:
        batch, length, size = *x.shape[:2], self.pattern.window or 1
        q, k, v = self.project(x)
        blocks, keys, values = in_blocks(q, size), in_blocks(k, size, 1), in_blocks(v, size, 1)
        if ctx.own.count:
            sums, count = self.global_norm(self.sums(x, ctx.own)), len(blocks) // batch
            keys = torch.cat([keys, for_blocks(self.split(self.k_proj(sums)), count)], dim=2)
            values = torch.cat([values, for_blocks(self.split(self.v_proj(sums)), count)], dim=2)
        out, weights = self.attend(blocks, keys, values, ctx.own.bias, False, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights.reshape(batch, -1, *weights.shape[1:]))
        return ctx.keep(out_of_blocks(out, batch, length).transpose(1, 2).flatten(2)), None

    def sums(self, x: Tensor, own: Surroundings) -> Tensor:
        """(B, T, D) -> (B, G, D): the sum of each block."""
        assert own.blocks is not None
        places = torch.where(own.blocks < 0, own.count, own.blocks)[..., None].expand_as(x)
        return x.new_zeros(len(x), own.count + 1, x.shape[2]).scatter_add(1, places, x)[:, : own.count]


class LongT5Encoder(T5Encoder):
    config_class = LongT5Config
    attention_class, ragged = LocalAttention, False

    def __init__(self, config: LongT5Config) -> None:
        super().__init__(config)
        if self.sees_sums:
            self.global_bias = self.make_bias()

    def make_block(self) -> T5Block:
        block, c = super().make_block(), self.config
        block.self_attn.pattern = Pattern(window=c.local_radius + 1)
        if self.sees_sums:
            block.self_attn.global_norm = T5Norm(c.d_model, c.layer_norm_epsilon)
        return block

    @property
    def sees_sums(self) -> bool:
        return self.config.encoder_attention_type == "transient-global"

    @classmethod
    def block_keys(cls, c: Config) -> dict[str, Any]:
        return {name.replace("SelfAttention", _stored(c)): part for name, part in super().block_keys(c).items()}

    @classmethod
    def stack_keys(cls, c: Config) -> Table:
        first, each = (f"block.{number}.layer.0.{_stored(c)}" for number in ("0", "*"))
        biases: Table = {f"{first}.relative_attention_bias": "distance_bias"}
        if c.encoder_attention_type == "transient-global":
            biases |= {f"{first}.global_relative_attention_bias": "global_bias"}  # type: ignore[operator]
            biases |= {f"{each}.global_input_layer_norm": "layers.*.self_attn.global_norm"}  # type: ignore[operator]
        return {**{name: part for name, part in super().stack_keys(c).items() if part != "distance_bias"}, **biases}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context[Surroundings]) -> Tensor:
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): the pairs that see each other are the family's.")
        ctx.own = self.surroundings(x, ctx)
        return self.dropout(x)

    def surroundings(self, x: Tensor, ctx: Context) -> Surroundings:
        size, lowest = self.config.local_radius + 1, torch.finfo(x.dtype).min
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding is None else ctx.padding
        apart = torch.arange(-size, 2 * size, device=x.device) - torch.arange(size, device=x.device)[:, None]
        bias = self.distance_bias(distance_buckets(apart, **self.distances)).permute(2, 0, 1)
        seen = in_blocks(real[:, None, :, None], size, 1).transpose(2, 3) & near(size, 1, size - 1, x.device)
        near_bias = bias.to(x.dtype).masked_fill(~seen, lowest)
        if not self.sees_sums or not (count := x.shape[1] // self.config.global_block_size):
            return Surroundings(near_bias)
        blocks = blocks_of(real, self.config.global_block_size)
        number = torch.arange(count, device=x.device)
        side = self.global_bias(distance_buckets(number - blocks[..., None], **self.distances)).permute(0, 3, 1, 2)
        side = side.to(x.dtype).masked_fill((number > blocks.amax(dim=1, keepdim=True))[:, None, None], lowest)
        return Surroundings(torch.cat([near_bias, in_blocks(side, size)], dim=3), blocks, count)


def _stored(c: Config) -> str:
    """What the encoder's attention is called in files."""
    return "TransientGlobalSelfAttention" if c.encoder_attention_type == "transient-global" else "LocalSelfAttention"


def blocks_of(real: Tensor, size: int) -> Tensor:
    """(B, T) -> (B, T): the number of the block of ``size`` real positions that each is of, and -1 for padding.

    Those behind the last whole block are of that one; a row without a whole block has none.
    """
    last = real.sum(dim=1, keepdim=True) // size - 1
    number = torch.div(real.cumsum(dim=1) - 1, size, rounding_mode="floor")
    return torch.where(real, number.minimum(last), -1)


class LongT5Decoder(T5Decoder):
    config_class = LongT5Config


class LongT5Model(T5Model):
    config_class = LongT5Config
    encoder_class, decoder_class = LongT5Encoder, LongT5Decoder


class LongT5EncoderModel(LongT5Encoder, T5EncoderModel): ...


class LongT5ForConditionalGeneration(ScaledGeneration[LongT5Model]):
    base_model_prefix = ""
