"""Updates whose gradients are not finite: searched for the first value that is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept.errors import TrainingError
from transept.layers.links import Container
from transept.training.checkpoint.generators import Generators
from transept.training.objective import Batch, count_rows, tensors_in
from transept.training.run import TrainingRun

_SHOWN = 8  # rows that a message names


@dataclass(frozen=True)
class Fault:
    """Where the first values that are not finite were seen."""

    what: str  # an output or a gradient of a module, or the parameter, input or loss
    path: str  # its name, or the module's
    kind: str  # the class of the module
    bad: int
    total: int
    batch: int | None = None
    rows: tuple[int, ...] = ()  # of the micro-batch
    inside: bool = False  # whether the module's inputs had such values already

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
        paths = {module: path for path, module in model.named_modules() if not isinstance(module, Container)}

        def forward(module: nn.Module, inputs: Any, output: Any) -> None:
            self.see("output", paths[module], type(module).__name__, output, inputs)

        def backward(module: nn.Module, of_input: Any, of_output: Any) -> None:
            self.see("gradient of the output", paths[module], type(module).__name__, of_output)
            self.see("gradient of the input", paths[module], type(module).__name__, of_input)

        # Hooks are for what is not compiled; a model that is not is spared the import of the compiler.
        compiled = any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in paths)
        stance: Any = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
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
    model: nn.Module, batches: Sequence[Batch], step: Callable[[Batch], Tensor], generators: Generators | None = None
) -> Fault | None:
    """The first values of an update that are not finite: weights, inputs, outputs of modules, the loss, or gradients.

    The micro-batches are run again by ``step``, forward and backward: once for outputs, and where all are finite once
    more for the gradients, both in the order of evaluation, from the ``generators`` before the update. Gradients are
    cleared before and after. ``None`` where all is finite.
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
    """The error of an update whose gradients are not finite; ``where`` tells of the checkpoint to go on from."""
    if run.form.same_passes:
        cause = "shards of weights cannot be looked through; run the update in one process to find the module"
    else:
        fault = find_fault(run.model, batches, step, generators)
        cause = "all values were finite when it was run again" if fault is None else str(fault)
    number, norm = run.state.global_step + 1, run.tally.grad_norm
    what = f"the gradients of update {number} have the norm {norm}, and the weights were not changed: {cause}.{where}"
    return TrainingError(what, hint='Lower `learning_rate`, or pass nan_policy="skip" to leave such updates out.')
