"""The forms in which processes hold a model that is trained; here that of one process by itself.

The others are in ``replicated`` (whole models, and shards of the optimizer's state) and ``sharded`` (shards of all). A form
adds up the gradients of the processes that take other rows, once an update, and never averages them: PyTorch averages, so the
trainer multiplies losses by the number R of these processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Form:
    """One process by itself, and what the other forms have in common."""

    same_passes = False  # whether all processes must make the same number of passes

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module that is called in training."""
        return model

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a forward and a backward pass: whether it is the update's last, in which gradients are added up."""
        return contextlib.nullcontext()

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        """The optimizer of these groups of parameters."""
        return kind(groups, **options)

    def optimizer_state(self, optimizer: Any) -> Mapping[Tensor, dict[str, Any]]:
        """The state of each parameter, whole or sharded; on the first process at least, and asked for by all."""
        found: Mapping[Tensor, dict[str, Any]] = optimizer.state
        return found

    def take_optimizer_state(self, optimizer: Any, states: Mapping[Tensor, dict[str, Any]]) -> None:
        """Put whole states into an optimizer, of which each process keeps its own part."""
        optimizer.state.update(states)

    def optimizer_name(self, optimizer: Any) -> str:
        """The class of the optimizer, whatever divides its state."""
        return type(optimizer).__name__

    def ordinary(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """The model under its own class, whose name is saved, while the block runs."""
        return contextlib.nullcontext()

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, on the first process; all of them ask for these together."""
        return dict(tensors)

    def share(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The part of a whole tensor that belongs to this process, laid out like another one."""
        return tensor

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, the same on all processes."""
        return nn.utils.get_total_norm(gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply gradients by a number."""
        torch._foreach_mul_(list(gradients), factor)
