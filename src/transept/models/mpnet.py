"""MPNet (Song et al. 2020): an encoder trained on masked and permuted tokens.

Positions count real tokens, as RoBERTa's, and one bias by distance is added to the scores of all layers, as T5's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Range
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Context, CountedPositions, Pooler, distance_bias
from transept.layers.links import Step
from transept.models.bert import BERT_EMBEDDINGS

# Constants of the checkpoints' training; the config's own numbers do not change them.
PADDING, BUCKETS, FURTHEST = 1, 32, 128


class MPNetConfig(EncoderConfig):
    """Settings of MPNet. Checkpoints have two positions more than they can use, those up to the padding id."""

    model_type = "mpnet"

    vocab_size: Annotated[int, Range(PADDING + 1, MAX_SIZE)] = 30527
    max_position_embeddings: Annotated[int, Range(PADDING + 1, MAX_SIZE)] = 512
    relative_attention_num_buckets: Annotated[int, Range(BUCKETS, MAX_SIZE)] = BUCKETS
    pad_token_id: int | None = PADDING
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2


_PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
MPNET_BLOCK: Table = {
    "attention.attn": ("self_attn", _PROJECTIONS),
    "attention.LayerNorm": "self_attn_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "mlp_norm",
}


class MPNetEmbeddings(nn.Module):
    """The sum of the embeddings of words and of positions that count real tokens, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: MPNetConfig) -> None:
        super().__init__()
        c = config
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=PADDING)
        self.position_embeddings = CountedPositions(c.max_position_embeddings, c.hidden_size, PADDING)
        self.LayerNorm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None = None, position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        words: Any = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        positions = self.position_embeddings.count(input_ids, words, 0) if position_ids is None else position_ids
        return self.dropout(self.LayerNorm(words + self.position_embeddings(positions)))


class MPNetLayersStep(LayersStep):
    """The layers, which read a bias by distance."""

    def prepare(self, x: Tensor, ctx: Context) -> None:
        ctx.position_bias = self.owner.distances(x, ctx)


class MPNetModel(TextBackbone):
    config_class = MPNetConfig
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "token_type_ids")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", MPNET_BLOCK),
            "encoder.relative_attention_bias": "distance_bias",
            "pooler": "pooler",
        },
        ignore=("embeddings.position_ids",),
    )

    def __init__(self, config: MPNetConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embeddings = MPNetEmbeddings(c)
        for stored in ("word_embeddings", "position_embeddings", "LayerNorm"):
            self.alias(str(BERT_EMBEDDINGS[stored]), f"embeddings.{stored}")
        self.distance_bias = nn.Embedding(c.relative_attention_num_buckets, c.num_attention_heads)
        self.layers = encoder_layers(c)
        self.pooler = Pooler(c.hidden_size) if add_pooling_layer else None

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": MPNetLayersStep}

    def distances(self, x: Tensor, ctx: Context) -> Tensor:
        """The biases (1, H, T, S) of states (B, T, D)."""
        return distance_bias(self.distance_bias, ctx, x, buckets=BUCKETS, furthest=FURTHEST)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.position_bias = self.distances(x, ctx)
        return self.embeddings(inputs_embeds=x, position_ids=positions)


class MPNetForMaskedLM(language.ForMaskedLM[MPNetModel]):
    act, tied_bias = "gelu", True
    names = language.ForMaskedLM.names | Names(
        {"lm_head": ("lm_head", {"bias": "bias", "dense": "dense", "layer_norm": "norm", "decoder": "decoder"})}
    )


class MPNetForSequenceClassification(classify.ForSequenceClassification[MPNetModel]):
    head_class = classify.FirstClassifier
    act = "tanh"
    names = Names({"classifier": "head"})


class MPNetForTokenClassification(classify.ForTokenClassification[MPNetModel]): ...


class MPNetForQuestionAnswering(span.ForQuestionAnswering[MPNetModel]): ...


class MPNetForMultipleChoice(classify.ForMultipleChoice[MPNetModel]):
    pooling = "pooler"
