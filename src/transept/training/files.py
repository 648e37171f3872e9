"""What a run writes beside its checkpoints, and the directory of the run, which no other run may write to."""

from __future__ import annotations

import copy
import io
import os
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from transept.checkpoint.store import is_weights, save_checkpoint
from transept.core.model import Model
from transept.errors import FileError, TranseptWarning
from transept.parallel.forms import Form
from transept.parallel.streams import ModelFiles
from transept.storage.files import PathName, write_file, write_text
from transept.storage.publish import CARD_NAME, PLOT_NAME, Pushable
from transept.training.callbacks.reports import LOG_NAME
from transept.training.checkpoint.directory import MANIFEST_NAME, only_run, remove_checkpoint
from transept.training.recipes.settings import RUN_NAME

ARGUMENTS_NAME, PICKLED_NAME = "training_args.json", "training_args.bin"  # the second is never read here
_SHOWN = 5  # names of files in a message
Weights = ModelFiles | dict[str, Any] | None


def whole_weights(model: Any, form: Form, average: Any, *, elsewhere: bool = False) -> Weights:
    """The weights that are saved, where processes have parts of them, and call this together; else ``None``.

    Those of a model of this library are put together while they are written; those of another are whole, on the first
    process. With ``elsewhere`` shards have them, and no weights are written.
    """
    if elsewhere:
        return {}
    if not form.same_passes:
        return None
    state = model.state_dict()
    if average is not None:
        state |= {name: mean.to(state[name].dtype) for name, mean in average.state_dict().items()}
    if not isinstance(model, Model):
        return form.collect(state)
    names = model.checkpoint_names()
    untied = {name: tensor for name, tensor in state.items() if names.is_written(name)}
    return ModelFiles(form.pieces(untied), names.keys, order=form.stored)


def write_model(folder: Path, model: Any, form: Form, weights: Weights, reader: Any, arguments: Any) -> None:
    """Write a model with these weights or its own, what prepares its inputs, and the arguments of its training."""
    if weights == {}:
        for name, text in (model.texts() if isinstance(model, Model) else {}).items():
            write_text(folder / name, text)
    elif isinstance(weights, ModelFiles):
        with form.original_class(model):
            weights.write(model.texts(), folder)
    elif hasattr(model, "save_pretrained"):
        with form.original_class(model):
            model.save_pretrained(folder, **({} if weights is None else {"state_dict": weights}))
    else:
        save_checkpoint(weights or model.state_dict(), {}, folder)
    if hasattr(reader, "save_pretrained"):
        reader.save_pretrained(folder)
    write_text(folder / ARGUMENTS_NAME, arguments.to_json_string())
    pickled, content = copy.copy(arguments), io.BytesIO()
    pickled.hub_token = None
    try:
        torch.save(pickled, content)
    except Exception as error:  # those of pickling have no common class
        what = f"{PICKLED_NAME} is not written: {type(arguments).__name__} cannot be pickled ({error})."
        warnings.warn(what, TranseptWarning, stacklevel=2)
    else:
        write_file(folder / PICKLED_NAME, content.getvalue())


class TrainedModel(Pushable):
    """A trained model as it is published: what ``save`` writes into a directory, and a card."""

    def __init__(self, save: Callable[[PathName], None], card: str) -> None:
        self.save, self.card = save, card

    def save_pretrained(self, directory: Any) -> None:
        self.save(directory)
        write_text(Path(directory, CARD_NAME), self.card)


@contextmanager
def run_directory(directory: str, has_begun: Callable[[], bool]) -> Iterator[Path]:
    """Make and lock a run's directory (``FileError``); the files of one that fails before it ``has_begun`` go."""
    folder = Path(directory)
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with only_run(folder):
            yield folder
    except BaseException:
        if new_folders and not has_begun():
            for name in (RUN_NAME, LOG_NAME, PLOT_NAME):
                (folder / name).unlink(missing_ok=True)
            for manifest in [*folder.glob(f"*/{MANIFEST_NAME}")]:
                remove_checkpoint(manifest.parent)
            subfolders = (Path(parent) for parent, _, _ in os.walk(folder, topdown=False))
            for path in [*subfolders, *new_folders]:
                with suppress(OSError):  # what somebody else has put there
                    path.rmdir()
        raise


def check_empty(folder: Path, model: Any, reader: Any, *, force: bool) -> str | None:
    """Refuse to begin a run among other files (``FileError``); with ``force`` a sentence about those it replaces."""
    present = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if not present:
        return None
    written = {RUN_NAME, LOG_NAME, PLOT_NAME, CARD_NAME, ARGUMENTS_NAME, PICKLED_NAME, *model.texts()}
    if hasattr(reader, "save_pretrained"):
        with tempfile.TemporaryDirectory() as scratch:
            reader.save_pretrained(scratch)
            written |= {*os.listdir(scratch)}
    replaced = ", ".join(name for name in present if name in written or is_weights(name)) or "none of them"
    if force:
        return f"{folder} holds other files; the run replaces {replaced}."
    if RUN_NAME in present:
        hint = f"Go on with `transept resume {shlex.quote(str(folder))}`, or pass another --output."
        raise FileError("holds a run already.", path=folder, hint=hint)
    names = ", ".join(present[:_SHOWN]) + (", ..." if len(present) > _SHOWN else "")
    hint = f"Pass another --output, or --force, which replaces {replaced}."
    raise FileError(f"holds files that no run wrote: {names}.", path=folder, hint=hint)


def free_directory(task: str) -> str:
    """The first of ``runs/TASK-1``, ``runs/TASK-2``, ... that is not there."""
    paths = (Path("runs", f"{task}-{number}") for number in range(1, 10**6))
    return str(next(path for path in paths if not path.exists()))
