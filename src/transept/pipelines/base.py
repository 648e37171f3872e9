"""What all pipelines share: inputs of any kind become rows for the model (``prepare``), well-filled batches of rows become
results (``forward``), and the results of an input's rows its answer (``answer``), in order.
"""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count as numbers
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from transept.core.model import Model
from transept.errors import InputError, InputTypeError, TranseptError, TranseptWarning, UnsupportedError, nearest
from transept.pipelines.batching import MOST_READ, Sample, attempt, batches, flat, halving, read_ahead
from transept.pipelines.components import KINDS, Components, device_of
from transept.pipelines.registry import ALIASES
from transept.pipelines.steps import STEPS, Pipeline
from transept.pipelines.steps import ChunkPipeline as ChunkPipeline  # where code looks for it

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)

# Positions a batch: enough to keep the matrix units busy, few enough to stay in the caches; fewer where some are padding.
CPU_BUDGET, PADDED_CPU_BUDGET, GPU_BUDGET = 2048, 1024, 32768


class InputsError(InputError):
    """Some inputs could not be answered; ``answers`` has all the others', with the errors in the places of the failed ones."""

    code = "inputs"

    def __init__(self, positions: list[int], answers: list[Any]) -> None:
        first, what = positions[0], f"input {positions[0]} cannot be answered"
        if len(positions) > 1:
            what = f"{len(positions)} of {len(answers)} inputs cannot be answered (the first at position {first})"
        hint = 'The others\' answers are in `.answers` of this error; pass on_error="return" to get errors in place.'
        super().__init__(f"{what}: {answers[first]}", hint=hint)
        self.positions, self.answers = positions, answers


