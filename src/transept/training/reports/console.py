"""Progress on the console: a bar on a terminal, elsewhere a line for each log."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from transept.training.callbacks import TrainerCallback, length_of
from transept.training.state import TrainerControl, TrainerState

# What evaluations tell that is no metric of the model.
TIMINGS = ("_runtime", "_per_second", "_jit_compilation_time", "_model_preparation_time")
LOGGED = {"loss": "loss", "learning_rate": "rate", "grad_norm": "norm"}
SMOOTHING = 0.9  # of the loss beside the bar


class ConsoleCallback(TrainerCallback):
    """Shows updates, loss, tokens a second and the time left.

    Args:
        stream: where to; standard error when absent.
    """

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stderr
        self.bar: Any = None
        self.evaluation: Any = None
        self.started = 0.0
        self.first_step = self.first_tokens = 0
        self.loss: float | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.started, self.first_step, self.first_tokens = time.monotonic(), state.global_step, state.num_input_tokens_seen
        hidden = not self.stream.isatty() or bool(args.disable_tqdm)
        shown = "{desc} {n_fmt}/{total_fmt} |{bar}| {postfix}{elapsed}<{remaining}"
        of = {"total": state.max_steps, "initial": state.global_step, "desc": "train", "bar_format": shown}
        self.bar = tqdm(**of, file=self.stream, disable=hidden, dynamic_ncols=True, leave=False)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None and not self.bar.disable:
            told = [] if self.loss is None else [f"loss {self.loss:.4f}"]
            self.bar.postfix = "".join(f"{each}  " for each in [*told, self.speed(args, state)])
            self.bar.total = state.max_steps  # rounds of self-training add to it
            self.bar.update(state.global_step - self.bar.n)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and self.stream.isatty() and not args.disable_tqdm:
            if self.evaluation is None:
                total = length_of(eval_dataloader)
                self.evaluation = tqdm(total=total, desc="evaluate", file=self.stream, leave=False, dynamic_ncols=True)
            self.evaluation.update(1)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any) -> None:
        if self.evaluation is not None:
            self.evaluation.close()
        self.evaluation = None

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any) -> None:
        self.on_evaluate(args, state, control)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if isinstance(loss := logs.get("loss"), float):
            self.loss = loss if self.loss is None else SMOOTHING * self.loss + (1 - SMOOTHING) * loss
        if "train_loss" in logs:  # the summary at the end
            return
        told = metrics_line(logs) if any(name.startswith("eval_") for name in logs) else self._line(args, state, logs)
        if told and (not self.stream.isatty() or any(name.startswith("eval_") for name in logs)):
            tqdm.write(f"{state.global_step}/{state.max_steps}  epoch {state.epoch or 0:.2f}  {told}", file=self.stream)

    def _line(self, args: Any, state: TrainerState, logs: dict[str, Any]) -> str:
        told = [f"{name} {_number(logs[key])}" for key, name in LOGGED.items() if key in logs]
        return "  ".join([*told, self.speed(args, state), self.left(state)]) if told else ""

    def speed(self, args: Any, state: TrainerState) -> str:
        """Tokens a second, or rows where tokens are not counted."""
        seconds = max(time.monotonic() - self.started, 1e-6)
        if (tokens := state.num_input_tokens_seen - self.first_tokens) > 0:
            return f"{tokens / seconds:,.0f} tokens/s"
        rows = (state.global_step - self.first_step) * args.train_batch_size * args.gradient_accumulation_steps
        return f"{rows / seconds:,.1f} rows/s"

    def left(self, state: TrainerState) -> str:
        """The time that the remaining updates take, at the speed so far."""
        done = max(state.global_step - self.first_step, 1)
        return f"{clock((time.monotonic() - self.started) / done * (state.max_steps - state.global_step))} left"

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None


def metrics_line(logs: dict[str, Any]) -> str:
    """The metrics of an evaluation in one line, without its timings."""
    found = {name: value for name, value in logs.items() if name.startswith("eval_") and not name.endswith(TIMINGS)}
    return "  ".join(f"{name.removeprefix('eval_').replace('_', ' ')} {_number(value)}" for name, value in found.items())


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """Seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
