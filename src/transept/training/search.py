"""Search for hyperparameters: at random, or all of a grid. Optuna is used where it is asked for."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transept.errors import InputError, InputTypeError, TrainingError, UnsupportedError, refuse
from transept.training.callbacks.base import TrainerCallback
from transept.training.data.order import place_seed
from transept.training.state import BestRun, is_better

Space = Mapping[str, Sequence[Any]] | Callable[["Trial"], Mapping[str, Any]]
Measure = Callable[[dict[str, float]], float] | None
Naming = Callable[["Trial"], str] | None


class Trial:
    """One try, whose settings are drawn at random; the methods are Optuna's, so that a space for Optuna can be used.

    The draws follow from the seed and the number of the trial.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.params = number, dict[str, Any]()
        self._draw = random.Random(place_seed(seed, number, purpose="trial"))  # noqa: S311 (no secret)

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> float:
        """A number between two, evenly, or evenly in its logarithm."""
        refuse(not low <= high or (log and low <= 0), f"`{name}` cannot be drawn between {low} and {high}.")
        if step is not None:
            value = low + step * self._draw.randint(0, math.floor((high - low) / step + 1e-9))
        elif log:
            value = math.exp(self._draw.uniform(math.log(low), math.log(high)))
        else:
            value = self._draw.uniform(low, high)
        self.params[name] = min(max(value, low), high)
        return float(self.params[name])

    def suggest_int(self, name: str, low: int, high: int, step: int = 1, log: bool = False) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.suggest_float(name, low, high + 1 - 1e-9, log=True) if log else low
        value = min(high, int(value)) if log else low + step * self._draw.randint(0, (high - low) // step)
        self.params[name] = value
        return int(value)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        refuse(not choices, f"`{name}` has nothing to choose from.")
        self.params[name] = self._draw.choice(list(choices))
        return self.params[name]


def default_space(trial: Trial) -> dict[str, Any]:
    """The reference's space: learning rate, epochs, seed and batch size."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16, 32, 64]),
    }


default_hp_space_optuna = default_space


def default_compute_objective(metrics: Mapping[str, float]) -> float:
    """The sum of all metrics, or the loss where there is no other."""
    left_out, speeds = ("eval_loss", "epoch"), ("_runtime", "_per_second")
    others = [value for name, value in metrics.items() if name not in left_out and not name.endswith(speeds)]
    return float(sum(others)) if others else float(metrics["eval_loss"])


def trials(space: Space | None, number: int, seed: int, backend: str) -> list[tuple[Trial, dict[str, Any]]]:
    """The settings to try: drawn, or all of a grid (``InputError``, ``UnsupportedError``)."""
    hint = 'Leave it out, or pass "optuna" or "grid".'
    refuse(backend not in ("random", "grid"), f"`backend={backend!r}` is not used here.", hint, UnsupportedError)
    if backend == "grid":
        if not isinstance(space, Mapping) or not space or not all(space.values()):
            example = "{'learning_rate': [1e-5, 1e-4]}"
            raise InputError(f"a grid is a mapping of settings to the values to try, such as {example}.")
        grid = [dict(zip(space, values)) for values in itertools.product(*space.values())]
        number = len(grid)
    all_of_them = []
    for trial in (Trial(index, seed) for index in range(number)):
        if backend == "grid":
            settings = grid[trial.number]
        else:
            settings = suggest(space, trial)
        trial.params.update(settings)
        all_of_them.append((trial, settings))
    return all_of_them


def suggest(space: Space | None, trial: Any) -> dict[str, Any]:
    if isinstance(space, Mapping):
        return {name: trial.suggest_categorical(name, values) for name, values in space.items()}
    return dict((space or default_space)(trial))


class Pruning(TrainerCallback):
    """Tells Optuna of evaluations, and ends a trial that it gives up."""

    def __init__(self, trainer: Any, trial: Any, measure: Callable[[Any], float]) -> None:
        self.trainer, self.trial, self.measure = trainer, trial, measure

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        import optuna  # type: ignore[import-not-found, unused-ignore]

        if self.trainer.is_in_train:
            self.trial.report(self.measure(metrics), state.global_step)
            if self.trial.should_prune():
                raise optuna.TrialPruned


def optimize(attempt: Callable[[Any], float], direction: str, count: int, options: dict[str, Any]) -> None:
    """Let Optuna choose the settings of trials (``UnsupportedError``: it is not installed)."""
    try:
        import optuna  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError("`backend='optuna'` needs the package.", hint="Install it: pip install optuna.") from error
    names = options.keys() & {"timeout", "n_jobs", "gc_after_trial", "catch"}
    study = optuna.create_study(direction=direction, **{key: options[key] for key in options.keys() - names})
    study.optimize(attempt, n_trials=count, **{key: options[key] for key in names})


def search(
    trainer: Any, space: Space | None, measure: Measure, count: int, direction: str, backend: Any, name: Naming, options: Any
) -> BestRun:
    """Train with each of the settings, in directories of their own, and give the best; see ``Trainer``."""
    what = "a search needs a trainer with `model_init`, since each try begins with a new model."
    refuse(trainer.model_init is None, what)
    hint = "Pass 'minimize' or 'maximize'."
    refuse(direction not in ("minimize", "maximize"), f"`direction` is {direction!r}.", hint)
    measure, runs, before = measure or default_compute_objective, list[BestRun](), dict(vars(trainer.args))

    def attempt(trial: Any, settings: Mapping[str, Any]) -> float:
        vars(trainer.args).update(before)
        for setting, value in settings.items():
            if setting not in before:
                raise InputTypeError(f"`{setting}` is no setting of {type(trainer.args).__name__}.")
            setattr(trainer.args, setting, value)
        trainer.trial_name = name(trial) if name else f"run-{trial.number}"
        trainer.args.output_dir = f"{before['output_dir']}/{trainer.trial_name}"
        trainer.train(trial=settings if isinstance(trial, Trial) else trial)
        runs.append(BestRun(str(trial.number), float(measure(trainer.evaluate())), dict(settings)))
        return runs[-1].objective

    def prune(trial: Any) -> float:
        trainer.add_callback(callback := Pruning(trainer, trial, measure))
        try:
            return attempt(trial, suggest(space, trial))
        finally:
            trainer.remove_callback(callback)

    try:
        if backend == "optuna":
            optimize(prune, direction, count, options)
        else:
            what = f"`backend={backend!r}` has no settings such as {', '.join(options)}."
            refuse(options, what, 'Pass backend="optuna".', UnsupportedError)
            for trial, settings in trials(space, count, trainer.args.seed, backend or "random"):
                attempt(trial, settings)
    finally:
        vars(trainer.args).update(before)
        trainer.trial_name = None
    if not runs:
        raise InputError("there is nothing to try.", hint="Pass n_trials=1 or more.")
    best = runs[0]
    for run in runs:
        best = run if is_better(run.objective, best.objective, greater=direction == "maximize") else best
    if math.isnan(best.objective):
        hint = "Try lower learning rates; each trial's logs are in its own directory."
        raise TrainingError(f"no trial is the best: the objective of all {len(runs)} is NaN.", hint=hint)
    return best._replace(run_summary=runs)
