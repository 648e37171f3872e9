"""FNet (Lee-Thorp et al. 2021): BERT with Fourier transforms over positions and elements in the place of attention.

A transform has no mask: padding is text to it, as it was in training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, PaddingId, Share
from transept.config.model import Config
from transept.kinds.text import Options, TextBackbone
from transept.layers import MLP, Context, Pooler
from transept.layers.links import Layer
from transept.models.bert import (
    BERT_EMBEDDINGS,
    BertEmbeddings,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)


class FNetConfig(Config):
    """Settings of FNet. ``use_tpu_fourier_optimizations`` and ``tpu_short_seq_length`` are kept and have no effect."""

    model_type = "fnet"

    vocab_size: int = 32000
    hidden_size: int = 768
    num_hidden_layers: Layers = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: Share = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 4
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-12
    use_tpu_fourier_optimizations: bool = False
    tpu_short_seq_length: int = 512
    pad_token_id: PaddingId | None = 3
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2


class FNetLayer(Layer):
    """A transform and a feed-forward layer, each added to its input and normed: (B, T, D) -> (B, T, D)."""

    def __init__(self, c: FNetConfig) -> None:
        super().__init__()
        self.fourier_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
        self.mlp_norm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, ctx: Context | None = None) -> Tensor:
        x = hidden_states
        mixed = torch.fft.fftn(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, dim=(1, 2)).real
        x = self.fourier_norm(x + mixed.to(x.dtype))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


FNET_BLOCK: Table = {
    "fourier.output.LayerNorm": "fourier_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "mlp_norm",
}
FNET_EMBEDDINGS: Table = {**BERT_EMBEDDINGS, "projection": "embed_proj"}


class FNetEmbeddings(BertEmbeddings):
    """BERT's, projected."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.projection = nn.Linear(config.hidden_size, config.hidden_size)
        self._modules["dropout"] = self._modules.pop("dropout")

    def end(self, x: Tensor) -> Tensor:
        return self.dropout(self.projection(self.LayerNorm(x)))


class FNetModel(TextBackbone):
    """FNet without a head. It takes no mask; ``output_attentions`` shows nothing."""

    config_class = FNetConfig
    accepts = Options  # without what tells of several texts in a row
    ragged = False  # a transform would mix texts that stand behind one another
    head_dropouts = ("hidden_dropout_prob",)
    pooling = "pooler"
    reads = ("input_ids", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", FNET_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", FNET_BLOCK),
            "pooler": "pooler",
        },
        legacy=BertModel.names.legacy,
        ignore=(*BertModel.names.ignore, "dft_mat_hidden", "dft_mat_seq"),
    )
    config: FNetConfig

    def __init__(self, config: FNetConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = FNetEmbeddings(config)
        for stored, own in FNET_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = nn.ModuleList(FNetLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = Pooler(config.hidden_size) if add_pooling_layer else None

    @property
    def mask_heads(self) -> int:
        return 1

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)


class FNetForMaskedLM(BertForMaskedLM, backbone=FNetModel):
    reads_pooler = True  # it is there in all checkpoints


class FNetForNextSentencePrediction(BertForNextSentencePrediction, backbone=FNetModel): ...


class FNetForPreTraining(BertForPreTraining, backbone=FNetModel): ...


class FNetForSequenceClassification(BertForSequenceClassification, backbone=FNetModel): ...


class FNetForTokenClassification(BertForTokenClassification, backbone=FNetModel):
    reads_pooler = True


class FNetForQuestionAnswering(BertForQuestionAnswering, backbone=FNetModel):
    reads_pooler = True


class FNetForMultipleChoice(BertForMultipleChoice, backbone=FNetModel): ...
