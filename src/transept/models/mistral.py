"""Mistral (Jiang et al. 2023): Llama with few key-value heads and a window that slides over the positions in every layer."""

from __future__ import annotations

from transept.config.fields import Count
from transept.heads import language, span
from transept.kinds.decoder import DecoderConfig
from transept.models.llama import LlamaForSequenceClassification, LlamaForTokenClassification, LlamaModel


class MistralConfig(DecoderConfig):
    """Settings of Mistral; the defaults are those of Mistral 7B.

    ``sliding_window`` is how many positions a query sees, itself included; without it, all before it.
    """

    model_type = "mistral"

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sliding_window: Count | None = 4096

    def window(self, layer: int) -> int | None:
        return self.sliding_window


class MistralModel(LlamaModel):
    config_class = MistralConfig
    gguf = LlamaModel.gguf


class MistralForCausalLM(language.ForCausalLM[MistralModel]): ...


class MistralForSequenceClassification(LlamaForSequenceClassification, backbone=MistralModel): ...


class MistralForTokenClassification(LlamaForTokenClassification, backbone=MistralModel): ...


class MistralForQuestionAnswering(span.ForQuestionAnswering[MistralModel]): ...
