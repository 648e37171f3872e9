"""Gemma 2 (Riviere et al. 2024): a decoder with norms before and after each sublayer and scores that cannot grow.

Scores and logits are bounded by a hyperbolic tangent, and every other layer has a window.
Shapes: B batch, T queries, S keys, D hidden size, H heads, K key-value heads, E head size.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import NORMS, PLUS_ONE, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId, Positive
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import CAUSAL_ONLY, DecoderConfig, LayeredConfig, gated_mlp
from transept.layers import SandwichNorm
from transept.layers.attention import Attention
from transept.layers.attention.kernels import score, weigh
from transept.layers.context import Attended, Context
from transept.layers.norm import CenteredRMSNorm
from transept.models.llama import LlamaForSequenceClassification, LlamaForTokenClassification, LlamaModel
from transept.storage.gguf import GGUF


class Gemma2Config(LayeredConfig, DecoderConfig):
    """Settings of Gemma 2; the defaults are those of Gemma 2 with 2 billion parameters.

    Scores are scaled by ``query_pre_attn_scalar ** -0.5``, then bounded by ``attn_logit_softcapping``, logits by
    ``final_logit_softcapping``; ``None`` leaves them as they are. Without ``layer_types`` every other layer slides.
    """

    model_type = "gemma2"

    vocab_size: int = 256000
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    attention_bias: bool = False
    query_pre_attn_scalar: Count = 256
    final_logit_softcapping: Positive | None = 30.0
    attn_logit_softcapping: Positive | None = 50.0
    use_bidirectional_attention: bool | None = None

    def validate(self) -> None:
        super().validate()
        if self.use_bidirectional_attention and self.is_causal:
            self.fail("use_bidirectional_attention", CAUSAL_ONLY)

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        # Files do not say by what scores are scaled: in the largest models (46 and 62 layers) it is not the size of a head.
        size, heads = (gguf.get(f"{gguf.architecture}.{key}", int) for key in ("embedding_length", "attention.head_count"))
        whole = size and heads and heads > 0 and values.get("num_hidden_layers") in (46, 62)
        scale = size // heads if whole else values.get("head_dim")
        return values if scale is None else values | {"query_pre_attn_scalar": scale}


def softcap(x: Tensor, most: float | None) -> Tensor:
    """Values drawn smoothly into the range from ``-most`` to ``most``."""
    return x if most is None else torch.tanh(x / most) * most


class SoftcappedAttention(Attention):
    """Attention whose scores are bounded by ``most``; no fused kernel does that, so it goes step by step."""

    def __init__(self, *sizes: int, most: float, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.most = most

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        scores = softcap(score(q, k, self.scale), self.most)
        return weigh(scores, v, mask, causal, self.dropout if self.training else 0.0)


class ScaledEmbedding(nn.Embedding):
    """Embeddings times the root of their size, which is first rounded to their type as it was in training."""

    def __init__(self, count: int, size: int, padding_idx: int | None = None) -> None:
        super().__init__(count, size, padding_idx)
        self.scale = math.sqrt(self.embedding_dim)

    def forward(self, ids: Tensor) -> Tensor:
        scale = torch.full((), self.scale, dtype=self.weight.dtype, device=self.weight.device)
        return super().forward(ids) * scale


GEMMA2_BLOCK: Table = {
    "self_attn": "self_attn",
    "mlp": "mlp",
    "input_layernorm": "self_attn_norm",
    "post_attention_layernorm": "self_attn_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}


class Gemma2Model(LlamaModel):
    config_class = Gemma2Config
    block_class, norm_class = SandwichNorm, CenteredRMSNorm
    embedding_class = ScaledEmbedding
    names = LlamaModel.names | Names({"layers.*": ("layers.*", GEMMA2_BLOCK)})
    gguf = Layout(changes=dict.fromkeys(NORMS, PLUS_ONE))

    def attention(self, layer: int, **more: Any) -> Attention:
        most = self.config.attn_logit_softcapping
        kind = Attention if most is None else partial(SoftcappedAttention, most=most)
        return super().attention(layer, kind=kind, scale=self.config.query_pre_attn_scalar**-0.5, **more)

    def feed_forward(self, layer: int) -> nn.Module:
        return gated_mlp(self.config, self.config.hidden_activation)


class Gemma2ForCausalLM(ForCausalLM[Gemma2Model]):
    def score(self, hidden: Tensor) -> Tensor:
        return softcap(super().score(hidden), self.config.final_logit_softcapping)


class Gemma2ForSequenceClassification(LlamaForSequenceClassification, backbone=Gemma2Model): ...


class Gemma2ForTokenClassification(LlamaForTokenClassification, backbone=Gemma2Model): ...
