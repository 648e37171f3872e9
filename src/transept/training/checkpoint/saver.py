"""Saving checkpoints again and again: failures that a run survives, and how many checkpoints stay."""

from __future__ import annotations

import shutil
import warnings
from contextlib import suppress
from pathlib import Path

from transept.errors import FileError, TranseptWarning
from transept.training.checkpoint.directory import Fill, clean, rotate, write_checkpoint

MAX_FAILURES = 3


class CheckpointSaver:
    """Saves the checkpoints of a run.

    A save that fails leaves the earlier checkpoints whole, warns, and training goes on; the third in a row raises its
    ``FileError``, and so does one that is the ``final`` one of the run.

    Args:
        folder: the run's directory.
        limit: how many checkpoints stay (``save_total_limit``); ``None`` keeps all.
        resumed_from: the checkpoint that the run goes on from, which stays too.
    """

    def __init__(self, folder: Path, *, limit: int | None = None, resumed_from: Path | None = None) -> None:
        self.folder, self.limit, self.resumed_from = folder, limit, resumed_from
        self.failures = 0
        self.saved: Path | None = None
        clean(folder)

    def save(
        self, step: int, fill: Fill, *, needed: int = 0, world_size: int = 1, best: str | None = None, final: bool = False
    ) -> Path | None:
        """Write the checkpoint of a step, and remove old ones; ``None`` where that failed (see ``write_checkpoint``).

        ``best`` is the checkpoint of the best model, which stays.
        """
        try:
            self.saved = write_checkpoint(self.folder, step, fill, world_size=world_size, needed=needed)
        except FileError as error:
            self.failures += 1
            left = "the free space is unknown"
            with suppress(OSError):
                left = f"{shutil.disk_usage(self.folder).free / 1e6:.1f} MB are free"
            if final or self.failures >= MAX_FAILURES:
                which = "the last checkpoint of the run" if final else f"{self.failures} checkpoints in a row"
                what = f"{which} could not be saved ({error.message.rstrip('.')}; {left})."
                raise FileError(what, path=error.path, hint=error.hint) from error
            text = f"The checkpoint of step {step} could not be saved: {error} Then {left}. Training goes on; "
            text += f"{MAX_FAILURES - self.failures} more failure(s) in a row end it."
            warnings.warn(text, TranseptWarning, stacklevel=3)
            return None
        self.failures = 0
        rotate(self.folder, self.limit, last=self.saved, keep=(best, self.resumed_from))
        return self.saved
