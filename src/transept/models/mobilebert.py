"""MobileBERT (Sun et al. 2020): a deep and thin BERT, whose layers work on smaller states between two linear layers.

Words are read with their neighbours, most norms are a scale and a shift, and a layer has several feed-forward layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId, Share
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderConfig
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Context, Pooler
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.models.bert import BertForNextSentencePrediction, BertModel


class MobileBertConfig(EncoderConfig):
    """Settings of MobileBERT.

    With ``use_bottleneck`` layers work on states of ``intra_bottleneck_size``, which queries and keys read from a layer of
    their own (``key_query_shared_bottleneck``) and values from the whole states, or all from the same
    (``use_bottleneck_attention``). ``trigram_input`` reads words with their neighbours.
    """

    model_type = "mobilebert"

    vocab_size: int = 30522
    hidden_size: int = 512
    num_hidden_layers: int = 24
    num_attention_heads: int = 4
    intermediate_size: int = 512
    hidden_act: str = "relu"
    hidden_dropout_prob: Share = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 0
    embedding_size: int = 128
    trigram_input: bool = True
    use_bottleneck: bool = True
    intra_bottleneck_size: int = 128
    use_bottleneck_attention: bool = False
    key_query_shared_bottleneck: bool = True
    num_feedforward_networks: Count = 4
    normalization_type: Literal["no_norm", "layer_norm"] = "no_norm"
    classifier_activation: bool = True
    classifier_dropout: Share | None = None

    @property
    def true_hidden_size(self) -> int:
        """The size of what layers work on."""
        return self.intra_bottleneck_size if self.use_bottleneck else self.hidden_size

    def norm(self, size: int, eps: float | None = None) -> nn.Module:
        if self.normalization_type == "no_norm":
            return NoNorm(size)
        return nn.LayerNorm(size, self.layer_norm_eps if eps is None else eps)


class NoNorm(nn.Module):
    """A scale and a shift: (..., D) -> (..., D)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.ones(size))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)


class Bottleneck(Linked):
    """A linear layer to smaller states, and a norm: (..., D) -> (..., N)."""

    def __init__(self, c: MobileBertConfig) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(c.hidden_size, c.intra_bottleneck_size), c.norm(c.intra_bottleneck_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dense(x))


class MobileBertAttention(Attention):
    """Attention whose queries and keys read smaller states than its values, of a layer's input (B, T, D)."""

    def __init__(self, c: MobileBertConfig, **options: Any) -> None:
        self.width = c.true_hidden_size if c.use_bottleneck_attention else c.hidden_size
        super().__init__(c.true_hidden_size, c.num_attention_heads, **options)
        self.narrow = Bottleneck(c) if c.use_bottleneck else None
        shares = c.use_bottleneck and c.key_query_shared_bottleneck
        self.shared, self.all_narrow = Bottleneck(c) if shares else None, c.use_bottleneck_attention

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        self.q_proj, self.k_proj = nn.Linear(dim, queries), nn.Linear(dim, keys)
        self.v_proj = nn.Linear(self.width, keys)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.narrow is not None and self.all_narrow:
            read = x = self.narrow(x)
        else:
            read = x if self.shared is None else self.shared(x)
        return self.split(self.q_proj(read)), self.split(self.k_proj(read)), self.split(self.v_proj(x))


