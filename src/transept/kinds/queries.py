"""Stacks of layers that add positions to queries and keys, and the decoder of learned queries (Carion et al. 2020).

Shapes: B batch, T positions, Q queries, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.core.model import Backbone
from transept.layers.attention import Attention
from transept.layers.context import Attended, Context
from transept.outputs import BackboneOutput


@dataclass(frozen=True)
class AddedPositions:
    """The positions (B, T, D) that layers add to queries and keys, and those that they add to the encoder's states."""

    own: Tensor
    encoder: Tensor | None = None


class PlacedAttention(Attention):
    """Attention that adds positions to queries and keys, and not to values."""

    is_prepared = True

    def whole(self, x: Tensor, ctx: Context[AddedPositions]) -> Attended:
        """(B, T, D) -> (B, T, D), and the weights where the kernel shows them."""
        added = ctx.own
        states, places, mask, seen = x, added.own, ctx.full_mask, ctx.attentions
        if self.cross:
            assert ctx.encoder_states is not None
            assert added.encoder is not None
            states, places, mask, seen = ctx.encoder_states, added.encoder, ctx.encoder_mask, ctx.cross_attentions
        q, k, v = self.q_proj(x + added.own), self.k_proj(states + places), self.v_proj(states)
        out, weights = self.attend(self.split(q), self.split(k), self.split(v), mask, False, ctx)
        if seen is not None and weights is not None:
            seen.append(weights)
        return self.o_proj(out.transpose(1, 2).flatten(2)), weights


class PlacedStack(Backbone):
    """Layers over states whose positions are added in each of them; a part of a model that prepares its context."""

    config_class = Config
    base_model_prefix = "model"

    def __init__(self, config: Config, layers: nn.ModuleList) -> None:
        super().__init__(config)
        self.layers = layers

    def forward(self, x: Tensor, ctx: Context[AddedPositions]) -> BackboneOutput:
        """States (B, T, D) and the context of a pass -> the states after the last layer, and what was recorded."""
        x = self.run(x, ctx)
        return self.recorded(BackboneOutput(last_hidden_state=x), x, ctx)


class QueryDecoderOutput(BackboneOutput):
    """The states of queries; ``intermediate_hidden_states`` (layers, B, Q, D) are the normed ones of all layers."""

    intermediate_hidden_states: Tensor | None = None


class QueryDecoder(PlacedStack):
    """A stack whose states (B, Q, D) belong to learned queries, and are normed after the last layer.

    With ``auxiliary`` the states of every layer are normed, shown, and what the next layer reads.
    """

    def __init__(self, config: Config, layers: nn.ModuleList, norm: nn.Module, *, auxiliary: bool = False) -> None:
        super().__init__(config, layers)
        self.norm, self.auxiliary = norm, auxiliary

    def forward(self, x: Tensor, ctx: Context[AddedPositions]) -> QueryDecoderOutput:
        """What the queries begin with (B, Q, D), and the context of a pass -> their states."""
        if not self.auxiliary:
            x = self.finalize(self.run(x, ctx))
            return self.recorded(QueryDecoderOutput(last_hidden_state=x), x, ctx)
        middle, states = [], [x]
        for index in range(len(self.layers)):
            states.append(self.run(x, ctx, index, index + 1))
            x = self.finalize(states[-1])
            middle.append(x)
        x, ctx.hidden_states = self.finalize(x), None if ctx.hidden_states is None else states[:-1]
        output = QueryDecoderOutput(last_hidden_state=x, intermediate_hidden_states=torch.stack(middle))
        return self.recorded(output, x, ctx)
