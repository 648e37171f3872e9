"""What ends a run early."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from transept import EarlyStoppingCallback
from transept.training.state import TrainerControl, TrainerState

NAN = float("nan")


@pytest.mark.parametrize(
    ("best", "value", "greater", "threshold", "stops"),
    [
        (None, 0.5, True, 0.0, False),
        (None, NAN, True, 0.0, True),
        (NAN, 0.5, True, 0.0, False),
        (NAN, NAN, True, 0.0, True),
        (0.5, NAN, True, 0.0, True),
        (0.5, NAN, False, 0.0, True),
        (0.5, 0.6, True, 0.0, False),
        (0.5, 0.6, True, 0.2, True),
        (0.5, 0.6, False, 0.0, True),
        (0.5, 0.5, True, -1.0, True),
        (float("inf"), float("inf"), False, 0.0, True),
    ],
)
def test_early_stopping(best: float | None, value: float, greater: bool, threshold: float, stops: bool) -> None:
    callback, control = EarlyStoppingCallback(1, threshold), TrainerControl()
    args = SimpleNamespace(metric_for_best_model="f1", greater_is_better=greater)
    callback.on_evaluate(args, TrainerState(best_metric=best), control, metrics={"eval_f1": value})
    assert control.should_training_stop is stops
