"""What programs do with a trainer's numbers: nested lists and mappings of tensors, names of parameters, times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputTypeError
from transept.training.callbacks.base import length_of
from transept.training.evaluation import speed
from transept.training.state import ExplicitEnum

IGNORED = -100


def _mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    if isinstance(nested, list | tuple):
        return type(nested)(_mapped(function, value) for value in nested)
    if isinstance(nested, Mapping):
        return type(nested)({name: _mapped(function, value) for name, value in nested.items()})  # type: ignore[call-arg]
    return function(nested)


def nested_detach(tensors: Any) -> Any:
    """The tensors without their graphs."""
    return _mapped(lambda x: x.detach() if isinstance(x, Tensor) else x, tensors)


def nested_numpify(tensors: Any) -> Any:
    """The tensors as arrays, those of bfloat16 in float32."""

    def array(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()

    return _mapped(array, tensors)


def nested_truncate(tensors: Any, limit: int) -> Any:
    """The first rows of the tensors."""
    return _mapped(lambda x: x[:limit], tensors)


def nested_concat(tensors: Any, new_tensors: Any, padding_index: int = IGNORED) -> Any:
    """Rows of tensors or arrays, and below them those of others; the shorter ones are padded along their second axis."""
    if type(tensors) is not type(new_tensors):
        raise InputTypeError(f"{type(tensors).__name__} and {type(new_tensors).__name__} cannot be joined.")
    if isinstance(tensors, list | tuple):
        return type(tensors)(nested_concat(a, b, padding_index) for a, b in zip(tensors, new_tensors, strict=True))
    if isinstance(tensors, Mapping):
        joined = {name: nested_concat(tensors[name], new_tensors[name], padding_index) for name in tensors}
        return type(tensors)(joined)  # type: ignore[call-arg]
    if isinstance(tensors, Tensor):
        return torch_pad_and_concatenate(tensors, new_tensors, padding_index)
    if isinstance(tensors, np.ndarray):
        return torch_pad_and_concatenate(torch.from_numpy(tensors), torch.from_numpy(new_tensors), padding_index).numpy()
    raise InputTypeError(f"{type(tensors).__name__} cannot be joined.", hint="Pass tensors or arrays.")


def torch_pad_and_concatenate(tensor1: Tensor, tensor2: Tensor, padding_index: int = IGNORED) -> Tensor:
    """The rows of both, the shorter ones padded along their second axis."""
    parts = [x[None] if x.dim() == 0 else x for x in (tensor1, tensor2)]
    if parts[0].dim() > 1:
        longest = max(x.shape[1] for x in parts)
        after = (0, 0) * (parts[0].dim() - 2)
        parts = [F.pad(x, (*after, 0, longest - x.shape[1]), value=padding_index) for x in parts]
    return torch.cat(parts)


def nested_gather(tensors: Any, parallel_mode: Any = None, name: str | None = None) -> Any:
    """The tensors of all processes, one below another; in one process the tensors themselves."""
    from transept.parallel.processes import gather_tensors

    return None if tensors is None else _mapped(lambda x: gather_tensors(x) if isinstance(x, Tensor) else x, tensors)


def distributed_concat(tensor: Any, num_total_examples: int | None = None) -> Any:
    """As :func:`nested_gather`, of which the first rows."""
    gathered = nested_gather(tensor)
    return gathered if num_total_examples is None else nested_truncate(gathered, num_total_examples)


@dataclass
class LabelSmoother:
    """The loss of outputs with smoothed labels: of ``epsilon`` all classes have their share."""

    epsilon: float = 0.1
    ignore_index: int = IGNORED

    def __call__(
        self, model_output: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        logits = model_output["logits"] if isinstance(model_output, dict) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        labels = labels.squeeze(-1) if labels.dim() == logits.dim() else labels
        summed = F.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten(),
            ignore_index=self.ignore_index,
            label_smoothing=self.epsilon,
            reduction="sum",
        )
        count = (labels != self.ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
        return summed / (count.to(summed.device) if isinstance(count, Tensor) else count)


def get_parameter_names(
    model: nn.Module, forbidden_layer_types: list[type[nn.Module]], forbidden_layer_names: list[str] | None = None
) -> list[str]:
    """The names of the parameters that are in no layer of these types, and match none of these regular expressions."""
    import re

    patterns = [re.compile(f"{pattern}") for pattern in forbidden_layer_names or []]
    kinds = tuple(forbidden_layer_types)
    layers = {f"{path}." for path, module in model.named_modules() if path and isinstance(module, kinds)}
    forbidden = {name for name, _ in model.named_parameters() for layer in layers if name.startswith(layer)}
    names = [name for name, _ in model.named_parameters() if name not in forbidden]
    return [name for name in names if not any(pattern.search(name.lower()) for pattern in patterns)]


def get_model_param_count(model: nn.Module, trainable_only: bool = False) -> int:
    """How many numbers the parameters have."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def speed_metrics(
    split: str, start_time: float, num_samples: int | None = None, num_steps: int | None = None, num_tokens: int | None = None
) -> dict[str, float]:
    """The seconds since ``start_time``, and how much was done in each."""
    return speed(split, start_time, rows=num_samples, steps=num_steps, tokens=num_tokens)


def seed_worker(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """Set all seeds in a worker of a loader, by the one that PyTorch drew for it."""
    from transept.environment import set_seed

    set_seed(torch.initial_seed() % 2**32)


def has_length(dataset: Any) -> bool:
    """Whether a data set knows how many rows it has."""
    return length_of(dataset) is not None


def denumpify_detensorize(metrics: Any) -> Any:
    """Python's numbers in place of those of arrays and tensors of one value."""
    return _mapped(
        lambda x: x.item() if isinstance(x, np.generic) or (isinstance(x, Tensor) and x.numel() == 1) else x, metrics
    )


def number_of_arguments(func: Callable[..., Any]) -> int:
    """How many parameters a function has."""
    return len(inspect.signature(func).parameters)


def is_main_process(local_rank: int) -> bool:
    """Whether a process is the first of its machine, or the only one."""
    return local_rank in (-1, 0)


def total_processes_number(local_rank: int) -> int:
    """How many processes train together."""
    return torch.distributed.get_world_size() if torch.distributed.is_available() and torch.distributed.is_initialized() else 1


@contextmanager
def torch_distributed_zero_first(local_rank: int) -> Iterator[None]:
    """Within it, the first process of a machine goes before the others, which wait for it."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together and not is_main_process(local_rank):
        torch.distributed.barrier()
    yield
    if together and is_main_process(local_rank):
        torch.distributed.barrier()


class HPSearchBackend(ExplicitEnum):
    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"
