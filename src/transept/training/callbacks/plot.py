"""``plot.png``: loss, evaluation, learning rate and norm of a run in one picture."""

from __future__ import annotations

import importlib.util
import io
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transept.errors import FileError, MissingExtraError, TranseptWarning
from transept.files import PathName, make_directory, write_file
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.progress import TIMINGS
from transept.training.state import TrainerControl, TrainerState

PLOT_NAME = "plot.png"
BLUE, ORANGE, GREY = "#1f6fb4", "#d9601a", "#8a8a8a"
COLOURS = (ORANGE, "#2c8c4a", "#7d4cb0", "#b03060", BLUE, "#8a6d1d")
MOST_METRICS = len(COLOURS)
Points = list[tuple[float, float]]
# Seconds between two drawings, each of which takes about half of one.
APART = 10.0


class PlotCallback(TrainerCallback):
    """Draws ``plot.png`` in the run's directory at evaluations, ten seconds apart or more, and at the end."""

    drawn = -math.inf  # when it was drawn last, or training began

    @staticmethod
    def is_available() -> bool:
        return importlib.util.find_spec("matplotlib") is not None

    @classmethod
    def require(cls) -> None:
        if not cls.is_available():
            raise MissingExtraError("matplotlib", "train", "Drawing a plot of the run")

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.drawn = time.monotonic()

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if time.monotonic() - self.drawn >= APART:
            self.draw(args, state)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.draw(args, state)

    def draw(self, args: Any, state: TrainerState) -> None:
        """Draw what is known; a picture that cannot be written is a warning, since training goes on without it."""
        self.drawn = time.monotonic()
        if state.is_world_process_zero and state.log_history:
            try:
                draw_history(state.log_history, Path(make_directory(args.output_dir), PLOT_NAME))
            except FileError as error:
                warnings.warn(f"the plot is not drawn: {error}", TranseptWarning, stacklevel=2)


def series(history: Sequence[dict[str, Any]], name: str) -> Points:
    """The values of one name by update, without those that are no finite numbers; of several at one update the last."""
    values = {float(log["step"]): log[name] for log in history if "step" in log and isinstance(log.get(name), int | float)}
    return sorted((step, float(value)) for step, value in values.items() if math.isfinite(value))


def smooth(points: Points, share: float = 0.05) -> Points:
    """The mean of the last twentieth of the updates at each one, at least of three logs."""
    width = max(3, round(len(points) * share))
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    starts = [max(0, index + 1 - width) for index in range(len(points))]
    return [(at, (sums[i + 1] - sums[low]) / (i + 1 - low)) for i, (low, (at, _)) in enumerate(zip(starts, points))]


def draw_history(history: Sequence[dict[str, Any]], path: PathName) -> None:
    """Draw the history of a run as PNG (``MissingExtraError``: matplotlib is not installed)."""
    PlotCallback.require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = loss, metrics, rate, norm = figure.subplots(2, 2).flat
    _draw_loss(loss, history)
    _draw_metrics(metrics, history)
    _draw_line(rate, series(history, "learning_rate"), "learning rate")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    _draw_line(norm, series(history, "grad_norm"), "norm of the gradient, before clipping")
    last = max((log["step"] for log in history if isinstance(log.get("step"), int)), default=0)
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("update")
        if panel.get_xticks().size:  # something was drawn
            panel.set_xlim(0, 1.02 * max(last, 1))
            panel.xaxis.get_major_locator().set_params(integer=True)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_file(path, content.getvalue())


def _draw_loss(panel: Any, history: Sequence[dict[str, Any]]) -> None:
    trained, evaluated = series(history, "loss"), series(history, "eval_loss")
    panel.set_title("loss", loc="left")
    if len(trained) > 8:
        panel.plot(*zip(*trained), color=BLUE, alpha=0.3)
        panel.plot(*zip(*smooth(trained)), color=BLUE, label="training (moving mean)")
    elif trained:
        panel.plot(*zip(*trained), color=BLUE, marker=".", label="training")
    if evaluated:
        panel.plot(*zip(*evaluated), color=ORANGE, marker="o", markersize=4, label="evaluation")
    _end(panel, trained or evaluated)


def _draw_metrics(panel: Any, history: Sequence[dict[str, Any]]) -> None:
    """The metrics of evaluations, those between 0 and 1 before others."""
    names = dict.fromkeys(name for log in history for name in log if name.startswith("eval_") and not name.endswith(TIMINGS))
    metrics = {name: points for name in names if name != "eval_loss" and (points := series(history, name))}
    shares = {name: points for name, points in metrics.items() if all(-1 <= value <= 1 for _, value in points)}
    panel.set_title("evaluation", loc="left")
    for (name, points), colour in zip(list((shares or metrics).items())[:MOST_METRICS], COLOURS):
        panel.plot(*zip(*points), color=colour, marker="o", markersize=4, label=name.removeprefix("eval_").replace("_", " "))
    _end(panel, shares or metrics)


def _draw_line(panel: Any, points: Points, title: str) -> None:
    panel.set_title(title, loc="left")
    if points:
        panel.plot(*zip(*points), color=GREY, marker="." if len(points) <= 8 else "")
    _end(panel, points)


def _end(panel: Any, drawn: Any) -> None:
    if not drawn:
        panel.text(0.5, 0.5, "nothing was logged", ha="center", va="center", transform=panel.transAxes, color=GREY)
        panel.set_xticks([])
        panel.set_yticks([])
    elif panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False)
