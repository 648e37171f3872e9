"""What ``report_to`` names: the console, ``log.jsonl`` and ``plot.png`` in a run's directory, and programs."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from transept import errors
from transept.config.schema import typed
from transept.storage.files import PathName, append_text, make_directory, parse_json, read_text, write_file, write_text
from transept.storage.publish import PLOT_NAME
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.progress import TIMINGS, ConsoleCallback
from transept.training.state import TrainerState

LOG_NAME = "log.jsonl"
BLUE, ORANGE, GREY = "#1f6fb4", "#d9601a", "#8a8a8a"
COLOURS = (ORANGE, "#2c8c4a", "#7d4cb0", "#b03060", BLUE, "#8a6d1d")
# Seconds between two drawings, each of which takes about half of one.
APART = 10.0
Points = list[tuple[float, float]]
Line = tuple[Points, dict[str, Any]]  # and its options of matplotlib's


class JsonLinesCallback(TrainerCallback):
    """Writes the logs of ``state.log_history`` to ``log.jsonl`` in the run's directory, a line each, as they come.

    A resumed run keeps the lines up to its checkpoint. Numbers that JSON does not have are written as ``null``.
    """

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            path = Path(make_directory(args.output_dir), LOG_NAME)
            logs = read_log(path) if state.global_step else []
            write_log(path, [log for log in logs if log.get("step", 0) <= state.global_step])

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and state.log_history:
            append_text(Path(make_directory(args.output_dir), LOG_NAME), _json_line(state.log_history[-1]))


def _json_line(log: dict[str, Any]) -> str:
    missing = {name: None for name, value in log.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps(log | missing, ensure_ascii=False, default=str) + "\n"


def write_log(path: Path, logs: Iterable[dict[str, Any]]) -> None:
    """Write a log of these lines; it replaces the one that is there."""
    write_text(path, "".join(map(_json_line, logs)))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; without a last one that an interruption cut short, and none where there is no file."""
    lines = read_text(path, max_bytes=2**30).splitlines() if path.exists() else []
    logs = []
    for number, text in enumerate(lines, 1):
        place = f"{path}:{number}"
        try:
            line: Any = typed(parse_json(text, path=place), dict, path=place)
        except errors.FormatError:
            if number == len(lines):
                break
            raise
        counts: Any = {name: float for name in ("step", "round") if name in line}
        logs.append(typed(line, counts, path=place))
    return logs


class _Optional(TrainerCallback):
    """A report that needs a package."""

    package: ClassVar[str]

    @classmethod
    def is_available(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    @classmethod
    def require(cls) -> None:
        """Raise an error if the package is not installed."""
        if not cls.is_available():
            hint = f"Install it: pip install {cls.package}."
            raise errors.UnsupportedError(f"reporting to {cls.package} needs the package {cls.package!r}.", hint=hint)


class PlotCallback(_Optional):
    """Draws ``plot.png`` in the run's directory at evaluations, ten seconds apart or more, and at the end."""

    package = "matplotlib"
    drawn_at = -math.inf  # when the plot was drawn last, or training began

    @classmethod
    def require(cls) -> None:
        if not cls.is_available():
            raise errors.MissingExtraError(cls.package, "train", "Drawing a plot of the run")

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.drawn_at = time.monotonic()

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if time.monotonic() - self.drawn_at >= APART:
            self.on_train_end(args, state, control)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.drawn_at = time.monotonic()
        if state.is_world_process_zero and state.log_history:
            try:
                draw_history(state.log_history, Path(make_directory(args.output_dir), PLOT_NAME))
            except errors.FileError as error:  # training goes on without it
                warnings.warn(f"the plot is not drawn: {error}", errors.TranseptWarning, stacklevel=2)


def series(history: Sequence[dict[str, Any]], name: str) -> Points:
    """The finite values of one name by update; of several at one update the last."""
    logs = [log for log in history if "step" in log and isinstance(log.get(name), int | float)]
    values = {float(log["step"]): float(log[name]) for log in logs}
    return sorted((step, value) for step, value in values.items() if math.isfinite(value))


def smooth(points: Points) -> Points:
    """The mean of the last twentieth of the updates at each one, at least of three logs."""
    width = max(3, round(len(points) * 0.05))
    steps, values = zip(*points)
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(sums))
    starts = np.maximum(0, ends - width)
    return [*zip(steps, ((sums[ends] - sums[starts]) / (ends - starts)).tolist())]


