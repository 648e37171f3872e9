"""Ministral (Mistral AI 2024): Mistral in which ``layer_types`` says which layers look through a sliding window."""

from __future__ import annotations

from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LayeredConfig
from transept.models import llama
from transept.models.mistral import MistralConfig


class MinistralConfig(MistralConfig, LayeredConfig):
    """Settings of Ministral; without ``layer_types`` all layers have the window, where there is one."""

    model_type = "ministral"

    window = LayeredConfig.window

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None


class MinistralModel(llama.LlamaModel):
    config_class = MinistralConfig


class MinistralForCausalLM(ForCausalLM[MinistralModel]): ...


class MinistralForSequenceClassification(llama.LlamaForSequenceClassification, backbone=MinistralModel): ...


class MinistralForTokenClassification(llama.LlamaForTokenClassification, backbone=MinistralModel): ...


class MinistralForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=MinistralModel): ...
