"""What all pipelines share: from any kind of input to answers in order, in well-filled batches.

A task says how an input becomes rows for the model (``prepare``), what the model makes of a batch of them (``forward``) and how
the rows' results become an answer (``answer``). Everything else is here: one input or many or an endless stream, windows sorted
by length, batches by a budget of positions, errors that name their input and lose no other's answer, a progress bar.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from transept.backbone import Model
from transept.errors import InputError, InputTypeError, TranseptError, nearest
from transept.pipelines.batching import Sample, batches, windows

if TYPE_CHECKING:
    from transept.pipelines.parts import Parts

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)
OnError = Literal["raise", "return"]

# Positions a batch, padding included: enough to keep the matrix units busy, few enough to stay in the caches.
CPU_BUDGET, GPU_BUDGET = 1024, 32768


class InputsError(InputError):
    """Some inputs could not be answered; ``answers`` has all the others', with the errors in the places of the failed ones."""

    code = "inputs"

    def __init__(self, positions: list[int], answers: list[Any]) -> None:
        first = answers[positions[0]]
        count = f"{len(positions)} of {len(answers)} inputs" if len(positions) > 1 else f"input {positions[0]}"
        where = f" (the first at position {positions[0]})" if len(positions) > 1 else ""
        super().__init__(
            f"{count} cannot be answered{where}: {first}",
            hint='The others\' answers are in `.answers` of this error; pass on_error="return" to get errors in place.',
        )
        self.positions, self.answers = positions, answers


