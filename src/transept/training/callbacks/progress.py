"""Progress for a person: bars, the logs as they are, and lines with the speed and the time left."""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

from tqdm.auto import tqdm

from transept.training.callbacks.base import TrainerCallback, length_of
from transept.training.state import TrainerState

# Ends of the names of those values of an evaluation that are no metrics of the model.
TIMINGS = ("_runtime", "_per_second", "_jit_compilation_time", "_model_preparation_time")
SMOOTHING = 0.9  # of the loss beside the bar


class ProgressBars(TrainerCallback):
    """The base of callbacks with a bar for training and one for each evaluation; both have options of their own."""

    stream: Any = None  # standard error
    training_options: ClassVar[dict[str, Any]] = {}
    evaluation_options: ClassVar[dict[str, Any]] = {}
    training_bar: Any = None
    prediction_bar: Any = None

    def is_shown(self, args: Any, state: TrainerState) -> bool:
        return state.is_world_process_zero

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.is_shown(args, state):
            options = {"total": state.max_steps, "initial": state.global_step, **self.training_options}
            self.training_bar = tqdm(file=self.stream, dynamic_ncols=True, **options)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.total = state.max_steps  # rounds of self-training add to it
            self.training_bar.update(state.global_step - self.training_bar.n)

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not self.is_shown(args, state):
            return
        if self.prediction_bar is None:
            options = {"leave": self.training_bar is None, **self.evaluation_options}
            batches = length_of(kwargs.get("eval_dataloader"))
            self.prediction_bar = tqdm(total=batches, file=self.stream, dynamic_ncols=True, **options)
        self.prediction_bar.update(1)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None

    on_predict = on_evaluate

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = None


class ProgressCallback(ProgressBars):
    """Shows progress bars, and logs above them; texts longer than ``max_str_len`` are left out of the logs."""

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None:
            logs = {name: value for name, value in _rounded(logs).items() if len(str(value)) <= self.max_str_len}
            self.training_bar.write(str(logs))


class PrinterCallback(TrainerCallback):
    """Prints the logs, a line each."""

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_local_process_zero:
            tqdm.write(str(_rounded(logs)))


def _rounded(logs: dict[str, Any]) -> dict[str, Any]:
    """The logs with floats as texts of four digits."""
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}
    return {name: value for name, value in values.items() if name != "total_flos"}


class ConsoleCallback(ProgressBars):
    """Shows updates, loss, tokens a second and the time left: a bar on a terminal, elsewhere a line for each log."""

    training_options: ClassVar = {
        "desc": "train",
        "leave": False,
        "bar_format": "{desc} {n_fmt}/{total_fmt} |{bar}| {postfix}{elapsed}<{remaining}",
    }
    evaluation_options: ClassVar = {"desc": "evaluate", "leave": False}

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stderr
        self.start_time = 0.0
        self.start_step = self.start_tokens = 0
        self.loss: float | None = None

    def is_shown(self, args: Any, state: TrainerState) -> bool:
        return state.is_world_process_zero and self.stream.isatty() and not args.disable_tqdm

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.start_time = time.monotonic()
        self.start_step, self.start_tokens = state.global_step, state.num_input_tokens_seen
        super().on_train_begin(args, state, control)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
            self.training_bar.postfix = f"{loss}{self.speed(args, state)}  "
        super().on_step_end(args, state, control)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if isinstance(loss := logs.get("loss"), float):
            self.loss = loss if self.loss is None else SMOOTHING * self.loss + (1 - SMOOTHING) * loss
        if "train_loss" in logs:  # the summary at the end
            return
        if any(name.startswith("eval_") for name in logs):
            line = metrics_line(logs)
        elif self.stream.isatty():
            return  # the bar shows it
        else:
            titles = {"loss": "loss", "learning_rate": "rate", "grad_norm": "norm"}
            line = _line({titles[name]: logs[name] for name in titles if name in logs})
            seconds = (time.monotonic() - self.start_time) / max(state.global_step - self.start_step, 1)
            left = clock(seconds * (state.max_steps - state.global_step))
            line = line and f"{line}  {self.speed(args, state)}  {left} left"
        if line:
            line = f"{state.global_step}/{state.max_steps}  epoch {state.epoch or 0:.2f}  {line}"
            tqdm.write(line, file=self.stream)

    def speed(self, args: Any, state: TrainerState) -> str:
        """Tokens a second, or rows where tokens are not counted."""
        seconds = max(time.monotonic() - self.start_time, 1e-6)
        if (tokens := state.num_input_tokens_seen - self.start_tokens) > 0:
            return f"{tokens / seconds:,.0f} tokens/s"
        rows = (state.global_step - self.start_step) * args.train_batch_size * args.gradient_accumulation_steps
        return f"{rows / seconds:,.1f} rows/s"


def metrics_line(logs: dict[str, Any]) -> str:
    """The metrics of an evaluation in one line, without its timings."""
    names = [name for name in logs if name.startswith("eval_") and not name.endswith(TIMINGS)]
    return _line({name.removeprefix("eval_").replace("_", " "): logs[name] for name in names})


def _line(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value}" for name, value in _rounded(values).items())


def clock(seconds: float) -> str:
    """Seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
