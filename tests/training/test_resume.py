"""Runs go on as if nothing had happened, to the bit."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from transept.training.checkpoint import list_checkpoints

from .runs import Run, train


def cut(folder: Path, step: int) -> None:
    """Take a run back to where it had been killed after that step."""
    for number, path in list_checkpoints(folder):
        if number > step:
            shutil.rmtree(path)


def check(run: Run, folder: Path, step: int, **arguments: Any) -> None:
    """A run that goes on from a step ends as the one that was not interrupted."""
    whole = train(run, folder, **arguments)
    cut(folder, step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(run, folder, resume=True, **arguments) == whole


@pytest.mark.parametrize("step", [2, 6])
def test_resume(tmp_path: Path, step: int) -> None:
    check(Run(), tmp_path, step)
