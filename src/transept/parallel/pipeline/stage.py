"""A stage of a pipeline: the model's own forward pass, from the states that were received to those that are sent.

Every stage is given the whole input and makes the context of it anew (masks, positions, rotary tables), so that states alone
travel: those of the layers, and behind an encoder its output too. Shapes: B rows, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from transept.core.model import Backbone, Model
from transept.errors import TranseptError, UnsupportedError
from transept.layers.context import Context
from transept.objectives.terms import Items, total
from transept.outputs import BackboneOutput, ModelOutput

Wires = tuple[Tensor, ...]  # without values, of the shapes and types of what travels


class States(NamedTuple):
    """The shape and the type of states."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Leaving(Exception):  # noqa: N818 (no error: the rest of the forward pass belongs to another stage)
    """Ends a forward pass with what the next stage is to receive."""

    def __init__(self, *states: Tensor) -> None:
        super().__init__()
        # What is sent is one piece of memory, and no view, which PyTorch could not take out of its graph.
        own = (x.clone(memory_format=torch.contiguous_format) if x._is_view() or not x.is_contiguous() else x for x in states)
        # PyTorch sends a gradient back for them, also where all that made them is frozen.
        self.states = tuple(x if x.requires_grad or not torch.is_grad_enabled() else x.requires_grad_() for x in own)


class _Received(torch.autograd.Function):
    """States as they are, whose gradients are sent as one piece of memory, as processes need it to send them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class Share(NamedTuple):
    """What a forward pass of the last stage makes a loss of: see :func:`transept.objectives.terms.total`."""

    items: Items | None = None
    parts: int = 1
    scale: float = 1.0


class Stage(nn.Module):
    """The layers ``ranges`` of the stacks of a model, which holds what this process has of it.

    ``real`` are the rows of each micro-batch that are no padding, and ``share`` how its loss is divided; the last stage reads
    both. It collects ``outputs`` where there is no share, and keeps its ``failure`` until all processes are through.
    ``precision`` makes the context of a forward pass, such as that of mixed precision.
    """

    def __init__(self, model: Model, ranges: Sequence[tuple[int, int]], is_last: bool) -> None:
        super().__init__()
        self.model, self.ranges, self.is_last = model, tuple(ranges), is_last
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.expect([], None)

    def expect(self, real: list[int], share: Share | None) -> None:
        """Begin a batch."""
        self.real, self.share = real, share
        self.failure: TranseptError | None = None
        self.outputs: list[ModelOutput] = []

    def forward(self, *received: Tensor, part: Tensor | None = None, **inputs: Any) -> Tensor | tuple[Tensor, ...]:
        """States or, of the last stage, the loss (1) of the micro-batch that ``part`` (B) numbers; nothing without that."""
        self.grid = _grid(inputs)
        if part is None:
            with _replaced(self.model.stacks, "run", [self._see] * (len(self.ranges) - 1) + [self._see_last]):
                self._leave(inputs)
            return ()
        received = tuple(_Received.apply(states) for states in received)  # type: ignore[no-untyped-call]
        if not self.is_last:
            with self._cut(received):
                return self._leave(inputs)
        real = self.real[int(part[0])]
        if self.failure is None:
            rows = real or 1  # padding alone is read, too, since weights may be collected for it with other processes
            received = tuple(states[: states.shape[0] * rows // len(part)] for states in received)
            try:
                given = {name: value[:rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}
                loss = self._answer(received, given, is_real=real > 0)
                return loss if real else loss * 0.0
            except TranseptError as error:  # others would wait for this process
                self.failure = error
        return torch.stack([states.sum() for states in received]).sum()[None] * 0.0

    def _leave(self, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        """What the model's forward pass leaves for the next stage."""
        try:
            with self.precision():
                self.model(**inputs, return_dict=True)
        except _Leaving as leaving:
            return leaving.states
        raise UnsupportedError(f"{type(self.model).__name__} runs its layers in its own way, and cannot be cut into stages.")

    def _answer(self, received: tuple[Tensor, ...], inputs: dict[str, Any], is_real: bool) -> Tensor:
        """The loss (1) of rows, or zero where the output of real ones is collected."""
        if self.share is None:
            received = tuple(states.clone() for states in received)  # the memory of received states is used again
        with self._cut(received), self.precision():
            output: ModelOutput = self.model(**inputs, return_dict=True)
        if self.share is None:
            self.outputs += [output] if is_real else []
            return received[0].new_zeros(1)
        terms = getattr(output, "loss_terms", None)
        if not terms:
            raise UnsupportedError(f"{type(self.model).__name__} gave no terms of a loss.", hint="Pass labels.")
        for name, term in terms.items():
            if not term.additive:
                what = f"the term {name!r} of the loss is no sum over rows, which go through a pipeline apart."
                raise UnsupportedError(what, hint="Train without it, or with fsdp_size in place of pp_size.")
        loss = total(terms, self.share.items, self.share.parts) * self.share.scale
        return loss.reshape(1)

    @torch.no_grad()
    def shapes(self, inputs: dict[str, Any]) -> list[States]:
        """The states (B, T, D) of each stack for these inputs, and behind an encoder its output, from no layer at all."""
        self.seen: list[States] = []
        devices = [self.model.device] if self.model.device.type != "cpu" else []
        with torch.random.fork_rng(devices):
            self(**inputs)  # as it is called elsewhere, too, so that what wraps it gathers weights
        return self.seen

    def _see(self, x: Tensor, ctx: Context) -> Tensor:
        """Note what would travel in place of running layers."""
        for name in ("hidden_states", "attentions", "router_logits", "stages"):
            if getattr(ctx, name) is not None:
                what = f"`output_{name}` asks for what all layers record, which no stage of a pipeline has."
                raise UnsupportedError(what, hint="Leave it out.")
        rows = self.grid if ctx.rows is not None else x.shape[:2]
        self.seen.append(States((*rows, *x.shape[2:]), x.dtype))
        if (states := ctx.encoder_states) is not None and len(self.ranges) > 1:
            self.seen.append(States(tuple(states.shape), states.dtype))
        return x

    def _see_last(self, x: Tensor, ctx: Context) -> Tensor:
        self._see(x, ctx)
        raise _Leaving

    @contextmanager
    def _cut(self, received: tuple[Tensor, ...]) -> Iterator[None]:
        """Inside, the stacks run the layers of this stage alone."""
        stacks = self.model.stacks
        runs, forwards = [], list[Any]()
        for stack, (start, stop) in zip(stacks, self.ranges):
            runs.append(partial(self._run, stack, start, stop, received))
            if start == stop == len(stack.layers):  # an encoder before this stage, whose output was received
                forwards.append(partial(_given, received[-1]))
            else:
                forwards.append(_leave_before if stop == 0 else None)
        with _replaced(stacks, "run", runs), _replaced(stacks, "forward", forwards):
            yield

    def _run(self, stack: Backbone, start: int, stop: int, received: tuple[Tensor, ...], x: Tensor, ctx: Context) -> Tensor:
        if start > 0:
            x = received[0] if ctx.rows is None else received[0].flatten(0, 1)[None, : ctx.rows.total]
        out = Backbone.run(stack, x, ctx, start, stop)
        if stop == len(stack.layers):
            return out
        if ctx.rows is not None:  # micro-batches have other numbers of real positions, and states one shape
            rows, length = self.grid
            out = F.pad(out, (0, 0, 0, rows * length - out.shape[1])).view(rows, length, -1)
        states = ctx.encoder_states if len(self.ranges) > 1 else None
        raise _Leaving(out.to(x.dtype), *(() if states is None else (states.view_as(states),)))


