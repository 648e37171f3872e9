"""Callbacks: their base, the handler that calls them as the reference does, and those that steer a run.

Every event is called with ``args``, ``state`` and ``control``, and by name with ``model``, ``processing_class``,
``optimizer``, ``lr_scheduler``, ``train_dataloader`` and ``eval_dataloader``; ``on_log`` also with ``logs``,
``on_evaluate`` and ``on_predict`` with ``metrics``. A callback that changes ``control`` may return it.
"""

from __future__ import annotations

import warnings
from functools import partialmethod
from typing import Any

from transept.errors import ConfigError, TranseptWarning
from transept.training.state import ExportableState, IntervalStrategy, SaveStrategy, TrainerControl, TrainerState, is_better


def _event(doc: str) -> Any:
    def method(self: Any, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        pass

    method.__doc__ = doc
    return method


class TrainerCallback:
    """The base of callbacks: a method for each event, which does nothing."""

    on_init_end = _event("The trainer was made.")
    on_train_begin = _event("Training begins.")
    on_train_end = _event("Training ended.")
    on_epoch_begin = _event("An epoch begins.")
    on_epoch_end = _event("An epoch ended.")
    on_step_begin = _event("An update begins, before its first micro-batch.")
    on_pre_optimizer_step = _event("Gradients are complete and clipped.")
    on_optimizer_step = _event("The weights were updated; the gradients are still there.")
    on_substep_end = _event("A micro-batch was done that is not the last of its update.")
    on_step_end = _event("An update was done.")
    on_evaluate = _event("An evaluation was done.")
    on_predict = _event("A prediction was done.")
    on_save = _event("A checkpoint was saved.")
    on_log = _event("Metrics were logged.")
    on_prediction_step = _event("A batch was evaluated.")
    on_push_begin = _event("Files are about to be published.")


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
# Event -> the flags that are cleared before callbacks see it.
_CLEARED_FLAGS = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
    "on_log": ("should_log",),
}
_PARTS = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")


class CallbackHandler(TrainerCallback):
    """Calls several callbacks in their order."""

    def __init__(self, callbacks: list[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any):
        self.callbacks: list[TrainerCallback] = []
        for callback in callbacks:
            self.add_callback(callback)
        self.model, self.processing_class = model, processing_class
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None

    def add_callback(self, callback: Any) -> None:
        new = callback() if isinstance(callback, type) else callback
        if any(type(new) is type(other) for other in self.callbacks):
            message = f"There is already a {type(new).__name__} among the callbacks; both are called."
            warnings.warn(message, TranseptWarning, stacklevel=3)
        self.callbacks.append(new)

    def pop_callback(self, callback: Any) -> TrainerCallback | None:
        """Remove the callback, or the first of that class, and return it; ``None`` where there is none."""
        for index, other in enumerate(self.callbacks):
            if isinstance(other, callback) if isinstance(callback, type) else other == callback:
                return self.callbacks.pop(index)
        return None

    @property
    def callback_list(self) -> str:
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def call_event(self, event: str, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Call the method of that name of all callbacks, and return the flags."""
        for callback in self.callbacks:
            parts = {name: getattr(self, name) for name in _PARTS}
            control = getattr(callback, event)(args, state, control, **parts, **kwargs) or control
        return control

    def _relay(self, event: str, args: Any, state: Any, control: TrainerControl, *more: Any, **kwargs: Any) -> Any:
        for flag in _CLEARED_FLAGS.get(event, ()):
            setattr(control, flag, False)
        if more:
            kwargs["logs" if event == "on_log" else "metrics"] = more[0]
        return self.call_event(event, args, state, control, **kwargs)


for _name in EVENTS:
    setattr(CallbackHandler, _name, partialmethod(CallbackHandler._relay, _name))


class DefaultFlowCallback(TrainerCallback):
    """Sets the flags of logs, evaluations and checkpoints by the arguments, and ends training at the last update."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        step, is_last = state.global_step, state.global_step >= state.max_steps
        by_step = args.logging_strategy == IntervalStrategy.STEPS
        if (step == 1 and args.logging_first_step) or (by_step and step % state.logging_steps == 0):
            control.should_log = True
        if args.eval_strategy == IntervalStrategy.STEPS and args.eval_delay <= step:
            control.should_evaluate |= is_last or step % state.eval_steps == 0
        if args.save_strategy == SaveStrategy.STEPS:
            control.should_save |= is_last or (state.save_steps > 0 and step % state.save_steps == 0)
        control.should_training_stop |= is_last
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch
        control.should_save |= args.save_strategy == SaveStrategy.EPOCH
        return control


def length_of(sized: Any) -> int | None:
    """The length of a data set or a loader, where it has one."""
    try:
        return len(sized)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def has_length(dataset: Any) -> bool:
    return length_of(dataset) is not None


def metric_name(args: Any) -> str:
    """The name in the logs of the metric that says which model is best."""
    name = str(args.metric_for_best_model)
    return name if name.startswith("eval_") else f"eval_{name}"


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Ends training when ``metric_for_best_model`` did not improve in so many evaluations; NaN never improves it.

    Args:
        early_stopping_patience: evaluations without improvement that end it.
        early_stopping_threshold: by how much the metric must be better than the best to count as improved.

    ``ConfigError``: training begins without ``metric_for_best_model``, or without evaluations.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold or 0.0
        self.early_stopping_patience_counter = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None:
            hint = 'Pass "loss", or a metric\'s name.'
            raise ConfigError("EarlyStoppingCallback needs `metric_for_best_model`.", hint=hint)
        if args.eval_strategy == IntervalStrategy.NO:
            hint = 'Pass eval_strategy="epoch" or "steps".'
            raise ConfigError("EarlyStoppingCallback needs evaluations.", hint=hint)
        if not args.load_best_model_at_end:
            text = "EarlyStoppingCallback without `load_best_model_at_end`: the last model is kept, not the best one."
            warnings.warn(text, TranseptWarning, stacklevel=2)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        name = metric_name(args)
        if metrics.get(name) is None:
            message = f"EarlyStoppingCallback found no {name!r} among the metrics, and stops nothing."
            warnings.warn(message, TranseptWarning, stacklevel=2)
            return
        greater, margin = args.greater_is_better, self.early_stopping_threshold
        if is_better(metrics[name], state.best_metric, greater=greater, margin=margin):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience

    def state(self) -> dict[str, Any]:
        settings = ("early_stopping_patience", "early_stopping_threshold")
        counter = {"early_stopping_patience_counter": self.early_stopping_patience_counter}
        return {"args": {name: getattr(self, name) for name in settings}, "attributes": counter}
