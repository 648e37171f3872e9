"""Processes that are forked from one that has read the library, which a new one takes seconds to do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
READ = ["torch", "tqdm", "transept.cli.main", "transept.pipelines", "transept.serving.app", "pyarrow.parquet", "uvicorn"]
CONTEXT.set_forkserver_preload(["tests.cli.test_parts", *READ])  # what is not installed is passed over


class Forked(CONTEXT.Process):  # type: ignore[name-defined, misc]
    """A running process, which writes what it tells to the file ``log``: the last argument of what it runs."""

    def __init__(self, target: Callable[..., object], *arguments: Any, log: Path, **settings: Any) -> None:
        super().__init__(target=target, args=(*arguments, str(log)), kwargs=settings, daemon=True)
        self.log = log
        self.start()

    def told(self) -> str:
        """What it has written, when it has ended."""
        self.join()
        return self.log.read_text()
