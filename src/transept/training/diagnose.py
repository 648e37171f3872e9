"""Why an update fails: which module made the first value that is not finite, and how few rows fit in memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transept.errors import TrainingError, TranseptWarning
from transept.training.persist.generators import Generators

R = TypeVar("R")
Batch = dict[str, Any]

_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
_SHOWN = 8  # rows that a message names


@dataclass(frozen=True)
class Fault:
    """Where the first values that are not finite were seen.

    ``what`` says of which thing they are: ``output``, ``gradient of the input`` or ``gradient of the output`` of the module
    ``path``, or ``parameter``, ``gradient of the parameter``, ``input`` or ``loss``, whose name is ``path``. ``rows`` are those
    of the micro-batch ``batch``, where the values have rows; ``inside`` tells that the module was given such values already.
    """

    what: str
    path: str
    kind: str
    bad: int
    total: int
    batch: int | None = None
    rows: tuple[int, ...] = ()
    inside: bool = False

    def __str__(self) -> str:
        text = f"the {self.what}"
        if self.path:
            text += f" of {self.path!r} ({self.kind})" if self.kind else f" {self.path!r}"
        text += f" has {self.bad} of {self.total} values that are not finite"
        if self.rows:
            more = ", …" if len(self.rows) > _SHOWN else ""
            text += f", in the rows {', '.join(map(str, self.rows[:_SHOWN]))}{more}"
        text += "" if self.batch is None else f" of micro-batch {self.batch}"
        return f"{text}; they came in with what it was given" if self.inside else text


@dataclass
class _Watch:
    """The hooks of one pass, and what they saw first."""

    batch: int
    rows: int
    found: Fault | None = None
    handles: list[Any] = field(default_factory=list)

    def see(self, what: str, path: str, kind: str, values: Any, given: Any = ()) -> None:
        """Keep the first value that is not finite, among tensors in nested containers."""
        if self.found is not None:
            return
        for value in _tensors(values):
            wrong = ~value.isfinite()
            if (bad := int(wrong.sum())) > 0:
                by_row = wrong.ndim > 0 and len(wrong) == self.rows
                rows = tuple(wrong.reshape(self.rows, -1).any(dim=1).nonzero()[:, 0].tolist()) if by_row else ()
                inside = any(not bool(each.isfinite().all()) for each in _tensors(given))
                self.found = Fault(what, path, kind, bad, value.numel(), self.batch, rows, inside)
                return

    def forward(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        self.see("output", path, type(module).__name__, output, args)

    def backward(self, path: str, module: nn.Module, given: Any, arrived: Any) -> None:
        self.see("gradient of the output", path, type(module).__name__, arrived)
        self.see("gradient of the input", path, type(module).__name__, given)

    @contextmanager
    def over(self, model: nn.Module, *, gradients: bool) -> Iterator[None]:
        """Watch the outputs of all modules, in the order in which they end, or the gradients."""
        for path, module in model.named_modules():
            if gradients:
                self.handles.append(module.register_full_backward_hook(partial(self.backward, path)))
            else:
                self.handles.append(module.register_forward_hook(partial(self.forward, path)))
        try:
            with warnings.catch_warnings(), _uncompiled(model):
                for text in ("Full backward hook is firing", "For backward hooks to be called"):
                    warnings.filterwarnings("ignore", text)  # of modules that read ids, or give more than tensors
                yield
        finally:
            for handle in self.handles:
                handle.remove()


def find_fault(
    model: nn.Module, batches: Sequence[Batch], step: Callable[[Batch], Tensor], generators: Generators | None = None
) -> Fault | None:
    """The first values of an update that are not finite: in weights, inputs, outputs of modules, the loss, or gradients.

    The micro-batches are run again: once for what modules give, and where that is all finite once more for the gradients, both
    in the order of evaluation. Gradients are cleared before and after.

    Args:
        model: whose modules are looked at.
        batches: the micro-batches of the update.
        step: runs the forward and the backward pass of one, and gives its loss.
        generators: the states of the random generators before the update.

    Returns:
        ``None`` where all is finite this time.
    """
    for path, weight in model.named_parameters():
        if bad := int((~weight.detach().isfinite()).sum()):
            return Fault("parameter", path, "", bad, weight.numel())
    for number, batch in enumerate(batches):
        watch = _Watch(number, _rows_of(batch))
        for name, value in batch.items():
            watch.see("input", name, "", value)
        if watch.found is not None:
            return watch.found
    for gradients in (False, True):
        if generators is not None:
            generators.restore()
        for number, batch in enumerate(batches):
            model.zero_grad(set_to_none=True)
            watch = _Watch(number, _rows_of(batch))
            with watch.over(model, gradients=gradients):
                watch.see("loss", "", "", step(batch))
            if watch.found is None and gradients:
                for path, weight in model.named_parameters():
                    watch.see("gradient of the parameter", path, "", weight.grad)
            if watch.found is not None:
                model.zero_grad(set_to_none=True)
                return watch.found
    model.zero_grad(set_to_none=True)
    return None


def _uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Hooks are for what is not compiled; a model that is not is spared the import of the compiler."""
    compiled = any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors of floats in nested tuples, lists and mappings."""
    if isinstance(values, Tensor):
        if values.is_floating_point() and values.numel():
            yield values.detach()
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def _rows_of(batch: Mapping[str, Any]) -> int:
    """B, by the first of the inputs that has rows; -1 where none has."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor | list) and _has_rows(value)), -1)


