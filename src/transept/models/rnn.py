"""Recurrent networks: LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al. 2014) and plain ones (Elman 1990).

Each layer reads the states of the one below from left to right, or in both directions, and has one state that sums up what it
read. Padding changes nothing: rows are packed by their lengths. Between layers the same elements of all positions are dropped
(Gal and Ghahramani 2016). Texts that are packed into one row begin with a state of zeros each.

A model with ``stateful`` goes on where the rows of its last batch ended, so that a long text can be learnt in pieces: row i of
each batch is the next piece of stream i (truncated back-propagation through time, Williams and Peng 1990). Shapes: B batch, T
positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transept.config.fields import Count, Deviation, Layers, PaddingId, Range, Share, derived
from transept.config.model import Config
from transept.core.inputs import Packing
from transept.errors import InputError
from transept.heads import classify, language
from transept.kinds.text import TextBackbone
from transept.layers import Context, pool
from transept.layers.caches.cache import Cache
from transept.layers.caches.layer import States
from transept.outputs import BackboneOutput

_CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class RNNConfig(Config):
    """Settings of a recurrent network.

    ``hidden_size`` is that of the states, half of which each direction has where there are two; tied embeddings must have the
    same size. ``dropout`` is between layers, ``embedding_dropout`` and ``classifier_dropout`` before the first and before a
    classifier. ``pooling`` says what a sequence is classified by: the ``last`` state of each direction, or the ``mean``.
    """

    model_type = "rnn"

    vocab_size: int = 30522
    hidden_size: Count = 256
    embedding_size: Count = derived(lambda c: c.hidden_size)
    num_hidden_layers: Annotated[Layers, Range(1)] = 2
    cell: Literal["lstm", "gru", "rnn"] = "lstm"
    bidirectional: bool = False
    dropout: Share = 0.0
    embedding_dropout: Share = 0.0
    classifier_dropout: Share = 0.0
    pooling: Literal["last", "mean"] = "last"
    stateful: bool = False
    initializer_range: Deviation = 0.1
    pad_token_id: PaddingId | None = None

    def validate(self) -> None:
        super().validate()
        if self.bidirectional and self.hidden_size % 2:
            self.fail("hidden_size", "must be even where both directions are read")
        if self.bidirectional and self.stateful:
            self.fail("stateful", "must be false where both directions are read, which need the whole text")


@dataclass
class Carried:
    """In one forward pass, the states ``carried`` from an earlier one that layers begin with, and those that they ``left``."""

    carried: dict[int, Tensor] = field(default_factory=dict)
    left: dict[int, Tensor] = field(default_factory=dict)


class SharedDropout(nn.Module):
    """Drops the same elements at all positions of (B, T, D)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        return x * nn.functional.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)


