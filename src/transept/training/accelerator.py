"""``Trainer.accelerator``: what code written for the reference asks of its processes and devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from transept.errors import UnsupportedError, refuse
from transept.parallel.processes import ProcessView, gather_objects, gather_tensors
from transept.training.data.order import EpochSampler
from transept.training.loss import precision
from transept.training.update import backward


class Accelerator(ProcessView):
    """A view of a trainer's processes and devices."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer.args)
        self._trainer = trainer

    state = property(lambda self: self.args.distributed_state)
    parallelism_config = None  # of accelerate's; the settings of the run say how a model is divided
    gradient_accumulation_steps = property(lambda self: self.args.gradient_accumulation_steps)
    mixed_precision = property(lambda self: "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "no")
    sync_gradients = True

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """The backward pass of a loss: a mean over this process's rows, or divided by ``num_items_in_batch``."""
        share = self._trainer.share
        backward(loss, self._trainer.devices.replicas.size if share.is_divided else 1, self._trainer.scaler)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return precision(self.args)

    def accumulate(self, *models: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    no_sync = accumulate

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """The same objects, with models on the device, and shuffled rows in an order that follows from the epoch."""
        what, hint = "a loader of your own is not divided among processes.", "Use get_eval_dataloader(rows)."
        is_shared = self.num_processes > 1 and any(isinstance(value, DataLoader) for value in objects)
        refuse(is_shared, what, hint, UnsupportedError)
        for value in objects:
            if isinstance(value, nn.Module):
                value.to(self.device)
            batches: Any = getattr(value, "batch_sampler", None)
            if isinstance(rows := getattr(batches, "sampler", None), RandomSampler) and not rows.replacement:
                batches.sampler = EpochSampler(len(rows), self.args.seed)
        return objects if len(objects) > 1 else objects[0]

    def prepare_model(self, model: nn.Module, evaluation_mode: bool = False, **kwargs: Any) -> Any:
        return self.prepare(model.eval() if evaluation_mode else model)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The model inside what processes, and ``torch.compile`` where it is not kept, put around it."""
        is_wrapped = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model.module if is_wrapped else None if keep_torch_compile else model._modules.get("_orig_mod")
        return self.unwrap_model(inner, True, keep_torch_compile) if isinstance(inner, nn.Module) else model

    def gather(self, tensor: Any) -> Any:
        """The tensors of all processes, one behind the other."""
        return self._of_all(torch.cat, pytree.tree_map_only(Tensor, torch.atleast_1d, tensor))

    def _of_all(self, join: Callable[..., Tensor], tree: Any) -> Any:
        def joined(*leaves: Any) -> Any:
            return join(leaves).to(self.device) if isinstance(leaves[0], Tensor) else leaves[0]

        return pytree.tree_map(joined, *gather_tensors(tree))

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What :meth:`gather` gives, in which no row comes twice, or the lists of other objects joined."""
        if use_gather_object or not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(input_data)):
            return [value for values in gather_objects(input_data) for value in values]
        return self.gather(input_data)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        scale = scale / (self.num_processes if reduction == "mean" else 1)
        return self._of_all(lambda parts: torch.stack(parts).sum(0) * scale, tensor)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Tensors as long along an axis as the longest of any process."""

        def pad(value: Tensor) -> Tensor:
            missing = max(gather_objects(value.shape[dim])) - value.shape[dim]
            sides = (missing, 0) if pad_first else (0, missing)
            return F.pad(value, [0, 0] * (value.ndim - 1 - dim % value.ndim) + [*sides], value=pad_index)

        return pytree.tree_map_only(Tensor, lambda value: pad(value) if dim < value.ndim else value, tensor)
