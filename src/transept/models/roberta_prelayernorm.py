"""RoBERTa with a norm before each sublayer and after the last layer, as in fairseq's pre-norm encoder (Ott et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import nn

from transept.checkpoint.keys import Table
from transept.layers import PreNorm
from transept.layers.links import Step
from transept.models.megatron_bert import attention_names
from transept.models.roberta import (
    EMBEDDINGS,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)


class RobertaPreLayerNormConfig(RobertaConfig):
    """Settings of RoBERTa with norms before its sublayers."""

    model_type = "roberta-prelayernorm"


PRENORM_BLOCK: Table = {
    "attention": ("", attention_names("self_attn", after="LayerNorm")),
    "crossattention": ("", attention_names("cross_attn", after="LayerNorm")),
    "intermediate.LayerNorm": "mlp_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
}


class RobertaPreLayerNormModel(RobertaModel):
    config_class: ClassVar[type[RobertaConfig]] = RobertaPreLayerNormConfig
    block_class = PreNorm
    base_model_prefix = "roberta_prelayernorm"
    names = replace(
        RobertaModel.names,
        table={
            "embeddings": ("", EMBEDDINGS),
            "encoder.layer.*": ("layers.*", PRENORM_BLOCK),
            "LayerNorm": "norm",
            "pooler": "pooler",
        },
    )

    def __init__(self, config: RobertaPreLayerNormConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {}


class RobertaPreLayerNormForMaskedLM(RobertaForMaskedLM, backbone=RobertaPreLayerNormModel): ...


class RobertaPreLayerNormForCausalLM(RobertaForCausalLM, backbone=RobertaPreLayerNormModel): ...


class RobertaPreLayerNormForSequenceClassification(RobertaForSequenceClassification, backbone=RobertaPreLayerNormModel): ...


class RobertaPreLayerNormForTokenClassification(RobertaForTokenClassification, backbone=RobertaPreLayerNormModel): ...


class RobertaPreLayerNormForQuestionAnswering(RobertaForQuestionAnswering, backbone=RobertaPreLayerNormModel): ...


class RobertaPreLayerNormForMultipleChoice(RobertaForMultipleChoice, backbone=RobertaPreLayerNormModel): ...