class RecurrentLayer(nn.Module):
    """One layer, (B, T, inputs) -> (B, T, D), with zeros where there is padding."""

    def __init__(self, c: RNNConfig, inputs: int, dropout: float) -> None:
        super().__init__()
        size = c.hidden_size // 2 if c.bidirectional else c.hidden_size
        self.cell = _CELLS[c.cell](inputs, size, batch_first=True, bidirectional=c.bidirectional)
        self.dropout = SharedDropout(dropout)
        self.parts = 2 if c.cell == "lstm" else 1  # of a state

    def forward(self, x: Tensor, ctx: Context[Carried]) -> Tensor:
        kept = ctx.kept(States)
        before = None if kept is None else kept.get("recurrent")
        before = ctx.own.carried.get(ctx.layer) if before is None else before
        if ctx.padding is None:
            out, after = self.cell(x, self.split(before))
            after = self.join(after)
        else:
            out, after = self.packed(x, ctx.padding[:, -x.shape[1] :], before)
        ctx.own.left[ctx.layer] = after
        if kept is not None:
            kept.keep(x.shape[1], recurrent=after)
        dropped: Tensor = self.dropout(out)
        return dropped

    def packed(self, x: Tensor, real: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs and last state of rows of which some positions are ``real`` (B, T), on whichever side."""
        lengths, order = real.sum(dim=1), (~real).long().argsort(dim=1, stable=True)[:, :, None]  # the real ones first
        rows = pack_padded_sequence(
            x.take_along_dim(order, dim=1), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        out, after = self.cell(rows, self.split(before))
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        places = order.expand(-1, -1, padded.shape[2])
        outputs = torch.zeros_like(padded).scatter(1, places, padded) * real[:, :, None]
        state = self.join(after)
        old = torch.zeros_like(state) if before is None else before
        return outputs, torch.where((lengths > 0)[:, None, None], state, old)

    def split(self, state: Tensor | None) -> Any:
        """A state (B, parts and directions, size) as PyTorch's cells take it."""
        if state is None:
            return None
        parts = state.transpose(0, 1).contiguous().chunk(self.parts)
        return parts if self.parts > 1 else parts[0]

    def join(self, state: Any) -> Tensor:
        """The other way round."""
        whole: Tensor = torch.cat(state) if self.parts > 1 else state
        return whole.transpose(0, 1)


class RNNModel(TextBackbone):
    config_class = RNNConfig
    keeps, ragged = (States,), False
    pooling = "last"
    head_dropouts = ("classifier_dropout",)
    reads = ("input_ids", "attention_mask", "past_key_values", "inputs_embeds", "labels", "use_cache")

    def __init__(self, config: RNNConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.embedding_size, padding_idx=c.pad_token_id)
        self.dropout = SharedDropout(c.embedding_dropout)
        last = c.num_hidden_layers - 1
        self.layers = nn.ModuleList(
            RecurrentLayer(c, c.hidden_size if index else c.embedding_size, c.dropout if index < last else 0.0)
            for index in range(c.num_hidden_layers)
        )
        self.carried: dict[int, Tensor] = {}  # the states that the last batch ended with

    @property
    def causal(self) -> bool:
        return not self.config.bidirectional

    @property
    def rows_apart(self) -> bool:
        """Rows go on where those of the last batch ended, unless each is a text of its own."""
        return not self.config.stateful

    @property
    def embed_dim(self) -> int:
        return int(self.config.embedding_size)

    def reset_states(self) -> None:
        """Begin the next batch with states of zeros."""
        self.carried = {}

    def train(self, mode: bool = True) -> RNNModel:
        """As ever; training and evaluation begin with states of zeros."""
        if mode != self.training:
            self.reset_states()
        super().train(mode)
        return self

    def begin(self, *args: Any, past_key_values: Cache | None = None, **inputs: Any) -> tuple[Tensor, Context]:
        if past_key_values is not None and not self.causal:
            raise InputError("`past_key_values` cannot be used by a network that reads both directions.", hint="Leave it out.")
        x, ctx = super().begin(*args, past_key_values=past_key_values, **inputs)
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): a state has no pairs of positions.")
        ctx.attentions = ctx.cross_attentions = None
        goes_on = self.config.stateful and past_key_values is None and len(self.carried.get(0, ())) == len(x)
        ctx.own = Carried(self.carried if goes_on else {})
        return x, ctx

    def run(self, x: Tensor, ctx: Context[Carried], start: int = 0, stop: int | None = None) -> Tensor:
        x = super().run(x, ctx, start, stop)
        if self.config.stateful:
            self.carried = {layer: state.detach() for layer, state in ctx.own.left.items()}
        return x

    def forward_packed(self, packing: Packing, inputs: dict[str, Any], forward: Callable[..., Any]) -> Any:
        """Texts of packed rows begin anew, and leave nothing behind."""
        self.reset_states()
        output = super().forward_packed(packing, inputs, forward)
        self.reset_states()
        return output


class RNNForCausalLM(language.ForCausalLM[RNNModel]):
    def __init__(self, config: RNNConfig) -> None:
        if config.bidirectional:
            config.fail("bidirectional", f"must be false for {type(self).__name__}, which does not see what comes next")
        if config.tie_word_embeddings and config.embedding_size != config.hidden_size:
            config.fail("embedding_size", "must equal `hidden_size`, or `tie_word_embeddings` be false")
        super().__init__(config)


class RNNForSequenceClassification(classify.ForSequenceClassification[RNNModel]):
    @property
    def how(self) -> str:
        return str(self.config.pooling)

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The mean, or the last state of each direction: that of the one from right to left is at the first real position."""
        if self.how == "mean" or not self.config.bidirectional:
            return super().pool(states, ids, mask)
        ahead, back = states.last_hidden_state.chunk(2, dim=-1)
        turned_ids, turned_mask = (None if given is None else given.flip(1) for given in (ids, mask))
        pad = self.config.pad_token_id
        first = pool.last(back.flip(1), turned_ids, turned_mask, pad)
        return torch.cat([pool.last(ahead, ids, mask, pad), first], dim=-1)


class RNNForTokenClassification(classify.ForTokenClassification[RNNModel]): ...
