"""Searching for settings, model cards, and publishing."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from transept import BertForSequenceClassification, Trainer, TrainingArguments
from transept.errors import InputError, InputTypeError, TrainingError, TranseptError, UnsupportedError
from transept.training.search import Trial, default_compute_objective, default_space

from .small import head, ours, quiet, rows

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
CASE = head("BertForSequenceClassification")


def trainer(folder: Path, **more: Any) -> Trainer:
    args = TrainingArguments(**quiet(folder, max_steps=2, per_device_train_batch_size=4), **more)
    return Trainer(None, args, train_dataset=rows("class", 8), eval_dataset=rows("class", 4), model_init=lambda: ours(CASE))


def test_a_grid_is_tried_whole(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    space = {"learning_rate": [0.0, 1e-2], "seed": [1, 2]}
    best = made.hyperparameter_search(space, backend="grid")
    assert [run.hyperparameters for run in best.run_summary] == [
        {"learning_rate": rate, "seed": seed} for rate in (0.0, 1e-2) for seed in (1, 2)
    ]
    assert best.objective == min(run.objective for run in best.run_summary)
    assert made.args.seed == 42
    assert made.args.output_dir == str(tmp_path)


def test_random_trials_are_the_same_again(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "max_steps": trial.suggest_int("s", 1, 2),
        }

    found = [
        trainer(tmp_path).hyperparameter_search(
            space, lambda metrics: metrics["eval_loss"], 3, "maximize", hp_name=lambda trial: f"try-{trial.number}"
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert found[0].objective == max(run.objective for run in found[0].run_summary)
    assert len({run.hyperparameters["learning_rate"] for run in found[0].run_summary}) == 3


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_trial_without_a_number_is_never_the_best(direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "train", lambda self, trial: None)
    monkeypatch.setattr(Trainer, "evaluate", lambda self: {"seed": self.args.seed})
    made, nan = trainer(tmp_path), float("nan")
    given: dict[str, Any] = {"hp_space": {"seed": [0, 1, 2, 3]}, "direction": direction, "backend": "grid"}
    best = made.hyperparameter_search(compute_objective=lambda metrics: [nan, 1.0, nan, 2.0][metrics["seed"]], **given)
    assert best.objective == {"minimize": 1.0, "maximize": 2.0}[direction]
    assert len(best.run_summary) == 4
    with pytest.raises(TrainingError, match="objective of all 4 is NaN"):
        made.hyperparameter_search(compute_objective=lambda metrics: nan, **given)


def test_draws_stay_in_their_range() -> None:
    for number in range(200):
        drawn = default_space(Trial(number, 7))
        assert 1e-6 <= drawn["learning_rate"] <= 1e-4
        assert 1 <= drawn["num_train_epochs"] <= 5
        assert drawn["per_device_train_batch_size"] in (4, 8, 16, 32, 64)
        trial = Trial(number, 0)
        assert trial.suggest_float("x", 0, 1, step=0.25) in (0, 0.25, 0.5, 0.75, 1)
        assert trial.suggest_int("n", 2, 8, step=3) in (2, 5, 8)
        assert 1 <= trial.suggest_int("m", 1, 9, log=True) <= 9
    assert {Trial(number, 0).suggest_int("n", 1, 3) for number in range(50)} == {1, 2, 3}


def test_objectives_are_the_references() -> None:
    from transformers.trainer_utils import default_compute_objective as theirs

    for metrics in (
        {"eval_loss": 2.0, "epoch": 1.0, "eval_runtime": 3.0, "eval_samples_per_second": 1.0},
        {"eval_loss": 2.0, "eval_f1": 0.5, "eval_accuracy": 0.25, "eval_steps_per_second": 1.0},
    ):
        assert default_compute_objective(metrics) == theirs(dict(metrics))


class Pruned(Exception):
    pass


class Study:
    """As Optuna's: it calls an objective with trials, and leaves out those that are pruned."""

    def __init__(self, **options: Any) -> None:
        self.options, self.values = options, list[Any]()

    def optimize(self, objective: Any, n_trials: int, **options: Any) -> None:
        self.options |= options
        for number in range(n_trials):
            trial: Any = Trial(number, 3)
            asked = SimpleNamespace(number=number, params=trial.params, suggest_float=trial.suggest_float, reported=[])
            asked.report = lambda value, step, asked=asked: asked.reported.append((step, value))
            asked.should_prune = lambda asked=asked: asked.number == 1 and len(asked.reported) == 1
            with contextlib.suppress(Pruned):
                self.values.append(objective(asked))
            assert [step for step, _ in asked.reported] == ([1] if number == 1 else [1, 2])


def test_optuna_chooses_and_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies: list[Study] = []
    module: Any = ModuleType("optuna")
    module.create_study = lambda **options: studies.append(Study(**options)) or studies[-1]  # type: ignore[func-returns-value]
    module.TrialPruned = Pruned
    monkeypatch.setitem(sys.modules, "optuna", module)
    made, seen = trainer(tmp_path, eval_strategy="steps", eval_steps=1), list[Any]()
    made.model_init = lambda trial: seen.append(trial) or ours(CASE)  # type: ignore[func-returns-value]
    best = made.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)},
        n_trials=3,
        backend="optuna",
        study_name="mine",
        timeout=60,
    )
    assert studies[0].options == {"direction": "minimize", "study_name": "mine", "timeout": 60}
    assert best.objective == min(studies[0].values)
    assert [run.run_id for run in best.run_summary] == ["0", "2"]
    assert [trial.number for trial in seen] == [0, 1, 2]
    assert made.state.trial_params == best.run_summary[-1].hyperparameters
    assert not any(type(callback).__name__ == "Pruning" for callback in made.callback_handler.callbacks)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"backend": "optuna"}, UnsupportedError),
        ({"backend": "ray"}, UnsupportedError),
        ({"study_name": "mine"}, UnsupportedError),
        ({"backend": "grid"}, InputError),
        ({"hp_space": {"seed": []}, "backend": "grid"}, InputError),
        ({"hp_space": {"seed": []}}, InputError),
        ({"hp_space": {"color": ["red"]}}, InputTypeError),
        ({"direction": "up"}, InputError),
        ({"n_trials": 0}, InputError),
        ({"hp_space": {"learning_rate": [-1.0]}}, TranseptError),
    ],
)
def test_searches_that_cannot_be(given: dict[str, Any], kind: type[TranseptError], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # it is not installed
    with pytest.raises(kind):
        trainer(tmp_path).hyperparameter_search(**given)
    with pytest.raises(InputError, match="model_init"):
        Trainer(ours(CASE), TrainingArguments(**quiet(tmp_path))).hyperparameter_search()


def test_a_card_tells_what_was_measured(tmp_path: Path) -> None:
    made = trainer(tmp_path / "my-run")
    made.train()
    loss = made.evaluate()["eval_loss"]
    made.create_model_card(language="en", license="mit", tags="small", tasks="text-classification", dataset="imdb")
    text = (tmp_path / "my-run" / "README.md").read_text()
    for part in ("library_name: transept", "license: mit", "- small", "- imdb", "# my-run", f"| eval_loss | {loss:.4f} |"):
        assert part in text


def test_a_trained_model_is_published(hub: Any, tmp_path: Path) -> None:
    made = trainer(tmp_path / "my-run", hub_model_id="me/my-run", hub_token=hub.valid_token)
    made.train()
    made.push_to_hub()
    assert BertForSequenceClassification.from_pretrained("me/my-run").config.num_labels == 3
    with pytest.raises(UnsupportedError, match="blocking"):
        made.push_to_hub(blocking=False)
