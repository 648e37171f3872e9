"""Every process has the whole model and takes other rows; the optimizer's state may be divided between them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from transept.parallel.forms import Form


class Replicated(Form):
    """Every process has the whole model (``DistributedDataParallel``).

    ``options`` are those of PyTorch's class.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        where: dict[str, Any] = {"device_ids": [device.index], "output_device": device.index} if device.type == "cuda" else {}
        return DistributedDataParallel(model, **where, **self.options)

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return contextlib.nullcontext() if last else wrapped.no_sync()


class ShardedOptimizer(Replicated):
    """The same, but each process has the optimizer's state of its own share of the weights (ZeRO stage 1)."""

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)

    def optimizer_state(self, optimizer: Any) -> Mapping[Tensor, dict[str, Any]]:
        optimizer.consolidate_state_dict(to=0)
        if dist.get_rank():
            return {}
        state = optimizer.state_dict()["state"]
        return {parameter: state[number] for number, parameter in enumerate(_parameters(optimizer)) if number in state}

    def take_optimizer_state(self, optimizer: Any, states: Mapping[Tensor, dict[str, Any]]) -> None:
        optimizer.optim.state.update({each: states[each] for each in _parameters(optimizer.optim) if each in states})

    def optimizer_name(self, optimizer: Any) -> str:
        return type(optimizer.optim).__name__


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