def _has_rows(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.ndim > 0


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of an accelerator or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Halving:
    """Runs updates, and after running out of memory does one again with half the rows in each micro-batch.

    The loss of an update is a sum over its micro-batches, so that it stays the same. The size that fitted is kept for later
    updates.
    """

    def __init__(self) -> None:
        self.limit: int | None = None  # values of a micro-batch's largest input

    def run(
        self, update: Callable[[list[Batch]], R], batches: Sequence[Batch], clear: Callable[[], None], whole: str | None = None
    ) -> R:
        """Run an update, again with smaller micro-batches while there is too little memory.

        Args:
            update: makes the gradients of an update from micro-batches.
            batches: as they come.
            clear: undoes what a failed update has left, such as gradients.
            whole: why these micro-batches cannot be divided, if they cannot: a loss that is not a sum over rows.

        Raises:
            TrainingError: there is too little memory for a single row, or for what cannot be divided.
        """
        parts = list(batches) if whole is not None else self.fitted(batches)
        generators = Generators.now()
        while True:
            try:
                return update(parts)
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            # Outside, where the error no longer holds what the update had made.
            clear()
            generators.restore()
            _free()
            parts = self._smaller(batches, parts, said, whole)

    def fitted(self, batches: Sequence[Batch]) -> list[Batch]:
        """The micro-batches in parts of a size that fitted before."""
        found = list(batches)
        while self.limit is not None and any(_size(each) > self.limit and halves(each) for each in found):
            found = [half for each in found for half in ((_size(each) > self.limit and halves(each)) or (each,))]
        return found

    def _smaller(self, batches: Sequence[Batch], parts: Sequence[Batch], said: str, whole: str | None) -> list[Batch]:
        largest = max(parts, key=_size)
        if whole is not None or halves(largest) is None:
            reason = whole or ("a single row is too large" if _rows_of(largest) == 1 else "its inputs are not by row")
            what = f"there is too little memory for a micro-batch of {_rows_of(largest)} rows, and {reason} ({said})."
            raise TrainingError(what, hint="Shorten rows, turn on gradient_checkpointing, or use a smaller model.")
        self.limit = (_size(largest) + 1) // 2
        smaller = self.fitted(batches)
        rows = max(map(_rows_of, smaller))
        what = f"too little memory for {_rows_of(largest)} rows at once ({said}): going on with at most {rows}."
        warnings.warn(f"{what} The result stays the same.", TranseptWarning, stacklevel=4)
        return smaller


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """The first and the second half of the rows; ``None`` where there is one row, or an input that is not by row."""
    rows = _rows_of(batch)
    sized = [value for value in batch.values() if isinstance(value, Tensor | list) and _has_rows(value)]
    if rows < 2 or any(len(value) != rows for value in sized):
        return None
    middle = (rows + 1) // 2

    def part(chosen: slice) -> Batch:
        by_row = {name: isinstance(value, Tensor | list) and _has_rows(value) for name, value in batch.items()}
        return {name: value[chosen] if by_row[name] else value for name, value in batch.items()}

    return part(slice(0, middle)), part(slice(middle, None))


def _size(batch: Batch) -> int:
    """How large a micro-batch is: the values in its largest input."""
    tensors = [value.numel() for value in batch.values() if isinstance(value, Tensor)]
    return max([*tensors, _rows_of(batch)])


def _free() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