def _grid(inputs: dict[str, Any]) -> tuple[int, int]:
    """B and T of ids (B, T) or embeddings (B, T, D), where there are some."""
    given = [inputs[name] for name in ("input_ids", "inputs_embeds") if isinstance(inputs.get(name), Tensor)]
    return (given[0].shape[0], given[0].shape[1]) if given and given[0].ndim > 1 else (0, 0)


def _given(states: Tensor, *args: Any, **inputs: Any) -> BackboneOutput:
    return BackboneOutput(last_hidden_state=states)


def _leave_before(*args: Any, encoder_hidden_states: Tensor, **inputs: Any) -> Any:
    raise _Leaving(encoder_hidden_states.view_as(encoder_hidden_states))


@contextmanager
def _replaced(stacks: Sequence[Backbone], name: str, methods: Sequence[Any]) -> Iterator[None]:
    """Inside, stacks have other methods of a name, where one is given."""
    for stack, method in zip(stacks, methods):
        if method is not None:
            vars(stack)[name] = method
    try:
        yield
    finally:
        for stack in stacks:
            vars(stack).pop(name, None)


# --- PyTorch's schedules ----------------------------------------------------------------------------------------------------


class _Scheduled(PipelineStage):
    """PyTorch's stage, which also evaluates where the next one is in the same process: there are no gradients to hand over."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def schedule_named(
    name: str, stages: Iterable[tuple[int, Stage, Wires, Wires]], parts: int, *, training: bool, split: bool, **options: Any
) -> Any:
    """PyTorch's schedule of that name, of a process that has these stages, for so many micro-batches.

    Args:
        stages: their numbers and modules, what each receives and what it sends; PyTorch would run a pass to find that out.
        training: whether there is a backward pass, of what the last stage gives.
        split: whether gradients of weights may be left for later.
        options: ``num_stages``, ``device`` and ``group``.
    """
    if not split:
        options["dw_builder"] = _leave_nothing
    own = [_Scheduled(stage, at, input_args=into, output_args=out, **options) for at, stage, into, out in stages]
    kind: Any = get_schedule_class(name)
    given = own if issubclass(kind, PipelineScheduleMulti) else own[0]
    return kind(given, parts, loss_fn=_loss if training else None, scale_grads=False)


def _loss(output: Tensor, target: Any) -> Tensor:
    """What the last stage gives is the loss."""
    return output.sum()


def _leave_nothing() -> Callable[[], None]:
    """What is left of a backward pass after one for states and weights at once."""
    return lambda: None
