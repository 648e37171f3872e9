"""Pipeline parallelism (Huang et al. 2019): processes have other layers, and micro-batches go through them one after the other.

PyTorch's schedules order the passes and move the states. What is ours: the partition of a model, the context made in each
stage, batches that fit (see ``microbatches``), weights that several stages have, and files of the whole model.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from transept.checkpoint.load import LoadReport, everything
from transept.config import Config
from transept.core.model import Model
from transept.errors import ConfigError, TrainingError, TranseptError
from transept.objectives.terms import Items
from transept.outputs import ModelOutput
from transept.parallel.files import Division
from transept.parallel.forms import local
from transept.parallel.mesh import DistributedConfig
from transept.parallel.pipeline.microbatches import joined, padded_rows, rows_of, spread_texts
from transept.parallel.pipeline.partition import keep, partition
from transept.parallel.pipeline.stage import Share, Stage, States, Wires, schedule_named
from transept.parallel.pipeline.weights import initialize, leave_out_absent
from transept.parallel.streams import ModelFiles, Piece, whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

KEPT = 4  # schedules, one for each shape of states, whose memory they hold


class Pipeline(Division):
    """A task model whose layers are divided between the processes along the axis ``pp`` of a mesh.

    All processes of a pipeline are given the same batches. The model is cut in place: ``model`` keeps the layers of this
    process and what it needs beside them, under their ordinary names, and these are moved to its device. What a process
    leaves out of a model that was loaded is never read from the files, which are mapped.

    An update is a :meth:`step` for each of its batches, :meth:`finish_gradients`, :meth:`norm` to clip by, and the step of an
    optimizer of :meth:`parameters`. Between processes that take other rows, the gradients are added up before that; or shard
    the layers of ``model``, and then each of ``stages``, by PyTorch's ``fully_shard``, and multiply the loss by their number
    (``scale``), where a process has one stage.

    Args:
        model: a task model with the same weights in all processes; or use :meth:`from_pretrained` or :meth:`from_config`,
            which never allocate what other stages have.
        mesh: the processes (see :meth:`transept.parallel.mesh.Layout.mesh`).
        config: ``pp_schedule``, one of :data:`SCHEDULES`, and ``pp_microbatches``.

    Raises:
        UnsupportedError: a family or a task that cannot be cut.
        ConfigError: more stages than layers, an unknown schedule, or micro-batches that it cannot order.
    """

    def __init__(self, model: Model, mesh: DeviceMesh, config: DistributedConfig) -> None:
        self._join(mesh, config)
        self.divide(model)

    @classmethod
    def from_config(cls, kind: type[Model], settings: Config, mesh: DeviceMesh, config: DistributedConfig) -> Self:
        """A pipeline of a new model of a class, whose weights are the same for any number of stages with the same seed."""
        self = cls.__new__(cls)
        self._join(mesh, config)
        model = kind._without_memory(settings, {})
        self._divide(model)
        initialize(model, self.owned, model.checkpoint_names().tied, self.device)
        keep(model, self.layers, self.owned, self.device, None)
        self.finish(model)
        return self

    @classmethod
    def from_pretrained(cls, kind: type[Model], path: Any, mesh: DeviceMesh, config: DistributedConfig, **options: Any) -> Self:
        """A pipeline of a model of a class, of whose checkpoint each process reads its own tensors.

        The arguments are those of :meth:`transept.PreTrainedModel.from_pretrained`, as are the errors.
        """
        self = cls.__new__(cls)
        self._join(mesh, config)
        kind.from_pretrained(path, **options, distributed_config=self)
        return self

    def _join(self, mesh: DeviceMesh, config: DistributedConfig) -> None:
        """Find this process's place among the others."""
        axis = mesh["pp"]
        self.group, self.rank, self.size = axis.get_group(), axis.get_local_rank(), axis.size()
        self.mesh, self.config, self.device = mesh, config, _device(mesh)
        if self.size < 2:
            raise ConfigError("a pipeline needs `pp_size` of at least 2.", hint="Train without it on one process.")
        self.schedule_name, rounds, is_v = config.schedule
        self.count = rounds * self.size
        self.parts = config.pp_microbatches or 2 * self.size
        _check_parts(self.schedule_name, self.parts, self.size)
        indices = [[rank, *([self.count - 1 - rank if is_v else self.size + rank] * (rounds - 1))] for rank in range(self.size)]
        self.rank_of = {stage: rank for rank, stages in enumerate(indices) for stage in stages}
        self.indices = indices[self.rank]

    def _divide(self, model: Model) -> None:
        """Decide which stage has what of a model on the meta device."""
        names = model.checkpoint_names()
        self.partition = partition(model, self.count, names.tied)
        self.owned = self.partition.owned(self.indices)
        ranges = [self.partition.ranges(index) for index in self.indices]
        stacks = range(len(self.partition.sizes))
        self.layers = [{layer for of_stage in ranges for layer in range(*of_stage[stack])} for stack in stacks]
        self.stored = list(names.keys.save({name: t for name, t in model.state_dict().items() if name not in names.tied}))

    def divide(self, model: Model) -> None:
        self._divide(copy.deepcopy(model, {id(t): _shape(t) for t in (*model.parameters(), *model.buffers())}))
        keep(model, self.layers, self.owned, model.device, None)
        self.finish(model.to(self.device))

    def prepare(self, model: Model, report: LoadReport, dtype: torch.dtype) -> Callable[[str], tuple[slice, ...]]:
        self._divide(model)
        keep(model, self.layers, self.owned, self.device, dtype)
        leave_out_absent(report, model)
        return everything

    def finish(self, model: Model, report: LoadReport | None = None) -> None:
        self.model = model
        last = self.count - 1
        self.stages = [Stage(model, self.partition.ranges(index), index == last) for index in self.indices]
        self.schedules: dict[Any, Any] = {}
        ties, stages_of = model.checkpoint_names().tied, self.partition.stages
        self.owners = {
            name: tuple(sorted({self.rank_of[stage] for stage in stages}))
            for name, stages in stages_of.items()
            if ties.get(name) not in stages_of
        }
        self.shared = {name: ranks for name, ranks in self.owners.items() if len(ranks) > 1}
        with torch.no_grad():  # new weights are drawn by each process
            for name, ranks in self.shared.items():
                if self.rank in ranks:
                    self._send_on(local(model.get_parameter(name).data), ranks)

    # --- the model -----------------------------------------------------------------------------------------------------

    @property
    def has_last(self) -> bool:
        """Whether this process has the last stage, which alone gives outputs."""
        return self.count - 1 in self.indices

    def train(self, mode: bool = True) -> Self:
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of this process, also those that others have a copy of."""
        return self.model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def counted_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this process without copies of those that an earlier one has: all processes have each once."""
        for name, ranks in self.owners.items():
            if ranks[0] == self.rank:
                yield name, self.model.get_parameter(name)

    # --- passes --------------------------------------------------------------------------------------------------------

    def step(self, batch: Mapping[str, Any], items: Items | None = None, parts: int = 1, scale: float = 1.0) -> Tensor:
        """A forward and a backward pass of a batch, whose gradients are added to those that are there.

        Args:
            batch: inputs and labels of all rows, the same in all processes of a pipeline.
            items: the numbers of items in the whole batch that this is a part of (see
                :func:`transept.objectives.terms.total`); those of this batch when absent.
            parts: how many such batches, of all processes that take other rows together, make the whole.
            scale: what the loss is multiplied by for its gradients, such as the number of processes that average them; 0
                for a batch that stands in where others have one more.

        Returns:
            The loss, a scalar, in all processes.

        Raises:
            InputError, UnsupportedError: inputs that cannot be, in all processes before anything is sent; or labels.
            TrainingError: another process was given another batch, or refused its own, as that of the last stage does
                with labels.
        """
        inputs, states, real, counted = self._prepared(batch, training=True)
        losses = self._run(inputs, states, real, Share(counted if items is None else items, parts, scale))
        loss = torch.zeros((), device=self.device)
        if losses and scale:
            loss += torch.stack([of_part.detach() for of_part in losses]).sum() / scale
        dist.broadcast(loss, group=self.group, group_src=self.rank_of[self.count - 1])
        return loss

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Any]) -> ModelOutput | None:
        """The model's output for a batch, with ``loss_terms`` where there are labels, on the process of the last stage.

        Other processes get ``None``. Raises as :meth:`step` does.
        """
        inputs, states, real, _ = self._prepared(batch, training=False)
        self._run(inputs, states, real, None)
        return joined([output for stage in self.stages for output in stage.outputs]) if self.has_last else None

    def _run(self, inputs: dict[str, Any], states: tuple[States, ...], real: list[int], share: Share | None) -> list[Tensor]:
        """Train where there is a share, or else evaluate; the losses of micro-batches, on the process of the last stage."""
        schedule = self._schedule(states, training=share is not None)
        for stage in self.stages:
            stage.expect(real, share)
        losses: list[Tensor] = []
        last = {"target": inputs["part"], "losses": losses} if self.has_last and share is not None else {}
        try:
            schedule.step(**inputs, **last, return_outputs=False)
        except RuntimeError as error:
            if isinstance(error.__cause__, TranseptError):  # PyTorch wraps whatever a stage raises
                raise error.__cause__ from None
            raise
        failure = next((stage.failure for stage in self.stages if stage.failure is not None), None)
        self._agree(0 if failure is None else -1, failure)
        return losses

    def _prepared(self, batch: Mapping[str, Any], training: bool) -> tuple[dict[str, Any], tuple[States, ...], list[int], Any]:
        """A batch that fits, what travels for each of its parts, how many rows of each are real, and the items of the batch."""
        failure: TranseptError | None = None
        mark = -1
        try:
            inputs = rows_of(self.model, batch)
            counted = self.model.count(dict(inputs)) if training else None
            if "use_cache" in (*self.model.arguments(), *self.model.options()):
                inputs["use_cache"] = False
            inputs = spread_texts(self.model, inputs, self.parts if training else 0)
            inputs, real = padded_rows(inputs, self.parts)
            told = {name: value for name, value in inputs.items() if name != "part"}
            whole = self.stages[0].shapes(told)
            states = tuple(States((s.shape[0] // self.parts, *s.shape[1:]), s.dtype) for s in whole)
            shapes = sorted((name, tuple(value.shape)) for name, value in inputs.items() if isinstance(value, Tensor))
            mark = zlib.crc32(repr((shapes, states, training)).encode())
        except TranseptError as error:
            failure = error
        self._agree(mark, failure)
        return inputs, states, real, counted

    def _agree(self, mark: int, failure: TranseptError | None) -> None:
        """Refuse a step that not all processes are ready for; each tells what it was given as one number."""
        marks = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(marks, torch.tensor([mark], device=self.device), group=self.group)
        if failure is not None:
            raise failure
        found = [int(each) for each in marks]
        if -1 in found:
            raise TrainingError(f"process {found.index(-1)} of the pipeline refused its inputs.", hint="See what it raised.")
        if len({*found}) > 1:
            hint = "Deal the same rows to all stages of a pipeline (Layout.data_rank)."
            raise TrainingError("the processes of a pipeline were given batches of other shapes.", hint=hint)

    def _schedule(self, states: tuple[States, ...], training: bool) -> Any:
        """The schedule for states of these shapes: PyTorch's keep those that they met first."""
        key = states, training
        schedule = self.schedules.pop(key, None)
        if schedule is None:
            ends = ((self._wire(at, states, training), self._wire(at + 1, states, training)) for at in self.indices)
            stages = [(at, stage, *wires) for at, stage, wires in zip(self.indices, self.stages, ends)]
            # PyTorch leaves gradients of weights for later where a weight is used once, and behind what was received, alone.
            split = not self.partition.shares and len(self.partition.sizes) == 1
            options: Any = {"num_stages": self.count, "device": self.device, "group": self.group, "split": split}
            schedule = schedule_named(self.schedule_name, stages, self.parts, training=training, **options)
        self.schedules[key] = schedule  # behind those that were asked for before
        if len(self.schedules) > KEPT:
            del self.schedules[next(iter(self.schedules))]
        return schedule

    def _wire(self, stage: int, states: tuple[States, ...], training: bool) -> Wires:
        """What a stage receives, as tensors without values."""
        if stage == self.count:
            states = (States((1,), torch.get_default_dtype()),)
        elif len(self.partition.sizes) == 1 or self.partition.bounds[stage] < self.partition.sizes[0]:
            states = states[:1]
        else:  # of the encoder, the decoder, and the encoder's output
            states = states[2:] if self.partition.bounds[stage] == self.partition.sizes[0] else states[1:]
        wires = (torch.empty(s.shape, dtype=s.dtype, device="meta", requires_grad=training) for s in states)
        return tuple(wires) if stage > 0 else ()

    # --- gradients -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Add up the gradients of weights that several stages have; call it once an update, after the last :meth:`step`."""
        for name, ranks in self.shared.items():
            parameter = self.model.get_parameter(name) if self.rank in ranks else None
            if parameter is not None and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._add_up(local(parameter.grad), ranks)

    def _add_up(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Sum a tensor over processes, in one order, so that all of them have the same to the bit."""
        if self.rank != ranks[0]:
            dist.send(tensor.contiguous(), group=self.group, group_dst=ranks[0])
        else:
            for other in ranks[1:]:
                tensor += self._received(tensor, other)
        self._send_on(tensor, ranks)

    def _send_on(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Give all of some processes what the first has."""
        if self.rank != ranks[0]:
            tensor.copy_(self._received(tensor, ranks[0]))
        else:
            for other in ranks[1:]:
                dist.send(tensor.contiguous(), group=self.group, group_dst=other)

    def _received(self, like: Tensor, rank: int) -> Tensor:
        theirs = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(theirs, group=self.group, group_src=rank)
        return theirs

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The norm of all gradients of the model, those that several stages have counted once; a scalar in all processes.

        Call it after :meth:`finish_gradients`.
        """
        gradients = [parameter.grad for _, parameter in self.counted_parameters() if parameter.grad is not None]
        squares = torch.stack([whole(g.float().norm()) for g in gradients]).square().sum() if gradients else torch.zeros(())
        squares = squares.to(self.device)
        dist.all_reduce(squares, group=self.group)
        return squares.sqrt()

    # --- files ---------------------------------------------------------------------------------------------------------

    def save_pretrained(self, directory: Any, max_shard_size: int | str = "50GB") -> None:
        """Write an ordinary checkpoint, tensor by tensor, so that no process holds the model; all must call it together.

        Raises as :meth:`transept.PreTrainedModel.save_pretrained` does, in all processes.
        """
        names = self.model.checkpoint_names()
        state = {name: tensor for name, tensor in self.model.state_dict().items() if name not in names.tied}
        ModelFiles(self.pieces(state), names.keys, max_shard_size, self.stored).save(self.model.texts(), directory)

    def pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        """Tensors of all stages by name, of which each process gives its own, to be put together one after the other."""
        described: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = [{}] * self.size
        dist.all_gather_object(described, {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}, group=self.group)
        owner = {name: rank for rank in reversed(range(self.size)) for name in described[rank]}
        own = {name: tensors[name].detach() for name, rank in owner.items() if rank == self.rank}
        return {name: Piece(*described[rank][name], own.get(name), partial(self._sent, rank)) for name, rank in owner.items()}

    def _sent(self, rank: int, piece: Piece) -> Tensor:
        """A tensor of one of this pipeline's processes, on the first of them where that is the first of all."""
        if piece.tensor is not None:
            tensor = whole(piece.tensor).to(self.device).contiguous()
        else:
            tensor = torch.empty(piece.shape if self.rank == 0 else (), dtype=piece.dtype, device=self.device)
        if dist.get_global_rank(self.group, 0) == 0 and rank > 0:  # other pipelines have the same
            if self.rank == rank:
                dist.send(tensor, group=self.group, group_dst=0)
            elif self.rank == 0:
                dist.recv(tensor, group=self.group, group_src=rank)
        return tensor


def _shape(tensor: Tensor) -> Tensor:
    shape = tensor.detach().to("meta")
    return nn.Parameter(shape, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shape


def _device(mesh: DeviceMesh) -> torch.device:
    kind = mesh.device_type
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def _check_parts(schedule: str, parts: int, size: int) -> None:
    """Refuse numbers of micro-batches that a schedule cannot order."""
    rounds = max(1, parts // size)
    if schedule == "1F1B" and parts < size:
        near = f"at least {size}"
    elif schedule.startswith("Interleaved") and parts % rounds:
        near = f"{size * rounds} or {size * (rounds + 1)}"
    else:
        return
    what = f"`pp_schedule={schedule}` of {size} processes cannot order {parts} micro-batches."
    raise ConfigError(what, hint=f"Set `pp_microbatches` to {near}.")
