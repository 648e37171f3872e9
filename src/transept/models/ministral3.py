"""Ministral 3 (Mistral AI 2025): Mistral whose queries grow slowly with their position behind the trained length.

Shapes: B batch, H heads, T queries, E head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from transept.checkpoint.gguf import SAVE_PLAIN
from transept.config.fields import Count, Layers, PaddingId
from transept.errors import UnsupportedError
from transept.heads.language import ForCausalLM
from transept.heads.span import ForQuestionAnswering
from transept.layers import Attention, Context
from transept.models import llama
from transept.models.mistral import MistralConfig
from transept.storage.gguf import GGUF

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

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        names = {"llama_4_scaling_beta": "attention.temperature_scale", "mscale_all_dim": "rope.scaling.yarn_log_multiplier"}
        own = {name: gguf.get(f"mistral3.{key}", float, 0.0) for name, key in names.items()}
        own["mscale"] = float(own["mscale_all_dim"] != 0)
        return values | {"rope_scaling": values.get("rope_scaling", {}) | own}

    def in_gguf(self) -> Self:
        if (rope := self.rope())["rope_type"] != "yarn":
            what = f"GGUF files have Ministral 3 with positions of the type 'yarn' alone, not {rope['rope_type']!r:.40}."
            raise UnsupportedError(what, hint=SAVE_PLAIN)
        return self

    def to_gguf(self) -> dict[str, Any]:
        rope = self.rope()
        log, beta = (float(rope.get(name) or 0.0) for name in ("mscale_all_dim", "llama_4_scaling_beta"))
        return {"attention.temperature_scale": beta, "rope.scaling.yarn_log_multiplier": log}


class GrowingAttention(Attention):
    """Attention whose queries are multiplied by a number for each position."""

    is_prepared = True

    def placed(self, q: Tensor, k: Tensor, ctx: Context[Tensor]) -> tuple[Tensor, Tensor]:
        q, k = super().placed(q, k, ctx)
        return q * ctx.own.to(q.dtype), k


class Ministral3Model(llama.LlamaModel):
    config_class = Ministral3Config
    gguf = replace(llama.LlamaModel.gguf, architecture="mistral3")
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
