"""Every process has a shard of each weight (FSDP; ZeRO 2 and 3, Rajbhandari et al. 2020), or a part of each matrix.

The parts are PyTorch's distributed tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
import torch.distributed.tensor
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import Optimizer

from transept.core.model import Model
from transept.environment import tiles
from transept.errors import ConfigError, UnsupportedError, refuse
from transept.layers.links import lent
from transept.parallel.forms import Form
from transept.parallel.mesh import DistributedConfig
from transept.parallel.streams import whole
from transept.parallel.tensor.apply import tensor_parallel


@dataclass
class Sharding:
    """How ``fully_shard`` shards weights: every process has a shard, and collects a block's when it is needed."""

    mesh: Any  # of one axis, the processes that share the weights; or of two, the first of which copies the shards
    blocks: Iterable[nn.Module]  # which are collected together, from the inside out; the model itself comes last
    reshard: bool = True  # free a block's weights after its forward (stage 3), or after its backward pass (stage 2)
    offload: bool = False  # keep shards and the optimizer's state in the processor's memory
    mixed: bool = False  # compute with bfloat16 weights, and add up gradients in float32

    def shard(self, root: nn.Module) -> None:
        """Divide the weights of the blocks and of what is around them."""
        options: dict[str, Any] = {"mesh": self.mesh, "reshard_after_forward": self.reshard, "shard_placement_fn": _beside}
        is_on_cpu = self.mesh.device_type == "cpu"
        if self.offload:
            # Pinned memory belongs to an accelerator, and asking for it without one is an error.
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=not is_on_cpu)
        if self.mixed:
            if is_on_cpu:
                tiles.check()
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        blocks = [*self.blocks]
        for module in (*lent(root, blocks), *blocks, root):
            fully_shard(module, **options)
        if hasattr(root, "encode_prompt"):  # reads weights without a forward pass of the whole
            register_fsdp_forward_method(root, "encode_prompt")


def _beside(weight: nn.Parameter) -> Shard | None:
    """The axis along which a weight is sharded: the first, but where that is split in blocks, which shards could not say."""
    placements = getattr(weight, "placements", ())
    return Shard(1) if any(isinstance(each, _StridedShard) and each.dim == 0 for each in placements) else None


class Divided(Form):
    """A model whose weights are sharded, split by :func:`transept.parallel.tensor.apply.tensor_parallel`, or both.

    ``sharding`` is between the processes that take other rows, and ``mesh`` has those that split matrices.
    """

    same_passes = True

    def __init__(self, config: DistributedConfig, sharding: Sharding | None = None, mesh: Any = None) -> None:
        self.config, self.sharding, self.mesh = config, sharding, mesh

    def wrap(self, model: nn.Module) -> nn.Module:
        """Divide a model (``ConfigError``, ``UnsupportedError``: it is split otherwise, or not of this library)."""
        if self.mesh is not None:
            if not isinstance(model, Model):
                name = type(model).__name__
                what = f"{name} cannot be split between processes: it is no model of this library by itself."
                raise UnsupportedError(what, hint="Leave out `tp_size`.")
            size, wanted = getattr(model, "tp_size", None), self.mesh.size()
            what = f"the model is split between {size} processes, but `tp_size` is {wanted}."
            refuse(size not in (None, wanted), what, kind=ConfigError)
            if size is None:
                plan, sequence = self.config.tp_plan or "auto", self.config.enable_sequence_parallel
                tensor_parallel(model, self.mesh, plan, sequence=sequence)
        if self.sharding is not None:
            self.sharding.shard(model)
        self.take_whole(model)
        return model

    def take_whole(self, model: nn.Module) -> None:
        """Let ``load_state_dict`` of a model take whole tensors."""
        model.register_load_state_dict_pre_hook(self._share_all)  # type: ignore[no-untyped-call]  # PyTorch's

    def _share_all(self, model: nn.Module, state: dict[str, Any], *_: Any) -> None:
        parts = model.state_dict()
        state.update({name: self.share(tensor, parts[name]) for name, tensor in state.items() if name in parts})

    def gradient_sync(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        if isinstance(wrapped, FSDPModule):
            wrapped.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def original_class(self, model: nn.Module) -> Iterator[None]:
        sharded = type(model)
        if isinstance(model, FSDPModule):  # of a class that `fully_shard` makes of its own and the model's
            model.__class__ = sharded.__bases__[-1]
        try:
            yield
        finally:
            model.__class__ = sharded

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        # PyTorch's kernels take no mixture: the weights of each grid of processes are a group.
        weights = (weight for group in groups for weight in group["params"])
        mesh = next((weight.device_mesh for weight in weights if isinstance(weight, DTensor)), None)
        if mesh is not None:
            _check_optimizer(kind, options, mesh)
        divided = []
        for group in groups:
            lists = {name: group[name] for name in ("params", "param_names") if name in group}
            grids = [getattr(weight, "device_mesh", None) for weight in group["params"]]
            for grid in dict.fromkeys(grids):
                is_of_grid = [other == grid for other in grids]
                divided.append(group | {name: [*compress(items, is_of_grid)] for name, items in lists.items()})
        return kind(divided, **options)

    def share(self, tensor: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or isinstance(tensor, DTensor) or not tensor.ndim:
            return tensor
        # A mean over some of a weight's axes, as Adafactor keeps, is whole everywhere.
        where = like.placements if tensor.shape == like.shape else [Replicate()] * like.device_mesh.ndim
        # No source: every process has read the whole tensor, and takes its part without asking another.
        return distribute_tensor(tensor.to(like.device), like.device_mesh, where, src_data_rank=None)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of gradients, of which those of one grid of processes are added up together."""
        by_grid: dict[Any, list[Tensor]] = {}
        for gradient in gradients:
            by_grid.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
        norms = [whole(nn.utils.get_total_norm(of_grid)) for of_grid in by_grid.values()]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _check_optimizer(kind: type[Optimizer], options: Mapping[str, Any], mesh: Any) -> None:
    """Make an update of a small weight of which each process has a part (``UnsupportedError``: it cannot be made)."""
    size, placements = 2 * mesh.size(), [Shard(0)] * mesh.ndim
    weight = nn.Parameter(torch.distributed.tensor.ones(size, size, device_mesh=mesh, placements=placements))
    weight.grad = torch.ones_like(weight)
    try:
        kind([{"params": [weight]}], **options).step()
    except Exception as error:  # whatever a class of anybody's may raise
        reason = str(error).splitlines()[0][:200]
        what = f"{kind.__name__} cannot update weights of which each process has a part ({reason})."
        hint = "Use `zero_stage=1` or plain data parallelism with it, or AdamW, Adafactor, SGD, Adagrad or RMSprop."
        raise UnsupportedError(what, hint=hint) from error
