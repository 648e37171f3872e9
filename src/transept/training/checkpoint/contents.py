"""The parts of a run in the files of a checkpoint: weights, optimizer, schedule, scaler and random generators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.store import WEIGHTS_NAME, TensorStore, open_store, write_tensors
from transept.checkpoint.writing import in_order
from transept.core.loading import Pretrained, translated
from transept.errors import CheckpointError, naming
from transept.layers.linear import Packed
from transept.parallel.forms import Form
from transept.parallel.streams import Shards, Stream, read_shards, shapes_in
from transept.storage.files import dump_json, load_json, write_text
from transept.storage.source import Source
from transept.training.checkpoint import serialization
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.serialization import tensors_beside
from transept.training.objective import carriers
from transept.training.optim.optimizers import WeightAverage, copy_weights
from transept.training.run import TrainingRun

# A part is a file, such as `average.safetensors`, or tensors in shards, such as `average.head.weight`.
WEIGHTS, AVERAGE, OPTIMIZER = "weights", "average", "optimizer"
SCHEDULE, SCALER, CARRIED = "scheduler", "scaler", "carried"
RANDOM_NAME = "random-{}.safetensors"  # of the process with that rank
SHARDS = "shards"  # a folder of files of which each process wrote its own


def checkpoint_bytes(run: TrainingRun) -> int:
    """About how many bytes a checkpoint of a run will have."""
    model = sum(tensor.nbytes for tensor in _model_tensors(run.model).values())
    return model * (1 if run.average is None else 3) + serialization.state_bytes(run.optimizer)


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and the buffers that a checkpoint can hold: not the weights of eight bits below adapters."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        if not isinstance(module, Packed):
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    tensors[f"{path}.{name}".lstrip(".")] = buffer
    return tensors


def _unsaved_tensors(model: nn.Module, average: WeightAverage | None) -> dict[str, Tensor]:
    """What ``model.safetensors`` does not have: the trained weights where it has their mean or an adapter alone."""
    if average is None and (isinstance(model, Pretrained) or not hasattr(model, "save_pretrained")):
        return {}
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: tensor.detach() for name, tensor in _model_tensors(model).items() if name not in frozen}


def _sharded_tensors(model: nn.Module) -> dict[str, Tensor]:  # of this process, where each writes its part
    tied = model.checkpoint_names().tied if isinstance(model, Pretrained) else {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


class Collected:
    """What a checkpoint holds of a run beside the model's own files, and the random generators of each process.

    All processes make it together, the first one writes it, and at the end all of them call :meth:`finish`.
    """

    def __init__(self, run: TrainingRun, generators: list[Generators]) -> None:
        self.generators, form, model = generators, run.form, run.model
        is_sharded = run.devices.writes_shards and isinstance(model, Pretrained)
        document, state = serialization.save_optimizer(run.optimizer, model, form)
        # The states that the next batch of training begins with; evaluations leave none.
        training = [(path, module.carried) for path, module in carriers(model).items() if module.training]
        carried = {f"{path}:{layer}": tensors for path, states in training for layer, tensors in states.items()}
        weights = _sharded_tensors(model) if is_sharded else _unsaved_tensors(model, run.average)
        average = {} if run.average is None else run.average.state_dict()
        parts = {WEIGHTS: weights, AVERAGE: average, OPTIMIZER: state}
        files = {CARRIED: form.pieces(carried)}
        self.shards: Shards | None = None
        if is_sharded:
            self.shards = Shards({f"{part}.{name}": parts[part][name] for part in parts for name in parts[part]})
        else:
            files |= {part: form.pieces(tensors) for part, tensors in parts.items()}
        self.documents = {OPTIMIZER: form.joined(document)}
        for name, part in ((SCHEDULE, run.scheduler), (SCALER, run.scaler)):
            if part is not None:
                tensors: dict[str, Tensor] = {}
                self.documents[name] = serialization.save_state(part, name, tensors)
                files[name] = Form().pieces(tensors)
        self.files = {f"{name}.safetensors": pieces for name, pieces in files.items() if pieces}
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
        self.stream.finish()
        if self.shards is not None:
            self.shards.finish()


class _StoredPart:
    """The tensors of a part of a run in a checkpoint: of a file, or of shards, where they are only shapes."""

    def __init__(self, checkpoint: Path, part: str, form: Form) -> None:
        self.prefix, self.form, self.path = f"{part}.", form, checkpoint / SHARDS
        self.in_shards = self.path.is_dir()
        if self.in_shards:
            self.tensors: Mapping[str, Tensor] = {
                name.removeprefix(self.prefix): torch.empty(shape, dtype=dtype, device="meta")
                for name, (shape, dtype) in shapes_in(self.path).items()
                if name.startswith(self.prefix)
            }
        else:
            self.path = checkpoint / f"{part}.safetensors"
            self.tensors = tensors_beside(self.path)

    def read(self, like: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Give this process's part of each tensor, laid out as in ``like``; shards are read into ``like`` itself."""
        if self.in_shards:
            present = {name: tensor for name, tensor in like.items() if name in self.tensors}
            stored = {self.prefix + name: tensor for name, tensor in present.items()}
            read_shards(self.path, stored)
            yield from present.items()
        else:
            for name in self.form.own_names(self.tensors):
                whole = self.tensors[name]
                yield name, self.form.share(whole, like.get(name, whole))


