"""What a run tells: on the console, in files of its directory, and to programs that show runs."""

from __future__ import annotations

from transept.errors import InputError, nearest
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.jsonl import JsonLinesCallback
from transept.training.callbacks.plot import PlotCallback
from transept.training.callbacks.programs import MLflowCallback, TensorBoardCallback, WandbCallback
from transept.training.callbacks.progress import ConsoleCallback

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
        MissingExtraError: one whose package is not installed.
    """
    if names == ["all"]:
        return [report for report in REPORTS.values() if getattr(report, "is_available", lambda: True)()]
    for name in names:
        if name not in REPORTS:
            raise InputError(f"`report_to` names {name!r}, which is no report.", hint=nearest(name, [*REPORTS, "all", "none"]))
        getattr(REPORTS[name], "require", lambda: None)()
    return [REPORTS[name] for name in names]
