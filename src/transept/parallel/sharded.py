"""Every process has a part of each weight (FSDP; ZeRO stages 2 and 3, Rajbhandari et al. 2020)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from transept.parallel.forms import Form


class Sharded(Form):
    """Every process has a shard of each weight, and collects a block's when it is needed (``fully_shard``; ZeRO 2 and 3).

    Args:
        mesh: of one axis, the processes that share the weights; or of two, of which the first repeats the second's shards.
        blocks: the modules that are collected together, from the inside out; the model itself comes last.
        reshard: whether a block's weights are given away again after its forward pass (stage 3); otherwise they stay until
            the backward pass (stage 2).
        offload: keep shards and the optimizer's state in the processor's memory.
        mixed: compute with bfloat16 weights, and add up gradients in float32.
    """

    same_passes = True

    def __init__(
        self, mesh: Any, blocks: Iterable[nn.Module], *, reshard: bool = True, offload: bool = False, mixed: bool = False
    ) -> None:
        self.mesh, self.blocks, self.reshard, self.offload, self.mixed = mesh, list(blocks), reshard, offload, mixed

    def wrap(self, model: nn.Module) -> nn.Module:
        options: dict[str, Any] = {"mesh": self.mesh, "reshard_after_forward": self.reshard}
        if self.offload:
            # Pinned memory belongs to an accelerator, and asking for it without one is an error.
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu")
        if self.mixed:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        model.register_load_state_dict_pre_hook(self._share_all)  # type: ignore[no-untyped-call]  # PyTorch's
        return model

    def _share_all(self, model: nn.Module, state: dict[str, Any], *_: Any) -> None:
        """Let ``load_state_dict`` take whole tensors."""
        own = model.state_dict()
        state.update({name: self.share(each, own[name]) for name, each in state.items() if name in own})

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]  # of the class that `fully_shard` gives it
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def ordinary(self, model: nn.Module) -> Iterator[None]:
        sharded = type(model)  # made by `fully_shard` of its own class and the model's
        model.__class__ = sharded.__bases__[-1]
        try:
            yield
        finally:
            model.__class__ = sharded

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if dist.get_rank() == 0:
                found[name] = whole.cpu()
        return found

    def share(self, tensor: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or isinstance(tensor, DTensor) or tensor.shape != like.shape:
            return tensor  # other shapes are another's error to raise
        place = like.device_mesh.device_type if not self.offload else "cpu"
        # No source: every process has read the whole tensor, and takes its part without asking another.
        return distribute_tensor(tensor.to(place), like.device_mesh, like.placements, src_data_rank=None)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return whole_norm(gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        torch._foreach_mul_([_local(each) for each in gradients], factor)


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has."""
    found: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def whole_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The norm of gradients of which each process has parts; those of one grid of processes are added up together."""
    by_mesh: dict[Any, list[Tensor]] = {}
    for each in gradients:
        by_mesh.setdefault(getattr(each, "device_mesh", None), []).append(each)
    norms = [nn.utils.get_total_norm(each) for each in by_mesh.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(whole)) if whole else torch.zeros(())
