"""Falcon (Almazrouei et al. 2023): a decoder whose heads share keys and values, in two generations.

The first has one pair of keys and values for all heads, and one norm for attention and feed-forward layer, which work side by
side; the new architecture has a pair for each group of heads, and usually two norms. Older checkpoints know positions by
biases (ALiBi), and put one layer behind the other.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import Change, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share, derived
from transept.config.rotary import FOR_ALL, RotaryConfig
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import (
    MLP,
    ByHeadAttention,
    Context,
    FusedAttention,
    Parallel,
    Pattern,
    PreNorm,
    SharedNormParallel,
    alibi,
    standard_layers,
)
from transept.layers.rotary import rotary_tables
from transept.storage.gguf import GGUF


class FalconConfig(RotaryConfig):
    """Settings of Falcon; the defaults are those of its checkpoint with 7 billion parameters.

    ``num_kv_heads`` counts for the ``new_decoder_architecture`` alone, and ``multi_query`` and ``parallel_attn`` for the older
    one; ``num_ln_in_parallel_attn`` says whether layers side by side have a norm each (2) or share one.
    """

    model_type = "falcon"
    aliases = {"n_embed": "hidden_size"}

    vocab_size: int = 65024
    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 4544
    num_hidden_layers: Layers = 32
    num_attention_heads: int = 71
    num_ln_in_parallel_attn: int | None = derived(lambda c: 2 if c.new_decoder_architecture else None)
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    hidden_dropout: Share = 0.0
    attention_dropout: Share = 0.0
    num_kv_heads: int = derived(lambda c: c.num_attention_heads)
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    max_position_embeddings: int = 2048
    bos_token_id: int | None = 11
    eos_token_id: int | list[int] | None = 11
    ffn_hidden_size: int = derived(lambda c: 4 * c.hidden_size)
    activation: str = "gelu"

    gguf_keys = {"feed_forward_length": "ffn_hidden_size", "attention.head_count_kv": "num_kv_heads"}

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        heads, shared = values.get("num_attention_heads"), values.pop("num_kv_heads", 1)
        values.pop("head_dim", None)
        if (two := "blk.0.attn_norm_2.weight" in gguf.tensors) or shared not in (1, heads):
            norms = {"num_ln_in_parallel_attn": 2 if two else 1}
            return values | norms | {"new_decoder_architecture": True, "num_kv_heads": shared}
        return values | {"multi_query": shared == 1}

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"attention.head_count_kv": self.num_key_value_heads}

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """As many as there are; ``num_kv_heads`` says so of the new architecture alone."""
        if self.new_decoder_architecture:
            return self.num_kv_heads
        return 1 if self.multi_query else self.num_attention_heads

    @property
    def is_parallel(self) -> bool:
        return self.parallel_attn or self.new_decoder_architecture

    def validate(self) -> None:
        super().validate()
        if self.new_decoder_architecture:
            self.divided("num_attention_heads", "num_kv_heads")


def falcon_block(c: FalconConfig) -> tuple[str, Table]:
    """The names of a block, whose norms are called by what they are for."""
    apart = {"ln_attn": "self_attn_norm", "ln_mlp": "mlp_norm"} if c.num_ln_in_parallel_attn == 2 else None
    norms = apart or {"input_layernorm": "self_attn_norm"}
    if not c.is_parallel:
        norms = {"post_attention_layernorm": "mlp_norm", "input_layernorm": "self_attn_norm"}
    parts: Table = {
        "self_attention": ("self_attn", {"query_key_value": "qkv_proj", "dense": "o_proj"}),
        "mlp": ("mlp", {"dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj"}),
    }
    return "layers.*", {**parts, **norms}


def _by_kind(tensor: Tensor, c: FalconConfig) -> Tensor:
    """All queries, all keys and all values, in the place of those of each group of heads."""
    count = c.num_key_value_heads
    parts = tensor.unflatten(0, (count, -1, c.head_dim))  # type: ignore[no-untyped-call]
    split = torch.split(parts, [c.num_attention_heads // count, 1, 1], dim=1)
    return torch.cat([part.flatten(0, 2) for part in split])


def _by_group(tensor: Tensor, c: FalconConfig) -> Tensor:
    """The other way."""
    count = c.num_key_value_heads
    split = torch.split(tensor, [each * c.head_dim for each in (c.num_attention_heads, count, count)])
    parts = [part.unflatten(0, (count, -1, c.head_dim)) for part in split]  # type: ignore[no-untyped-call]
    return torch.cat(parts, dim=1).flatten(0, 2)


class FalconModel(CausalBackbone):
    config_class = FalconConfig
    base_model_prefix = "transformer"
    head_dropouts = ("hidden_dropout",)
    reads = ("input_ids", "past_key_values", "attention_mask", "position_ids", "inputs_embeds", "labels", "use_cache")
    names = Names(
        {"word_embeddings": "embed_tokens", "h.*": falcon_block, "ln_f": "norm"},
        ignore=("rotary_emb.inv_freq", "self_attention.maybe_rotary.inv_freq"),
    )
    gguf = Layout(
        {
            "attn_norm": lambda c: "mlp_norm" if c.num_ln_in_parallel_attn == 2 else "self_attn_norm",
            "attn_norm_2": lambda c: "self_attn_norm" if c.num_ln_in_parallel_attn == 2 else None,
            "ffn_norm": lambda c: None if c.is_parallel else "mlp_norm",
        },
        changes={"attn_qkv.weight": Change(_by_group, _by_kind)},
    )

    def __init__(self, config: FalconConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_epsilon)
        # Without biases by distance, weights are never dropped, as in training.
        options: dict[str, Any] = {"bias": c.bias, "kv_heads": c.num_key_value_heads, "pattern": Pattern(causal=True)}
        options |= {"dropout": c.attention_dropout if c.alibi else 0.0, "rotary": None if c.alibi else FOR_ALL}
        by_head = c.new_decoder_architecture or not c.multi_query
        attention = partial(ByHeadAttention if by_head else FusedAttention, c.hidden_size, c.num_attention_heads, **options)
        mlp = partial(MLP, c.hidden_size, c.ffn_hidden_size, c.activation, bias=c.bias)
        self.layers = standard_layers(c, self.block_kind(), attention, mlp, norm)
        self.norm = norm()
        if not c.alibi:
            self.rotary_emb = rotary_tables(c)

    def block_kind(self) -> Any:
        """What makes a block of its parts."""
        c = self.config
        if c.is_parallel:
            return partial(Parallel if c.num_ln_in_parallel_attn == 2 else SharedNormParallel, dropout=c.hidden_dropout)
        return partial(PreNorm, dropout=c.attention_dropout, mlp_dropout=c.hidden_dropout)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Biases by distance are rounded to bfloat16, as the checkpoints were trained."""
        if self.config.alibi:
            bias = alibi(self.config.num_attention_heads, ctx.keys, ctx.padding, x, dtype=torch.bfloat16)
            ctx.position_bias = bias / math.sqrt(self.config.head_dim)
        else:
            ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        return x


class FalconForCausalLM(language.ForCausalLM[FalconModel]): ...


# Without positions, which the reference's classifiers do not take by position.
READS = ("input_ids", "past_key_values", "attention_mask", "inputs_embeds", "labels", "use_cache", "position_ids")


class FalconForSequenceClassification(classify.ForLastTokenClassification[FalconModel]):
    reads = READS


class FalconForTokenClassification(classify.ForTokenClassification[FalconModel]):
    reads = READS


class FalconForQuestionAnswering(span.ForQuestionAnswering[FalconModel]):
    reads = ("input_ids", "attention_mask", "inputs_embeds", "start_positions", "end_positions", "position_ids")
