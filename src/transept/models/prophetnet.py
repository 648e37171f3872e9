"""ProphetNet (Qi et al. 2020): an encoder–decoder whose decoder predicts the next n tokens at once, by n more streams.

The main stream holds states of tokens. A predicting stream knows positions alone, and attends to keys of the main stream and to
that of its own state; the further ahead it is to predict, the fewer it sees. Logits are those of the first one.
Shapes: B batch, T positions, S cached and new ones, n streams, N = (1 + n) T states of all, D hidden size, H heads, V tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Count, Deviation, Layers, Multiple, PaddingId, Range, Share
from transept.config.model import Config
from transept.core.task import B
from transept.errors import InputError
from transept.heads.language import WritingTask
from transept.heads.seq2seq import ForConditionalGeneration, StackForCausalLM
from transept.kinds.seq2seq import SHARED_TABLES, DecoderStack, EncoderStack, Seq2SeqBackbone, Seq2SeqConfig, Stack
from transept.kinds.text import Options
from transept.layers import MLP, Attention, Context, PostNorm, standard_layers
from transept.layers.context import Attended
from transept.layers.positions import distance_buckets
from transept.objectives.classification import Unscored, counted, cross_entropy, widened
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, LogitsOutput, ModelOutput, Seq2SeqLogitsOutput, Seq2SeqOutput


class ProphetNetConfig(Seq2SeqConfig):
    """Settings of ProphetNet; the defaults are those of prophetnet-large-uncased.

    ``ngram`` tokens are predicted at each position, of which the loss counts all, or with ``disable_ngram_loss`` the next one;
    ``eps`` is the share of labels that is spread over the vocabulary. Distances to keys are in ``num_buckets``, of which the
    last takes all from ``relative_max_distance`` on.
    """

    model_type = "prophetnet"
    aliases = {"num_attention_heads": "num_encoder_attention_heads", "num_hidden_layers": "num_encoder_layers"}
    aliases |= {"initializer_range": "init_std"}

    activation_dropout: Share = 0.1
    activation_function: str = "gelu"
    vocab_size: int = 30522
    hidden_size: Annotated[int, Multiple("num_encoder_attention_heads"), Multiple("num_decoder_attention_heads")] = 1024
    encoder_ffn_dim: int = 4096
    num_encoder_layers: Layers = 12
    num_encoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    num_decoder_layers: Layers = 12
    num_decoder_attention_heads: int = 16
    attention_dropout: Share = 0.1
    dropout: Share = 0.1
    max_position_embeddings: int = 512
    init_std: Deviation = 0.02
    add_cross_attention: bool = True
    ngram: Count = 2
    num_buckets: Annotated[int, Range(2, MAX_SIZE)] = 32
    relative_max_distance: int = 128
    disable_ngram_loss: bool = False
    eps: Share = 0.0
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 0

    def validate(self) -> None:
        super().validate()
        if self.relative_max_distance <= self.num_buckets // 2:
            self.fail("relative_max_distance", "must be more than half of `num_buckets`")

    def check_model(self) -> None:
        super().check_model()
        if self.first_row + 1 >= self.max_position_embeddings:
            self.fail("max_position_embeddings", f"must be more than `pad_token_id` and two ({self.first_row + 1})")

    @property
    def first_row(self) -> int:
        """The row of the table of positions that the first one has: that behind the padding id."""
        return 1 + (self.pad_token_id or 0)


class ProphetNetDecoderModelOutput(BackboneOutput):
    """States of tokens, and of predicting streams: ``last_hidden_state_ngram`` and each of ``hidden_states_ngram`` (B, n T, D).

    ``ngram_attentions`` are (B, n, H, T, S + T), to the main stream's keys and behind them to the stream's own.
    """

    last_hidden_state_ngram: Tensor
    hidden_states_ngram: tuple[Tensor, ...] | None = None
    ngram_attentions: tuple[Tensor, ...] | None = None


class ProphetNetDecoderLMOutput(LogitsOutput):
    """Logits (B, T, V) of next tokens, ``logits_ngram`` (B, n - 1, T, V) of later streams, and what streams recorded."""

    logits_ngram: Tensor | None = None
    hidden_states_ngram: tuple[Tensor, ...] | None = None
    ngram_attentions: tuple[Tensor, ...] | None = None


class ProphetNetSeq2SeqModelOutput(Seq2SeqOutput):
    """The same of an encoder–decoder, as :class:`ProphetNetDecoderModelOutput`."""

    last_hidden_state_ngram: Tensor
    decoder_ngram_hidden_states: tuple[Tensor, ...] | None = None
    decoder_ngram_attentions: tuple[Tensor, ...] | None = None


class ProphetNetSeq2SeqLMOutput(Seq2SeqLogitsOutput):
    """The same of an encoder–decoder, as :class:`ProphetNetDecoderLMOutput`."""

    logits_ngram: Tensor | None = None
    decoder_ngram_hidden_states: tuple[Tensor, ...] | None = None
    decoder_ngram_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class Streams:
    """What layers of the decoder share, for the S keys of the main stream and behind them each state's own key.

    ``buckets`` (N, S + 1) are those of distances, ``seen`` (1 or B, 1, N, S + 1) is true for what a state attends to, and
    ``attentions`` are weights of the predicting streams (B, n, H, T, S + T), where they are asked for.
    """

    buckets: Tensor
    seen: Tensor
    attentions: list[Tensor]


class StreamAttention(Attention):
    """Attention of all streams (B, N, D), with scores by distance that a linear layer makes of each state."""

    heads_apart, is_prepared = False, True  # one layer makes the scores of all heads

    def __init__(self, c: ProphetNetConfig) -> None:
        super().__init__(c.hidden_size, c.num_decoder_attention_heads, dropout=c.attention_dropout)
        self.distance_proj = nn.Linear(c.hidden_size, c.num_buckets * self.heads)

    def gathered(self, x: Tensor, ctx: Context[Streams]) -> Attended:
        own, length = ctx.own, ctx.queries
        q, k, v = self.project(x)
        keys, values = k[:, :, :length], v[:, :, :length]
        if (cached := ctx.key_values()) is not None:
            keys, values = cached.append(keys, values, None)
        scores = torch.cat([q @ keys.mT, (q * k).sum(dim=-1, keepdim=True)], dim=-1) * self.scale
        by_bucket = self.distance_proj(x).view(*x.shape[:2], -1, self.heads).permute(0, 3, 1, 2)  # (B, H, N, buckets)
        scores = widened(scores + by_bucket.gather(3, own.buckets.expand(*scores.shape)))
        weights = scores.masked_fill(~own.seen, torch.finfo(scores.dtype).min).softmax(dim=-1).to(x.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        if ctx.attentions is not None:
            ctx.attentions.append(weights[:, :, :length, :-1])
            streams = weights[:, :, length:].reshape(*weights.shape[:2], -1, length, weights.shape[3]).transpose(1, 2)
            own.attentions.append(torch.cat([streams[..., :-1], torch.diag_embed(streams[..., -1])], dim=-1))
        out = weights[..., :-1] @ values + weights[..., -1:] * v
        return out.transpose(1, 2).flatten(2), None


_ATTENTION: Table = {"key_proj": "k_proj", "value_proj": "v_proj", "query_proj": "q_proj", "out_proj": "o_proj"}
_BLOCK: Table = {
    "self_attn": ("self_attn", {**_ATTENTION, "relative_pos_embeddings": "distance_proj"}),
    "self_attn_layer_norm": "self_attn_norm",
    "cross_attn": ("cross_attn", _ATTENTION),
    "cross_attn_layer_norm": "cross_attn_norm",
    "feed_forward": ("mlp", {"intermediate": "up_proj", "output": "down_proj"}),
    "feed_forward_layer_norm": "mlp_norm",
}
_EMBEDDINGS: Table = {"word_embeddings": "embed_tokens", "position_embeddings": "embed_positions"}
_NORM: Table = {"embeddings_layer_norm": "embed_norm"}


class ProphetNetStack(Stack):
    """What the two stacks of ProphetNet have in common."""

    config_class = ProphetNetConfig

    def __init__(self, config: ProphetNetConfig) -> None:
        super().__init__(config)
        c, side = config, "decoder" if self.causal else "encoder"
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size, c.pad_token_id)
        self.embed_positions = nn.Embedding(c.max_position_embeddings, c.hidden_size, c.pad_token_id)
        self.embed_norm, self.dropout = nn.LayerNorm(c.hidden_size), nn.Dropout(c.dropout)
        heads, inner = getattr(c, f"num_{side}_attention_heads"), getattr(c, f"{side}_ffn_dim")
        attention = partial(Attention, c.hidden_size, heads, dropout=c.attention_dropout)
        self.layers = standard_layers(
            c,
            partial(PostNorm, dropout=c.dropout),
            partial(StreamAttention, c) if self.causal else attention,
            partial(MLP, c.hidden_size, inner, c.activation_function, dropout=c.activation_dropout),
            partial(nn.LayerNorm, c.hidden_size),
            cross=partial(attention, cross=True) if self.reads_encoder else None,
            count=getattr(c, f"num_{side}_layers"),
        )


class ProphetNetEncoder(ProphetNetStack, EncoderStack):
    base_model_prefix = "prophetnet.encoder"
    reads = ("input_ids", "attention_mask", "inputs_embeds", "labels")
    reads_encoder = False
    names = Names(
        {**_EMBEDDINGS, **_NORM, "layers.*": ("layers.*", _BLOCK)},
        legacy={"prophetnet.word_embeddings": "prophetnet.encoder.word_embeddings"},  # of a whole model's checkpoint
        ignore=("decoder", "lm_head", "prophetnet.word_embeddings"),
    )

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        # A text that fills all positions has one more than the table has rows for; as in training, its end shares the last.
        rows = (positions + self.config.first_row).clamp(max=self.config.max_position_embeddings - 1)
        return self.dropout(self.embed_norm(x + self.embed_positions(rows)))


class ProphetNetDecoder(ProphetNetStack, DecoderStack):
    base_model_prefix = "prophetnet.decoder"
    accepts, ragged = Options, False  # streams stand behind one another
    names = Names(
        {**_EMBEDDINGS, "ngram_embeddings": "stream_embed", "layers.*": ("layers.*", _BLOCK), **_NORM},
        legacy={"prophetnet.word_embeddings": "prophetnet.decoder.word_embeddings"},
        ignore=("encoder", "prophetnet.word_embeddings"),
    )

    def __init__(self, config: ProphetNetConfig) -> None:
        super().__init__(config)
        self.stream_embed = nn.Embedding(config.ngram, config.hidden_size)

    @property
    def reads_encoder(self) -> bool:  # type: ignore[override]
        return bool(self.config.add_cross_attention)

    @property
    def max_positions(self) -> int:
        """T at most: predicting streams are one position further than the main one."""
        return int(self.config.max_position_embeddings) - self.config.first_row - 1

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context[Streams]) -> Tensor:
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): what streams see of each other is the family's.")
        ctx.own = self.streams(ctx, x.device)
        rows = positions + self.config.first_row
        ahead = self.stream_embed.weight.roll(1, 0)[:, None] + self.embed_positions(rows + 1)  # (n, T, D), the last row first
        states = torch.cat([x + self.embed_positions(rows), ahead.flatten(0, 1).expand(len(x), -1, -1)], dim=1)
        return self.dropout(self.embed_norm(states))

    def streams(self, ctx: Context, device: torch.device) -> Streams:
        """Which keys streams see: those before their position, of which each stream sees one less, but always the first."""
        c, keys = self.config, torch.arange(ctx.keys, device=device)
        apart = keys - ctx.places(device)[:, None]  # (T, S)
        behind = torch.arange(-1, c.ngram, device=device).clamp(min=0)[:, None, None]
        seen = ((apart <= -behind) | (keys == 0)).flatten(0, 1)[None, None]
        seen = seen if ctx.padding is None else seen & ctx.padding[:, None, None]
        predicts = torch.arange(seen.shape[2], device=device) >= len(apart)
        apart = torch.cat([apart, (apart - 1).repeat(c.ngram, 1)])
        buckets = distance_buckets(apart, buckets=c.num_buckets, furthest=c.relative_max_distance, causal=True)
        seen = torch.cat([seen, predicts[:, None].expand(*seen.shape[:3], 1)], dim=3)
        return Streams(F.pad(buckets, (0, 1)), seen, [])

    def end(self, x: Tensor, ctx: Context[Streams]) -> ModelOutput | tuple[Any, ...]:
        length, shown = ctx.queries, ctx.hidden_states
        states, ahead, kind = x[:, :length], x[:, length:], ProphetNetDecoderModelOutput
        output = kind(last_hidden_state=states, last_hidden_state_ngram=ahead, past_key_values=ctx.cache)
        if shown is not None:
            output["hidden_states_ngram"] = (*(each[:, length:] for each in shown), ahead)
            ctx.hidden_states = [each[:, :length] for each in shown]
        output["ngram_attentions"] = tuple(ctx.own.attentions) or None
        return self.recorded(output, states, ctx)


class ProphetNetModel(Seq2SeqBackbone):
    config_class = ProphetNetConfig
    encoder_class: ClassVar[type[Stack]] = ProphetNetEncoder
    decoder_class: ClassVar[type[Stack]] = ProphetNetDecoder
    names = Names({"word_embeddings": "embed_tokens", "encoder": "encoder", "decoder": "decoder"}, ties=SHARED_TABLES)

    def joined(self, decoded: BackboneOutput, encoded: BackboneOutput) -> Seq2SeqOutput:
        ahead = decoded["last_hidden_state_ngram"]
        output = ProphetNetSeq2SeqModelOutput(**super().joined(decoded, encoded), last_hidden_state_ngram=ahead)
        output["decoder_ngram_hidden_states"] = decoded.get("hidden_states_ngram")
        output["decoder_ngram_attentions"] = decoded.get("ngram_attentions")
        return output


class NgramTask(WritingTask[B]):
    """A task with logits of the next token, and ``logits_ngram`` (B, n - 1, T, V) of those that come after it.

    ``labels`` (B, T) are not moved: all streams predict label t at position t, each from fewer tokens before it.
    """

    def predict(self, states: Any, inputs: dict[str, Any], score: Callable[[Tensor], Any] | None = None) -> ModelOutput:
        streams, score = self.kept(states, inputs), score or self.score
        more = score(streams[:, 1:]) if streams.shape[1] > 1 else None
        return self.output_class(logits=score(streams[:, 0]), logits_ngram=more)

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        return self.predict(states, inputs, partial(Unscored, self.score))

    def kept(self, states: Any, inputs: dict[str, Any]) -> Tensor:
        """The states (B, n, T, D) that logits are asked for."""
        streams = states.last_hidden_state_ngram.unflatten(1, (self.config.ngram, -1)).transpose(1, 2)
        return super().kept(BackboneOutput(last_hidden_state=streams), inputs).transpose(1, 2)

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        entropy = partial(cross_entropy, smoothing=self.config.eps)
        term, more = entropy(output["logits"], labels[0]), output.get("logits_ngram")
        if more is not None and not self.config.disable_ngram_loss:
            later = entropy(more, labels[0].reshape(more.shape[0], 1, -1).expand(-1, more.shape[1], -1))
            term = LossTerm(term.sum + later.sum, term.count + later.count)
        return {"language": term}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"language": counted(labels) * (1 if self.config.disable_ngram_loss else self.config.ngram)}


class ProphetNetForConditionalGeneration(NgramTask[ProphetNetModel], ForConditionalGeneration[ProphetNetModel]):
    output_class = ProphetNetSeq2SeqLMOutput


class ProphetNetForCausalLM(NgramTask[ProphetNetDecoder], StackForCausalLM[ProphetNetDecoder]):
    output_class = ProphetNetDecoderLMOutput
    # The tree has the table of embeddings that the whole model's stacks share, too.
    names = Names(
        {"prophetnet.word_embeddings": "shared", "prophetnet.decoder": "backbone", "lm_head": "lm_head"},
        ties=dict.fromkeys(("backbone.embed_tokens.weight", "lm_head.weight"), "shared.weight"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shared = copy.deepcopy(self.backbone.embed_tokens)  # the same weights, once they are tied

    @classmethod
    def names_of(cls, config: Config) -> Names:
        return replace(super().names_of(config), legacy={}, ignore=("encoder",))

    def vocabulary_layers(self) -> list[nn.Module]:
        return [self.shared, *super().vocabulary_layers()]
