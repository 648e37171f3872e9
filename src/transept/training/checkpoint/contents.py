"""The parts of a run in the files of a checkpoint, and back: weights, optimizer, schedule, scaler and random generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from transept.checkpoint.store import WEIGHTS_NAME, TensorStore, open_store, write_tensors
from transept.checkpoint.writing import in_order
from transept.core.loading import Pretrained
from transept.errors import CheckpointError, FormatError
from transept.files import dump_json, load_json, write_text
from transept.layers.packed import Packed
from transept.parallel.forms import Form
from transept.parallel.streams import Piece, Shards, Stream, read_shards, shapes_in
from transept.source import Source
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.optimizer import load_optimizer, parameter_names, save_optimizer, state_bytes
from transept.training.checkpoint.values import load_state, save_state, tensors_beside
from transept.training.objective import carriers
from transept.training.run import TrainingRun
from transept.training.setup import copy_weights

OPTIMIZER, SCHEDULE, SCALER = "optimizer", "scheduler", "scaler"
AVERAGE_NAME = "average.safetensors"
CARRIED_NAME = "carried.safetensors"
SHARDS = "shards"  # a folder of files of which each process wrote its own
LIVE_NAME = "weights.safetensors"  # what stands in the model where `model.safetensors` has something else


@dataclass(frozen=True)
class Parts:
    """The parts of a run that a checkpoint holds.

    ``average`` is the ``WeightAverage``, where there is one, and ``form`` how the processes hold the model; ``writes_shards``
    tells whether each of them writes what it has.
    """

    model: nn.Module
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    average: Any = None
    form: Form = field(default_factory=Form)
    writes_shards: bool = False

    @classmethod
    def of(cls, run: TrainingRun) -> Self:
        in_shards = run.devices.writes_shards and isinstance(run.model, Pretrained)
        return cls(run.model, run.optimizer, run.scheduler, run.scaler, run.average, run.form, in_shards)

    @property
    def bytes(self) -> int:
        """About how many bytes a checkpoint will have."""
        model = sum(tensor.nbytes for tensor in _own_tensors(self.model).values())
        return model * (1 if self.average is None else 3) + (0 if self.optimizer is None else state_bytes(self.optimizer))


class Rewind:
    """Goes back to the beginning of an update that was interrupted, so that it can be made again, bit for bit.

    What moves within an update are the random generators, the running statistics of normalisations, and the states that
    networks carry from batch to batch.
    """

    def __init__(self, model: nn.Module) -> None:
        tracking = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self._buffers = [buffer for module in tracking for buffer in module.buffers(recurse=False)]
        self._carriers = carriers(model)
        self.note()

    def note(self) -> None:
        """An update begins."""
        self.generators = Generators.now()
        self._statistics = [buffer.clone() for buffer in self._buffers]
        self._carried = {path: dict(module.carried) for path, module in self._carriers.items()}

    @torch.no_grad()
    def back(self) -> None:
        """Go back to its beginning."""
        self.generators.restore()
        for buffer, before in zip(self._buffers, self._statistics, strict=True):
            buffer.copy_(before)
        for path, module in self._carriers.items():
            module.carried = dict(self._carried[path])


def _carried_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The states that the next batch of training begins with; evaluations leave none."""
    training = {path: module for path, module in carriers(model).items() if module.training}
    return {f"{path}:{layer}": state for path, module in training.items() for layer, state in module.carried.items()}


