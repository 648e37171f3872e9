"""The form of a model in pipeline parallelism: processes have other layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from transept.core.model import Model
from transept.errors import UnsupportedError
from transept.objectives.terms import Items
from transept.parallel.forms import local
from transept.parallel.mesh import DistributedConfig
from transept.parallel.pipeline.pipeline import Pipeline
from transept.parallel.pipeline.stage import Precision
from transept.parallel.sharded import Divided, Sharding
from transept.parallel.streams import Piece
from transept.parallel.tensor.apply import tensor_parallel
from transept.parallel.tensor.plan import Plan


class Staged(Divided):
    """A model whose layers a :class:`Pipeline` divides; processes that take other rows have copies or shards of them.

    Args:
        config: the schedule, the plan of what is split within layers, and the numbers of processes.
        sharding: between the processes that take other rows; where it is absent, these have copies.
        mesh: all processes, with the axes of :mod:`transept.parallel.mesh`.
        precision: makes the context of a forward pass.
    """

    def __init__(self, config: DistributedConfig, sharding: Sharding | None, mesh: Any, precision: Precision) -> None:
        super().__init__(config, sharding, mesh)
        self.precision = precision

    def wrap(self, model: nn.Module) -> nn.Module:
        """Leave in the model what this process computes.

        Raises:
            UnsupportedError: it is none of this library, or cannot be cut.
            ConfigError: it has too few layers; or an unknown schedule.
        """
        if not isinstance(model, Model):
            what = f"{type(model).__name__} cannot be cut into stages: it is no model of this library by itself."
            raise UnsupportedError(what, hint="Leave out `pp_size`.")
        names, tensor = {*model.state_dict()}, self.mesh["tp"]
        plan = Plan.of(model, tensor.size(), self.config.tp_plan or "auto") if tensor.size() > 1 else None
        self.pipeline = Pipeline(model, self.mesh, self.config)
        state, keys = model.state_dict(), model.checkpoint_names().keys
        self.stored = self.pipeline.stored
        stored_here = {keys.recipe(name).stored for name in keys.slots(state)}
        self.elsewhere = (names | {*self.stored}) - state.keys() - stored_here
        for stage in self.pipeline.stages:
            stage.precision = self.precision
        if plan is not None:
            present = dict(model.named_modules())  # what another stage computes is not
            plan.styles = {name: how for name, how in plan.styles.items() if name in present and _has_weights(present[name])}
            plan.layers = {name: roles for name, roles in plan.layers.items() if name in present}
            tensor_parallel(model, tensor, plan)
        if self.sharding is not None:
            if len(self.pipeline.stages) > 1:
                schedule = f"`pp_schedule={self.config.pp_schedule}`"
                what = f"{schedule} gives processes two stages, whose weights cannot be sharded too."
                raise UnsupportedError(what, hint="Use 1F1B or GPipe beside `fsdp`.")
            layers = (layer for stack in model.stacks for layer in stack.layers)
            self.sharding.blocks = [layer for layer in layers if _has_weights(layer)]
            self.sharding.shard(self.pipeline.stages[0])
        self.take_whole(model)
        return model

    def gradient_sync(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return super().gradient_sync(self.pipeline.stages[0], last)

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: Any) -> Optimizer:
        return super().optimizer(kind, groups, options) if groups else kind([{"params": []}], **options)

    def passes(self, usual: Any, inputs: Any, items: Items | None, parts: int, share: float) -> Tensor:
        self.pipeline.train()
        factor = share if self.sharding is None else share * self.sharding.mesh.size()
        return self.pipeline.step(inputs, items, parts, factor) * share

    def for_evaluation(self, model: nn.Module) -> Any:
        # Processes without the last stage have no outputs, and nobody reads their loss.
        return lambda **inputs: self.pipeline.evaluate(inputs) or {"loss": torch.zeros(())}

    @torch.no_grad()
    def finish_gradients(self) -> None:
        self.pipeline.finish_gradients()
        axis = self.mesh["dp_replicate"]
        if axis.size() == 1 or self.sharding is not None:
            return
        weights = [weight for weight in self.pipeline.parameters() if weight.requires_grad]
        used = torch.tensor([int(weight.grad is not None) for weight in weights], device=self.pipeline.device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=axis.get_group())
        works = []
        for weight, is_used in zip(weights, used.tolist()):
            if is_used:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
                works.append(dist.all_reduce(local(weight.grad), group=axis.get_group(), async_op=True))
        for work in works:
            work.wait()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return self.pipeline.norm()

    def _share_all(self, model: nn.Module, state: dict[str, Any], *args: Any) -> None:
        for name in state.keys() - {*self.own_names(state)}:
            del state[name]
        super()._share_all(model, state, *args)

    def own_names(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.elsewhere]

    def joined(self, document: dict[str, Any]) -> dict[str, Any]:
        documents = [document] * self.pipeline.size
        dist.all_gather_object(documents, document, group=self.pipeline.group)
        groups, seen, state = list[Any](), set[str](), dict[str, Any]()
        for group in (group for of_stage in documents for group in of_stage["groups"]):
            if names := [name for name in group["params"] if name not in seen]:
                groups.append(group | {"params": names})
                seen.update(names)
        for of_stage in reversed(documents):
            state |= of_stage["state"]
        return document | {"groups": groups, "state": state}

    def pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        return self.pipeline.pieces(tensors)


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
