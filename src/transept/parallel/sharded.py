"""Every process has a part of each weight (FSDP; ZeRO stages 2 and 3, Rajbhandari et al. 2020)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from transept.parallel.parts import Parts


class Sharded(Parts):
    """Every process has a shard of each weight, and collects a block's when it is needed (``fully_shard``; ZeRO 2 and 3).

    Args:
        mesh: of one axis, the processes that share the weights; or of two, of which the first repeats the second's shards.
        blocks: the modules that are collected together, from the inside out; the model itself comes last.
        reshard: whether a block's weights are given away again after its forward pass (stage 3); otherwise they stay until
            the backward pass (stage 2).
        offload: keep shards and the optimizer's state in the processor's memory.
        mixed: compute with bfloat16 weights, and add up gradients in float32.
    """

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
        self.take_whole(model)
        return model

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