def _load_carried(checkpoint: Path, model: nn.Module) -> None:
    """Let a model's next batch begin with the states of a checkpoint, where it has any."""
    path, modules = checkpoint / CARRIED_NAME, carriers(model)
    if not path.exists() or not modules:
        return
    store = TensorStore([path])
    model.train()  # which would begin with none later
    for name, module in modules.items():
        own = {key.rpartition(":")[2]: store[key] for key in store if key.rpartition(":")[0] == name}
        device = next(module.parameters()).device
        module.carried = {int(layer): state.to(device, copy=True) for layer, state in own.items() if layer.isdecimal()}


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and the buffers that a checkpoint can hold: not the weights of eight bits below adapters."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        if not isinstance(module, Packed):
            passing = {f"{path}.{name}".lstrip(".") for name in module._non_persistent_buffers_set}
            buffers = dict(module.named_buffers(path, recurse=False))
            tensors |= {name: buffer for name, buffer in buffers.items() if name not in passing and isinstance(buffer, Tensor)}
    return tensors


def live_tensors(parts: Parts) -> dict[str, Tensor]:
    """What ``model.safetensors`` does not have: the trained weights where it has their mean or an adapter alone."""
    if parts.average is None and (isinstance(parts.model, Pretrained) or not hasattr(parts.model, "save_pretrained")):
        return {}
    frozen = {name for name, weight in parts.model.named_parameters() if not weight.requires_grad}
    return {name: tensor.detach() for name, tensor in _own_tensors(parts.model).items() if name not in frozen}


@dataclass
class Collected:
    """What a checkpoint holds beside the model's own files, which all processes put together while the first one writes.

    Args:
        weights: files of weights by name.
        states: the state of an optimizer, a schedule or a scaler by name: JSON, and tensors.
        generators: those of each process.
        shards: what each process writes its part of.
    """

    weights: dict[str, Mapping[str, Piece]]
    states: dict[str, tuple[Mapping[str, Any], Mapping[str, Piece]]]
    generators: list[Generators]
    shards: Shards | None = None

    def __post_init__(self) -> None:
        files = [*self.weights.values(), *(pieces for _, pieces in self.states.values())]
        self.stream = Stream(pieces[name] for pieces in files for name in in_order(pieces))

    def write(self, stage: Path) -> Iterator[Path]:
        """Write all of it; gives each large file when it is whole."""
        for name, pieces in self.weights.items():
            self.stream.write(pieces, path := stage / name)
            yield path
        for name, (document, pieces) in self.states.items():
            write_text(stage / f"{name}.json", dump_json(document))
            if pieces:
                self.stream.write(pieces, path := stage / f"{name}.safetensors")
                yield path
        for rank, generators in enumerate(self.generators):
            write_tensors(generators.tensors(), stage / _random_name(rank))
        if self.shards is not None:
            yield from self.shards.write(stage / SHARDS)

    def finish(self) -> None:
        """Do what is left, for which other processes wait."""
        self.stream.finish()
        if self.shards is not None:
            self.shards.finish()


def collect(parts: Parts, generators: list[Generators]) -> Collected:
    """All parts but the model's own weights, which all processes collect together."""
    form, weights = parts.form, dict[str, Mapping[str, Piece]]()
    shards = _model_shards(parts) if parts.writes_shards else dict[str, Tensor]()
    if not shards and (live := live_tensors(parts)):
        weights[LIVE_NAME] = form.pieces(live)
    if not shards and parts.average is not None:
        weights[AVERAGE_NAME] = form.pieces(parts.average.state_dict())
    if carried := _carried_tensors(parts.model):
        weights[CARRIED_NAME] = form.pieces(carried)
    states: dict[str, Any] = {}
    if parts.optimizer is not None:
        document, own = save_optimizer(parts.optimizer, parts.model, form)
        shards |= {f"{OPTIMIZER}.{name}": tensor for name, tensor in own.items()} if shards else {}
        states[OPTIMIZER] = form.joined(document), form.pieces({} if shards else own)
    for name, part in ((SCHEDULE, parts.scheduler), (SCALER, parts.scaler)):
        if part is not None:
            tensors: dict[str, Tensor] = {}
            states[name] = save_state(part, name, tensors), Form().pieces(tensors)
    return Collected(weights, states, generators, Shards(shards) if shards else None)


