"""RWKV-4 (Peng et al. 2023): in the place of attention a weighted mean of all values so far, whose weights fade with distance.

Shapes: B batch, T positions, D hidden size, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, derived
from transept.config.model import Config
from transept.heads.language import ForCausalLM
from transept.kinds.hybrid import LINEAR, StateBackbone
from transept.layers.caches.layer import States
from transept.layers.context import Context
from transept.layers.links import Layer, Linked
from transept.layers.moe import wide
from transept.layers.recurrent import real_positions
from transept.outputs import BackboneOutput, LogitsOutput

NOTHING = -1e38  # a key that weighs nothing


class RwkvConfig(Config):
    """Settings of RWKV-4; the defaults are those of the model with 7 billion parameters.

    Outside training, states are halved after every ``rescale_every`` layers, so that they fit into float16; 0 for never.
    ``context_length`` is how long the texts were that it was trained on.
    """

    model_type = "rwkv"
    aliases = {"max_position_embeddings": "context_length"}

    vocab_size: int = 50277
    context_length: Count = 1024
    hidden_size: int = 4096
    num_hidden_layers: Layers = 32
    attention_hidden_size: Count = derived(lambda c: c.hidden_size)
    intermediate_size: Count = derived(lambda c: 4 * c.hidden_size)
    layer_norm_epsilon: float = 1e-5
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    rescale_every: int = 6
    tie_word_embeddings: bool = False

    @property
    def layer_types(self) -> list[str]:
        return [LINEAR] * self.num_hidden_layers


def fading_mean(
    key: Tensor, value: Tensor, fade: Tensor, bonus: Tensor, count: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The mean of the values up to each position, weighted by the exponentials of their keys (B, T, C).

    A weight becomes ``exp(fade)`` (C) times as large with each position, of which there are ``count`` (B, T, 1) up to each; the
    position's own is ``exp(bonus)`` (C) times as large. Sums are kept with the logarithm of their scale: ``state`` (B, 3, C)
    are the logarithm, the sum of weighted values, and of weights. Returns (B, T, C) and the last state, in float32 at least.
    """
    key, value, fade, bonus = wide(key), wide(value), wide(fade), wide(bonus)
    if state is None:
        none = torch.zeros_like(key[:, 0])
        state = torch.stack([none + NOTHING, none, none], dim=1)
    made = (key, value, torch.ones_like(key))
    scale, total, weight = (torch.cat([old[:, None], new], 1) for old, new in zip(state.unbind(1), made, strict=True))
    count, reach = F.pad(count, (0, 0, 1, 0)), 1
    while reach < scale.shape[1]:  # each pass joins what twice as many positions give
        before = scale[:, :-reach] + (count[:, reach:] - count[:, :-reach]) * fade
        largest = torch.maximum(scale[:, reach:], before)
        new, old = (scale[:, reach:] - largest).exp(), (before - largest).exp()
        total, weight = (torch.cat([x[:, :reach], new * x[:, reach:] + old * x[:, :-reach]], 1) for x in (total, weight))
        scale, reach = torch.cat([scale[:, :reach], largest], 1), 2 * reach
    largest = torch.maximum(scale[:, :-1], key + bonus)
    old, new = (scale[:, :-1] - largest).exp(), (key + bonus - largest).exp()
    means = (old * total[:, :-1] + new * value) / (old * weight[:, :-1] + new)
    return means, torch.stack([scale[:, -1], total[:, -1], weight[:, -1]], 1)


