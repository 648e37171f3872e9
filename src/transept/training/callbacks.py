"""Callbacks: what the trainer tells, in the reference's order and with its arguments, and the ones that it brings.

Every event is called with ``args``, ``state`` and ``control``, and by name with ``model``, ``processing_class``,
``optimizer``, ``lr_scheduler``, ``train_dataloader`` and ``eval_dataloader``; ``on_log`` also with ``logs``, ``on_evaluate``
and ``on_predict`` with ``metrics``. A callback that changes ``control`` may return it.
"""

from __future__ import annotations

import warnings
from typing import Any

from tqdm.auto import tqdm

from transept.errors import ConfigError, TranseptWarning
from transept.training.state import ExportableState, IntervalStrategy, SaveStrategy, TrainerControl, TrainerState

EVENTS = (
    *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
    *("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_evaluate", "on_predict"),
    *("on_save", "on_log", "on_prediction_step", "on_push_begin"),
)


class TrainerCallback:
    """The base of callbacks: a method for each event, which does nothing."""

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """The trainer was made."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Training begins."""

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Training ended."""

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An epoch begins."""

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An epoch ended."""

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An update begins, before its first micro-batch."""

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Gradients are complete and clipped."""

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """The weights were updated; the gradients are still there."""

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A micro-batch was done that is not the last of its update."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An update was done."""

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An evaluation was done."""

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any) -> Any:
        """A prediction was done."""

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A checkpoint was saved."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Something was logged."""

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A batch was evaluated."""

    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Files are about to be published."""


class CallbackHandler(TrainerCallback):
    """Calls several callbacks in their order."""

    def __init__(self, callbacks: list[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any) -> None:
        self.callbacks: list[TrainerCallback] = []
        for callback in callbacks:
            self.add_callback(callback)
        self.model, self.processing_class, self.optimizer, self.lr_scheduler = model, processing_class, optimizer, lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None

    def add_callback(self, callback: Any) -> None:
        made = callback() if isinstance(callback, type) else callback
        if type(made) in [type(each) for each in self.callbacks]:
            name = type(made).__name__
            warnings.warn(f"There is already a {name} among the callbacks; both are called.", TranseptWarning, stacklevel=3)
        self.callbacks.append(made)

    def pop_callback(self, callback: Any) -> TrainerCallback | None:
        """Remove the callback, or the first of that class, and return it; ``None`` where there is none."""
        is_it = (lambda each: isinstance(each, callback)) if isinstance(callback, type) else (lambda each: each == callback)
        found = next((each for each in self.callbacks if is_it(each)), None)
        if found is not None:
            self.callbacks.remove(found)
        return found

    @property
    def callback_list(self) -> str:
        return "\n".join(type(each).__name__ for each in self.callbacks)

    def call_event(self, event: str, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Call all callbacks' method of that name; returns the flags."""
        for callback in self.callbacks:
            answer = getattr(callback, event)(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **kwargs,
            )
            control = control if answer is None else answer
        return control


# Flags that an event clears before its callbacks see them.
_CLEARS = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
    "on_log": ("should_log",),
}


def _relay(event: str) -> Any:
    def relay(self: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl, *more: Any, **kwargs: Any) -> Any:
        for flag in _CLEARS.get(event, ()):
            setattr(control, flag, False)
        named = dict(zip(("logs",) if event == "on_log" else ("metrics",), more))
        return self.call_event(event, args, state, control, **named, **kwargs)

    return relay


for _event in EVENTS:
    setattr(CallbackHandler, _event, _relay(_event))


class DefaultFlowCallback(TrainerCallback):
    """Sets the flags for logs, evaluations and checkpoints as the arguments say, and ends training after the last update."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        step, last = state.global_step, state.global_step >= state.max_steps
        by_step = args.logging_strategy == IntervalStrategy.STEPS
        if (step == 1 and args.logging_first_step) or (by_step and step % state.logging_steps == 0):
            control.should_log = True
        if args.eval_strategy == IntervalStrategy.STEPS and args.eval_delay <= step:
            control.should_evaluate |= last or step % state.eval_steps == 0
        if args.save_strategy == SaveStrategy.STEPS:
            control.should_save |= last or (state.save_steps > 0 and step % state.save_steps == 0)
        control.should_training_stop |= last
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch
        control.should_save |= args.save_strategy == SaveStrategy.EPOCH
        return control


class ProgressCallback(TrainerCallback):
    """Shows progress bars, and logs above them; texts longer than ``max_str_len`` are left out of the logs."""

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.training_bar = tqdm(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self.training_bar.n)

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        if self.prediction_bar is None:
            total = length_of(eval_dataloader)
            self.prediction_bar = tqdm(total=total, leave=self.training_bar is None, dynamic_ncols=True)
        self.prediction_bar.update(1)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any) -> None:
        self.on_evaluate(args, state, control)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None:
            shown = {name: value for name, value in _shown(logs).items() if len(str(value)) <= self.max_str_len}
            self.training_bar.write(str(shown))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = None


class PrinterCallback(TrainerCallback):
    """Prints the logs, a line each."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if state.is_local_process_zero:
            tqdm.write(str(_shown(logs)))


def _shown(logs: dict[str, Any]) -> dict[str, Any]:
    rounded = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}
    return {name: value for name, value in rounded.items() if name != "total_flos"}


def length_of(sized: Any) -> int | None:
    """The length of a data set or a loader, where it has one."""
    try:
        return len(sized)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def metric_name(args: Any) -> str:
    """The name in the logs of the metric that says which model is best."""
    name = str(args.metric_for_best_model)
    return name if name.startswith("eval_") else f"eval_{name}"


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Ends training when ``metric_for_best_model`` did not improve in so many evaluations.

    Args:
        early_stopping_patience: evaluations without improvement that end it.
        early_stopping_threshold: by how much the metric must be better than the best to count as improved.

    Raises:
        ConfigError: when training begins without ``metric_for_best_model``, or without evaluations.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold or 0.0
        self.early_stopping_patience_counter = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None:
            raise ConfigError("EarlyStoppingCallback needs `metric_for_best_model`.", hint='Pass "loss", or a metric\'s name.')
        if args.eval_strategy == IntervalStrategy.NO:
            raise ConfigError("EarlyStoppingCallback needs evaluations.", hint='Pass eval_strategy="epoch" or "steps".')
        if not args.load_best_model_at_end:
            what = "EarlyStoppingCallback without `load_best_model_at_end`: the last model is kept, not the best one."
            warnings.warn(what, TranseptWarning, stacklevel=2)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any) -> None:
        value = metrics.get(metric_name(args))
        if value is None:
            what = f"EarlyStoppingCallback found no {metric_name(args)!r} among the metrics, and stops nothing."
            warnings.warn(what, TranseptWarning, stacklevel=2)
            return
        best = state.best_metric
        gain = None if best is None else (value - best if args.greater_is_better else best - value)
        improved = gain is None or (gain > 0 and gain > self.early_stopping_threshold)
        self.early_stopping_patience_counter = 0 if improved else self.early_stopping_patience_counter + 1
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience

    def state(self) -> dict[str, Any]:
        args = {name: getattr(self, f"early_stopping_{name}") for name in ("patience", "threshold")}
        counter = {"early_stopping_patience_counter": self.early_stopping_patience_counter}
        return {"args": {f"early_stopping_{name}": value for name, value in args.items()}, "attributes": counter}
