"""The parts of a run in the files of a checkpoint, and back: weights, optimizer, schedule, scaler and random generators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.store import WEIGHTS_NAME, TensorStore, open_store, write_tensors
from transept.checkpoint.writing import in_order
from transept.core.loading import Pretrained
from transept.errors import CheckpointError, naming
from transept.files import dump_json, load_json, write_text
from transept.layers.packed import Packed
from transept.parallel.forms import Form
from transept.parallel.streams import Piece, Shards, Stream, read_shards, shapes_in
from transept.source import Source
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.optimizer import load_optimizer, parameter_names, save_optimizer, state_bytes
from transept.training.checkpoint.values import load_state, save_state, tensors_beside
from transept.training.objective import carriers
from transept.training.optim.average import WeightAverage, copy_weights
from transept.training.run import TrainingRun

OPTIMIZER, SCHEDULE, SCALER = "optimizer", "scheduler", "scaler"
AVERAGE_NAME = "average.safetensors"
CARRIED_NAME = "carried.safetensors"
RANDOM_NAME = "random-{}.safetensors"  # of the process with that rank
SHARDS = "shards"  # a folder of files of which each process wrote its own
LIVE_NAME = "weights.safetensors"  # what stands in the model where `model.safetensors` has something else


def checkpoint_bytes(run: TrainingRun) -> int:
    """About how many bytes a checkpoint of a run will have."""
    model = sum(tensor.nbytes for tensor in _own_tensors(run.model).values())
    return model * (1 if run.average is None else 3) + state_bytes(run.optimizer)


def writes_shards(run: TrainingRun) -> bool:
    """Whether each process writes what it has of the weights."""
    return run.devices.writes_shards and isinstance(run.model, Pretrained)


# --- the tensors of a model ------------------------------------------------------------------------------------------------


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and the buffers that a checkpoint can hold: not the weights of eight bits below adapters."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        if not isinstance(module, Packed):
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    tensors[f"{path}.{name}".lstrip(".")] = buffer
    return tensors


def live_tensors(model: nn.Module, average: WeightAverage | None) -> dict[str, Tensor]:
    """What ``model.safetensors`` does not have: the trained weights where it has their mean or an adapter alone."""
    if average is None and (isinstance(model, Pretrained) or not hasattr(model, "save_pretrained")):
        return {}
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: tensor.detach() for name, tensor in _own_tensors(model).items() if name not in frozen}


def _sharded_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What this process has of the weights, trained or not, where each process writes its part."""
    tied = model.checkpoint_names().tied if isinstance(model, Pretrained) else {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def _carried_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The states that the next batch of training begins with; evaluations leave none."""
    training = {path: module for path, module in carriers(model).items() if module.training}
    return {f"{path}:{layer}": state for path, module in training.items() for layer, state in module.carried.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names that they have in shards."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


# --- writing ---------------------------------------------------------------------------------------------------------------


class Collected:
    """What a checkpoint holds beside the model's own files.

    All processes make it together, the first one writes it, and at the end all of them call :meth:`finish`.

    Args:
        run: whose parts are saved.
        generators: those of each process.
    """

    def __init__(self, run: TrainingRun, generators: list[Generators]) -> None:
        self.generators, form = generators, run.form
        averages = {} if run.average is None else run.average.state_dict()
        document, state = save_optimizer(run.optimizer, run.model, form)
        files: dict[str, Mapping[str, Piece]] = {CARRIED_NAME: form.pieces(_carried_tensors(run.model))}
        self.shards: Shards | None = None
        if writes_shards(run):
            weights = _below("weights", _sharded_tensors(run.model))
            self.shards = Shards(weights | _below("average", averages) | _below(OPTIMIZER, state))
        else:
            files[LIVE_NAME] = form.pieces(live_tensors(run.model, run.average))
            files[AVERAGE_NAME] = form.pieces(averages)
            files[f"{OPTIMIZER}.safetensors"] = form.pieces(state)
        self.documents = {OPTIMIZER: form.joined(document)}
        for name, part in ((SCHEDULE, run.scheduler), (SCALER, run.scaler)):
            if part is not None:
                tensors: dict[str, Tensor] = {}
                self.documents[name] = save_state(part, name, tensors)
                files[f"{name}.safetensors"] = Form().pieces(tensors)
        self.files = {name: pieces for name, pieces in files.items() if pieces}
        self.stream = Stream(pieces[name] for pieces in self.files.values() for name in in_order(pieces))

    def write(self, stage: Path) -> Iterator[Path]:
        """Write all of it; gives each large file when it is whole."""
        for name, pieces in self.files.items():
            self.stream.write_file(pieces, stage / name)
            yield stage / name
        for name, document in self.documents.items():
            write_text(stage / f"{name}.json", dump_json(document))
        for rank, generators in enumerate(self.generators):
            write_tensors(generators.tensors(), stage / RANDOM_NAME.format(rank))
        if self.shards is not None:
            yield from self.shards.write(stage / SHARDS)

    def finish(self) -> None:
        """Do what is left, for which other processes wait."""
        self.stream.finish()
        if self.shards is not None:
            self.shards.finish()


# --- reading ---------------------------------------------------------------------------------------------------------------


def load_parts(checkpoint: Path, run: TrainingRun) -> list[str]:
    """Put the files of a checkpoint into the parts of a run, but for the random generators; returns what it does not have.

    Raises:
        CheckpointError: the files of another model, optimizer or schedule.
        FileError, FormatError: a file is missing or corrupt.
    """
    load_weights(checkpoint, run.model, run.form, run.average)
    _load_carried(checkpoint, run.model)
    lost = []
    for name, part in ((OPTIMIZER, run.optimizer), (SCHEDULE, run.scheduler), (SCALER, run.scaler)):
        path = checkpoint / f"{name}.json"
        if part is not None and not path.exists():
            lost.append(name)
        elif part is not None:
            with naming(path):
                lost += _load_part(path, name, part, run)
    return lost


def _load_part(path: Path, name: str, part: Any, run: TrainingRun) -> list[str]:
    """Put a file into the optimizer, the schedule or the scaler; returns what it does not have."""
    document, tensors = load_json(path), tensors_beside(path)
    if name == OPTIMIZER:
        if (shards := path.with_name(SHARDS)).is_dir():
            tensors = _optimizer_shards(shards, run)
        new = load_optimizer(part, run.model, document, tensors, run.form)
        return [f"the optimizer's state of {len(new)} parameters, such as {new[0]!r}"] if new else []
    match document:
        # A schedule of another number of groups of parameters, which differ between forms of a model.
        case {"state": {"base_lrs": [*rates]}} if len(rates) != len(getattr(part, "base_lrs", rates)):
            return [name]
    load_state(part, document, tensors)
    return []


def _optimizer_shards(folder: Path, run: TrainingRun) -> dict[str, Tensor]:
    """The tensors of an optimizer's state, of which each process reads its part."""
    own = {name: parameter for parameter, name in parameter_names(run.optimizer, run.model).items()}
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


def _load_carried(checkpoint: Path, model: nn.Module) -> None:
    """Let a model's next batch begin with the states of a checkpoint, where it has any."""
    path, modules = checkpoint / CARRIED_NAME, carriers(model)
    if not path.exists() or not modules:
        return
    model.train()  # which would begin with none later
    for module in modules.values():
        module.carried = {}
    for key, state in TensorStore([path]).items():
        name, _, layer = key.rpartition(":")
        if name in modules and layer.isdecimal():
            device = next(modules[name].parameters()).device
            modules[name].carried[int(layer)] = state.to(device, copy=True)


def load_weights(checkpoint: Path, model: nn.Module, form: Form, average: WeightAverage | None = None) -> None:
    """Fill the model, and the average of its weights, from a checkpoint; parameters keep their place in memory."""
    live, shards = checkpoint / LIVE_NAME, checkpoint / SHARDS
    if shards.is_dir():
        weights, known = _sharded_tensors(model), shapes_in(shards)
        shapes = {name.removeprefix("weights."): known[name][0] for name in known if name.startswith("weights.")}
        _check_fit(model, shards, weights, shapes, {*form.mine(shapes)} - weights.keys())
        read_shards(shards, _below("weights", weights), known)
    elif live.exists():
        own, store = _own_tensors(model), TensorStore([live])
        shapes = {name: tuple(tensor.shape) for name, tensor in store.items()}
        _check_fit(model, live, live_tensors(model, average), shapes, {*form.mine(store)} - own.keys())
        with torch.no_grad():
            for name in form.mine(store):
                own[name].copy_(form.share(store[name], own[name]))
    else:
        load_saved_weights(checkpoint, model)
    if average is not None:
        stored = _average_in(checkpoint, average.state_dict(), form)
        trained = dict(model.named_parameters())  # which an average begins with
        average.load_state_dict(stored or {name: trained[name].detach() for name in average.state_dict()})


def _average_in(checkpoint: Path, own: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
    """The average of the weights in a checkpoint, which is put into these tensors where it is in shards; empty: it has none."""
    path, shards = checkpoint / AVERAGE_NAME, checkpoint / SHARDS
    if shards.is_dir():
        known = shapes_in(shards)
        average = {name: tensor for name, tensor in own.items() if f"average.{name}" in known}
        read_shards(shards, _below("average", average), known)
        return average
    if not path.exists():
        return {}
    store = TensorStore([path])
    return {name: form.share(store[name], own.get(name, store[name])) for name in form.mine(store)}


def load_best(checkpoint: Path, model: nn.Module, form: Form, *, averaged: bool) -> None:
    """Fill a model with the weights that were evaluated when a checkpoint was saved; ``averaged``: with their average."""
    load_weights(checkpoint, model, form)
    if averaged:
        parameters = dict(model.named_parameters())
        copy_weights(_average_in(checkpoint, parameters, form), parameters)


def load_saved_weights(checkpoint: Path, model: nn.Module) -> None:
    """Fill a model with what its own files in a checkpoint hold, which is the mean of the weights where one is kept."""
    path = checkpoint / WEIGHTS_NAME
    try:
        missing, unexpected = model.load_state_dict(dict(open_store(Source(str(checkpoint)))), strict=False)
    except RuntimeError as error:
        what = f"does not fit {type(model).__name__}: {' '.join(str(error).split())[:300]}"
        raise CheckpointError(what, path=path) from error
    if isinstance(model, Pretrained):
        names = model.checkpoint_names()
        missing = [name for name in missing if name not in names.tied and names.group(name) is None]
    _refuse_misfit(model, path, missing, unexpected)


def _check_fit(
    model: nn.Module,
    path: Path,
    needed: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    unexpected: Collection[str],
) -> None:
    """Refuse weights that lack one that is needed, or have it in another shape, or have others."""
    missing = {name for name, tensor in needed.items() if shapes.get(name) != tuple(tensor.shape)}
    _refuse_misfit(model, path, missing, () if missing else unexpected)


def _refuse_misfit(model: nn.Module, path: Path, missing: Collection[str], unexpected: Collection[str]) -> None:
    if missing or unexpected:
        what = f"does not fit {type(model).__name__}: missing {sorted(missing)[:5]}, unexpected {sorted(unexpected)[:5]}."
        hint = "Resume with the model that the run began with."
        raise CheckpointError(what, path=path, hint=hint, missing=missing, unexpected=unexpected)


def load_generators(checkpoint: Path, *, rank: int = 0) -> Generators | None:
    """The generators' states of a process; ``None`` where the checkpoint has none for it."""
    path = checkpoint / RANDOM_NAME.format(rank)
    return Generators.of(TensorStore([path])) if path.exists() else None
