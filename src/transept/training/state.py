"""Strategies, the state of a run, its flags, and the outputs of a trainer's methods."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from transept.config.schema import typed
from transept.errors import FormatError, InputError, InputTypeError, nearest
from transept.objectives.terms import LossTerm
from transept.storage.files import PathName, dump_json, load_object, write_text

STATE_NAME = "trainer_state.json"
_LOG: Any = {"step": float}  # what every log has


class ExplicitEnum(StrEnum):
    """A name out of a few; an unknown one is an ``InputError`` that lists them."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise InputError(f"{value!r} is no {cls.__name__}.", hint=nearest(str(value), [name.value for name in cls]))


class IntervalStrategy(ExplicitEnum):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(ExplicitEnum):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class HubStrategy(ExplicitEnum):
    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class ParallelMode(ExplicitEnum):
    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"


class ExportableState:
    """A callback that checkpoints keep: ``state()`` gives ``{"args": ..., "attributes": ...}`` of JSON values."""

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """A callback that is made with ``args``, and has ``attributes``."""
        callback = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(callback, name, value)
        return callback


@dataclass
class TrainerControl(ExportableState):
    """Flags that callbacks set, and the loop reads and clears."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        return {"args": dataclasses.asdict(self), "attributes": {}}


@dataclass
class TrainerState:
    """Where a run stands; a step is one update of the weights. Its JSON form is ``trainer_state.json``."""

    epoch: float = 0  # with its fraction
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500  # updates, as the next two, where the arguments may give shares
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: Any = None  # their states by the names of their classes, made of a list of callbacks

    def __post_init__(self) -> None:
        if not isinstance(self.stateful_callbacks, dict):
            self.keep_callbacks(self.stateful_callbacks or [])

    def keep_callbacks(self, callbacks: list[Any]) -> None:
        """Note the states of these callbacks; a list, where there are several of one class."""
        states: dict[str, list[Any]] = {}
        for callback in callbacks:
            if not isinstance(callback, ExportableState):
                raise InputTypeError(f"{type(callback).__name__} cannot be kept: it is no ExportableState.")
            states.setdefault(type(callback).__name__, []).append(callback.state())
        self.stateful_callbacks = {name: some[0] if len(some) == 1 else some for name, some in states.items()}

    def save_to_json(self, json_path: PathName) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        write_text(json_path, dump_json(json_value(values, "the state")))

    @classmethod
    def load_from_json(cls, json_path: PathName) -> Self:
        """Read it from a file (``FileError``, ``FormatError``); keys that are not known are passed over."""
        values = {name: value for name, value in load_object(json_path, finite=False).items() if value is not None}
        typed(values.get("stateful_callbacks", {}), dict[str, Any], path=json_path)
        for log in (state := typed(values, cls, path=json_path)).log_history:
            typed(log, _LOG, path=json_path)
        for name in ("global_step", "max_steps", "num_input_tokens_seen"):
            if getattr(state, name) < 0:
                raise FormatError(f"`{name}` must be at least 0, but is {getattr(state, name)}.", path=json_path)
        return state

    def note_metric(self, value: float, *, greater_is_better: bool) -> bool:
        """Whether a metric is the best so far; if it is, note it."""
        is_best = is_better(value, self.best_metric, greater=greater_is_better)
        if is_best:
            self.best_metric, self.best_global_step = value, self.global_step
        return is_best

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Take over the arguments' intervals; shares are of ``max_steps``."""
        for kind in ("logging_steps", "eval_steps", "save_steps"):
            number = getattr(args, kind)
            if number is not None:
                setattr(self, kind, math.ceil(max_steps * number) if number < 1 else int(number))


def is_better(value: float, best: float | None, *, greater: bool, margin: float = 0.0) -> bool:
    """Whether a metric is better than the best one so far by more than ``margin``.

    NaN is never better, and any number is better than NaN and than ``None``, which says that there is none yet.
    """
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return (value - best if greater else best - value) > max(margin, 0.0)


def json_value(value: Any, name: str, levels: int = 32) -> Any:
    """A value as JSON can hold it and give it back: arrays, tensors and sets become numbers or lists.

    ``InputTypeError``: it has no such form, as bytes have none; the message names it by ``name``.
    """
    match value if levels else object():
        case None | bool() | float():
            return value
        case str():
            return value.encode(errors="backslashreplace").decode()
        case int() if -(2**63) <= value < 2**63:
            return value
        case Tensor() | np.ndarray() | np.generic():
            return json_value(value.item() if math.prod(value.shape) == 1 else value.tolist(), name)
        case Mapping():
            items = [(key, json_value(item, f"{name}.{key}", levels - 1)) for key, item in value.items()]
            return {json_value(str(key), name): item for key, item in items}
        case set() | frozenset():
            return json_value(sorted(value, key=str), name, levels)
        case list() | tuple():
            return [json_value(item, name, levels - 1) for item in value]
    what = "an integer longer than 64 bits" if isinstance(value, int) else f"a {type(value).__name__}"
    hint = "Give numbers, texts, arrays, and lists and dictionaries of them, nested at most 32 levels deep."
    raise InputTypeError(f"`{name}` is {what}, which a log cannot hold.", hint=hint)


class EvalPrediction:
    """What ``compute_metrics`` is called with: arrays for the whole set, one or a tuple of them.

    ``inputs`` and ``losses`` are there where ``include_for_metrics`` names them; iterating leaves out absent ones.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions, self.label_ids, self.inputs, self.losses = predictions, label_ids, inputs, losses
        self.elements = (predictions, label_ids, *(values for values in (inputs, losses) if values is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


@dataclass
class Prediction:
    """What a batch gave: its mean loss, the terms of it where the model tells them, logits and labels."""

    loss: Tensor | None
    terms: Mapping[str, LossTerm] | None
    logits: Any
    labels: Any
    items: float = 0.0  # of its loss
    rows: int = 0
    main: Any = None  # its main inputs, where a metric reads them


class EvalLoopOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, Any]
    num_samples: int


class PredictionOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, Any] | None


class TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, Any]


class BestRun(NamedTuple):
    """The best trial of a search: its name, its objective, its settings, and all trials."""

    run_id: str
    objective: float
    hyperparameters: dict[str, Any]
    run_summary: Any = None