def _model_shards(parts: Parts) -> dict[str, Tensor]:
    """What this process has of the weights that are trained or not, and of their average."""
    tied = parts.model.checkpoint_names().tied if isinstance(parts.model, Pretrained) else {}
    weights = {f"weights.{name}": tensor for name, tensor in parts.model.state_dict().items() if name not in tied}
    means = {} if parts.average is None else parts.average.state_dict()
    return weights | {f"average.{name}": mean for name, mean in means.items()}


def _read_model_shards(folder: Path, parts: Parts) -> None:
    """Fill the model and the average of its weights, of which each process reads its part."""
    known, own = shapes_in(folder), _model_shards(parts)
    needed = {name: tuple(tensor.shape) for name, tensor in own.items() if name.startswith("weights.")}
    there = parts.form.mine(name.removeprefix("weights.") for name in known if name.startswith("weights."))
    missing = {name for name, shape in needed.items() if name not in known or known[name][0] != shape}
    if missing or (unexpected := {f"weights.{name}" for name in there} - needed.keys()):
        _misfit(parts.model, folder, missing, () if missing else unexpected)
    read_shards(folder, own, known)
    if parts.average is not None and not any(name.startswith("average.") for name in known):
        weights = dict(parts.model.named_parameters())
        parts.average.load_state_dict({name: weights[name].detach() for name in parts.average.state_dict()})


def _read_optimizer_shards(folder: Path, parts: Parts) -> dict[str, Tensor]:
    """The tensors of an optimizer's state, of which each process reads its part."""
    own = {name: parameter for parameter, name in parameter_names(parts.optimizer, parts.model).items()}
    known, tensors = shapes_in(folder), dict[str, Tensor]()
    for name, (shape, kind) in known.items():
        inner = name.removeprefix(f"{OPTIMIZER}.")
        like = own.get(inner.removeprefix("state.").rpartition(".")[0])
        if like is not None and like.shape == shape:
            tensors[name] = torch.empty_like(like.detach(), dtype=kind)
        elif like is not None or (inner != name and not inner.startswith("state.")):
            tensors[name] = torch.empty(shape, dtype=kind)
    read_shards(folder, tensors, known)
    return {name.removeprefix(f"{OPTIMIZER}."): tensor for name, tensor in tensors.items()}


def _random_name(rank: int) -> str:
    return f"random-{rank}.safetensors"


def load_parts(checkpoint: Path, parts: Parts) -> list[str]:
    """Put the files of a checkpoint into the parts of a run, but for the random generators; returns what it does not have.

    Raises:
        CheckpointError: the files of another model, optimizer or schedule.
        FileError, FormatError: a file is missing or corrupt.
    """
    load_weights(checkpoint, parts)
    _load_carried(checkpoint, parts.model)
    lost = []
    for name, part in ((OPTIMIZER, parts.optimizer), (SCHEDULE, parts.scheduler), (SCALER, parts.scaler)):
        path = checkpoint / f"{name}.json"
        if part is not None and not path.exists():
            lost.append(name)
        elif part is not None:
            try:
                lost += _load_part(path, name, part, parts)
            except FormatError as error:
                error.path = error.path or str(path)
                raise
    return lost


def _load_part(path: Path, name: str, part: Any, parts: Parts) -> list[str]:
    """Put a file into the optimizer, the schedule or the scaler; returns what it does not have."""
    document, tensors = load_json(path), tensors_beside(path)
    if name == SCHEDULE and not fits(part, document):
        return [name]
    if name != OPTIMIZER:
        load_state(part, document, tensors)
        return []
    if (shards := path.with_name(SHARDS)).is_dir():
        tensors = _read_optimizer_shards(shards, parts)
    new = load_optimizer(part, parts.model, document, tensors, parts.form)
    return [f"the optimizer's state of {len(new)} parameters, such as {new[0]!r}"] if new else []


