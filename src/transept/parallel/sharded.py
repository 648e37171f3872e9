"""Every process has a part of each weight: a shard (FSDP; ZeRO stages 2 and 3, Rajbhandari et al. 2020), or of each matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from transept import tiles
from transept.core.model import Model
from transept.errors import ConfigError, UnsupportedError
from transept.parallel.distributed import Distributed
from transept.parallel.mesh import DistributedConfig
from transept.parallel.tensor.apply import tensor_parallel


class Sharded(Distributed):
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
        self.shard(model)
        self.take_whole(model)
        return model

    def shard(self, root: nn.Module) -> None:
        """Divide the weights of the blocks and of what is around them."""
        options: dict[str, Any] = {"mesh": self.mesh, "reshard_after_forward": self.reshard}
        if self.offload:
            # Pinned memory belongs to an accelerator, and asking for it without one is an error.
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu")
        if self.mixed:
            if self.mesh.device_type == "cpu":
                tiles.check()
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.blocks:
            fully_shard(block, **options)
        fully_shard(root, **options)
        if hasattr(root, "encode_prompt"):  # reads weights without a forward pass of the whole
            register_fsdp_forward_method(root, "encode_prompt")

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


class Divided(Distributed):
    """A model that is split by :func:`transept.parallel.tensor.apply.tensor_parallel`.

    Args:
        mesh: the processes between which it is split.
        config: the plan, and whether positions are split.
        rows: how it is sharded between processes that take other rows, where there are any.
    """

    def __init__(self, mesh: Any, config: DistributedConfig, rows: Sharded | None = None) -> None:
        self.mesh, self.config, self.rows = mesh, config, rows

    def wrap(self, model: nn.Module) -> nn.Module:
        """Split the model, where ``from_pretrained`` did not.

        Raises:
            ConfigError: it is split between another number of processes.
            UnsupportedError: it is none of this library.
        """
        if not isinstance(model, Model):
            what = f"{type(model).__name__} cannot be split between processes: it is no model of this library by itself."
            raise UnsupportedError(what, hint="Leave out `tp_size`.")
        size = getattr(model, "tp_size", None)
        if size is None:
            tensor_parallel(model, self.mesh, self.config.tp_plan or "auto", sequence=self.config.enable_sequence_parallel)
        elif size != self.mesh.size():
            raise ConfigError(f"the model is split between {size} processes, but `tp_size` is {self.mesh.size()}.")
        if self.rows is not None:
            return self.rows.wrap(model)
        self.take_whole(model)
        return model

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.rows is None else self.rows.added_up(wrapped, last)

    def ordinary(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.rows is None else self.rows.ordinary(model)
