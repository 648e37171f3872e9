"""The parts of a run in the files of a checkpoint, and back: weights, optimizer, schedule, scaler and random generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.store import WEIGHTS_NAME, TensorStore, open_store, write_tensors
from transept.core.loading import Pretrained
from transept.errors import CheckpointError
from transept.files import dump_json, load_object, write_text
from transept.parallel.forms import Form
from transept.source import Source
from transept.training.persist.generators import Generators
from transept.training.persist.optimizer import load_optimizer, save_optimizer, state_bytes
from transept.training.persist.plain import load_state, save_state

OPTIMIZER, SCHEDULE, SCALER = "optimizer", "scheduler", "scaler"
AVERAGE_NAME = "average.safetensors"
LIVE_NAME = "weights.safetensors"  # what stands in the model where `model.safetensors` has something else


@dataclass(frozen=True)
class Parts:
    """The parts of a run that a checkpoint holds.

    ``average`` is the ``WeightAverage``, where there is one, and ``form`` how the processes hold the model.
    """

    model: nn.Module
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    average: Any = None
    form: Form = field(default_factory=Form)

    @property
    def bytes(self) -> int:
        """About how many bytes a checkpoint will have."""
        model = sum(tensor.nbytes for tensor in _own_tensors(self.model).values())
        return model * (1 if self.average is None else 3) + (0 if self.optimizer is None else state_bytes(self.optimizer))


class Rewind:
    """Goes back to the beginning of an update that was interrupted, so that it can be made again, bit for bit.

    What moves within an update are the random generators, and the running statistics of normalisations.
    """

    def __init__(self, model: nn.Module) -> None:
        tracking = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self._buffers = [buffer for module in tracking for buffer in module.buffers(recurse=False)]
        self.note()

    def note(self) -> None:
        """An update begins."""
        self.generators = Generators.now()
        self._statistics = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def back(self) -> None:
        """Go back to its beginning."""
        self.generators.restore()
        for buffer, before in zip(self._buffers, self._statistics, strict=True):
            buffer.copy_(before)


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}


def live_tensors(parts: Parts) -> dict[str, Tensor]:
    """What ``model.safetensors`` does not have: the trained weights where it has their mean or an adapter alone."""
    if parts.average is None and (isinstance(parts.model, Pretrained) or not hasattr(parts.model, "save_pretrained")):
        return {}
    trained = {name for name, weight in parts.model.named_parameters() if weight.requires_grad}
    buffers = {name for name, _ in parts.model.named_buffers()}
    return {name: tensor for name, tensor in _own_tensors(parts.model).items() if name in trained | buffers}


@dataclass(frozen=True)
class Collected:
    """What a checkpoint holds beside the model's own files, as a process that writes it has it: tensors are whole.

    Attributes:
        weights: files of weights by name.
        states: the state of an optimizer, a schedule or a scaler by name: JSON, and tensors.
        generators: those of each process.
    """

    weights: dict[str, Mapping[str, Tensor]]
    states: dict[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]]
    generators: list[Generators]


def collect(parts: Parts, generators: list[Generators]) -> Collected:
    """Collect all parts but the model's own weights; all processes do so together, and the first of them has the tensors."""
    form, weights = parts.form, dict[str, Mapping[str, Tensor]]()
    if live := live_tensors(parts):
        weights[LIVE_NAME] = form.collect(live)
    if parts.average is not None:
        weights[AVERAGE_NAME] = form.collect(parts.average.state_dict())
    states: dict[str, Any] = {}
    if parts.optimizer is not None:
        states[OPTIMIZER] = save_optimizer(parts.optimizer, parts.model, form)
    for name, part in ((SCHEDULE, parts.scheduler), (SCALER, parts.scaler)):
        if part is not None:
            tensors: dict[str, Tensor] = {}
            states[name] = save_state(part, name, tensors), tensors
    return Collected(weights, states, generators)


def save_parts(stage: Path, collected: Collected) -> Iterator[Path]:
    """Write what was collected; gives each large file when it is whole."""
    for name, tensors in collected.weights.items():
        write_tensors(tensors, stage / name)
        yield stage / name
    for name, (document, tensors) in collected.states.items():
        yield from _write(stage, name, document, tensors)
    for rank, generators in enumerate(collected.generators):
        write_tensors(generators.tensors(), stage / _random_name(rank))


def _write(stage: Path, name: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Path]:
    write_text(stage / f"{name}.json", dump_json(document))
    if tensors:
        path = stage / f"{name}.safetensors"
        write_tensors({place: tensor.cpu() for place, tensor in tensors.items()}, path)
        yield path


def _random_name(rank: int) -> str:
    return f"random-{rank}.safetensors"


def load_parts(checkpoint: Path, parts: Parts) -> list[str]:
    """Put the files of a checkpoint into the parts of a run, but for the random generators; returns what it does not have.

    Raises:
        CheckpointError: the files of another model, optimizer or schedule.
        FileError, FormatError: a file is missing or corrupt.
    """
    load_weights(checkpoint, parts)
    lost = []
    for name, part in ((OPTIMIZER, parts.optimizer), (SCHEDULE, parts.scheduler), (SCALER, parts.scaler)):
        path = checkpoint / f"{name}.json"
        if part is None:
            continue
        if not path.exists():
            lost.append(name)
            continue
        stored = path.with_suffix(".safetensors")
        tensors = TensorStore([stored]) if stored.exists() else {}
        try:
            if name == OPTIMIZER:
                new = load_optimizer(part, parts.model, load_object(path), tensors, parts.form)
                lost += [f"the optimizer's state of {len(new)} parameters, such as {new[0]!r}"] if new else []
            else:
                load_state(part, load_object(path), tensors)
        except CheckpointError as error:
            error.path = error.path or str(path)
            raise
    return lost


def load_weights(checkpoint: Path, parts: Parts) -> None:
    """Fill the model, and the average of its weights, from a checkpoint; parameters keep their place in memory."""
    live, average, model = checkpoint / LIVE_NAME, checkpoint / AVERAGE_NAME, parts.model
    if not live.exists():
        load_saved_weights(checkpoint, model)
    if parts.average is not None:
        own = dict(model.named_parameters())
        kept, form = parts.average.state_dict(), parts.form
        found: Any = TensorStore([average]) if average.exists() else {name: own[name] for name in kept}
        parts.average.load_state_dict({name: form.share(each, kept.get(name, each)) for name, each in found.items()})
    if live.exists():
        store = TensorStore([live])
        _, unexpected = nn.Module.load_state_dict(model, dict(store), strict=False)
        if unexpected or live_tensors(parts).keys() - store.keys():
            _misfit(model, live, live_tensors(parts).keys() - store.keys(), unexpected)


def load_best(checkpoint: Path, model: nn.Module, *, averaged: bool) -> None:
    """Fill a model with the weights that were evaluated when a checkpoint was saved; ``averaged``: with their average."""
    if averaged:
        load_saved_weights(checkpoint, model)
    else:
        load_weights(checkpoint, Parts(model))


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