def fits(schedule: Any, document: Any) -> bool:
    """Whether a saved schedule is of as many groups of parameters, which differ between forms of a model."""
    state = document.get("state") if isinstance(document, Mapping) else None
    saved, own = (state.get("base_lrs") if isinstance(state, Mapping) else None), getattr(schedule, "base_lrs", None)
    return not isinstance(saved, list) or own is None or len(saved) == len(own)


def load_weights(checkpoint: Path, parts: Parts) -> None:
    """Fill the model, and the average of its weights, from a checkpoint; parameters keep their place in memory."""
    live, model, form = checkpoint / LIVE_NAME, parts.model, parts.form
    if (checkpoint / SHARDS).is_dir():
        _read_model_shards(checkpoint / SHARDS, parts)
        return
    if not live.exists():
        load_saved_weights(checkpoint, model)
    if parts.average is not None:
        _load_average(checkpoint / AVERAGE_NAME, parts)
    if live.exists():
        store, needed, own = TensorStore([live]), live_tensors(parts), _own_tensors(model)
        missing = {name for name, tensor in needed.items() if name not in store or store[name].shape != tensor.shape}
        if missing or (unexpected := {*form.mine(store)} - own.keys()):
            _misfit(model, live, missing, () if missing else unexpected)
        with torch.no_grad():
            for name in store.keys() & own.keys():
                own[name].copy_(form.share(store[name], own[name]))


def _load_average(path: Path, parts: Parts) -> None:
    """Fill the average of the weights; where the checkpoint has none it begins with the weights."""
    average = parts.average.state_dict()
    weights = {name: weight for name, weight in parts.model.named_parameters() if name in average}
    stored: Any = TensorStore([path]) if path.exists() else weights
    shares = {name: parts.form.share(stored[name], average.get(name, stored[name])) for name in parts.form.mine(stored)}
    parts.average.load_state_dict(shares)


def load_best(checkpoint: Path, model: nn.Module, form: Form, *, averaged: bool) -> None:
    """Fill a model with the weights that were evaluated when a checkpoint was saved; ``averaged``: with their average."""
    load_weights(checkpoint, Parts(model, form=form))
    if averaged and (folder := checkpoint / SHARDS).is_dir():
        read_shards(folder, {f"average.{name}": each for name, each in model.named_parameters()}, shapes_in(folder))
    elif averaged and (path := checkpoint / AVERAGE_NAME).exists():
        own, store = dict(model.named_parameters()), TensorStore([path])
        copy_weights({name: form.share(store[name], own[name]) for name in form.mine(store)}, model)


def load_saved_weights(checkpoint: Path, model: nn.Module) -> None:
    """Fill a model with what its own files in a checkpoint hold, which is the mean of the weights where one is kept."""
    _fill(model, open_store(Source(str(checkpoint))), checkpoint / WEIGHTS_NAME)


def _fill(model: nn.Module, store: Any, path: Path) -> None:
    try:
        missing, unexpected = model.load_state_dict(dict(store), strict=False)
    except RuntimeError as error:
        what = f"does not fit {type(model).__name__}: {' '.join(str(error).split())[:300]}"
        raise CheckpointError(what, path=path) from error
    if isinstance(model, Pretrained):
        names = model.checkpoint_names()
        missing = [name for name in missing if name not in names.tied and names.group(name) is None]
    if missing or unexpected:
        _misfit(model, path, missing, unexpected)


def _misfit(model: nn.Module, path: Path, missing: Any, unexpected: Any) -> None:
    what = f"does not fit {type(model).__name__}: missing {sorted(missing)[:5]}, unexpected {sorted(unexpected)[:5]}."
    hint = "Resume with the model that the run began with."
    raise CheckpointError(what, path=path, hint=hint, missing=missing, unexpected=unexpected)


def load_generators(checkpoint: Path, *, rank: int = 0) -> Generators | None:
    """The generators' states of a process; ``None`` where the checkpoint has none for it."""
    path = checkpoint / _random_name(rank)
    return Generators.of(TensorStore([path])) if path.exists() else None