def draw_history(history: Sequence[dict[str, Any]], path: PathName) -> None:
    """Draw the history of a run as PNG (``MissingExtraError``: matplotlib is not installed)."""
    PlotCallback.require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    last = max((log["step"] for log in history if isinstance(log.get("step"), int)), default=0)
    for panel, (title, lines) in zip(figure.subplots(2, 2).flat, _panels(history).items()):
        panel.set_title(title, loc="left")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("update")
        for points, options in lines:
            panel.plot(*zip(*points), **options)
        if not lines:
            centre = {"ha": "center", "va": "center", "transform": panel.transAxes}
            panel.text(0.5, 0.5, "nothing was logged", color=GREY, **centre)
            panel.set(xticks=[], yticks=[])
            continue
        panel.set_xlim(0, 1.02 * max(last, 1))
        panel.xaxis.get_major_locator().set_params(integer=True)
        if title == "learning rate":
            panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
        if any("label" in options for _, options in lines):
            panel.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_file(path, content.getvalue())


def _panels(history: Sequence[dict[str, Any]]) -> dict[str, list[Line]]:
    """The lines of each panel by its title; of an evaluation's metrics those between -1 and 1 before others."""
    dots = {"marker": "o", "markersize": 4}
    logged = dict.fromkeys(name for log in history for name in log if name.startswith("eval_"))
    names = [name for name in logged if name != "eval_loss" and not name.endswith(TIMINGS)]
    metrics = {name: points for name in names if (points := series(history, name))}
    shares = {name: points for name, points in metrics.items() if all(-1 <= value <= 1 for _, value in points)}
    titles = {"learning_rate": "learning rate", "grad_norm": "norm of the gradient, before clipping"}
    panels: dict[str, list[Line]] = {title: [] for title in ("loss", "evaluation", *titles.values())}
    loss, eval_loss = series(history, "loss"), series(history, "eval_loss")
    if len(loss) > 8:
        panels["loss"].append((loss, {"color": BLUE, "alpha": 0.3}))
        panels["loss"].append((smooth(loss), {"color": BLUE, "label": "training (moving mean)"}))
    else:
        panels["loss"].append((loss, {"color": BLUE, "marker": ".", "label": "training"}))
    panels["loss"].append((eval_loss, {"color": ORANGE, "label": "evaluation", **dots}))
    for colour, (name, points) in zip(COLOURS, (shares or metrics).items()):
        label = name.removeprefix("eval_").replace("_", " ")
        panels["evaluation"].append((points, {"color": colour, "label": label, **dots}))
    for name, title in titles.items():
        points = series(history, name)
        panels[title].append((points, {"color": GREY, "marker": "." if len(points) <= 8 else ""}))
    return {title: [line for line in lines if line[0]] for title, lines in panels.items()}


def sorted_by_split(logs: Mapping[str, Any]) -> dict[str, float]:
    """Logged numbers under ``train/``, ``eval/`` and ``test/``, as such programs group them."""
    numbers = {}
    for name, value in logs.items():
        if isinstance(value, int | float):
            has_split = name.startswith(("eval_", "test_"))
            numbers[name.replace("_", "/", 1) if has_split else f"train/{name}"] = float(value)
    return numbers


