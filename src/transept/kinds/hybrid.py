"""Decoders some or all of whose layers keep states of one size, in the place of keys and values or beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from transept.config.fields import Count, Layers, derived
from transept.config.gguf import by_layers
from transept.config.model import Config
from transept.errors import InputError
from transept.kinds.decoder import FULL, SLIDING
from transept.kinds.text import CausalBackbone, PackedOptions
from transept.layers.block import StatePreNorm
from transept.layers.caches.cache import Kinds
from transept.layers.caches.layer import KeyValues, LayerCache, States
from transept.layers.context import Context
from transept.layers.recurrent import StateSizes, StateSpaceMixer
from transept.outputs import BackboneOutput, ModelOutput
from transept.storage.gguf import GGUF

LINEAR, CONV, BOTH = "linear_attention", "conv", "hybrid"
_KEPT: dict[str, tuple[type[LayerCache], ...]] = {FULL: (KeyValues,), SLIDING: (KeyValues,), LINEAR: (States,)}
_KEPT |= {CONV: (States,), BOTH: (States, KeyValues), "mlp": (), "moe": ()}


class KindsConfig(Config):
    """Settings of a decoder whose ``layer_types`` name the ``kinds`` of layers, under ``older`` names of files, too."""

    aliases = {"layers_block_type": "layer_types"}
    kinds: ClassVar[tuple[str, ...]] = (LINEAR, FULL)
    older: ClassVar[Mapping[str, str]] = {"attention": FULL}
    layer_types: list[str]
    num_hidden_layers: Layers

    def validate(self) -> None:
        if (found := [self.older.get(kind, kind) for kind in self.layer_types]) != self.layer_types:
            self.layer_types = found
        super().validate()
        if len(self.layer_types) != self.num_hidden_layers or set(self.layer_types) - {*self.kinds}:
            self.fail("layer_types", f"must name {' or '.join(self.kinds)} for each of {self.num_hidden_layers} layers")


def heads_by_layer(c: Any) -> dict[str, list[int]]:
    """The setting of GGUF files that says how many heads of keys each layer has."""
    return {"attention.head_count_kv": [c.num_key_value_heads if kind == FULL else 0 for kind in c.layer_types]}


class HeadsByLayer(KindsConfig):
    """The same, where GGUF files tell layers of attention by their heads of keys, of which others have none."""

    num_key_value_heads: int

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        kinds = [FULL if has else cls.kinds[0] for has in by_layers(gguf, "attention.head_count_kv") or ()]
        return super().from_gguf(gguf, values | ({"layer_types": kinds} if kinds else {}))

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | heads_by_layer(self)


class LimitedSteps(Config):
    """Settings with bounds of step sizes."""

    time_step_limit: list[Any] = derived(lambda c: [0.0, math.inf])

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read an infinite bound, which is a mapping in the reference's newer files."""
        values = super().upgrade(values)
        if isinstance(limit := values.get("time_step_limit"), list | tuple):
            bounds = [bound["__float__"] if isinstance(bound, dict) and "__float__" in bound else bound for bound in limit]
            values = values | {"time_step_limit": [float(bound) if bound == "Infinity" else bound for bound in bounds]}
        return values

    def validate(self) -> None:
        super().validate()
        limit = self.time_step_limit
        numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in limit)
        if len(limit) != 2 or not numbers or not limit[0] <= limit[1]:
            self.fail("time_step_limit", "must be two numbers, the lower one first")


class HybridBackbone(CausalBackbone):
    """A network whose config names the kind of each layer in ``layer_types``."""

    accepts: ClassVar[type] = PackedOptions
    keeps: ClassVar[tuple[type[LayerCache], ...]] = (States, KeyValues)
    ragged = False

    def block(self, layer: int, **more: Any) -> Any:
        """A layer of attention, as the decoder beneath makes it, or one whose mixer keeps states."""
        model: Any = super()
        if KeyValues in _KEPT[self.config.layer_types[layer]]:
            return model.block(layer, **more)
        maker: Any = self
        return StatePreNorm(self.mixer(layer), maker.feed_forward(layer), maker.make_norm, **more)

    def mixer(self, layer: int) -> nn.Module:
        """What keeps states in the place of a layer's attention."""
        raise NotImplementedError

    def layer_kinds(self) -> Kinds:
        return [_KEPT[kind] for kind in self.config.layer_types]

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): a state has no pairs of positions.")
        return x, ctx


class StateBackbone(HybridBackbone):
    """A network without attention; ``cache_name`` is what it calls its cache, as its ``output_class`` does."""

    keeps = (States,)
    cache_name: ClassVar[str]
    output_class: ClassVar[type[BackboneOutput]]

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        if (cache := inputs.pop(self.cache_name, None)) is not None:
            inputs["past_key_values"] = cache
        x, ctx = super().begin(*args, **inputs)
        ctx.attentions = ctx.cross_attentions = None
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        if ctx.hidden_states is not None:
            ctx.hidden_states = [*ctx.hidden_states[1:], x]  # each layer's own output, and not what goes into the first
        x = self.finalize(x)
        return self.recorded(self.output_class(last_hidden_state=x, past_key_values=ctx.cache), x, ctx)


# Keys of GGUF files -> settings.
STATE_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}


class StateSpaceSettings(LimitedSteps):
    """Settings of mixers of Mamba-2 beside attention.

    Their ``mamba_n_heads`` of ``mamba_d_head`` channels stand in ``mamba_n_groups``, and have ``mamba_expand`` times
    ``hidden_size`` channels together. ``mamba_chunk_size`` has no effect: it chooses between equal computations.
    """

    hidden_size: int
    mamba_n_heads: Count = 128
    mamba_d_head: int = derived(lambda c: c.mamba_inner // c.mamba_n_heads, absent="auto")
    mamba_n_groups: Count = 1
    mamba_d_state: Count = 256
    mamba_d_conv: Count = 4
    mamba_expand: int = 2
    mamba_chunk_size: Count = 256
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    @property
    def mamba_inner(self) -> int:
        """Channels of all heads of a mixer."""
        return self.mamba_expand * self.hidden_size

    @property
    def state_sizes(self) -> StateSizes:
        return StateSizes(self.mamba_n_heads, self.mamba_d_head, self.mamba_n_groups, self.mamba_d_state, self.mamba_d_conv)

    def validate(self) -> None:
        super().validate()
        if self.mamba_n_heads * self.mamba_d_head != self.mamba_inner:
            self.fail("mamba_n_heads", f"times `mamba_d_head` must be {self.mamba_inner}, the channels of all heads")
        self.divided("mamba_n_heads", "mamba_n_groups")


def state_space(c: Any, kind: type[StateSpaceMixer] = StateSpaceMixer) -> StateSpaceMixer:
    """The mixer of a decoder with such settings."""
    options = {"bias": c.mamba_proj_bias, "conv_bias": c.mamba_conv_bias, "limit": c.time_step_limit}
    return kind(c.hidden_size, c.state_sizes, c.hidden_act, eps=c.rms_norm_eps, **options)


class Steps(Protocol):
    """The settings of step sizes before training."""

    time_step_min: float
    time_step_max: float
    time_step_floor: float


@torch.no_grad()
def spread_steps(bias: Tensor, c: Steps) -> None:
    """Fill a bias so that its softplus is spread evenly, by its logarithm, over the range of step sizes of the config."""
    low, high = math.log(c.time_step_min), math.log(c.time_step_max)
    step = torch.empty_like(bias).uniform_(low, high).exp().clamp(min=c.time_step_floor)
    bias.copy_(step + torch.log(-torch.expm1(-step)))
