"""Jina embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions in place of learned ones.

Its adapters for tasks are LoRA files of their own.
"""

from __future__ import annotations

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.layers import MLP
from transept.models.nomic_bert import EMBEDDINGS, FUSED_POST_NORM, NomicBertModel, RotaryEncoderConfig, file_names, layer_names
from transept.models.roberta import (
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)


class JinaEmbeddingsV3Config(RotaryEncoderConfig):
    """Settings of Jina embeddings v3."""

    model_type = "jina_embeddings_v3"
    default_theta = 20000.0

    vocab_size: int = 250002
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    max_position_embeddings: int = 8194
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2


class JinaEmbeddingsV3Model(NomicBertModel):
    """Jina embeddings v3 without a head."""

    config_class = JinaEmbeddingsV3Config
    base_model_prefix = "roberta"
    pooling = "first"
    names = Names(
        {
            "embeddings": ("", EMBEDDINGS),
            "pooler": "pooler",
            "layers.*": ("layers.*", layer_names({"fc1": "up_proj", "fc2": "down_proj"})),
        },
        files=file_names("mixer", {"fc1": "up_proj", "fc2": "down_proj"}),
        ignore=NomicBertModel.names.ignore,
    )
    gguf = FUSED_POST_NORM
    mlp_class, bias = MLP, True

    def __init__(self, config: JinaEmbeddingsV3Config, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)


class JinaEmbeddingsV3ForMaskedLM(RobertaForMaskedLM, backbone=JinaEmbeddingsV3Model):
    heads_first = True


class JinaEmbeddingsV3ForSequenceClassification(RobertaForSequenceClassification, backbone=JinaEmbeddingsV3Model):
    heads_first = True


class JinaEmbeddingsV3ForTokenClassification(RobertaForTokenClassification, backbone=JinaEmbeddingsV3Model):
    heads_first = True


class JinaEmbeddingsV3ForQuestionAnswering(RobertaForQuestionAnswering, backbone=JinaEmbeddingsV3Model):
    heads_first = True