class _Program(_Optional):
    """A program that shows runs."""

    def __init__(self) -> None:
        self.require()
        self.log: Callable[[dict[str, float], int], Any] | None = None
        self.end: Callable[[], Any] | None = None

    def begin(self, args: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
        """Begin a run, and return ``log(numbers, step)`` and ``end()``, or ``None`` where it stays open."""
        raise NotImplementedError

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.log is None:
            config: Any = getattr(model, "config", None)
            settings = config.to_dict() if hasattr(config, "to_dict") else {}
            self.log, self.end = self.begin(args, settings | args.to_dict())

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.log is not None:
            self.log(sorted_by_split(logs), state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.end is not None:
            self.end()
            self.log = self.end = None


class TensorBoardCallback(_Program):
    """Writes events for TensorBoard into ``runs/`` in the run's directory."""

    package = "tensorboard"

    def begin(self, args: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(log_dir=str(Path(args.output_dir, "runs")))
        writer.add_text("args", args.to_json_string())

        def log(numbers: dict[str, float], step: int) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return log, writer.close


class WandbCallback(_Program):
    """Reports to Weights & Biases; ``WANDB_PROJECT`` names the project. The run ends with the process."""

    package = "wandb"

    def begin(self, args: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "transept")
        run = wandb.run or wandb.init(project=project, name=args.run_name, config=settings)
        return lambda numbers, step: run.log({**numbers, "train/global_step": step}), None  # evaluations may follow


class MLflowCallback(_Program):
    """Reports to MLflow; ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` say where to."""

    package = "mlflow"
    most_parameters, longest = 100, 250  # of one call, and of one value

    def begin(self, args: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
        import mlflow  # type: ignore[import-not-found, unused-ignore]

        if "MLFLOW_EXPERIMENT_NAME" in os.environ:
            mlflow.set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
        if mlflow.active_run() is None:
            mlflow.start_run(run_name=args.run_name)
        parameters = [(name, str(value)) for name, value in settings.items() if len(str(value)) <= self.longest]
        for start in range(0, len(parameters), self.most_parameters):
            mlflow.log_params(dict(parameters[start : start + self.most_parameters]))

        def log(numbers: dict[str, float], step: int) -> None:
            mlflow.log_metrics({name.replace("/", "_"): value for name, value in numbers.items()}, step=step)

        return log, mlflow.end_run


class CodeCarbonCallback(_Optional):
    """Estimates the CO2 that training gives off; ``tracker`` has the numbers, and writes them into the run's directory."""

    package = "codecarbon"

    def __init__(self) -> None:
        self.require()
        self.tracker: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        from codecarbon import EmissionsTracker  # type: ignore[import-not-found, unused-ignore]

        if self.tracker is None and state.is_local_process_zero:
            self.tracker = EmissionsTracker(output_dir=args.output_dir)
            self.tracker.start()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.tracker is not None:
            self.tracker.stop()


REPORTS: dict[str, type[TrainerCallback]] = {
    "console": ConsoleCallback,
    "jsonl": JsonLinesCallback,
    "plot": PlotCallback,
    "tensorboard": TensorBoardCallback,
    "wandb": WandbCallback,
    "mlflow": MLflowCallback,
    "codecarbon": CodeCarbonCallback,
}


def get_available_reporting_integrations() -> list[str]:
    """The programs that can be reported to: their packages are installed."""
    return [name for name, report in REPORTS.items() if issubclass(report, _Program) and report.is_available()]


def report_callbacks(names: list[str]) -> list[type[TrainerCallback]]:
    """The callbacks that ``report_to`` names; ``all`` is those whose packages are installed.

    ``InputError``: a name that is none of them. ``MissingExtraError``, ``UnsupportedError``: a package is missing.
    """
    if names == ["all"]:
        return [report for report in REPORTS.values() if not issubclass(report, _Optional) or report.is_available()]
    for name in names:
        if name not in REPORTS:
            hint = errors.nearest(name, [*REPORTS, "all", "none"])
            raise errors.InputError(f"`report_to` names {name!r}, which is no report.", hint=hint)
        if issubclass(report := REPORTS[name], _Optional):
            report.require()
    return [REPORTS[name] for name in names]