def load_parts(checkpoint: Path, run: TrainingRun) -> list[str]:
    """Put a checkpoint into what goes with the weights of a run, but for generators; returns what it does not have."""
    if run.average is not None:
        parameters, means = dict(run.model.named_parameters()), run.average.state_dict()
        saved = dict(_StoredPart(checkpoint, AVERAGE, run.form).read(means))
        run.average.load_state_dict(saved or {name: parameters[name].detach() for name in means})
    _load_carried(checkpoint, run.model)
    lost = []
    for name, part in ((OPTIMIZER, run.optimizer), (SCHEDULE, run.scheduler), (SCALER, run.scaler)):
        path = checkpoint / f"{name}.json"
        if part is None or not path.exists():
            lost += [name] if part is not None else []
            continue
        with naming(path):
            match document := load_json(path):
                case _ if name == OPTIMIZER:
                    lost += _load_optimizer(checkpoint, document, run)
                # A schedule of another number of groups of parameters, which differ between forms of a model.
                case {"state": {"base_lrs": [*rates]}} if len(rates) != len(getattr(part, "base_lrs", rates)):
                    lost.append(name)
                case _:
                    serialization.load_state(part, document, tensors_beside(path))
    return lost


def _load_optimizer(checkpoint: Path, document: Any, run: TrainingRun) -> list[str]:
    """Put the optimizer's document and tensors into it; returns what they do not have."""
    stored = _StoredPart(checkpoint, OPTIMIZER, run.form)
    tensors = stored.tensors
    if stored.in_shards:
        names = serialization.parameter_names(run.optimizer, run.model)
        parameters = {name: parameter for parameter, name in names.items()}
        like = dict[str, Tensor]()
        for name, whole in stored.tensors.items():
            parameter = parameters.get(name.removeprefix("state.").rpartition(".")[0])
            if parameter is not None and parameter.shape == whole.shape:
                like[name] = torch.empty_like(parameter.detach(), dtype=whole.dtype)
            elif parameter is not None or not name.startswith("state."):
                like[name] = torch.empty(whole.shape, dtype=whole.dtype)
        tensors = dict(stored.read(like))
    new = serialization.load_optimizer(run.optimizer, run.model, document, tensors, run.form)
    return [f"the optimizer's state of {len(new)} parameters, such as {new[0]!r}"] if new else []


def _load_carried(checkpoint: Path, model: nn.Module) -> None:
    """Let a model's next batch begin with the states of a checkpoint, where it has any."""
    states, modules = tensors_beside(checkpoint / CARRIED), carriers(model)
    if not states or not modules:
        return
    model.train()  # which would begin with none later
    for module in modules.values():
        module.carried = {}
    for key, state in states.items():
        name, _, layer = key.rpartition(":")
        if name in modules and layer.isdecimal():
            device = next(modules[name].parameters()).device
            modules[name].carried[int(layer)] = state.to(device, copy=True)


def load_weights(checkpoint: Path, model: nn.Module, form: Form, average: WeightAverage | None = None) -> None:
    """Fill the model from a checkpoint, which may have an average beside; parameters keep their place in memory."""
    stored = _StoredPart(checkpoint, WEIGHTS, form)
    if stored.path.exists():
        weights = _sharded_tensors(model) if stored.in_shards else _model_tensors(model)
        needed = weights if stored.in_shards else _unsaved_tensors(model, average)
        shapes = {name: tensor.shape for name, tensor in stored.tensors.items()}
        missing = {name for name, tensor in needed.items() if shapes.get(name) != tensor.shape}
        _refuse_misfit(model, stored.path, missing, () if missing else {*form.own_names(shapes)} - weights.keys())
        with torch.no_grad():
            for name, tensor in stored.read(weights):
                weights[name].copy_(tensor)
    else:
        load_saved_weights(checkpoint, model)


def load_best(checkpoint: Path, model: nn.Module, form: Form, *, averaged: bool) -> None:
    """Fill a model with the weights that were evaluated when a checkpoint was saved, which may be their average."""
    load_weights(checkpoint, model, form)
    if averaged:
        parameters = dict(model.named_parameters())
        copy_weights(dict(_StoredPart(checkpoint, AVERAGE, form).read(parameters)), parameters)


def load_saved_weights(checkpoint: Path, model: nn.Module) -> None:
    """Fill a model from its own files in a checkpoint, which hold the mean of the weights where one is kept."""
    path = checkpoint / WEIGHTS_NAME
    state = dict(open_store(Source(str(checkpoint))))
    if isinstance(model, Pretrained):
        state = translated(model, model.checkpoint_names(), state)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        what = f"does not fit {type(model).__name__}: {' '.join(str(error).split())[:300]}"
        raise CheckpointError(what, path=path) from error
    if isinstance(model, Pretrained):
        names = model.checkpoint_names()
        missing = [name for name in missing if name not in names.tied and names.group(name) is None]
    _refuse_misfit(model, path, missing, unexpected)


def _refuse_misfit(model: nn.Module, path: Path, missing: Collection[str], unexpected: Collection[str]) -> None:
    if missing or unexpected:
        names = f"missing {sorted(missing)[:5]}, unexpected {sorted(unexpected)[:5]}."
        hint = "Resume with the model that the run began with."
        what = f"does not fit {type(model).__name__}: {names}"
        raise CheckpointError(what, path=path, hint=hint, missing=missing, unexpected=unexpected)


def load_generators(checkpoint: Path, *, rank: int = 0) -> Generators | None:
    """The generators' states of a process; ``None`` where the checkpoint has none for it."""
    path = checkpoint / RANDOM_NAME.format(rank)
    return Generators.of(TensorStore([path])) if path.exists() else None
