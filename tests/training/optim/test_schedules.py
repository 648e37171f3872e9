"""Learning rates over time, against the reference's at every step."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import pytest
import torch
import transformers.optimization as reference
from torch import nn

from transept.errors import InputError, InputTypeError
from transept.training.optim import schedules
from transept.training.optim.greedy import GreedyLR
from transept.training.optim.schedules import SchedulerType, get_scheduler

pytestmark = pytest.mark.reference
STEPS = 60
CASES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.7}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.5, "lr_end": 1e-3}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 20}),
    ("cosine_with_min_lr", {"min_lr": 0.01}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 1.0}),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.01}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2, "warmup_lr_rate": 0.05}),
    *(
        ("warmup_stable_decay", {"num_decay_steps": 15, "warmup_type": up, "decay_type": down, "min_lr_ratio": 0.1})
        for up, down in (("linear", "cosine"), ("cosine", "1-sqrt"), ("1-sqrt", "linear"))
    ),
    ("warmup_stable_decay", {"num_decay_steps": 15, "num_stable_steps": 30}),
]


def optimizer(rate: float = 0.1) -> torch.optim.Optimizer:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": rate / 4}]
    return torch.optim.SGD(groups, lr=rate)


def rates(schedule: Any, steps: int = STEPS, metrics: list[float] | None = None) -> list[list[float]]:
    seen = []
    for step in range(steps):
        seen.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step(*() if metrics is None else (metrics[step],))
    return seen


def both(name: str, settings: dict[str, Any], warmup: int = 10, total: int = 50) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both numbers of steps: either warns
        return tuple(
            get(name, optimizer(), warmup, total, scheduler_specific_kwargs=dict(settings))
            for get in (get_scheduler, reference.get_scheduler)
        )


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_every_schedule_is_the_references_at_every_step(name: str, settings: dict[str, Any], warmup: int) -> None:
    """Differences are those of rounding: 1e-12 of rates up to 0.1, some steps past the end too."""
    ours, theirs = both(name, settings, warmup)
    torch.testing.assert_close(torch.tensor(rates(ours)), torch.tensor(rates(theirs)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_a_schedule_goes_on_from_its_state_and_from_a_pickle(name: str, settings: dict[str, Any]) -> None:
    whole, part = (both(name, settings)[0] for _ in range(2))
    expected = rates(whole)
    rates(part, 23)
    state, weights = json.loads(json.dumps(part.state_dict())), part.optimizer.state_dict()
    fresh = both(name, settings)[0]
    fresh.optimizer.load_state_dict(weights)
    fresh.load_state_dict(state)
    assert rates(fresh, STEPS - 23) == expected[23:]
    assert rates(pickle.loads(pickle.dumps(part)), STEPS - 23) == expected[23:]


def test_names_and_functions_are_the_references() -> None:
    assert {each.value for each in SchedulerType} == {each.value for each in transformers_types()}
    for kind, function in reference.TYPE_TO_SCHEDULER_FUNCTION.items():
        assert schedules.SCHEDULES[SchedulerType(kind.value)].__name__ == function.__name__
        assert getattr(schedules, function.__name__)


def transformers_types() -> Any:
    from transformers import SchedulerType as Reference

    return Reference


@pytest.mark.parametrize(("name", "options"), [("reduce_lr_on_plateau", {"patience": 2}), ("greedy", {})])
def test_rates_that_follow_a_metric(name: str, options: dict[str, Any]) -> None:
    metrics = (torch.randn(STEPS, generator=torch.Generator().manual_seed(0)) + torch.linspace(3, 0, STEPS)).tolist()
    ours, theirs = both(name, options)
    assert rates(ours, metrics=metrics) == rates(theirs, metrics=metrics)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("kind", ["rel", "abs"])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("rate", [0.1, 1e-4])
def test_greedy_rates(mode: str, kind: str, smooth: bool, rate: float) -> None:
    """Rises, falls, both pauses, both bounds and starting anew; a rate below the least stays."""
    options = {
        "mode": mode,
        "threshold_mode": kind,
        "smooth": smooth,
        "window_size": 4,
        "patience": 1,
        "cooldown": 1,
        "warmup": 2,
    }
    options |= {"factor": 0.7, "min_lr": [0.05, 0.001], "max_lr": 0.2, "reset_start": 3}
    rising = torch.linspace(0, 4, 40).sin() + 2
    metrics = [*rising.tolist(), *([5.0] * 30), *rising.flip(0).tolist()]
    ours, theirs = GreedyLR(optimizer(rate), **options), reference.GreedyLR(optimizer(rate), **options)
    expected = rates(theirs, len(metrics), metrics)
    assert rates(ours, len(metrics), metrics) == expected
    assert rate == 1e-4 or len({first for first, _ in expected}) > 4
    state, reference_state = ours.state_dict(), theirs.state_dict()
    averages = [each.pop("_streaming_avg", {"sum": 0.0}) for each in (state, reference_state)]
    assert state == reference_state
    assert averages[0].pop("sum") == pytest.approx(averages[1].pop("sum"), abs=1e-9)  # theirs is a running sum
    assert averages[0] == averages[1]
    again = GreedyLR(optimizer(rate), **options)
    again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert rates(again, 20, metrics) == rates(ours, 20, metrics)


def test_what_cannot_be_is_one_clear_error() -> None:
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
        ("cosin", (0, 10), {}, "'cosin' is no SchedulerType. Did you mean 'cosine'"),
        ("linear", (None, 10), {}, "'linear' needs `num_warmup_steps`"),
        ("linear", (0, None), {}, "'linear' needs `num_training_steps`"),
        ("linear", (-1, 10), {}, "`num_warmup_steps` must not be negative, but is -1"),
        ("polynomial", (0, 10), {"lr_end": 0.5}, "`lr_end` is 0.5, but must be below the learning rate, which is 0.1"),
        ("cosine_with_min_lr", (0, 10), {}, "`min_lr` or `min_lr_rate`, and not both"),
        ("cosine_with_min_lr", (0, 10), {"min_lr": 0.1, "min_lr_rate": 0.1}, "and not both"),
        ("warmup_stable_decay", (0, 10), {}, "'warmup_stable_decay' needs `num_decay_steps`"),
        ("warmup_stable_decay", (0, None), {"num_decay_steps": 2}, "`num_training_steps` or `num_stable_steps`"),
        ("warmup_stable_decay", (0, 10), {"num_decay_steps": 2, "decay_type": "steep"}, "`decay_type` is 'steep'"),
        ("greedy", (), {"factor": 1.0}, "`factor` must be below 1, but is 1.0"),
        ("greedy", (), {"mode": "most"}, "`mode` must be 'min' or 'max'"),
        ("greedy", (), {"threshold_mode": "x"}, "`threshold_mode` must be"),
        ("greedy", (), {"min_lr": [0.1]}, "`min_lr` has 1 rates for 2 groups"),
    ]
    for name, steps, options, message in cases:
        with pytest.raises(InputError, match=message.replace("(", r"\(")):
            get_scheduler(name, optimizer(), *steps, scheduler_specific_kwargs=options)
    with pytest.raises(InputTypeError, match="'cosine' has no argument 'cycles'. It has: num_warmup_steps"):
        get_scheduler("cosine", optimizer(), 0, 10, {"cycles": 1})
    with pytest.raises(InputTypeError, match="`optimizer` must be an optimizer, but is str"):
        GreedyLR("sgd")  # type: ignore[arg-type]
