"""DistilBERT (Sanh et al. 2019): BERT with half of the layers, distilled, and without segments and pooler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, PaddingId, Share
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.encoder import LayersStep
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Context, PostNorm, standard_layers
from transept.layers.links import Step
from transept.layers.positions import sinusoids
from transept.models.bert import BERT_EMBEDDINGS


class DistilBertConfig(Config):
    """Settings of DistilBERT; with ``sinusoidal_pos_embds`` positions begin as sines and cosines."""

    model_type = "distilbert"
    aliases = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    sinusoidal_pos_embds: bool = False
    n_layers: Layers = 6
    n_heads: int = 12
    dim: Annotated[int, Multiple("n_heads")] = 768
    hidden_dim: int = 3072
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    activation: str = "gelu"
    initializer_range: Deviation = 0.02
    qa_dropout: Share = 0.1
    seq_classif_dropout: Share = 0.2
    pad_token_id: PaddingId | None = 0


DISTILBERT_BLOCK: Table = {
    "attention": ("self_attn", {"q_lin": "q_proj", "k_lin": "k_proj", "v_lin": "v_proj", "out_lin": "o_proj"}),
    "sa_layer_norm": "self_attn_norm",
    "ffn": ("mlp", {"lin1": "up_proj", "lin2": "down_proj"}),
    "output_layer_norm": "mlp_norm",
}


class Embeddings(nn.Module):
    """The sum of the embeddings of words and positions, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        c = config
        self.word_embeddings = nn.Embedding(c.vocab_size, c.dim, padding_idx=c.pad_token_id)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.dim)
        self.LayerNorm, self.dropout = nn.LayerNorm(c.dim, 1e-12), nn.Dropout(c.dropout)

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        words: Any = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        positions = torch.arange(words.shape[1], device=words.device)[None] if position_ids is None else position_ids
        return self.dropout(self.LayerNorm(words + self.position_embeddings(positions)))


class DistilBertModel(TextBackbone):
    config_class = DistilBertConfig
    head_dropouts = ("dropout",)
    reads = ("input_ids", "attention_mask", "inputs_embeds", "labels", "position_ids", "token_type_ids")
    names = Names(
        {"embeddings": ("", BERT_EMBEDDINGS), "transformer.layer.*": ("layers.*", DISTILBERT_BLOCK)},
        ignore=("embeddings.position_ids",),
    )

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__(config)
        c, norm = config, partial(nn.LayerNorm, config.dim, 1e-12)
        self.embeddings = Embeddings(c)
        for stored in ("word_embeddings", "position_embeddings", "LayerNorm"):
            self.alias(str(BERT_EMBEDDINGS[stored]), f"embeddings.{stored}")
        block = partial(PostNorm, mlp_dropout=c.dropout)  # there is none behind attention
        attention = partial(Attention, c.dim, c.n_heads, dropout=c.attention_dropout)
        self.layers = standard_layers(c, block, attention, partial(MLP, c.dim, c.hidden_dim, c.activation), norm)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"transformer": LayersStep}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.embeddings(inputs_embeds=x, position_ids=positions)

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if module is self.embeddings.position_embeddings and self.config.sinusoidal_pos_embds:
            table = self.embeddings.position_embeddings.weight
            table[:, 0::2], table[:, 1::2] = sinusoids(torch.arange(len(table), device=table.device), table.shape[1])


class DistilBertForMaskedLM(language.ForMaskedLM[DistilBertModel]):
    act = "activation"
    names = language.ForMaskedLM.names | Names(
        {"vocab_transform": "lm_head.dense", "vocab_layer_norm": "lm_head.norm", "vocab_projector": "lm_head.decoder"}
    )


class _Classifies(classify.PooledTask[DistilBertModel]):
    names = Names({"pre_classifier": "head.dense", "classifier": "head.out_proj"})
    head_class, act, head_dropouts = classify.DenseClassifier, "relu", ("seq_classif_dropout",)


class DistilBertForSequenceClassification(_Classifies, classify.ForSequenceClassification[DistilBertModel]): ...


class DistilBertForTokenClassification(classify.ForTokenClassification[DistilBertModel]): ...


class DistilBertForQuestionAnswering(span.ForQuestionAnswering[DistilBertModel]):
    head_dropouts = ("qa_dropout",)


class DistilBertForMultipleChoice(_Classifies, classify.ForMultipleChoice[DistilBertModel]): ...
