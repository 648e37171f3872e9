"""Decoders some or all of whose layers keep states of one size, in the place of keys and values or beside them."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from transept.config.fields import derived
from transept.config.model import Config
from transept.errors import InputError
from transept.kinds.decoder import FULL, SLIDING
from transept.kinds.text import CausalBackbone, PackedOptions
from transept.layers.cache import Kinds
from transept.layers.context import Context
from transept.layers.layer_cache import KeyValues, LayerCache, States

LINEAR, CONV, BOTH = "linear_attention", "conv", "hybrid"
_KEPT: dict[str, tuple[type[LayerCache], ...]] = {FULL: (KeyValues,), SLIDING: (KeyValues,), LINEAR: (States,)}
_KEPT |= {CONV: (States,), BOTH: (States, KeyValues), "mlp": (), "moe": ()}


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

    def layer_kinds(self) -> Kinds:
        return [_KEPT[kind] for kind in self.config.layer_types]

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): a state has no pairs of positions.")
        return x, ctx


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
