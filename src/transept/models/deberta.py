"""DeBERTa (He et al. 2020): BERT's blocks, whose scores also compare contents with how far positions are apart.

A query's content is compared with the distance to a key ("c2p"), and a key's content with the distance to a query ("p2c").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share, Signed, derived
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderBlock, EncoderConfig, encoder_layers
from transept.kinds.text import TextB, TextBackbone
from transept.layers import Attention, ByHeadAttention, Context
from transept.layers.attention.kernels import score, weigh
from transept.layers.context import Attended
from transept.models.bert import BERT_BLOCK, BERT_EMBEDDINGS


class DebertaConfig(EncoderConfig):
    """Settings of DeBERTa.

    ``relative_attention`` adds the scores of distances that ``pos_att_type`` names, ``c2p`` and ``p2c``; distances beyond
    ``max_relative_positions`` (the number of positions where below 1) count as that far. ``position_biased_input`` adds
    positions to the embeddings. Without ``legacy``, the head that fills masks reads the embeddings of words themselves.
    ``talking_head`` mixes the scores and the weights of heads.
    """

    model_type = "deberta"

    vocab_size: int = 50265
    max_position_embeddings: int = 512
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    pad_token_id: PaddingId | None = 0
    embedding_size: int = derived(lambda c: c.hidden_size)
    position_biased_input: bool = True
    relative_attention: bool = False
    max_relative_positions: Signed = -1
    pos_att_type: list[str] | None = None
    talking_head: bool = False
    pooler_hidden_size: int = derived(lambda c: c.hidden_size)
    pooler_dropout: Share = 0.0
    pooler_hidden_act: str = "gelu"
    cls_dropout: Share | None = None
    legacy: bool = True

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Kinds of scores may be written as one text."""
        values = super().upgrade(values)
        if isinstance(kinds := values.get("pos_att_type"), str):
            values["pos_att_type"] = [kind.strip() for kind in kinds.lower().split("|")]
        return values

    @property
    def compared(self) -> tuple[str, ...]:
        """Which scores of distances there are."""
        return tuple(self.pos_att_type or ()) if self.relative_attention else ()

    @property
    def score_scale(self) -> float:
        """The factor of all scores, of which there is a sum."""
        return 1 / math.sqrt(self.hidden_size // self.num_attention_heads * (1 + len(self.pos_att_type or ())))

    @property
    def span(self) -> int:
        """How many distances there are on either side."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings


@dataclass(eq=False)
class Distances:
    """What layers read about how far positions are apart, from T before to T behind.

    ``table`` (M, D) holds the embeddings of the distances that occur, and ``rows`` (2 T + 1) the place in it of each distance
    from -T to T. ``keys`` and ``queries`` (1, H, M, E) are what the layer that runs makes of the table.
    """

    table: Tensor
    rows: Tensor
    keys: Tensor | None = None
    queries: Tensor | None = None


def _skewed(x: Tensor) -> Tensor:
    """(B, H, T, 2 T) -> (B, H, T, T): T columns of each row i, from column T - 1 - i on, without a copy."""
    size = x.shape[2]
    flat = x.flatten(2)[..., size - 1 : size - 1 + size * (2 * size - 1)]
    return flat.view(*x.shape[:3], 2 * size - 1)[..., :size]


class DisentangledAttention(Attention):
    """Attention whose scores compare queries and keys with each other and with embeddings of their distance.

    Padding sees nothing, as in training: it gathers the mean of all. ``settings`` are those of the model.
    """

    is_prepared = True

    def __init__(self, *args: Any, settings: DebertaConfig, **options: Any) -> None:
        super().__init__(*args, scale=settings.score_scale, **options)
        self.compared = tuple(kind for kind in ("c2p", "p2c") if kind in settings.compared)
        self.pos_dropout = nn.Dropout(settings.hidden_dropout_prob)
        self.make_distances(settings.hidden_size, self.heads * self.head_dim, settings)

    def make_distances(self, dim: int, size: int, settings: Any) -> None:
        """Make what gives keys and queries of distances."""
        self.pos_k_proj = nn.Linear(dim, size, bias=False) if "c2p" in self.compared else None
        self.pos_q_proj = nn.Linear(dim, size) if "p2c" in self.compared else None

    def projection(self, kind: str) -> nn.Module:
        """What gives the keys of distances for "c2p", and their queries for "p2c"."""
        return self.pos_k_proj if kind == "c2p" else self.pos_q_proj  # type: ignore[return-value]

    def gathered(self, x: Tensor, ctx: Context[Distances | None]) -> Attended:
        if (apart := ctx.own) is not None and self.compared:
            table = self.pos_dropout(apart.table)[None]
            found = {kind: self.split(self.projection(kind)(table)) * self.scale for kind in self.compared}
            apart.keys, apart.queries = found.get("c2p"), found.get("p2c")
        return super().gathered(x, ctx)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context[Distances | None]
    ) -> Attended:
        bias = None if ctx.own is None else self.bias(q, k, ctx.own)
        if mask is not None and not mask.is_floating_point():
            if mask.shape[2] == 1 and q.shape[2] > 1:
                q, mask = q.masked_fill(~mask.mT, 0.0), mask & mask.mT
            mask = torch.where(mask, q.new_zeros(()) if bias is None else bias, torch.finfo(q.dtype).min)
        elif bias is not None:
            mask = bias if mask is None else bias + mask
        return super().attend(q, k, v, mask, False, ctx)

    def bias(self, q: Tensor, k: Tensor, apart: Distances) -> Tensor | None:
        """The scores (B, H, T, T) of distances, for queries and keys (B, H, T, E)."""
        size, middle, found = q.shape[2], len(apart.rows) // 2, None
        if apart.keys is not None:  # for query i, distances from T - 1 to -T
            keys = apart.keys[:, :, apart.rows[middle - size : middle + size].flip(0)]
            found = _skewed(q @ keys.mT)
        if apart.queries is not None:  # for key j, distances from 1 - T to T
            queries = apart.queries[:, :, apart.rows[middle - size + 1 : middle + size + 1]]
            of_keys = _skewed(k @ queries.mT).mT
            found = of_keys if found is None else found + of_keys
        return found


class DebertaAttention(DisentangledAttention, ByHeadAttention):
    """The same by one product for all heads, without biases of keys."""

    def __init__(self, *args: Any, settings: DebertaConfig, **options: Any) -> None:
        super().__init__(*args, settings=settings, **options)
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(self.heads * self.head_dim)) for _ in range(2))
        mixed = settings.talking_head
        self.score_proj, self.weight_proj = (nn.Linear(self.heads, self.heads, False) if mixed else None for _ in range(2))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.q_bias)
        nn.init.zeros_(self.v_bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().project(x)
        return q + self.q_bias.view(self.heads, 1, -1), k, v + self.v_bias.view(self.heads, 1, -1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context[Distances | None]
    ) -> Attended:
        if self.score_proj is None or self.weight_proj is None:
            return super().attend(q, k, v, mask, causal, ctx)
        scores, bias = score(q, k, self.scale), None if ctx.own is None else self.bias(q, k, ctx.own)
        scores = self.score_proj((scores if bias is None else scores + bias).movedim(1, -1)).movedim(-1, 1)
        if mask is not None and not mask.is_floating_point() and mask.shape[2] == 1:
            mask = mask & mask.mT
        weights = weigh(scores, v, mask, False, self.dropout if self.training else 0.0)[1]
        weights = self.weight_proj(weights.movedim(1, -1)).movedim(-1, 1)
        return weights @ v, weights


DEBERTA_EMBEDDINGS: Table = {**dict(list(BERT_EMBEDDINGS.items())[:3]), "embed_proj": "embed_proj", "LayerNorm": "embed_norm"}
_DISTANCES: Table = {
    "attention.self.q_bias": "self_attn.q_bias",
    "attention.self.v_bias": "self_attn.v_bias",
    "attention.self.in_proj": "self_attn.qkv_proj",
    "attention.self.head_logits_proj": "self_attn.score_proj",
    "attention.self.head_weights_proj": "self_attn.weight_proj",
    "attention.self.pos_proj": "self_attn.pos_k_proj",
    "attention.self.pos_q_proj": "self_attn.pos_q_proj",
}


def block_names(attention: Table) -> Table:
    """The names of a layer, with those of its attention."""
    rest = {name: own for name, own in BERT_BLOCK.items() if ".self." not in name and not name.startswith("cross")}
    return {**attention, **rest}


class DebertaEmbeddings(nn.Module):
    """The embeddings of words with those of positions and types that there are, normed; padding is zero: -> (B, T, D)."""

    def __init__(self, config: DebertaConfig) -> None:
        super().__init__()
        c, size = config, config.embedding_size
        self.word_embeddings = nn.Embedding(c.vocab_size, size, padding_idx=c.pad_token_id)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, size) if c.position_biased_input else None
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, size) if c.type_vocab_size else None
        self.embed_proj = nn.Linear(size, c.hidden_size, bias=False) if size != c.hidden_size else None
        self.LayerNorm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x: Any = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.position_embeddings is not None:
            places = torch.arange(x.shape[1], device=x.device)[None] if position_ids is None else position_ids
            x = x + self.position_embeddings(places)
        if (types := self.token_type_embeddings) is not None:
            x = x + (types.weight[0] if token_type_ids is None else types(token_type_ids))
        x = self.LayerNorm(x if self.embed_proj is None else self.embed_proj(x))
        return self.dropout(x if mask is None else x * mask[..., None].to(x.dtype))


class DebertaModel(TextBackbone):
    """DeBERTa without a head."""

    config_class = DebertaConfig
    attention_class: ClassVar[type[DisentangledAttention]] = DebertaAttention
    block_class: ClassVar[type[EncoderBlock]] = EncoderBlock
    qkv_bias: ClassVar[bool] = False
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", DEBERTA_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", block_names(_DISTANCES)),
            "encoder.rel_embeddings": "distances",
        },
        legacy={"**.LayerNorm.gamma": "LayerNorm.weight", "**.LayerNorm.beta": "LayerNorm.bias"},
        ignore=("embeddings.position_ids",),
    )
    config: DebertaConfig

    def __init__(self, config: DebertaConfig) -> None:
        super().__init__(config)
        self.embeddings = DebertaEmbeddings(config)
        for stored, own in DEBERTA_EMBEDDINGS.items():
            if getattr(self.embeddings, stored) is not None:
                self.alias(str(own), f"embeddings.{stored}")
        attention = partial(self.attention_class, settings=config)
        self.layers = encoder_layers(config, self.block_class, attention=attention, qkv_bias=self.qkv_bias)
        self.distances = nn.Embedding(2 * config.span, config.hidden_size) if config.relative_attention else None

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    @property
    def max_positions(self) -> int | None:
        return self.config.max_position_embeddings if self.config.position_biased_input else None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.own = self.apart(ctx.queries, x.device)
        if types is not None and self.embeddings.token_type_embeddings is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions, mask=ctx.padding)

    def apart(self, length: int, device: torch.device) -> Distances | None:
        """The distances in sequences of a length."""
        if self.distances is None:
            return None
        rows = self.buckets(torch.arange(-length, length + 1, device=device)) + self.config.span
        rows, (first, last) = rows.clamp(0, 2 * self.config.span - 1), self.bounds(length)
        return Distances(self.distance_table()[first:last], rows - first)

    def buckets(self, distance: Tensor) -> Tensor:
        """Numbers of distances, which count as far as ``span`` either way."""
        return distance

    def bounds(self, length: int) -> tuple[int, int]:
        """The rows of the table that sequences of a length read."""
        return max(self.config.span - length, 0), min(self.config.span + length + 1, 2 * self.config.span)

    def distance_table(self) -> Tensor:
        assert self.distances is not None
        return self.distances.weight


class ContextClassifier(classify.Classifier):
    """The first state, which a dense layer with dropout of its own reads before the classifier: (B, D) -> (B, C)."""

    def __init__(self, dim: int, classes: int, *, before: float, **options: Any) -> None:
        super().__init__(dim, classes, **options)
        self.dense_dropout = nn.Dropout(before)

    def forward(self, x: Tensor) -> Tensor:
        assert self.dense is not None
        logits: Tensor = self.out_proj(self.dropout(self.act(self.dense(self.dense_dropout(x)))))
        return logits


class PoolsContext(classify.PooledTask[TextB]):
    """A task on the first state, with DeBERTa's head."""

    pooling = "first"
    names = Names({"pooler.dense": "head.dense", "classifier": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        c = self.backbone.config
        dropout = c.hidden_dropout_prob if c.cls_dropout is None else c.cls_dropout
        return ContextClassifier(
            self.backbone.dim, self.classes, before=c.pooler_dropout, act=c.pooler_hidden_act, dropout=dropout
        )


class WordsHead(language.VocabularyHead):
    """What the embeddings of words are compared with, (..., D) -> (..., D), and a bias of each word."""

    def __init__(self, dim: int, vocab: int, *, act: str, eps: float) -> None:
        super().__init__(dim, dim, vocab, act=act, eps=eps, bias=True)
        del self.decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.transformed(x)


WORDS_HEAD = Names({"lm_predictions.lm_head": ("lm_head", {"bias": "bias", "dense": "dense", "LayerNorm": "norm"})})


class PredictsWords(language.ForMaskedLM[TextB]):
    """A task that fills masks by one of two heads: one with a decoder or, without ``legacy``, one that reads embeddings."""

    tied_bias = True
    names = language.ForMaskedLM.names | Names(
        {
            "cls.predictions": (
                "lm_head",
                {"bias": "bias", "transform.dense": "dense", "transform.LayerNorm": "norm", "decoder": "decoder"},
            )
        },
        ignore=("mask_predictions",),
    )

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        names = super().own_names_of(config)
        return names if config.legacy else replace(names, table=WORDS_HEAD.table, ties={})

    def make_head(self, config: Config) -> nn.Module:
        if config.legacy:
            return super().make_head(config)
        return WordsHead(self.backbone.dim, config.vocab_size, act=config.hidden_act, eps=config.layer_norm_eps)

    def score(self, hidden: Tensor) -> Tensor:
        if self.config.legacy:
            return super().score(hidden)
        return F.linear(self.lm_head(hidden), self.backbone.embed_tokens.weight, self.lm_head.bias)  # type: ignore[arg-type]

    def get_output_embeddings(self) -> nn.Linear | None:
        return super().get_output_embeddings() if self.config.legacy else None


# Of files whose other head is read.
DebertaModel.head_names |= {"lm_predictions", "mask_predictions"}


class DebertaForMaskedLM(PredictsWords[DebertaModel]): ...


class DebertaForSequenceClassification(PoolsContext[DebertaModel], classify.ForSequenceClassification[DebertaModel]): ...


class DebertaForTokenClassification(classify.ForTokenClassification[DebertaModel]): ...


class DebertaForQuestionAnswering(span.ForQuestionAnswering[DebertaModel]): ...
