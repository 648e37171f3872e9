"""Updates that fail: made again with fewer rows at a time, or searched for the first value that is not finite."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transept.errors import TrainingError, TranseptWarning
from transept.training.checkpoint.generators import Generators
from transept.training.loss import LESS_MEMORY
from transept.training.objective import Batch, count_rows, tensors_in
from transept.training.run import TrainingRun

R = TypeVar("R")
Divide = Callable[[Batch], tuple[Batch, Batch] | str]

_NO_MEMORY = (
    *("out of memory", "DefaultCPUAllocator", "not enough memory"),
    *("can't allocate memory", "STATUS_ALLOC_FAILED"),
)
_SHOWN = 8  # rows that a message names


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of an accelerator or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Halving:
    """Runs updates, and after running out of memory runs one again with half the rows in each micro-batch.

    The loss of an update is a sum over its micro-batches, and stays the same. The size that fits is kept.

    Args:
        divide: the halves of a micro-batch whose losses add up to its own, or why there are none.
        rows: the number of rows of a micro-batch, for messages.
    """

    def __init__(self, divide: Divide, rows: Callable[[Batch], int] = count_rows) -> None:
        self.divide, self.rows = divide, rows
        self.limit: int | None = None  # values of a micro-batch's largest input

    def run(self, update: Callable[[list[Batch]], R], batches: Sequence[Batch], clear: Callable[[], None]) -> R:
        """Run an update, again with smaller micro-batches while there is too little memory.

        ``update`` makes gradients from micro-batches; ``clear`` removes those that a failed one has left.

        Raises:
            TrainingError: there is too little memory for a single row, or for a batch that cannot be divided.
        """
        generators, limit_before = Generators.now(), self.limit
        failure = ""
        while True:
            parts = [part for batch in batches for part in self._parts(batch)]
            try:
                result = update(parts)
                break
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                failure = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            # Outside, where the error no longer holds what the update had made.
            clear()
            generators.restore()
            gc.collect()
            if torch.accelerator.is_available():
                torch.accelerator.empty_cache()
            largest = max(parts, key=_size)
            if isinstance(reason := self.divide(largest), str):
                what = f"there is too little memory for a micro-batch of {self.rows(largest)} rows"
                raise TrainingError(f"{what}, and {reason} ({failure}).", hint=LESS_MEMORY)
            self.limit = (_size(largest) + 1) // 2
        if self.limit != limit_before:
            rows, fitting = max(map(self.rows, batches)), max(map(self.rows, parts))
            what = f"too little memory for {rows} rows at once ({failure}): going on with at most {fitting}."
            warnings.warn(f"{what} The result stays the same.", TranseptWarning, stacklevel=2)
        return result

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """A micro-batch in parts of a size that fitted before."""
        divided = "" if self.limit is None or _size(batch) <= self.limit else self.divide(batch)
        if isinstance(divided, str):
            yield batch
        else:
            for half in divided:
                yield from self._parts(half)


def _size(batch: Batch) -> int:
    """How large a micro-batch is: the values in its largest input."""
    return max((tensor.numel() for tensor in tensors_in(batch)), default=0) or count_rows(batch)


@dataclass(frozen=True)
class Fault:
    """Where the first values that are not finite were seen.

    ``what`` is an output or a gradient of the module ``path``, or the parameter, input or loss of that name. ``rows``
    are those of the micro-batch ``batch``; ``inside`` tells that the module's inputs had such values already.
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
    """What was seen first in one pass over a micro-batch."""

    batch: int
    rows: int
    fault: Fault | None = None

    def see(self, what: str, path: str, kind: str, values: Any, inputs: Any = ()) -> None:
        """Keep the first value that is not finite, among tensors in nested containers."""
        for value in _floats(values) if self.fault is None else ():
            wrong = ~value.isfinite()
            if bad := int(wrong.sum()):
                by_row = wrong.ndim > 0 and len(wrong) == self.rows
                rows = tuple(wrong.reshape(self.rows, -1).any(dim=1).nonzero()[:, 0].tolist()) if by_row else ()
                inside = not all(bool(tensor.isfinite().all()) for tensor in _floats(inputs))
                self.fault = Fault(what, path, kind, bad, value.numel(), self.batch, rows, inside)
                return

    @contextmanager
    def over(self, model: nn.Module, *, gradients: bool) -> Iterator[None]:
        """Watch the outputs of all modules, in the order in which they end, or the gradients."""
        paths = {module: path for path, module in model.named_modules()}

        def forward(module: nn.Module, inputs: Any, output: Any) -> None:
            self.see("output", paths[module], type(module).__name__, output, inputs)

        def backward(module: nn.Module, of_input: Any, of_output: Any) -> None:
            self.see("gradient of the output", paths[module], type(module).__name__, of_output)
            self.see("gradient of the input", paths[module], type(module).__name__, of_input)

        # Hooks are for what is not compiled; a model that is not is spared the import of the compiler.
        compiled = any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in paths)
        stance: AbstractContextManager[Any] = nullcontext()
        if compiled:
            stance = torch.compiler.set_stance("force_eager")
        with ExitStack() as undo, warnings.catch_warnings(), stance:
            for module in paths:
                if gradients:
                    undo.callback(module.register_full_backward_hook(backward).remove)
                else:
                    undo.callback(module.register_forward_hook(forward).remove)
            for text in ("Full backward hook is firing", "For backward hooks to be called"):
                warnings.filterwarnings("ignore", text)  # of modules that read ids, or give more than tensors
            yield