class Pipeline(ABC, Generic[O]):
    """A task from raw inputs to answers.

    Args:
        model: in evaluation mode, where it should run.
        options: the task's options, which a call may override.
        budget: positions a batch, padding included; by device when absent.
        batch_size: rows a batch at most.
    """

    task: ClassVar[str]
    default_model: ClassVar[str | None] = None
    options: O

    def __init__(self, model: Model, options: O, *, budget: int | None = None, batch_size: int | None = None) -> None:
        for name, value in (("budget", budget), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise InputError(f"`{name}` must be at least 1, but is {value}.")
        self.model, self.options, self.batch_size = model, options, batch_size
        self.budget = budget or (CPU_BUDGET if model.device.type == "cpu" else GPU_BUDGET)

    @classmethod
    @abstractmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load what the task needs, and set its options."""

    # --- what a task says --------------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, items: Sequence[Any], options: O) -> list[list[Sample] | TranseptError]:
        """Rows for the model, for each input; or the error that says what is wrong with it."""

    @abstractmethod
    def forward(self, samples: Sequence[Sample], options: O) -> Sequence[Any]:
        """What the model makes of a batch: one result a row."""

    @abstractmethod
    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: O) -> Any:
        """The answer to one input, from its rows' results."""

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one input, and not several."""
        return isinstance(inputs, str | bytes | Mapping | os.PathLike) or not isinstance(inputs, Iterable)

    def gather(self, answers: list[Any]) -> Any:
        """The answers to a list of inputs."""
        return answers

    # --- the common way ----------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, *, on_error: OnError = "raise", progress: bool | None = None, **options: Any) -> Any:
        """Answer one input, a list of them, or a stream (generator, data set) lazily and in order.

        Args:
            inputs: one input, a list or tuple of inputs, or any iterable of them.
            on_error: ``raise`` an error that carries the others' answers, or ``return`` errors in the answers' places.
            progress: show a bar; when absent, on a terminal and for work that takes a while.
            options: the task's options.

        Raises:
            InputsError: inputs that cannot be answered, with their positions.
            InputError: an option that the task does not have.
        """
        if on_error not in ("raise", "return"):
            raise InputError(f"`on_error` must be 'raise' or 'return', but is {on_error!r}.")
        chosen = self.with_options(options)
        if self.is_one(inputs):
            found = next(self.answers([inputs], chosen))
            if isinstance(found, TranseptError) and on_error == "raise":
                raise found
            return found
        if not isinstance(inputs, Sequence):
            return self._stream(inputs, chosen, on_error, progress)
        found = list(self._shown(self.answers(inputs, chosen), len(inputs), progress))
        failed = [position for position, answer in enumerate(found) if isinstance(answer, TranseptError)]
        if failed and on_error == "raise":
            raise InputsError(failed, found)
        return found if failed else self.gather(found)

    def with_options(self, given: Mapping[str, Any]) -> O:
        """The options of one call.

        Raises:
            InputError: a name that the task does not have, with the nearest.
        """
        return chosen_options(self.options, given, self.task) if given else self.options

    def answers(self, items: Iterable[Any], options: O) -> Iterator[Any]:
        """Answers in order, errors in the places of failed inputs; memory is bounded by one window."""
        for window in windows(items):
            prepared = self.prepare(window, options)
            flat = [sample for rows in prepared if not isinstance(rows, TranseptError) for sample in rows]
            results = iter(self._results(flat, options))
            for item, rows in zip(window, prepared, strict=True):
                if isinstance(rows, TranseptError):
                    yield rows
                else:
                    yield self._answer(item, rows, [next(results) for _ in rows], options)

    def _answer(self, item: Any, rows: list[Sample], results: list[Any], options: O) -> Any:
        failed = next((result for result in results if isinstance(result, TranseptError)), None)
        if failed is not None:
            return failed
        try:
            return self.answer(item, rows, results, options)
        except TranseptError as error:
            return error

    def _results(self, samples: list[Sample], options: O) -> list[Any]:
        results: list[Any] = [None] * len(samples)
        with torch.inference_mode():
            for batch in batches(samples, self.budget, self.batch_size):
                for index, result in zip(batch, self._try([samples[i] for i in batch], options), strict=True):
                    results[index] = result
        return results

    def _try(self, samples: list[Sample], options: O) -> Sequence[Any]:
        try:
            return self.forward(samples, options)
        except TranseptError as error:
            if len(samples) == 1:
                return [error]
            # One row spoils the batch: find it, and let the others through.
            half = len(samples) // 2
            return [*self._try(samples[:half], options), *self._try(samples[half:], options)]

    def _stream(self, items: Iterable[Any], options: O, on_error: OnError, progress: bool | None) -> Iterator[Any]:
        for position, answer in enumerate(self._shown(self.answers(items, options), None, progress)):
            if isinstance(answer, TranseptError) and on_error == "raise":
                answer.message = f"input {position}: {answer.message}"
                raise answer
            yield answer

    def _shown(self, answers: Iterator[Any], total: int | None, progress: bool | None) -> Iterable[Any]:
        shown = sys.stderr.isatty() if progress is None else progress
        delay = 0.0 if progress else 1.0
        return tqdm(answers, total=total, desc=self.task, delay=delay, leave=False) if shown else answers


def chosen_options(options: O, given: Mapping[str, Any], task: str) -> O:
    """A task's options with some replaced.

    Raises:
        InputError: a name that the task does not have, with the nearest.
    """
    known = [field.name for field in fields(options)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError(f"the task {task!r} has no option {name!r}.", hint=nearest(name, known))
    return replace(options, **given)  # type: ignore[type-var]


def attempt(function: Any, item: Any) -> Any:
    """``function(item)``, or the error of ours that it raised."""
    try:
        return function(item)
    except TranseptError as error:
        return error


def check_text(item: Any) -> str:
    """An input that must be text.

    Raises:
        InputTypeError: it is something else.
    """
    if not isinstance(item, str):
        raise InputTypeError(f"a text was expected, but the input is {type(item).__name__}: {str(item)[:60]!r}.")
    return item


def to_numpy(tensor: Tensor) -> Any:
    """A tensor as a float32 array on the CPU."""
    return tensor.float().cpu().numpy()
