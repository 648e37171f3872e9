"""The directory of a run: whether it may be written to, held while the run lasts, and removed where the run never began."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transept.checkpoint.store import is_weights
from transept.errors import FileError
from transept.publish import CARD_NAME
from transept.training.callbacks.reports import LOG_NAME, PLOT_NAME
from transept.training.checkpoint.directory import MANIFEST_NAME, remove_checkpoint
from transept.training.checkpoint.lock import only_run
from transept.training.files import ARGUMENTS_NAME
from transept.training.recipes.settings import RUN_NAME

_SHOWN = 5


@contextmanager
def run_directory(directory: str, has_begun: Callable[[], bool]) -> Iterator[Path]:
    """Hold a run's directory, which is made where needed; what a run leaves that fails before it ``has_begun`` is removed.

    Raises:
        FileError: another run is in it, or it cannot be written to.
    """
    folder = Path(directory)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with only_run(folder):
            yield folder
    except BaseException:
        if made and not has_begun():
            _remove(folder, made)
        raise


def _remove(folder: Path, made: list[Path]) -> None:
    for name in (RUN_NAME, LOG_NAME, PLOT_NAME):
        (folder / name).unlink(missing_ok=True)
    for manifest in [*folder.glob(f"*/{MANIFEST_NAME}")]:
        remove_checkpoint(manifest.parent)
    for path in [*(Path(parent) for parent, _, _ in os.walk(folder, topdown=False)), *made]:
        with suppress(OSError):  # what somebody else has put there
            path.rmdir()


def check_empty(folder: Path, model: Any, reader: Any, *, force: bool) -> str | None:
    """Refuse to begin a run in a directory that holds other files; with ``force`` a sentence about those that are replaced.

    Raises:
        FileError: the directory holds files; says which of them the run would replace.
    """
    present = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if not present:
        return None
    replaced = [name for name in present if name in _written(model, reader) or is_weights(name)]
    if force:
        return f"{folder} holds other files; the run replaces {', '.join(replaced) or 'none of them'}."
    if RUN_NAME in present:
        hint = f"Go on with `transept resume {shlex.quote(str(folder))}`, or pass another --output."
        raise FileError("holds a run already.", path=folder, hint=hint)
    some = ", ".join(present[:_SHOWN]) + (", ..." if len(present) > _SHOWN else "")
    hint = f"Pass another --output, or --force, which replaces {', '.join(replaced) or 'none of them'}."
    raise FileError(f"holds files that no run wrote: {some}.", path=folder, hint=hint)


def _written(model: Any, reader: Any) -> set[str]:
    """The names of the files that a run writes into its directory, but for weights."""
    names = {RUN_NAME, LOG_NAME, PLOT_NAME, CARD_NAME, ARGUMENTS_NAME, *model.texts()}
    if hasattr(reader, "save_pretrained"):
        with tempfile.TemporaryDirectory() as folder:
            reader.save_pretrained(folder)
            names |= {*os.listdir(folder)}
    return names


def free_directory(task: str) -> str:
    """The first of ``runs/TASK-1``, ``runs/TASK-2``, ... that is not there."""
    number = next(number for number in range(1, 10**6) if not Path("runs", f"{task}-{number}").exists())
    return str(Path("runs", f"{task}-{number}"))
