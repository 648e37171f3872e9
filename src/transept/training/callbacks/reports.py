"""What `report_to` names: the console, files of a run's directory, and programs that the user has to show runs."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from transept.errors import InputError, UnsupportedError, nearest
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.jsonl import JsonLinesCallback
from transept.training.callbacks.plot import PlotCallback
from transept.training.callbacks.progress import ConsoleCallback
from transept.training.state import TrainerControl, TrainerState


def sorted_by_split(logs: Mapping[str, Any]) -> dict[str, float]:
    """Logged numbers under ``train/``, ``eval/`` and ``test/``, as such programs group them."""
    numbers = {}
    for name, value in logs.items():
        if isinstance(value, int | float):
            has_split = name.startswith(("eval_", "test_"))
            numbers[name.replace("_", "/", 1) if has_split else f"train/{name}"] = float(value)
    return numbers


class _Program(TrainerCallback, ABC):
    """A program that shows runs; ``package`` is what must be installed."""

    package: ClassVar[str]

    @classmethod
    def is_available(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    @classmethod
    def require(cls) -> None:
        if not cls.is_available():
            hint = f"Install it: pip install {cls.package}."
            raise UnsupportedError(f"reporting to {cls.package} needs the package {cls.package!r}.", hint=hint)

    def __init__(self) -> None:
        self.require()
        self.run: Any = None

    @abstractmethod
    def begin(self, args: Any, settings: dict[str, Any]) -> Any:
        """Begin a run, and give the object that logs it."""

    @abstractmethod
    def log(self, numbers: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.run is None:
            config: Any = getattr(model, "config", None)
            settings = (config.to_dict() if hasattr(config, "to_dict") else {}) | args.to_dict()
            self.run = self.begin(args, settings)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if self.run is not None:
            self.log(sorted_by_split(logs), state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.run is not None:
            self.end()


class TensorBoardCallback(_Program):
    """Writes events for TensorBoard into ``runs/`` in the run's directory."""

    package = "tensorboard"

    def begin(self, args: Any, settings: dict[str, Any]) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(log_dir=str(Path(args.output_dir, "runs")))
        writer.add_text("args", args.to_json_string())
        return writer

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.run.add_scalar(name, value, step)
        self.run.flush()

    def end(self) -> None:
        self.run.close()
        self.run = None


class WandbCallback(_Program):
    """Reports to Weights & Biases; ``WANDB_PROJECT`` names the project."""

    package = "wandb"

    def begin(self, args: Any, settings: dict[str, Any]) -> Any:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "transept")
        return wandb.run or wandb.init(project=project, name=args.run_name, config=settings)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log({**numbers, "train/global_step": step})

    def end(self) -> None:
        """Leave the run open for the evaluation after training; the program ends it with the process."""


class MLflowCallback(_Program):
    """Reports to MLflow; ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` say where to."""

    package = "mlflow"
    most_parameters, longest = 100, 250

    def begin(self, args: Any, settings: dict[str, Any]) -> Any:
        import mlflow  # type: ignore[import-not-found, unused-ignore]

        if "MLFLOW_EXPERIMENT_NAME" in os.environ:
            mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
        if mlflow.active_run() is None:
            mlflow.start_run(run_name=args.run_name)
        parameters = [(name, str(value)) for name, value in settings.items() if len(str(value)) <= self.longest]
        for start in range(0, len(parameters), self.most_parameters):
            mlflow.log_params(dict(parameters[start : start + self.most_parameters]))
        return mlflow

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log_metrics({name.replace("/", "_"): value for name, value in numbers.items()}, step=step)

    def end(self) -> None:
        self.run.end_run()
        self.run = None


REPORTS: dict[str, type[TrainerCallback]] = {
    "console": ConsoleCallback,
    "jsonl": JsonLinesCallback,
    "plot": PlotCallback,
    "tensorboard": TensorBoardCallback,
    "wandb": WandbCallback,
    "mlflow": MLflowCallback,
}


def report_callbacks(names: list[str]) -> list[type[TrainerCallback]]:
    """The callbacks that ``report_to`` names; ``all`` is those whose packages are installed.

    Raises:
        InputError: a name that is none of them.
        MissingExtraError, UnsupportedError: one whose package is not installed.
    """
    if names == ["all"]:
        return [report for report in REPORTS.values() if getattr(report, "is_available", lambda: True)()]
    for name in names:
        if name not in REPORTS:
            raise InputError(f"`report_to` names {name!r}, which is no report.", hint=nearest(name, [*REPORTS, "all", "none"]))
        getattr(REPORTS[name], "require", lambda: None)()
    return [REPORTS[name] for name in names]