@dataclass(frozen=True)
class Options:
    """Options of a task; a subclass is a dataclass by being defined, and :func:`count` and :func:`choice` check its fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, default = getattr(self, each.name), each.default
            if "check" in each.metadata and (type(value), value) != (type(default), default):
                each.metadata["check"](each.name, value)


def count(default: int | str | None = None, *, least: int = 1, optional: bool = False) -> Any:
    """An option that is a whole number from ``least``, its default, or ``None`` where it is optional."""
    return field(default=default, metadata={"check": partial(check_count, optional=optional or default is None, least=least)})


def share(default: float) -> Any:
    """An option that is a number from 0 to 1."""
    return field(default=default, metadata={"check": check_share})


def choice(*choices: Any) -> Any:
    """An option that is one of some values; the first is its default."""
    return field(default=choices[0], metadata={"check": partial(check_choice, choices=choices)})


class TaskPipeline(Pipeline, ABC, Generic[O]):
    """A task of this library: inputs are batched by length, and errors keep their places.

    Args:
        model, device: a model in evaluation mode, and the device to move it to.
        components: the tokenizer and processors of the task, in their order or by name.
        budget, batch_size: positions, padding included, and rows a batch at most; the former by device and padding when
            absent.
        num_workers, framework: taken for the reference's sake: threads read media, and the framework is ``"pt"``.
        options: the task's options, which a call may override.

    Raises:
        InputError, InputTypeError: a component is missing, the model is for another task, or an option is wrong.
    """

    task: ClassVar[str]
    default_model: ClassVar[str | None] = None
    auto: ClassVar[Any]
    components: ClassVar[tuple[str, ...]] = ()
    options_class: ClassVar[type[Any]]
    first: ClassVar[str] = "inputs"  # the reference's name of the first argument of a call
    nested: ClassVar[str | None] = None  # a mapping in which options may come, too, as in the reference
    asked: ClassVar[Mapping[str, Any]] = {}  # of the model, beside its inputs
    drawable: ClassVar[bool] = False  # whether ``draw`` shows the answers over their images
    by_steps: ClassVar[bool] = False  # whether a user's class writes steps such as ``postprocess``
    padded: bool = True  # whether the rows of a batch are filled up to its longest one
    pooler: ClassVar[bool] = True  # whether the backbone's pooler is used
    most_items: ClassVar[int] = MOST_READ  # that are prepared together
    most_bytes: ClassVar[int | None] = None
    collate: Any  # what the model reads of a batch of rows
    options: O

    def __init__(
        self,
        model: Any,
        *components: Any,
        budget: int | None = None,
        batch_size: int | None = None,
        device: str | int | torch.device | None = None,
        framework: str | None = None,
        num_workers: int | None = None,
        **options: Any,
    ) -> None:
        check_count("num_workers", num_workers, optional=True, least=0)
        check_count("budget", budget, optional=True)
        check_count("batch_size", batch_size, optional=True)
        check_choice("framework", framework, (None, "pt"))
        if not isinstance(model, Model):
            hint = "Load it, or call transept.pipeline(task, model=...), which loads it."
            raise InputTypeError(f"`model` must be a model, but is {type(model).__name__}.", hint=hint)
        self.model = model if device is None else model.to(device_of(device))
        self.batch_size, self._said_full = batch_size, False
        given = dict(zip(self.components, components, strict=False))
        given |= {kind: options.pop(kind) for kind in KINDS if kind in options}
        self.processor = given.get("processor")
        task = options.pop("task", None) or self.task
        check_choice("task", task, (self.task, *(alias for alias, name in ALIASES.items() if name == self.task)))
        for kind in self.components:
            if given.get(kind) is None:
                raise InputTypeError(f"`model` is an object, so `{kind}` must be passed too.")
            setattr(self, kind, given[kind])
        self.check_model()
        on_cpu = PADDED_CPU_BUDGET if self.padded else CPU_BUDGET
        self.budget = budget or (on_cpu if self.model.device.type == "cpu" else GPU_BUDGET)
        self.options = self.options_class()
        usual = self.checkpoint_options(options)
        if self.by_steps:
            self._parameters, options = self._sanitize_parameters(**options), {}
        self.options = self.with_options({**usual, **options})

    def __init_subclass__(cls) -> None:
        """A class that writes some of the steps of a :class:`Pipeline` answers by them, one input after the other."""
        super().__init_subclass__()
        cls.by_steps = cls.by_steps or any(name in vars(cls) for name in STEPS)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        """Load what the task needs; some models do a task by another class."""
        return cls(parts.model(cls.auto, pooler=cls.pooler), *map(parts.component, cls.components), **given)

    @abstractmethod
    def prepare(self, items: Sequence[Any], options: O) -> Sequence[list[Sample] | TranseptError]:
        """Rows for the model, for each input; or the error that says what is wrong with it."""

    def forward(self, samples: Sequence[Sample], options: O) -> Sequence[Any]:
        """What the model makes of a batch, one result a row: its logits, where the task does not say otherwise."""
        return list(to_numpy(self.run(self.collate(samples)).logits))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: O) -> Any:
        """The answer to one input, from its rows' results: that of its only row, where the task does not say otherwise."""
        return results[0]

    def check_model(self) -> None:
        """Require a model and components that can do the task, and look up in them what it needs."""

    def need(self, able: bool, what: str) -> None:
        """Raise an ``InputTypeError`` about a model that is not able to do the task."""
        if not able:
            kind = type(self.model).__name__
            raise InputTypeError(f"the task {self.task!r} needs a model that {what}, and {kind} does not.")

    def checkpoint_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options that the checkpoint has for the task."""
        return {}

    def check_options(self, options: O) -> None:
        """Require options that fit the model; their values alone are checked where they are declared."""

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one input, and not several."""
        several = isinstance(inputs, Iterable) or (hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"))
        return isinstance(inputs, str | bytes | Mapping | os.PathLike) or not several

    def gather(self, answers: list[Any]) -> Any:
        """The answers to a list of inputs."""
        return answers

    def run(self, batch: Mapping[str, Any], model: Any = None) -> Any:
        """The output of the model, or of its backbone, for what it reads of a batch."""
        return (model or self.model)(**batch, **self.asked)

    def __call__(
        self,
        inputs: Any = None,
        *,
        on_error: Literal["raise", "return"] = "raise",
        progress: bool | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        **options: Any,
    ) -> Any:
        """Answer one input, a list of them, or a stream (generator, data set) lazily and in order.

        Args:
            inputs: one input, a list or tuple of inputs, or any iterable or indexed collection of them.
            on_error: ``raise`` an error that carries the others' answers, or ``return`` errors in the answers' places.
            progress: show a bar; when absent, on a terminal and for work that takes a while.
            batch_size, options: rows a batch at most, and the task's options, for this call.
            num_workers: taken for the reference's sake.

        Raises:
            InputsError, InputError: inputs that cannot be answered, with their positions; a wrong option.
        """
        inputs = options.pop(self.first, inputs)
        if self.by_steps:
            return super().__call__(inputs, batch_size=batch_size, **options)
        check_choice("on_error", on_error, ("raise", "return"))
        check_count("batch_size", batch_size, optional=True)
        check_count("num_workers", num_workers, optional=True, least=0)
        chosen = self.with_options(options) if options else self.options
        if self.is_one(inputs):
            answer = next(self.answers([inputs], chosen, batch_size))
            if isinstance(answer, TranseptError) and on_error == "raise":
                raise answer
            return answer
        stream = inputs if isinstance(inputs, Iterable) else (inputs[index] for index in range(len(inputs)))
        answers: Iterable[Any] = self.answers(stream, chosen, batch_size)
        if sys.stderr.isatty() if progress is None else progress:
            total = len(inputs) if hasattr(inputs, "__len__") else None
            answers = tqdm(answers, total=total, desc=self.task, delay=0.0 if progress else 1.0, leave=False)
        if not isinstance(inputs, Sequence):  # a map goes on after an error
            return map(raised, numbers(), answers) if on_error == "raise" else iter(answers)
        found = list(answers)
        failed = [position for position, answer in enumerate(found) if isinstance(answer, TranseptError)]
        if failed and on_error == "raise":
            raise InputsError(failed, found)
        return found if failed else self.gather(found)

    # The steps, where a user's class writes some of them

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, options

    def preprocess(self, input_: Any, **options: Any) -> Any:
        """What the model reads of one input, with an axis for rows."""
        (samples,) = self.prepare([input_], self.with_options(options) if options else self.options)
        return raised(0, samples) if isinstance(samples, TranseptError) else self.collate(samples)

    def _forward(self, model_inputs: Any, **options: Any) -> Any:
        return self.run({**model_inputs, **options})

    def run_step(self, model_inputs: Any, options: Mapping[str, Any]) -> Any:
        return super().forward(model_inputs, **options)

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        """The answer to one input whose rows the model has seen; for tasks whose answer follows from the logits alone.

        Raises:
            UnsupportedError: the task's answer needs more than logits, so that a class of one's own writes this step whole.
        """
        if type(self).forward is not TaskPipeline.forward:
            what = f"the answers of the task {self.task!r} need more than the model's logits."
            raise UnsupportedError(what, hint="Write postprocess() without calling that of the class above.")
        chosen = self.with_options(options) if options else self.options
        return self.answer(None, [], list(to_numpy(model_outputs["logits"])), chosen)

    def with_options(self, given: Mapping[str, Any]) -> O:
        """The options of one call; an ``InputError`` names one that the task does not have, or that cannot have its value."""
        rest, known = self.unnested(given), self.option_names()
        if (wrong := next((name for name in rest if name not in known), None)) is not None:
            raise InputError(f"the task {self.task!r} has no option {wrong!r}.", hint=nearest(wrong, known))
        found: O = replace(self.options, **rest)  # type: ignore[type-var]
        self.check_options(found)
        return found

    def unnested(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a call, of which those that came in a mapping stand beside the others, which go before them."""
        rest = dict(given)
        nested = None if self.nested is None else rest.pop(self.nested, None)
        if nested is not None and not isinstance(nested, Mapping):
            raise InputTypeError(f"`{self.nested}` must be a mapping of options, but is {type(nested).__name__}.")
        return {**(nested or {}), **rest}

    def option_names(self) -> list[str]:
        return [field.name for field in fields(self.options_class)]

    def answers(self, items: Iterable[Any], options: O, batch_size: int | None = None) -> Iterator[Any]:
        """Answers in order, errors in the places of failed inputs, for one list read ahead after the other."""
        for read in read_ahead(items, self.most_items, self.most_bytes):
            prepared = self.prepare(read, options)
            samples = flat(prepared)
            with torch.inference_mode():
                for batch in batches(samples, self.budget, batch_size or self.batch_size, padded=self.padded):
                    chosen = [samples[i] for i in batch]
                    found = halving(lambda some: self.forward(some, options), chosen, self._say_full)
                    for sample, result in zip(chosen, found, strict=True):
                        sample.result = result
            for item, rows in zip(read, prepared, strict=True):
                results = [rows] if isinstance(rows, TranseptError) else [row.result for row in rows]
                failed = next((result for result in results if isinstance(result, TranseptError)), None)
                yield failed or attempt(self.answer, item, rows, results, options)

    def _say_full(self, rows: int) -> None:
        if not self._said_full:
            self._said_full = True
            note = f"there is not enough memory for a batch of {rows} rows, so that batches are halved until they fit."
            warnings.warn(f"{note} Pass batch_size={rows // 2} to save the attempts.", TranseptWarning, stacklevel=2)


def raised(position: int, answer: Any) -> Any:
    """The answer to one input of a stream, or its error, raised."""
    if isinstance(answer, TranseptError):
        answer.message = f"input {position}: {answer.message}"
        raise answer
    return answer


def check_count(name: str, value: Any, *, optional: bool = False, least: int = 1) -> None:
    """Require a whole number from ``least``, or ``None`` where it is optional; else an ``InputError`` names the option."""
    if not (optional and value is None) and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        other = ", or None" if optional else ""
        raise InputError(f"`{name}` must be a whole number from {least}{other}, but is {value!r}.")


def check_share(name: str, value: Any) -> None:
    """Require a number from 0 to 1; else an ``InputError`` names the option."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"`{name}` must be a number from 0 to 1, but is {value!r}.")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Require one of some values; else an ``InputError`` names the option and the choices."""
    if value not in choices:
        raise InputError(f"`{name}` is {value!r}, but must be one of {', '.join(map(repr, choices))}.")


def to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor as a float32 array on the CPU; an ``InputError`` where its values are not all finite."""
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    if not (finite := np.isfinite(array)).all():
        hint = "Check its weights, or load it in float32: dtype=torch.float32."
        raise InputError(f"the model computes {array[~finite][0]} for this input.", hint=hint)
    return array
