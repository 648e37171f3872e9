"""Going on with another number of processes, and after torchrun started them again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from transept.errors import TranseptWarning
from transept.files import load_object
from transept.training.checkpoint import MANIFEST_NAME, find_last_checkpoint, read_manifest
from transept.training.files import ARGUMENTS_NAME

DATA_NAME = "data.json"


def keep_rows_of_update(args: Any, resume: str | os.PathLike[str] | bool | None, replicas: int) -> None:
    """Let a run that goes on with another number of processes keep the rows of an update, by its accumulation.

    Args:
        args: whose ``gradient_accumulation_steps`` is changed, with a warning, where the rows can be divided.
        resume: see :class:`SavedRun`.
        replicas: how many processes take other rows.
    """
    with warnings.catch_warnings(action="ignore"):  # what is wrong with checkpoints is said when one is read
        last = find_last_checkpoint(args.output_dir) if resume is True or (resume is None and started_again()) else None
    path = Path(resume) if isinstance(resume, str | os.PathLike) else last
    if path is None or not all((path / name).is_file() for name in (MANIFEST_NAME, DATA_NAME, ARGUMENTS_NAME)):
        return
    before = read_manifest(path).world_size
    if before == replicas:
        return
    size, every = load_object(path / DATA_NAME).get("batch_size"), load_object(path / ARGUMENTS_NAME)
    rows, now = int(size or 0) * int(every.get("gradient_accumulation_steps") or 1), args.train_batch_size * replicas
    if rows % now == 0 and rows // now not in (0, args.gradient_accumulation_steps):
        args.gradient_accumulation_steps = rows // now
        what = f"the run had {before} processes and has {replicas}: gradient_accumulation_steps is {rows // now} now"
        warnings.warn(f"{what}, so that an update has {rows} rows as before.", TranseptWarning, stacklevel=4)


def started_again() -> bool:
    """Whether torchrun starts the processes again, after some of them ended."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
