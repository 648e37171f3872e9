"""Names of a trainer's files and folders, what collators derive from, and what else code of the reference asks for in training.

DeepSpeed is not used here, and is off.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from transept.environment.packages import is_main_process
from transept.errors import InputError
from transept.metrics.nested import nested_truncate
from transept.parallel.processes import ahead, gather_tensors
from transept.training.state import ExplicitEnum

TRAINING_ARGS_NAME, TRAINER_STATE_NAME = "training_args.bin", "trainer_state.json"
OPTIMIZER_NAME, OPTIMIZER_NAME_BIN = "optimizer.pt", "optimizer.bin"
SCHEDULER_NAME, SCALER_NAME = "scheduler.pt", "scaler.pt"
PREFIX_CHECKPOINT_DIR = "checkpoint"
InputDataClass = Any
DataCollator = Callable[[list[Any]], dict[str, Any]]


def default_logdir() -> str:
    """A folder for the logs of a run that begins now."""
    began = datetime.now().astimezone().strftime("%b%d_%H-%M-%S")
    return f"runs{os.sep}{began}_{socket.gethostname()}"


class HPSearchBackend(ExplicitEnum):
    OPTUNA = "optuna"


def nested_gather(tensors: Any, parallel_mode: Any = None, name: str | None = None) -> Any:
    """The tensors of all processes, one below another; in one process the tensors themselves."""

    def joined(first: Any, *others: Any) -> Any:
        leaves = (first, *others)
        return torch.cat([leaf if leaf.ndim else leaf[None] for leaf in leaves]) if isinstance(first, torch.Tensor) else first

    trees = gather_tensors(tensors)
    return tensors if len(trees) == 1 else pytree.tree_map(joined, *trees)


def distributed_concat(tensor: Any, num_total_examples: int | None = None) -> Any:
    """As :func:`nested_gather`, of which the first rows."""
    gathered = nested_gather(tensor)
    return gathered if num_total_examples is None else nested_truncate(gathered, num_total_examples)


def get_model_param_count(model: nn.Module, trainable_only: bool = False) -> int:
    """How many numbers the parameters have."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def number_of_arguments(func: Callable[..., Any]) -> int:
    """How many parameters a function has."""
    return len(inspect.signature(func).parameters)


def total_processes_number(local_rank: int) -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if torch.distributed.is_available() and torch.distributed.is_initialized() else 1


def torch_distributed_zero_first(local_rank: int) -> AbstractContextManager[None]:
    """Within it, the first process of a machine goes before the others, which wait for it."""
    have_met = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ahead(is_main_process(local_rank)) if have_met else nullcontext()


def is_deepspeed_zero3_enabled() -> bool:
    """False: weights that processes share are shared by ``fsdp=``."""
    return False


def deepspeed_config() -> Any:
    """None: there are no settings of it."""
    return None


def unset_hf_deepspeed_config() -> None:
    """Nothing: there are no settings to forget."""


class DataCollatorMixin:
    """Lets ``torch_call`` make batches of tensors, and ``numpy_call`` of arrays; ``return_tensors`` says which."""

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        wanted = return_tensors or self.return_tensors
        if wanted not in ("pt", "np"):
            raise InputError(f"return_tensors is {wanted!r}.", hint='Pass "pt" or "np".')
        return self.torch_call(features) if wanted == "pt" else self.numpy_call(features)

    def torch_call(self, features: list[Any]) -> Any:
        """A batch of tensors; a subclass makes it."""
        raise NotImplementedError

    def numpy_call(self, features: list[Any]) -> Any:
        """A batch of arrays; a subclass makes it."""
        raise NotImplementedError