class Shifted(Linked):
    """What reads each position beside the one before it: a learnt share of either, for each of ``powers``.

    The share of a channel begins as its place, from 0 to 1, to that power, times how shallow the layer is. ``place`` is the
    number of the layer, and of all layers.
    """

    powers: ClassVar[Mapping[str, float]]
    kept_as: ClassVar[str]

    def __init__(self, dim: int, place: tuple[int, int]) -> None:
        super().__init__()
        self.place = place
        for name in self.powers:
            self.register_parameter(f"time_mix_{name}", nn.Parameter(torch.empty(1, 1, dim)))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        layer, layers = self.place
        for name, power in self.powers.items():
            share = getattr(self, f"time_mix_{name}")
            places = torch.arange(share.shape[-1], device=share.device) / share.shape[-1]
            share.copy_(places ** (power * (1 - layer / layers)))

    def mixed(self, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
        """(B, T, D) for each; the last position is kept for the next."""
        real, kept = real_positions(x, ctx), ctx.kept(States)
        x = x if real is None else x * real
        last = kept.get(self.kept_as) if kept else None
        before = torch.cat([torch.zeros_like(x[:, :1]) if last is None else last[:, None], x[:, :-1]], dim=1)
        if kept is not None:
            kept.keep(0, **{self.kept_as: x[:, -1]})
        shares = (getattr(self, f"time_mix_{name}") for name in self.powers)
        return tuple(x * share + before * (1 - share) for share in shares)


class RwkvSelfAttention(Shifted):
    """The gated mean of values: (B, T, D) -> (B, T, D)."""

    powers: ClassVar[Mapping[str, float]] = {"key": 1, "value": 1, "receptance": 0.5}
    kept_as = "attention"

    def __init__(self, dim: int, hidden: int, place: tuple[int, int]) -> None:
        super().__init__(dim, place)
        self.time_decay, self.time_first = nn.Parameter(torch.empty(hidden)), nn.Parameter(torch.empty(hidden))
        self.key, self.value, self.receptance = (nn.Linear(dim, hidden, bias=False) for _ in range(3))
        self.output = nn.Linear(hidden, dim, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        depth = self.place[0] / max(self.place[1] - 1, 1)
        self.time_mix_value += 0.3 * depth
        nn.init.ones_(self.time_first)
        size = len(self.time_decay)
        places = torch.arange(size, device=self.time_decay.device) / max(size - 1, 1)
        self.time_decay.copy_(-5 + 8 * places ** (0.7 + 1.3 * depth))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        key, value, gate = self.mixed(x, ctx)
        key, value, gate = self.key(key), self.value(value), self.receptance(gate)
        real, kept = real_positions(x, ctx), ctx.kept(States)
        if real is None:
            count = torch.arange(1, x.shape[1] + 1, device=x.device)[None, :, None]
        else:
            key, value, count = wide(key).masked_fill(~real, NOTHING), value * real, real.cumsum(dim=1)
        state = kept.get("recurrent") if kept else None
        y, state = fading_mean(key, value, -self.time_decay.exp(), self.time_first, count, state)
        if kept is not None:
            kept.keep(x.shape[1], recurrent=state)
        return self.output(gate.sigmoid() * y.to(x.dtype))


class RwkvFeedForward(Shifted):
    """A gated feed-forward layer: (B, T, D) -> (B, T, D)."""

    powers: ClassVar[Mapping[str, float]] = {"key": 1, "receptance": 1}
    kept_as = "feed_forward"

    def __init__(self, dim: int, hidden: int, place: tuple[int, int]) -> None:
        super().__init__(dim, place)
        self.key, self.receptance = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        key, gate = self.mixed(x, ctx)
        return self.receptance(gate).sigmoid() * self.value(F.relu(self.key(key)).square())


class RwkvBlock(Layer):
    """A pre-norm block. Outside training its sums are scaled down, by another half after every ``every`` layers."""

    def __init__(self, c: RwkvConfig, layer: int) -> None:
        super().__init__()
        place, every = (layer, c.num_hidden_layers), c.rescale_every
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_epsilon)
        self.pre_norm, self.mixer_norm, self.mlp_norm = None if layer else norm(), norm(), norm()
        self.mixer = RwkvSelfAttention(c.hidden_size, c.attention_hidden_size, place)
        self.mlp = RwkvFeedForward(c.hidden_size, c.intermediate_size, place)
        self.scale = 2.0 ** -(layer // every) if every > 0 else 1.0
        self.halves = every > 0 and (layer + 1) % every == 0

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        x, scale = x if self.pre_norm is None else self.pre_norm(x), 1.0 if self.training else self.scale
        x = x + self.mixer(self.mixer_norm(x), ctx) * scale
        x = x + self.mlp(self.mlp_norm(x), ctx) * scale
        return x / 2 if self.halves and not self.training else x


def _same(*names: str) -> Table:
    return {name: name for name in names}


RWKV_BLOCK: Table = {
    "pre_ln": "pre_norm",
    "ln1": "mixer_norm",
    "ln2": "mlp_norm",
    "attention": (
        "mixer",
        _same(
            *("time_decay", "time_first", "time_mix_key", "time_mix_value", "time_mix_receptance"),
            *("key", "value", "receptance", "output"),
        ),
    ),
    "feed_forward": ("mlp", _same("time_mix_key", "time_mix_receptance", "key", "receptance", "value")),
}


class RwkvOutput(BackboneOutput, cache="state"):
    """A backbone's states, whose cache is ``state``."""


class RwkvCausalLMOutput(LogitsOutput, cache="state"):
    """Logits, beside a cache that is ``state``."""


class RwkvModel(StateBackbone):
    """RWKV without a head; ``state`` is the cache, as ``past_key_values`` is elsewhere."""

    config_class = RwkvConfig
    cache_name, output_class = "state", RwkvOutput
    adapter_targets = ("key", "value", "receptance", "output")  # peft's
    reads: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "inputs_embeds", "state", "use_cache", "labels")
    names = Names(
        {"embeddings": "embed_tokens", "blocks.*": ("layers.*", RWKV_BLOCK), "ln_out": "norm"},
        wide=("time_decay", "time_first"),
    )
    max_positions = None
    config: RwkvConfig

    def __init__(self, config: RwkvConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(RwkvBlock(c, layer) for layer in range(c.num_hidden_layers))
        self.norm = nn.LayerNorm(c.hidden_size)

    @property
    def trained_positions(self) -> int | None:
        return self.config.context_length

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, nn.Linear | nn.Embedding):
            rows, columns = module.weight.shape
            gain = max(rows / columns, 1) ** 0.5 * (0.5 if (rows, columns) == (self.vocab_size, self.dim) else 1.0)
            nn.init.orthogonal_(module.weight, 1e-4 * max(rows, columns) ** 0.5 if isinstance(module, nn.Embedding) else gain)


class RwkvForCausalLM(ForCausalLM[RwkvModel]):
    output_class = RwkvCausalLMOutput
    names = Names({"head": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})
    reads: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "inputs_embeds", "state", "labels", "use_cache")
