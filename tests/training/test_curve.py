"""The curve of a run is the reference's: same weights, order of rows and settings, the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import transept
from tests.thorough import in_turn

from .small import HEADS, Head, pair, quiet, reference_warnings, rows

pytestmark = pytest.mark.reference
# Losses are means of cross-entropies near 4, in float32; ten updates of Adam turn differences of one ulp into some of these.
NEAR = 1e-5


def curves(case: Head, folder: Path, count: int = 24, ours: Any = None, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The logs of ten updates of both trainers."""
    import transformers

    mine, theirs = pair(case)
    given = quiet(folder, max_steps=10, learning_rate=1e-3, per_device_train_batch_size=4, **settings)
    data = rows(case.rows, count)
    trainer = transept.Trainer(mine, transept.TrainingArguments(**given), train_dataset=data)
    trainer.train()
    with reference_warnings():
        reference = transformers.Trainer(theirs, transformers.TrainingArguments(**given), train_dataset=data)
        reference.train()
    return trainer.state.log_history, reference.state.log_history


def compare(mine: list[Any], theirs: list[Any], near: float = NEAR) -> float:
    """Both logs have the same keys and values; returns the largest difference of losses."""
    assert [[*log] for log in mine] == [[*log] for log in theirs]
    worst = 0.0
    for own, other in zip(mine[:-1], theirs[:-1], strict=True):
        assert own["epoch"] == other["epoch"]
        assert own["step"] == other["step"]
        assert own["learning_rate"] == pytest.approx(other["learning_rate"], rel=1e-12)
        assert own["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)  # a root of a sum of many small squares
        worst = max(worst, abs(own["loss"] - other["loss"]))
    assert worst < near
    assert mine[-1]["train_loss"] == pytest.approx(theirs[-1]["train_loss"], abs=near)
    assert mine[-1]["total_flos"] == theirs[-1]["total_flos"]
    return worst


@pytest.mark.parametrize("case", in_turn(HEADS, 4))
def test_losses_of_ten_updates(case: Head, tmp_path: Path) -> None:
    compare(*curves(case, tmp_path))


@pytest.mark.parametrize("case", in_turn([case for case in HEADS if case.accumulates], 1))
def test_losses_with_accumulation_where_the_reference_is_right(case: Head, tmp_path: Path) -> None:
    compare(*curves(case, tmp_path, count=44, gradient_accumulation_steps=2))
