"""Ministral (Mistral AI 2024): Mistral in which ``layer_types`` says which layers look through a sliding window."""

from __future__ import annotations

from transept.core.decoder import LayeredConfig
from transept.heads.language import ForCausalLM
from transept.models.llama import (
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
)


class MinistralConfig(LayeredConfig):
    """Settings of Ministral; without ``layer_types`` all layers have the window, where there is one."""

    model_type = "ministral"

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None


class MinistralModel(LlamaModel):
    """Ministral without a head."""

    config_class = MinistralConfig


class MinistralForCausalLM(ForCausalLM[MinistralModel]): ...


class MinistralForSequenceClassification(LlamaForSequenceClassification, backbone=MinistralModel): ...


class MinistralForTokenClassification(LlamaForTokenClassification, backbone=MinistralModel): ...


class MinistralForQuestionAnswering(LlamaForQuestionAnswering, backbone=MinistralModel):
    base_model_prefix = "transformer"