def _floats(values: Any) -> Iterator[Tensor]:
    tensors = (tensor.detach() for tensor in tensors_in(values))
    return (tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel())


def find_fault(
    model: nn.Module,
    batches: Sequence[Batch],
    step: Callable[[Batch], Tensor],
    generators: Generators | None = None,
) -> Fault | None:
    """The first values of an update that are not finite: weights, inputs, outputs of modules, the loss, or gradients.

    The micro-batches are run again: once for outputs, and where all are finite once more for the gradients, both in
    the order of evaluation. Gradients are cleared before and after. ``None`` where all is finite.

    Args:
        step: runs the forward and the backward pass of a micro-batch, and gives its loss.
        generators: the states of the random generators before the update.
    """
    for path, weight in model.named_parameters():
        if bad := int((~weight.detach().isfinite()).sum()):
            return Fault("parameter", path, "", bad, weight.numel())
    watches = [_Watch(number, count_rows(batch)) for number, batch in enumerate(batches)]
    for watch, batch in zip(watches, batches):
        for name, value in batch.items():
            watch.see("input", name, "", value)
        if watch.fault is not None:
            return watch.fault
    for gradients in (False, True):
        if generators is not None:
            generators.restore()
        for watch, batch in zip(watches, batches):
            model.zero_grad(set_to_none=True)
            with watch.over(model, gradients=gradients):
                watch.see("loss", "", "", step(batch))
            for path, weight in model.named_parameters() if gradients else ():
                watch.see("gradient of the parameter", path, "", weight.grad)
            model.zero_grad(set_to_none=True)
            if watch.fault is not None:
                return watch.fault
    return None


def not_finite(
    run: TrainingRun, step: Callable[[Batch], Tensor], batches: Sequence[Batch], generators: Generators, where: str
) -> TrainingError:
    """The error of an update whose gradients are not finite, with the first fault of :func:`find_fault`.

    Each process runs its own batches again; ``where`` is a sentence about the checkpoint to go on from.
    """
    if run.form.same_passes:
        cause = "shards of weights cannot be looked through; run the update in one process to find the module"
    else:
        fault = find_fault(run.model, batches, step, generators)
        cause = "all values were finite when it was run again" if fault is None else str(fault)
    number, norm = run.state.global_step + 1, run.tally.grad_norm
    what = f"the gradients of update {number} have the norm {norm}, and the weights were not changed: {cause}.{where}"
    return TrainingError(what, hint='Lower `learning_rate`, or pass nan_policy="skip" to leave such updates out.')
