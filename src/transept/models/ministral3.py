"""Ministral 3 (Mistral AI 2025): Mistral whose queries grow slowly with their position behind the trained length.

Shapes: B batch, H heads, T queries, E head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transept.config.fields import Count, Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.heads.span import ForQuestionAnswering
from transept.layers import Attention, Context
from transept.models import llama
from transept.models.mistral import MistralConfig

_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
_ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}


class Ministral3Config(MistralConfig):
    """Settings of Ministral 3; the defaults are those of Ministral 3 with 8 billion parameters.

    Queries at position p are multiplied by 1 + beta log(1 + floor(p / n)), where ``rope_parameters`` have beta as
    ``llama_4_scaling_beta`` and n as ``original_max_position_embeddings``.
    """

    model_type = "ministral3"

    vocab_size: int = 131072
    num_hidden_layers: Layers = 34
    head_dim: int = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 11
    sliding_window: Count | None = None

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        return super().complete(rope or dict(_ROPE))


class GrowingAttention(Attention):
    """Attention whose queries are multiplied by a number for each position."""

    is_prepared = True

    def placed(self, q: Tensor, k: Tensor, ctx: Context[Tensor]) -> tuple[Tensor, Tensor]:
        q, k = super().placed(q, k, ctx)
        return q * ctx.own.to(q.dtype), k


class Ministral3Model(llama.LlamaModel):
    config_class = Ministral3Config
    attention_class = GrowingAttention

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context[Tensor]) -> Tensor:
        rope = self.config.rope()
        lengths = torch.floor(positions[:, None, :, None] / rope["original_max_position_embeddings"])
        ctx.own = 1 + float(rope.get("llama_4_scaling_beta") or 0.0) * torch.log1p(lengths)
        return super().embed(x, types, positions, ctx)


class Ministral3ForCausalLM(ForCausalLM[Ministral3Model]): ...


class Ministral3ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Ministral3Model): ...


class Ministral3ForTokenClassification(llama.LlamaForTokenClassification, backbone=Ministral3Model): ...


class Ministral3ForQuestionAnswering(ForQuestionAnswering[Ministral3Model]): ...
