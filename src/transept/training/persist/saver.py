"""Saving again and again: room on the disk, failures that a run survives, and how many checkpoints stay."""

from __future__ import annotations

import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

from transept.errors import FileError, TranseptWarning
from transept.training.checkpoint import Fill, clean, rotate, write_checkpoint

MAX_FAILURES = 3


class CheckpointSaver:
    """Saves the checkpoints of a run.

    A save that fails leaves the earlier checkpoints whole, warns, and training goes on; the third in a row raises its
    ``FileError``, and so does one that is the ``final`` one of the run.

    Args:
        run: the run's directory.
        limit: how many checkpoints stay (``save_total_limit``); ``None`` keeps all.
        resumed_from: the checkpoint that the run goes on from, which stays too.
    """

    def __init__(
        self, run: str | os.PathLike[str], *, limit: int | None = None, resumed_from: str | os.PathLike[str] | None = None
    ) -> None:
        self.run, self.limit = Path(run), limit
        self.resumed_from = None if resumed_from is None else Path(resumed_from)
        self.failures = 0
        self.saved: Path | None = None
        clean(self.run)

    def save(
        self,
        step: int,
        fill: Fill,
        *,
        needed: int = 0,
        world_size: int = 1,
        best: str | os.PathLike[str] | None = None,
        final: bool = False,
    ) -> Path | None:
        """Write the checkpoint of a step; ``None`` where that failed (see :class:`CheckpointSaver` and ``write_checkpoint``).

        ``best`` is the checkpoint of the best model, which stays.
        """
        try:
            self.saved = write_checkpoint(self.run, step, fill, world_size=world_size, needed=needed)
        except FileError as error:
            self.failures += 1
            left = self._free()
            if final or self.failures >= MAX_FAILURES:
                which = "the last checkpoint of the run" if final else f"{self.failures} checkpoints in a row"
                what = f"{which} could not be saved ({error.message.rstrip('.')}; {left})."
                raise FileError(what, path=error.path, hint=error.hint) from error
            text = f"The checkpoint of step {step} could not be saved: {error} Then {left}. Training goes on; "
            text += f"{MAX_FAILURES - self.failures} more failure(s) in a row end it."
            warnings.warn(text, TranseptWarning, stacklevel=3)
            return None
        self.failures = 0
        rotate(self.run, self.limit, last=self.saved, keep=(Path(best) if best else None, self.resumed_from))
        return self.saved

    def _free(self) -> str:
        with suppress(OSError):
            return f"{shutil.disk_usage(self.run).free / 1e6:.1f} MB are free"
        return "the free space is unknown"
