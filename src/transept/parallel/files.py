"""Loading checkpoints into models that processes share: each reads its own part, and none the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from transept.checkpoint.load import LoadReport, Part, put
from transept.core.model import Model
from transept.errors import ConfigError, UnsupportedError, refuse
from transept.parallel.mesh import DistributedConfig, needs_torchrun
from transept.parallel.processes import device_kind, join, world_size
from transept.parallel.streams import ModelFiles as ModelFiles  # which write what this module loads
from transept.parallel.tensor.apply import apply, check_sequence, from_first, tensor_parallel
from transept.parallel.tensor.plan import Plan
from transept.parallel.tensor.styles import placed


class Division:
    """How ``from_pretrained`` divides the model that it loads between processes."""

    device: Any = None  # of this process, where it is not the default one

    def divide(self, model: Model) -> None:
        """Divide a model that has its weights."""
        raise NotImplementedError

    def prepare(self, model: Model, report: LoadReport, dtype: torch.dtype) -> Callable[[str], Part]:
        """The part of each tensor that this process reads, for a model on the meta device."""
        raise NotImplementedError

    def finish(self, model: Model, report: LoadReport) -> None:
        """Let the processes work together on what they have read."""
        raise NotImplementedError


def division(tp_plan: Any = None, tp_size: int | None = None, distributed_config: Any = None) -> Division:
    """How a model that is being loaded is divided between the processes that torchrun started.

    ``distributed_config`` stands for both other settings, by itself or as a mapping; or it is the answer itself.

    Raises:
        ConfigError: both are given, or the number of processes is another.
        UnsupportedError: there is one process and there should be more, or a pipeline is wanted.
    """
    if isinstance(distributed_config, Division):
        return distributed_config
    if distributed_config is None:
        return Split(DistributedConfig(tp_plan=tp_plan, tp_size=tp_size))
    what = "`distributed_config` has a `tp_plan` and a `tp_size` of its own."
    refuse(tp_plan is not None or tp_size is not None, what, "Pass it alone.", ConfigError)
    if isinstance(distributed_config, Mapping):
        return Split(DistributedConfig(**distributed_config))
    what = f"`distributed_config` is a DistributedConfig, not {type(distributed_config).__name__}."
    refuse(not isinstance(distributed_config, DistributedConfig), what, kind=ConfigError)
    return Split(distributed_config)


class Split(Division):
    """Each process reads its own parts of the matrices (tensor parallelism)."""

    def __init__(self, settings: DistributedConfig) -> None:
        if world_size() == 1:
            needs_torchrun(settings)
        layout = settings.layout(world_size())
        hint = "Pass the settings to TrainingArguments, which cut the model they are given."
        what = "from_pretrained() splits matrices, and no layers (`pp_size` above 1)."
        refuse(layout.pp > 1, what, hint, UnsupportedError)
        self.settings, self.size, self.mesh = settings, layout.tp, None
        if layout.world > 1:
            join()
            self.mesh = layout.mesh(device_kind())["tp"]
            self.device = f"cuda:{torch.cuda.current_device()}" if device_kind() == "cuda" else None

    def divide(self, model: Model) -> None:
        if self.mesh is not None:
            settings = self.settings
            tensor_parallel(model, self.mesh, settings.tp_plan, sequence=settings.enable_sequence_parallel)

    def prepare(self, model: Model, report: LoadReport, dtype: torch.dtype) -> Callable[[str], Part]:
        self.plan = Plan.of(model, self.size, self.settings.tp_plan)
        if self.settings.enable_sequence_parallel:
            check_sequence(model)
        return partial(self.plan.part, rank=0 if self.mesh is None else self.mesh.get_local_rank())

    def finish(self, model: Model, report: LoadReport) -> None:
        if self.mesh is None or self.size == 1:
            return
        names = model.checkpoint_names()
        new = {names.keys.owner(name) for name in report.new}
        for name, shape in self.plan.shapes.items():
            axis = self.plan.axis(name)
            if axis is not None and name not in new and name not in names.tied:
                stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
                form: Any = {"shape": torch.Size(shape), "stride": stride, "run_check": False}
                part = model.get_parameter(name).data
                put(model, name, DTensor.from_local(part, self.mesh, [placed(axis, self.plan.blocks_of(name))], **form))
        model.tie_weights()
        from_first(self.mesh, (tensor for name, tensor in model.state_dict().items() if name in new))
        apply(model, self.mesh, self.plan, sequence=self.settings.enable_sequence_parallel)