class FeedForward(Linked):
    """A feed-forward layer that is added to its input, and a norm: (B, T, N) -> (B, T, N)."""

    def __init__(self, c: MobileBertConfig) -> None:
        super().__init__()
        size = c.true_hidden_size
        self.mlp = MLP(size, c.intermediate_size, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
        self.norm = c.norm(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.mlp(x) + x)


class MobileBertLayer(Layer):
    """Attention and several feed-forward layers over small states, and what these add to the whole ones."""

    def __init__(self, c: MobileBertConfig) -> None:
        super().__init__()
        size = c.true_hidden_size
        self.self_attn, self.self_attn_norm = MobileBertAttention(c, dropout=c.attention_probs_dropout_prob), c.norm(size)
        self.mlp = MLP(size, c.intermediate_size, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
        self.mlp_norm = c.norm(size, 1e-5)
        self.widen = nn.Linear(size, c.hidden_size) if c.use_bottleneck else None
        self.widen_norm = c.norm(c.hidden_size) if c.use_bottleneck else None
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.feed_forwards = nn.ModuleList(FeedForward(c) for _ in range(c.num_feedforward_networks - 1))

    def forward(self, x: Tensor, ctx: Context | Tensor | None = None, **given: Any) -> Tensor:
        ctx = ctx if isinstance(ctx, Context) else self.self_attn.alone(x, ctx, given)
        attended, kept = self.self_attn(x, ctx)[0], ctx.keep(x)
        if self.widen is None or self.widen_norm is None:
            small = self.self_attn_norm(self.dropout(attended) + kept)
            return self.mlp_norm(self.dropout(self.mlp(self.each(small))) + self.each(small))
        assert self.self_attn.narrow is not None
        small = self.each(self.self_attn_norm(attended + self.self_attn.narrow(kept)))
        small = self.mlp_norm(self.mlp(small) + small)
        return self.widen_norm(self.dropout(self.widen(small)) + kept)

    def each(self, x: Tensor) -> Tensor:
        """States through all feed-forward layers but the last."""
        for feed_forward in self.feed_forwards:
            x = feed_forward(x)
        return x


_NARROW: Table = {"dense": "dense", "LayerNorm": "norm"}
MOBILEBERT_BLOCK: Table = {
    "attention": (
        "",
        {
            "self": ("self_attn", {"query": "q_proj", "key": "k_proj", "value": "v_proj"}),
            "output": ("", {"dense": "self_attn.o_proj", "LayerNorm": "self_attn_norm"}),
        },
    ),
    "intermediate.dense": "mlp.up_proj",
    "output": (
        "",
        {"dense": "mlp.down_proj", "LayerNorm": "mlp_norm", "bottleneck": ("", {"dense": "widen", "LayerNorm": "widen_norm"})},
    ),
    "bottleneck": ("", {"input": ("self_attn.narrow", _NARROW), "attention": ("self_attn.shared", _NARROW)}),
    "ffn.*": (
        "feed_forwards.*",
        {"intermediate.dense": "mlp.up_proj", "output": ("", {"dense": "mlp.down_proj", "LayerNorm": "norm"})},
    ),
}
MOBILEBERT_EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "position_embeddings": "embed_positions",
    "token_type_embeddings": "embed_types",
    "embedding_transformation": "embed_proj",
    "LayerNorm": "embed_norm",
}


class MobileBertEmbeddings(nn.Module):
    """The embeddings of words, perhaps with their neighbours, of positions and of types: (B, T, N) -> (B, T, D)."""

    def __init__(self, c: MobileBertConfig) -> None:
        super().__init__()
        self.trigrams = c.trigram_input
        self.word_embeddings = nn.Embedding(c.vocab_size, c.embedding_size, padding_idx=c.pad_token_id)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.embedding_transformation = nn.Linear(c.embedding_size * (3 if self.trigrams else 1), c.hidden_size)
        self.LayerNorm, self.dropout = c.norm(c.hidden_size, 1e-5), nn.Dropout(c.hidden_dropout_prob)

    def forward(self, words: Tensor, types: Tensor | None, positions: Tensor, texts: Tensor | None = None) -> Tensor:
        """``texts`` (1 or B, T) are numbers of texts, of which none sees a neighbour of another."""
        if self.trigrams:
            behind, before = F.pad(words[:, 1:], (0, 0, 0, 1)), F.pad(words[:, :-1], (0, 0, 1, 0))
            if texts is not None:
                same = (texts[:, 1:] == texts[:, :-1])[..., None].to(words.dtype)
                behind, before = behind * F.pad(same, (0, 0, 0, 1)), before * F.pad(same, (0, 0, 1, 0))
            words = torch.cat([behind, words, before], dim=-1)
        if self.trigrams or words.shape[-1] != self.embedding_transformation.out_features:
            words = self.embedding_transformation(words)
        table = self.token_type_embeddings
        segments = table.weight[0] if types is None else table(types)
        return self.dropout(self.LayerNorm(words + self.position_embeddings(positions) + segments))


class FirstState(Pooler):
    """The first state as it is."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states[:, 0] if hidden_states.ndim == 3 else hidden_states


class MobileBertModel(TextBackbone):
    """MobileBERT without a head; the pooler of ``add_pooling_layer`` makes ``pooler_output``."""

    config_class = MobileBertConfig
    head_dropouts = ("classifier_dropout", "hidden_dropout_prob")
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings": ("", MOBILEBERT_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", MOBILEBERT_BLOCK),
            "pooler": "pooler",
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: MobileBertConfig

    def __init__(self, config: MobileBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embeddings = MobileBertEmbeddings(c)
        for stored, own in MOBILEBERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = nn.ModuleList(MobileBertLayer(c) for _ in range(c.num_hidden_layers))
        pooler = partial(Pooler, c.hidden_size) if c.classifier_activation else FirstState
        self.pooler = pooler() if add_pooling_layer else None

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        texts = ctx.texts
        if ctx.rows is not None:
            lengths = torch.tensor(ctx.rows.lengths, device=x.device)
            texts = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)[None]
        x = x if ctx.padding is None else x * ctx.padding[..., None].to(x.dtype)
        return self.embeddings(x, types, positions, texts)


class WideHead(Linked):
    """Dense, activation, norm, and a decoder tied to the small embeddings, with columns of its own for the rest of a state."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(c.hidden_size, c.hidden_size), nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.act, self.decoder = activation(c.hidden_act), nn.Linear(c.embedding_size, c.vocab_size)
        self.rest = nn.Linear(c.vocab_size, c.hidden_size - c.embedding_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        weight = torch.cat([self.decoder.weight, self.rest.weight.T], dim=1)
        return F.linear(self.norm(self.act(self.hidden(x))), weight, self.decoder.bias)


class _Predicts(language.VocabularyTask[MobileBertModel]):
    tied_bias = True
    names = language.VocabularyTask.names | Names(
        {
            "cls.predictions": (
                "lm_head",
                {
                    "bias": "bias",
                    "transform.dense": "hidden",
                    "transform.LayerNorm": "norm",
                    "dense": "rest",
                    "decoder": "decoder",
                },
            )
        }
    )

    def make_head(self, config: Config) -> nn.Module:
        return WideHead(config)

    @torch.no_grad()
    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        table, head = super().resize_token_embeddings(*args, **options), self.lm_head
        assert isinstance(head, WideHead)
        old, size = head.rest.weight, table.num_embeddings
        more = old.mean(dim=1, keepdim=True).expand(-1, max(size - old.shape[1], 0))
        head.rest.weight, head.rest.in_features = nn.Parameter(torch.cat([old[:, :size], more], dim=1)), size
        return table


class MobileBertForMaskedLM(_Predicts, language.ForMaskedLM[MobileBertModel]): ...


class MobileBertForNextSentencePrediction(BertForNextSentencePrediction, backbone=MobileBertModel): ...


class MobileBertForPreTraining(_Predicts, language.ForPreTraining[MobileBertModel]):
    """MobileBERT as it is pretrained: masked tokens and next sentences."""

    names = _Predicts.names | BertForNextSentencePrediction.names


class MobileBertForSequenceClassification(classify.ForSequenceClassification[MobileBertModel]): ...


class MobileBertForTokenClassification(classify.ForTokenClassification[MobileBertModel]): ...


class MobileBertForQuestionAnswering(span.ForQuestionAnswering[MobileBertModel]): ...


class MobileBertForMultipleChoice(classify.ForMultipleChoice[MobileBertModel]): ...
