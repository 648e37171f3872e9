"""Pipeline parallelism (Huang et al. 2019): processes have other layers, through which micro-batches go in turn.

PyTorch's schedules order the passes and move the states. What is ours: the partition of a model, the context made in
each stage, batches that fit, weights that several stages have, and files of the whole model.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from transept.checkpoint.load import LoadReport, Part, everything
from transept.config.model import Config
from transept.core.model import Model
from transept.errors import ConfigError, TrainingError, TranseptError, refuse
from transept.objectives.terms import Items, LossTerm, total
from transept.outputs import ModelOutput
from transept.parallel.files import Division
from transept.parallel.forms import local
from transept.parallel.mesh import DistributedConfig
from transept.parallel.pipeline.partition import initialize, partition
from transept.parallel.pipeline.stage import ScheduledStage, Stage, States, joined, padded_rows, rows_of, spread_texts
from transept.parallel.streams import ModelFiles, Piece, whole


class Pipeline(Division):
    """A task model whose layers are divided between the processes along the axis ``pp`` of a mesh.

    All processes of a pipeline take the same batches. The model is cut in place: ``model`` keeps the layers of this
    process and what it needs beside them, under their ordinary names, and moves to its device. What a process leaves
    out of a model that was loaded is never read from the files, which are mapped.

    An update is a :meth:`step` for each of its batches, :meth:`finish_gradients`, :meth:`norm` to clip by, and the
    step of an optimizer of :meth:`parameters`. Between processes that take other rows, add up gradients before the
    norm; or, where a process has one stage, shard the layers of ``model``, and then each of ``stages``, by PyTorch's
    ``fully_shard``, and multiply the loss by their number (``scale``).

    Args:
        model: a task model with the same weights in all processes; :meth:`from_pretrained` and :meth:`from_config`
            never allocate what other stages have.
        mesh: the processes (see :meth:`transept.parallel.mesh.Layout.mesh`).
        config: ``pp_schedule`` and ``pp_microbatches``.

    Raises:
        UnsupportedError: a family or a task that cannot be cut.
        ConfigError: more stages than layers, an unknown schedule, or micro-batches that it cannot order.
    """

    def __init__(self, model: Model, mesh: DeviceMesh, config: DistributedConfig) -> None:
        self._join(mesh, config)
        self.divide(model)

    @classmethod
    def from_config(cls, kind: type[Model], settings: Config, mesh: DeviceMesh, config: DistributedConfig) -> Self:
        """A pipeline of a new model of a class; with one seed, its weights are the same for any number of stages."""
        self = cls.__new__(cls)
        self._join(mesh, config)
        model = kind._without_memory(settings, {})
        self._plan(model)
        initialize(model, self.partition.owned(self.indices), model.checkpoint_names().tied, self.device)
        self.partition.keep(model, self.indices, self.device)
        self.finish(model)
        return self

    @classmethod
    def from_pretrained(
        cls, kind: type[Model], path: Any, mesh: DeviceMesh, config: DistributedConfig, **arguments: Any
    ) -> Self:
        """A pipeline of a model of a class, of whose checkpoint each process reads its own tensors.

        The arguments are those of :meth:`transept.PreTrainedModel.from_pretrained`, as are the errors.
        """
        self = cls.__new__(cls)
        self._join(mesh, config)
        kind.from_pretrained(path, **arguments, distributed_config=self)
        return self

    def _join(self, mesh: DeviceMesh, config: DistributedConfig) -> None:
        """Find this process's place among the others."""
        axis, kind = mesh["pp"], mesh.device_type
        self.group, self.rank, self.size = axis.get_group(), axis.get_local_rank(), axis.size()
        self.device = torch.device(kind if kind == "cpu" else f"{kind}:{torch.accelerator.current_device_index()}")
        if self.size < 2:
            raise ConfigError("a pipeline needs `pp_size` of at least 2.", hint="Train without it on one process.")
        self.schedule_name, rounds, is_v = config.schedule
        self.parts = config.pp_microbatches or 2 * self.size
        _check_parts(self.schedule_name, self.parts, self.size)
        ranks = [*range(self.size)]
        self.rank_of = ranks + (ranks[::-1] if is_v else ranks) * (rounds - 1)
        self.count = len(self.rank_of)
        self.indices = [stage for stage, rank in enumerate(self.rank_of) if rank == self.rank]

    def _plan(self, model: Model) -> None:
        """Decide which stage has what of a model on the meta device."""
        names, state = model.checkpoint_names(), model.state_dict()
        self.partition = partition(model, self.count, names.tied)
        self.stored = list(names.keys.save({name: state[name] for name in state if names.is_written(name)}))

    def divide(self, model: Model) -> None:
        shapes: dict[int, Any] = {id(buffer): buffer.to("meta") for buffer in model.buffers()}
        shapes |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
        self._plan(copy.deepcopy(model, shapes))
        self.partition.keep(model, self.indices, model.device)
        self.finish(model.to(self.device))

    def prepare(self, model: Model, report: LoadReport, dtype: torch.dtype) -> Callable[[str], Part]:
        self._plan(model)
        self.partition.keep(model, self.indices, self.device, dtype)
        present, owner = model.state_dict().keys(), model.checkpoint_names().keys.owner
        report.filled = {name: stored for name, stored in report.filled.items() if owner(name) in present}
        report.missing = [name for name in report.missing if owner(name) in present]
        report.fixed = [name for name in report.fixed if owner(name) in present]
        report.mismatched = [mismatch for mismatch in report.mismatched if owner(mismatch[0]) in present]
        return everything

    def finish(self, model: Model, report: LoadReport | None = None) -> None:
        self.model = model
        self.stages = [Stage(model, self.partition.ranges(at), at == self.count - 1) for at in self.indices]
        # One for each shape of states: PyTorch's keep the shapes that they met first, and memory for them.
        self.schedule = lru_cache(maxsize=4)(self._new_schedule)
        ties, stages_of = model.checkpoint_names().tied, self.partition.stages
        untied = (name for name in stages_of if ties.get(name) not in stages_of)
        self.owners = {name: sorted({self.rank_of[stage] for stage in stages_of[name]}) for name in untied}
        self.shared = {name: ranks for name, ranks in self.owners.items() if len(ranks) > 1 and self.rank in ranks}
        with torch.no_grad():  # new weights are drawn by each process
            for name, ranks in self.shared.items():
                self._share(local(model.get_parameter(name).data), ranks)

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

    def step(self, batch: Mapping[str, Any], items: Items | None = None, parts: int = 1, scale: float = 1) -> Tensor:
        """A forward and a backward pass of a batch, whose gradients are added to those that are there.

        Args:
            batch: inputs and labels of all rows, the same in all processes of a pipeline.
            items: the numbers of items in the whole batch that this is a part of (see
                :func:`transept.objectives.terms.total`); those of this batch when absent.
            parts: how many such batches, of all processes that take other rows together, make the whole.
            scale: what multiplies the loss for its gradients, such as the number of processes that average them; 0
                for a batch that stands in where others have one more.

        Returns:
            The loss, a scalar, in all processes.

        Raises:
            InputError, UnsupportedError: inputs that cannot be, in all processes before anything is sent; or labels.
            TrainingError: another process was given another batch, or refused its own, as that of the last stage does
                with labels.
        """

        def loss_of(counted: Items, terms: Mapping[str, LossTerm]) -> Tensor:
            return total(terms, counted if items is None else items, parts) * scale

        losses = self._run(batch, loss_of)
        loss = torch.zeros((), device=self.device)
        if losses and scale:
            loss += torch.stack([of_part.detach() for of_part in losses]).sum() / scale
        dist.broadcast(loss, group=self.group, group_src=self.rank_of[-1])
        return loss

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Any]) -> ModelOutput | None:
        """The model's output for a batch, with ``loss_terms`` if there are labels; ``None`` but for the last stage.

        Raises as :meth:`step` does.
        """
        self._run(batch, None)
        return joined(self.stages[-1].outputs) if self.stages[-1].is_last else None

    def _run(self, batch: Mapping[str, Any], loss_of: Callable[..., Tensor] | None) -> list[Tensor]:
        """Train where there is a loss, or else evaluate; the losses of micro-batches, on the last stage's process."""
        inputs, states = self._prepared(batch, loss_of)
        losses: list[Tensor] = []
        is_trained = loss_of is not None
        options = {"target": inputs["part"], "losses": losses} if is_trained and self.stages[-1].is_last else {}
        try:
            self.schedule(states, is_trained).step(**inputs, **options, return_outputs=False)
        except RuntimeError as error:
            if isinstance(error.__cause__, TranseptError):  # PyTorch wraps whatever a stage raises
                raise error.__cause__ from None
            raise
        self._agree(next((stage.failure for stage in self.stages if stage.failure is not None), None))
        return losses

    def _prepared(self, batch: Mapping[str, Any], loss_of: Any) -> tuple[dict[str, Any], tuple[States, ...]]:
        """A batch whose rows are divisible, which the stages expect, and the states of each part of it."""
        failure, mark = None, 0
        is_trained = loss_of is not None
        try:
            inputs = rows_of(self.model, batch)
            counted = self.model.count(dict(inputs)) if is_trained else None
            if "use_cache" in (*self.model.arguments(), *self.model.options()):
                inputs["use_cache"] = False
            inputs, real = padded_rows(spread_texts(self.model, inputs, self.parts if is_trained else 0), self.parts)
            seen = self.stages[0].shapes({name: value for name, value in inputs.items() if name != "part"})
            states = tuple(((shape[0] // self.parts, *shape[1:]), dtype) for shape, dtype in seen)
            shapes = sorted((name, tuple(value.shape)) for name, value in inputs.items() if isinstance(value, Tensor))
            mark = zlib.crc32(repr((shapes, states, is_trained)).encode())
        except TranseptError as error:
            failure = error
        self._agree(failure, mark)
        for stage in self.stages:
            stage.expect(real, partial(loss_of, counted) if is_trained else None)
        return inputs, states

    def _agree(self, failure: TranseptError | None, mark: int = 0) -> None:
        """Refuse a step that not all processes are ready for; each sends the mark of its batch, or -1."""
        sent = torch.tensor([mark if failure is None else -1], device=self.device)
        gathered = [torch.zeros_like(sent) for _ in range(self.size)]
        dist.all_gather(gathered, sent, group=self.group)
        if failure is not None:
            raise failure
        marks = [int(number) for number in gathered]
        if -1 in marks:
            what = f"process {marks.index(-1)} of the pipeline refused its inputs."
            raise TrainingError(what, hint="See what it raised.")
        if len({*marks}) > 1:
            hint = "Deal the same rows to all stages of a pipeline (Layout.data_rank)."
            raise TrainingError("the processes of a pipeline were given batches of other shapes.", hint=hint)

    def _new_schedule(self, states: tuple[States, ...], training: bool) -> Any:
        """PyTorch's schedule for states of these shapes."""
        options: dict[str, Any] = {"num_stages": self.count, "device": self.device, "group": self.group}
        # PyTorch can leave gradients for later only of a weight that is used once, and behind what was received.
        if self.partition.shares or len(self.partition.sizes) > 1:
            options["dw_builder"] = lambda: lambda: None
        stages = []
        for at, stage in zip(self.indices, self.stages):
            # PyTorch would run a pass to find out what a stage receives and sends.
            received, sent = self._received(at, states, training), self._received(at + 1, states, training)
            stages.append(ScheduledStage(stage, at, input_args=received, output_args=sent, **options))
        kind: Any = get_schedule_class(self.schedule_name)
        of_process = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
        loss_fn = (lambda loss, target: loss.sum()) if training else None
        return kind(of_process, self.parts, loss_fn=loss_fn, scale_grads=False)

    def _received(self, stage: int, states: tuple[States, ...], training: bool) -> tuple[Tensor, ...]:
        """What a stage receives, as tensors without values; behind the last one, the loss."""
        if stage == 0:
            return ()
        start, sizes = self.partition.bounds[stage], self.partition.sizes
        if stage == self.count:
            states = (((1,), torch.get_default_dtype()),)
        elif len(sizes) == 1 or start < sizes[0]:
            states = states[:1]
        else:  # of the encoder, the decoder, and the encoder's output
            states = states[2:] if start == sizes[0] else states[1:]
        options: dict[str, Any] = {"device": "meta", "requires_grad": training}
        return tuple(torch.empty(shape, dtype=dtype, **options) for shape, dtype in states)

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Add up the gradients of weights that several stages have; call it once an update, after all steps."""
        for name, ranks in self.shared.items():
            parameter = self.model.get_parameter(name)
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._share(local(parameter.grad), ranks, added=True)

    def _share(self, tensor: Tensor, ranks: Sequence[int], added: bool = False) -> None:
        """Give some processes the tensor of the first; or the sum of theirs, in one order, for the same bits."""
        first, *others = ranks
        if self.rank != first:
            if added:
                dist.send(tensor.contiguous(), group=self.group, group_dst=first)
            tensor.copy_(self._receive(tensor, first))
            return
        if added:
            for other in others:
                tensor += self._receive(tensor, other)
        for other in others:
            dist.send(tensor.contiguous(), group=self.group, group_dst=other)

    def _receive(self, like: Tensor, rank: int) -> Tensor:
        tensor = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(tensor, group=self.group, group_src=rank)
        return tensor

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The norm of all gradients, a scalar in all processes; call it after :meth:`finish_gradients`.

        Weights that several stages have are counted once.
        """
        counted = (self.model.get_parameter(name) for name, ranks in self.owners.items() if ranks[0] == self.rank)
        norms = [whole(parameter.grad.float().norm()) for parameter in counted if parameter.grad is not None]
        squares = (torch.stack(norms).square().sum() if norms else torch.zeros(())).to(self.device)
        dist.all_reduce(squares, group=self.group)
        return squares.sqrt()

    def save_pretrained(self, directory: Any, max_shard_size: int | str = "50GB") -> None:
        """Write an ordinary checkpoint, tensor by tensor, so that no process holds the model; all call it together.

        Raises as :meth:`transept.PreTrainedModel.save_pretrained` does, in all processes.
        """
        names = self.model.checkpoint_names()
        state = {name: tensor for name, tensor in self.model.state_dict().items() if names.is_written(name)}
        ModelFiles(self.pieces(state), names.keys, max_shard_size, self.stored).save(self.model.texts(), directory)

    def pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        """Tensors of all stages by name, of which each process gives its own, to be put together one by one."""
        forms = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        gathered = [forms] * self.size
        dist.all_gather_object(gathered, forms, group=self.group)
        owners = {name: rank for rank in reversed(range(self.size)) for name in gathered[rank]}
        own = {name: tensors[name].detach() for name, rank in owners.items() if rank == self.rank}
        gathers = [partial(self._sent, rank) for rank in range(self.size)]
        return {name: Piece(*gathered[rank][name], own.get(name), gathers[rank]) for name, rank in owners.items()}

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


def _check_parts(schedule: str, parts: int, size: int) -> None:
    """Refuse numbers of micro-batches that a schedule cannot order."""
    rounds, near = max(1, parts // size), None
    if schedule == "1F1B" and parts < size:
        near = f"at least {size}"
    elif schedule.startswith("Interleaved") and parts % rounds:
        near = f"{size * rounds} or {size * (rounds + 1)}"
    what = f"`pp_schedule={schedule}` of {size} processes cannot order {parts} micro-batches."
    refuse(near, what, f"Set `pp_microbatches` to {near}.", ConfigError)
