"""Reformer (Kitaev et al. 2020): attention in chunks, of neighbours or of positions that hash alike, in reversible layers.

Two streams begin as the same embeddings and run through the layers; the output has both, 2 D in size. Hashing makes a row
depend on what it is padded to, and a sequence on the steps that it is read in; with ``hash_seed`` two runs are equal. Random
numbers, sorting and the backward pass cannot be compiled as one graph or exported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Count, Deviation, Layers, PaddingId, Share, derived
from transept.config.model import Config
from transept.errors import InputError
from transept.heads import classify, language, span
from transept.kinds.text import TextBackbone
from transept.layers import Context
from transept.layers.caches.cache import Cache
from transept.layers.links import Layer, Linked
from transept.layers.mlp import MLP, apply_chunking_to_forward
from transept.models.reformer.attention import Hashed, HashedKeyValues, LocalAttention, LSHAttention
from transept.models.reformer.reversible import through
from transept.objectives.classification import Unscored
from transept.outputs import HashedLogitsOutput, HashedOutput, ModelOutput

MAX_BUCKETS = 2**24


class ReformerConfig(Config):
    """Settings of Reformer; the defaults are those of its smallest published model.

    ``attn_layers`` names each layer's attention, and each kind has lengths of chunks and numbers of others that they look at.
    ``num_buckets`` is a number, several to be multiplied, or ``None`` to fit the sequence. Positions are a table, or with
    ``axial_pos_embds`` the rows and columns of a grid of ``axial_pos_shape``, of which each has its part of D.
    """

    model_type = "reformer"

    attention_head_size: Count = 64
    attn_layers: list[Literal["local", "lsh"]] = field(default_factory=lambda: ["local", "lsh"] * 3)
    axial_norm_std: Deviation = 1.0
    axial_pos_embds: bool = True
    axial_pos_shape: list[int] = field(default_factory=lambda: [64, 64])
    axial_pos_embds_dim: list[int] = field(default_factory=lambda: [64, 192])
    chunk_size_lm_head: int = 0
    eos_token_id: int | list[int] | None = 2
    feed_forward_size: int = 512
    hash_seed: int | None = None
    hidden_act: str = "relu"
    hidden_dropout_prob: Share = 0.05
    hidden_size: int = 256
    initializer_range: Deviation = 0.02
    is_decoder: bool = False
    layer_norm_eps: float = 1e-12
    local_num_chunks_before: int | None = 1
    local_num_chunks_after: int | None = 0
    local_attention_probs_dropout_prob: Share | None = 0.05
    local_attn_chunk_length: Count | None = 64
    lsh_attn_chunk_length: Count | None = 64
    lsh_attention_probs_dropout_prob: Share | None = 0.0
    lsh_num_chunks_before: int | None = 1
    lsh_num_chunks_after: int | None = 0
    max_position_embeddings: int = 4096
    num_attention_heads: Count = 12
    num_hidden_layers: Layers = derived(lambda c: len(c.attn_layers), fixed=True)
    num_buckets: int | list[int] | None = None
    num_hashes: Count = 1
    vocab_size: int = 320
    tie_word_embeddings: bool = False
    classifier_dropout: Share | None = None
    pad_token_id: PaddingId | None = 0

    def validate(self) -> None:
        super().validate()
        if not self.attn_layers:
            self.fail("attn_layers", "must name at least one layer")
        names = ("attn_chunk_length", "num_chunks_before", "num_chunks_after", "attention_probs_dropout_prob")
        for name in (f"{kind}_{name}" for kind in {*self.attn_layers} for name in names):
            if getattr(self, name) is None:
                self.fail(name, "must be a number, since `attn_layers` names layers of its kind")
        if any(factor < 2 or factor % 2 for factor in self.bucket_factors) or math.prod(self.bucket_factors) > MAX_BUCKETS:
            self.fail("num_buckets", f"must be even, and of 2 to {MAX_BUCKETS} in all")
        if self.axial_pos_embds:
            grid = self.axial_pos_shape
            if len(grid) != 2 or min(grid) < 1 or math.prod(grid) > MAX_SIZE:
                self.fail("axial_pos_shape", f"must be a number of rows and one of columns, of {MAX_SIZE} cells at most")
            parts = self.axial_pos_embds_dim
            if len(parts) != 2 or min(parts) < 1 or sum(parts) != self.hidden_size:
                rule = f"must be two numbers from 1 that add up to `hidden_size` ({self.hidden_size})"
                self.fail("axial_pos_embds_dim", rule)

    @property
    def bucket_factors(self) -> tuple[int, ...]:
        """What is multiplied to the number of buckets; nothing where it is to fit the sequence."""
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else tuple(self.num_buckets or ())

    def check_causal(self, causal: bool, cls: type) -> None:
        """Require what a class needs: to be a decoder, which looks at no chunks after its own, or not to be one."""
        if self.is_decoder != causal:
            self.fail("is_decoder", f"must be {causal} for {cls.__name__}")
        for kind in set(self.attn_layers) if causal else ():
            if getattr(self, f"{kind}_num_chunks_after"):
                self.fail(f"{kind}_num_chunks_after", f"must be 0 for {cls.__name__}")


class AxialPositions(Linked):
    """Positions as cells of a grid of ``shape``, numbered row by row: of the embedding, a part of the first of ``sizes`` is the
    row's, the rest the column's. Dropout takes whole columns, that is their cells in all rows.
    """

    def __init__(self, shape: Sequence[int], sizes: Sequence[int], *, std: float, dropout: float) -> None:
        super().__init__()
        self.std, self.dropout = std, nn.Dropout(dropout)
        self.rows = nn.Parameter(torch.empty(shape[0], 1, sizes[0]))
        self.columns = nn.Parameter(torch.empty(1, shape[1], sizes[1]))

    def reset_parameters(self) -> None:
        for part in (self.rows, self.columns):
            nn.init.normal_(part, std=self.std)

    def forward(self, places: Tensor) -> Tensor:
        row, column = places // self.columns.shape[1], places % self.columns.shape[1]
        found = torch.cat([self.rows[row, 0], self.columns[0, column]], dim=-1)
        kept = self.dropout(found.new_ones(places.shape[0], self.columns.shape[1]))
        return found * kept.gather(1, column)[..., None]


class FeedForward(MLP):
    def whole(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.dropout(self.up_proj(x))))


class ReformerBlock(Layer):
    """Attention of the second stream is added to the first, and what feed-forward makes of that to the second."""

    def __init__(self, c: ReformerConfig, kind: str) -> None:
        super().__init__()
        self.self_attn_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.self_attn = LocalAttention(c) if kind == "local" else LSHAttention(c)
        self.mlp_norm, drop = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.hidden_dropout_prob
        chunk = c.chunk_size_feed_forward
        self.mlp = FeedForward(c.hidden_size, c.feed_forward_size, c.hidden_act, chunk_size=chunk, dropout=drop)
        self.dropout = nn.Dropout(drop)

    def attend(self, x: Tensor, ctx: Context[Hashed]) -> Tensor:
        return self.dropout(self.self_attn(self.self_attn_norm(x), ctx)[0])

    def feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.mlp(self.mlp_norm(x)))

    def forward(self, x1: Tensor, x2: Tensor, ctx: Context[Hashed]) -> tuple[Tensor, Tensor]:
        y1 = x1 + self.attend(x2, ctx)
        return y1, x2 + self.feed(y1)


REFORMER_BLOCK: Table = {
    "attention.layer_norm": "self_attn_norm",
    "attention.self_attention": ("self_attn", {"query_key": "qk_proj", "query": "q_proj", "key": "k_proj", "value": "v_proj"}),
    "attention.output.dense": "self_attn.o_proj",
    "feed_forward.layer_norm": "mlp_norm",
    "feed_forward.dense.dense": "mlp.up_proj",
    "feed_forward.output.dense": "mlp.down_proj",
}


def _positions(config: ReformerConfig) -> tuple[str, Table]:
    grid: Table = {f"weights.{place}": part for place, part in enumerate(("rows", "columns"))}
    return ("embed_positions", grid) if config.axial_pos_embds else ("", {"embedding": "embed_positions"})


class ReformerModel(TextBackbone):
    """Reformer without a head; its states have 2 D numbers."""

    config_class = ReformerConfig
    keeps, ragged = (HashedKeyValues,), False
    reads = (
        *("input_ids", "attention_mask", "position_ids", "inputs_embeds", "num_hashes", "past_buckets_states"),
        *("labels", "use_cache"),
    )
    names = Names(
        {
            "embeddings.word_embeddings": "embed_tokens",
            "embeddings.position_embeddings": _positions,
            "encoder.layers.*": ("layers.*", REFORMER_BLOCK),
            "encoder.layer_norm": "norm",
        },
        ignore=("self_mask_value_float16", "self_mask_value_float32", "mask_value_float16", "mask_value_float32"),
    )

    @property
    def rows_apart(self) -> bool:
        return False

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        c, drop = config, config.hidden_dropout_prob
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        grid = partial(AxialPositions, c.axial_pos_shape, c.axial_pos_embds_dim, std=c.axial_norm_std, dropout=drop)
        table = partial(nn.Embedding, c.max_position_embeddings, c.hidden_size)
        self.embed_positions: nn.Module = grid() if c.axial_pos_embds else table()
        self.position_dropout = nn.Identity() if c.axial_pos_embds else nn.Dropout(drop)  # a grid has its own
        self.dropout = nn.Dropout(drop)
        self.layers = nn.ModuleList(ReformerBlock(c, kind) for kind in c.attn_layers)
        self.norm = nn.LayerNorm(2 * c.hidden_size, c.layer_norm_eps)

    @property
    def causal(self) -> bool:
        return self.config.is_decoder

    @property
    def dim(self) -> int:
        return 2 * self.config.hidden_size

    @property
    def embed_dim(self) -> int:
        return self.config.hidden_size

    @property
    def max_positions(self) -> int:
        c = self.config
        return min(c.max_position_embeddings, math.prod(c.axial_pos_shape)) if c.axial_pos_embds else c.max_position_embeddings

    def begin(
        self, *args: Any, num_hashes: int | None = None, past_buckets_states: Cache | None = None, **inputs: Any
    ) -> tuple[Tensor, Context]:
        """Sequences longer than a chunk are padded to whole chunks, which ``hidden_states`` (of the second stream) show."""
        cache = {} if past_buckets_states is None else {"past_key_values": past_buckets_states}
        x, ctx = super().begin(*args, **inputs | cache)
        ctx.own = Hashed(self.config.num_hashes if num_hashes is None else num_hashes)
        if ctx.own.rounds < 1:
            raise InputError(f"`num_hashes` must be at least 1, but is {num_hashes}.")
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): positions that hash alike have no pairs.")
        return x, ctx

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        c, length = self.config, x.shape[1]
        chunks = [getattr(c, f"{kind}_attn_chunk_length") for kind in set(c.attn_layers)]
        if not ctx.past and length > min(chunks) and (extra := -length % math.lcm(*chunks)):
            x, positions = self._padded(x, positions, ctx, extra)
        return self.dropout(x) + self.position_dropout(self.embed_positions(positions.expand(x.shape[0], -1)))

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        return torch.cat(through(self.layers, x, x, ctx), dim=-1)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = HashedOutput(last_hidden_state=self.dropout(self.finalize(x))[:, : ctx.queries], past_key_values=ctx.cache)
        return self.recorded(out, x[..., self.config.hidden_size :], ctx)

    def _padded(self, x: Tensor, places: Tensor, ctx: Context, extra: int) -> tuple[Tensor, Tensor]:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding is None else ctx.padding
        ctx.padding = F.pad(real, (0, extra))
        token = torch.full((x.shape[0], extra), (self.config.pad_token_id or 0) % self.vocab_size, device=x.device)
        behind = torch.arange(x.shape[1], x.shape[1] + extra, device=x.device).clamp(max=self.max_positions - 1)
        places = torch.cat([places, behind.expand(places.shape[0], -1)], dim=1)
        return torch.cat([x, self.embed_tokens(token).to(x.dtype)], dim=1), places


class ReformerVocabulary(nn.Module):
    """Logits in chunks of positions. The ``bias`` is stored with the model and, as in the reference, not added."""

    def __init__(self, dim: int, vocab: int, chunk_size: int) -> None:
        super().__init__()
        self.decoder, self.chunk_size = nn.Linear(dim, vocab, bias=False), chunk_size
        self.bias = nn.Parameter(torch.zeros(vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return apply_chunking_to_forward(self.decoder, self.chunk_size, 1, x)


class _ScoresInChunks(language.LanguageTask[ReformerModel]):
    names = Names({"lm_head": "lm_head"}, fixed=("lm_head.bias",))

    def __init__(self, config: ReformerConfig) -> None:
        config.check_causal(isinstance(self, language.ForCausalLM), type(self))
        super().__init__(config)

    def make_head(self, config: Config) -> nn.Module:
        return ReformerVocabulary(self.backbone.dim, config.vocab_size, config.chunk_size_lm_head)

    def unscored(self, states: Any, inputs: dict[str, Any]) -> Any:
        head: Any = self.lm_head
        return self.output_class(logits=Unscored(head.decoder, states.last_hidden_state))  # which are in parts of their own

    def vocabulary_layers(self) -> list[nn.Module]:
        return [*super().vocabulary_layers(), self.lm_head]


# What the tasks take by position, in the order that they have, which is not the backbone's.
READS = ("input_ids", "position_ids", "attention_mask", "inputs_embeds", "num_hashes")


class ReformerModelWithLMHead(_ScoresInChunks, language.ForCausalLM[ReformerModel]):
    output_class = HashedLogitsOutput
    reads = (*READS, "past_buckets_states", "use_cache", "output_hidden_states", "output_attentions", "return_dict", "labels")


class ReformerForMaskedLM(_ScoresInChunks, language.ForMaskedLM[ReformerModel]):
    reads = (*READS, "labels")


class ReformerForSequenceClassification(classify.ForSequenceClassification[ReformerModel]):
    """Reformer that classifies sequences by their first token."""

    reads = (*READS, "labels")
    names = Names({"classifier": "head"})

    def make_head(self, config: Config) -> nn.Module:
        drop = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        head = classify.Classifier(config.hidden_size, config.num_labels, act="tanh", dropout=drop)
        head.dense = nn.Linear(self.backbone.dim, config.hidden_size)
        return head


class ReformerForQuestionAnswering(span.ForQuestionAnswering[ReformerModel]):
    reads = (*READS, "start_positions", "end_positions")
