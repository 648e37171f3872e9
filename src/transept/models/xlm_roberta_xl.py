"""XLM-RoBERTa-XL (Goyal et al. 2021): XLM-RoBERTa with norms before its sublayers, in larger models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from transept.checkpoint.keys import Table
from transept.layers import PreNorm
from transept.models.megatron_bert import attention_names
from transept.models.roberta import (
    EMBEDDINGS,
    RobertaConfig,
    RobertaEmbeddings,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)
from transept.models.roberta_prelayernorm import RobertaPreLayerNormModel


class XLMRobertaXLConfig(RobertaConfig):
    """Settings of XLM-RoBERTa-XL; the defaults are those of the model of 3.5 billion parameters."""

    model_type = "xlm-roberta-xl"

    vocab_size: int = 250880
    hidden_size: int = 2560
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    intermediate_size: int = 10240
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5


XL_BLOCK: Table = {
    "attention": ("", attention_names("self_attn", after="self_attn_layer_norm")),
    "crossattention": ("", attention_names("cross_attn", after="self_attn_layer_norm")),
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "LayerNorm": "mlp_norm",
}


class XLMRobertaXLEmbeddings(RobertaEmbeddings):
    """RoBERTa's without a norm."""

    def __init__(self, config: XLMRobertaXLConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.Identity()  # type: ignore[assignment]


class XLMRobertaXLBlock(PreNorm):
    """A pre-norm block without dropout after its feed-forward layer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, mlp_dropout=0.0, **options)


class XLMRobertaXLModel(RobertaPreLayerNormModel):
    config_class, embeddings_class, block_class = XLMRobertaXLConfig, XLMRobertaXLEmbeddings, XLMRobertaXLBlock
    base_model_prefix = "roberta"
    names = replace(
        RobertaPreLayerNormModel.names,
        table={
            "embeddings": ("", EMBEDDINGS),
            "encoder.layer.*": ("layers.*", XL_BLOCK),
            "encoder.LayerNorm": "norm",
            "pooler": "pooler",
        },
    )


class XLMRobertaXLForMaskedLM(RobertaForMaskedLM, backbone=XLMRobertaXLModel): ...


class XLMRobertaXLForCausalLM(RobertaForCausalLM, backbone=XLMRobertaXLModel): ...


class XLMRobertaXLForSequenceClassification(RobertaForSequenceClassification, backbone=XLMRobertaXLModel): ...


class XLMRobertaXLForTokenClassification(RobertaForTokenClassification, backbone=XLMRobertaXLModel): ...


class XLMRobertaXLForQuestionAnswering(RobertaForQuestionAnswering, backbone=XLMRobertaXLModel): ...


class XLMRobertaXLForMultipleChoice(RobertaForMultipleChoice, backbone=XLMRobertaXLModel): ...
