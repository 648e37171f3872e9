"""PEGASUS-X (Phang et al. 2022): PEGASUS for long texts, whose encoder's positions see their block and some learned tokens.

These global tokens see all, and carry what one block knows to the others; every other layer cuts blocks half a block later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.config.fields import Count, Layers, PaddingId
from transept.config.model import Config
from transept.errors import InputError
from transept.heads.seq2seq import ForConditionalGeneration
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import Attention, Context, PreNorm
from transept.layers.attention.local import for_blocks, in_blocks, out_of_blocks
from transept.layers.context import Attended
from transept.layers.positions import waves
from transept.models.bart import BART_BLOCK, BartConfig, BartDecoder, BartEncoder, BartStack
from transept.models.pegasus import resize_positions


class PegasusXConfig(BartConfig):
    """Settings of PEGASUS-X; the defaults are those of a model as large as pegasus-x-large.

    The encoder's positions see those of their block of ``block_size`` and ``num_global_tokens`` learned ones.
    """

    model_type = "pegasus_x"

    vocab_size: int = 96103
    max_position_embeddings: int = 16384
    encoder_layers: Layers = 16
    decoder_layers: Layers = 16
    scale_embedding: bool = True
    num_labels: int = 2
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
    forced_eos_token_id: int | list[int] | None = 1
    num_global_tokens: Count = 32
    block_size: Count = 512
    stagger_local_blocks: bool = True


class BlockAttention(Attention):
    """Attention of G global tokens to all (B, G + T, D), and of other positions to these tokens and to their own block.

    Blocks of ``size`` positions begin ``shift`` positions before the first. Weights that are shown are those of global tokens
    (B, H, G, G + T), and those of blocks (B, H, N, size, G + size).
    """

    heads_apart, is_prepared = False, True
    tokens, size, shift = 0, 1, 0

    def gathered(self, x: Tensor, ctx: Context) -> Attended:
        batch, tokens, length = len(x), self.tokens, x.shape[1] - self.tokens
        q, k, v = self.project(x)
        real = torch.ones(batch, length, dtype=torch.bool, device=x.device) if ctx.padding is None else ctx.padding
        seen = None if ctx.padding is None else F.pad(real, (tokens, 0), value=True)[:, None, None]
        wide, wide_weights = self.attend(q[:, :, :tokens], k, v, seen, False, ctx)
        blocks = self.blocks(q[:, :, tokens:])
        keys, values = (
            torch.cat([for_blocks(each[:, :, :tokens], len(blocks) // batch), self.blocks(each[:, :, tokens:])], dim=2)
            for each in (k, v)
        )
        mask = F.pad(self.blocks(real[:, None, :, None]).transpose(2, 3), (tokens, 0), value=True)
        out, weights = self.attend(blocks, keys, values, mask, False, ctx)
        if ctx.attentions is not None and weights is not None and wide_weights is not None:
            shown: Any = weights.view(batch, -1, *weights.shape[1:]).transpose(1, 2)
            ctx.attentions.append({"global": wide_weights, "local": shown})  # type: ignore[arg-type]  # as in the reference
        near = out_of_blocks(out, batch, self.shift + length)[:, :, self.shift :]
        return torch.cat([wide, near], dim=2).transpose(1, 2).flatten(2), None

    def blocks(self, x: Tensor) -> Tensor:
        """(B, H, T, E) -> (B * N, H, size, E)."""
        return in_blocks(F.pad(x, (0, 0, self.shift, 0)), self.size)


class BlockLayer(PreNorm):
    """A pre-norm block whose global tokens, the first of its states, have a norm of their own before attention."""

    is_prepared = True
    global_norm: nn.Module

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        first, rest = x.tensor_split([self.self_attn.tokens], dim=1)
        normed = torch.cat([self.global_norm(first), self.self_attn_norm(rest)], dim=1)
        x = x + self.dropout(self.self_attn(normed, ctx)[0])
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x), ctx))


class PegasusXStack(BartStack):
    config_class = PegasusXConfig
    block_class, norms_embeddings = PreNorm, False

    @property
    def biased(self) -> bool:
        return False

    @property
    def max_positions(self) -> int | None:
        return None

    def make_positions(self, c: Config) -> nn.Module:
        return nn.Identity()

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(x + waves(positions, self.config.d_model, None).to(x.dtype))


_FIRST: Table = {name: BART_BLOCK[name] for name in ("self_attn", "self_attn_layer_norm")}
ENCODER_BLOCK: Table = {**_FIRST, "global_self_attn_layer_norm": "global_norm", **BART_BLOCK}


class PegasusXEncoder(PegasusXStack, BartEncoder):
    block_class, attention_class, ragged = BlockLayer, BlockAttention, False
    names = replace(
        BartStack.names,
        table={
            "embed_tokens": "embed_tokens",
            "embed_global": "embed_global",
            "layers.*": ("layers.*", ENCODER_BLOCK),
            "layer_norm": "norm",
        },
    )

    def __init__(self, config: PegasusXConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_global = nn.Embedding(c.num_global_tokens, c.d_model)
        for number, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            attention.tokens, attention.size = c.num_global_tokens, c.block_size
            attention.shift = c.block_size // 2 if number % 2 and c.stagger_local_blocks else 0
            layer.global_norm = nn.LayerNorm(c.d_model)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): the pairs that see each other are the family's.")
        x = super().embed(x, types, positions, ctx)
        return torch.cat([self.embed_global.weight.expand(len(x), -1, -1), x], dim=1)

    def end(self, x: Tensor, ctx: Context) -> Any:
        tokens = self.config.num_global_tokens
        if ctx.hidden_states is not None:
            ctx.hidden_states = [states[:, tokens:] for states in ctx.hidden_states]
        return super().end(x[:, tokens:], ctx)


class PegasusXDecoder(PegasusXStack, BartDecoder): ...


class PegasusXModel(Seq2SeqBackbone):
    config_class = PegasusXConfig
    encoder_class, decoder_class = PegasusXEncoder, PegasusXDecoder
    base_model_prefix = "model"
    resize_position_embeddings = resize_positions


class PegasusXForConditionalGeneration(ForConditionalGeneration[PegasusXModel]):
    resize_position_embeddings = resize_positions
