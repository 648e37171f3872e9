"""What goes through a pipeline: a batch in micro-batches of equal size, and the states that its stages pass on.

A stage runs the model's own forward pass, from the states that it receives to those that it sends. Every stage gets
the whole input and makes its context anew (masks, positions, rotary tables), so that states alone travel: those of
the layers, and behind an encoder its output too. Shapes: B rows, T positions, D hidden size, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.utils.rnn import pad_sequence

from transept.core.inputs import BOUNDS, Packing, declared_texts, given_states, places_within
from transept.core.model import Backbone, Model
from transept.errors import InputError, TranseptError, UnsupportedError
from transept.kinds.text import TextBackbone
from transept.layers.context import Context, within
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm, total
from transept.outputs import BackboneOutput, ModelOutput
from transept.parallel.pipeline.partition import RECORDED

States = tuple[tuple[int, ...], torch.dtype]  # the shape and the type of states
Wires = tuple[Tensor, ...]  # states that travel together
Loss = Callable[[Mapping[str, LossTerm]], Tensor]  # a scalar, of the terms of a micro-batch
Precision = Callable[[], AbstractContextManager[Any]]  # makes the context of a forward pass


def rows_of(model: Model, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a batch that are not absent: tensors with B rows each, and numbers.

    Raises:
        InputError: no tensor at all, tensors of other numbers of rows, or inputs that cannot be divided by rows.
    """
    inputs = {name: value for name, value in batch.items() if value is not None}
    for name in ("past_key_values", "encoder_outputs", "lengths"):
        if name in inputs:
            raise InputError(f"`{name}` cannot go through a pipeline, whose micro-batches are rows of inputs.")
    backbone = model.body
    if isinstance(backbone, TextBackbone) and (texts := declared_texts(inputs)) is not None:
        inputs = {name: value for name, value in inputs.items() if name not in BOUNDS} | {"seq_idx": texts}
        if "position_ids" in backbone.reads:
            inputs = {"position_ids": places_within(texts) + backbone.first_position} | inputs
    main = next((value for value in inputs.values() if isinstance(value, Tensor) and value.ndim > 1), None)
    main = inputs.get(model.main_input_name, main)
    if not isinstance(main, Tensor):
        present = ", ".join(inputs) or "nothing"
        raise InputError(f"the batch holds no tensor `{model.main_input_name}`, but {present}.")
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            continue
        if value.ndim == 0:
            inputs[name] = value.item()
        elif value.shape[0] == 1 < main.shape[0]:
            inputs[name] = value.expand(main.shape[0], *value.shape[1:])
        elif value.shape[0] != main.shape[0]:
            what = f"`{name}` has the shape {tuple(value.shape)}, but the batch has {main.shape[0]} rows."
            raise InputError(what, hint="A pipeline divides all inputs by rows.")
    return inputs


def spread_texts(model: Model, batch: dict[str, Any], parts: int) -> dict[str, Any]:
    """A batch whose texts are packed into fewer rows than M, in M rows; unchanged where that could change the loss.

    Raises:
        UnsupportedError: packed texts for a family that has to unpack them, which makes states of varying shapes.
    """
    backbone = model.body
    if not isinstance(backbone, TextBackbone):
        return batch
    # Stages make no cache, beside which texts would not be inferred.
    texts = backbone.find_texts(batch | {"use_cache": False})
    if texts is None:
        return batch
    states: Any = given_states(batch)
    texts = texts.expand(len(states), -1)
    packing = Packing.of_texts(texts, batch.get("attention_mask")) if texts.any() else None
    if packing is None:
        return batch
    batch = batch | {"seq_idx": texts}  # inferred texts would not be found again beside a mask
    if not backbone.ragged:
        what = f"{type(backbone).__name__} cannot be trained on packed texts in a pipeline."
        raise UnsupportedError(what, hint="Pass one text in each row.")
    lengths, labels = torch.tensor(packing.lengths), batch.get("labels")
    starts = lengths.cumsum(0) - lengths
    if packing.shape[0] >= parts or len(lengths) < parts:
        return batch
    if isinstance(labels, Tensor) and (
        labels.shape != packing.shape or bool((packing.flat(labels)[0, starts] != IGNORED).any())
    ):
        return batch  # the first token of a text may be predicted from the text before it
    rows = ((starts + lengths / 2) * parts / lengths.sum()).long()
    sizes = [size for row in range(parts) if (size := int(lengths[rows == row].sum()))]
    padding = model.config.pad_token_id or 0
    fill = {"labels": IGNORED, "input_ids": padding, "position_ids": backbone.first_position}
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.shape[:2] == packing.shape:
            pieces = torch.split(packing.flat(value)[0], sizes)
            batch[name] = pad_sequence(list(pieces), batch_first=True, padding_value=fill.get(name, 0))
    device = packing.places.device
    return batch | {"attention_mask": within(torch.tensor(sizes, device=device), max(sizes)).long()}


def padded_rows(batch: Mapping[str, Any], parts: int) -> tuple[dict[str, Any], list[int]]:
    """A batch whose rows are divisible by M, and how many rows of each micro-batch are real.

    PyTorch's schedules would wait forever for rows that are left over. So the last row is repeated, and the last
    stage leaves the copies out before there is a loss. ``part`` (B) is the number of each row's micro-batch.
    """
    by_row = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    first = next(iter(by_row.values()))
    rows, size = len(first), -(-len(first) // parts)
    if more := size * parts - rows:
        by_row = {name: torch.cat([value, *[value[-1:]] * more]) for name, value in by_row.items()}
    part = torch.arange(parts, device=first.device).repeat_interleave(size)
    real = [min(max(rows - size * number, 0), size) for number in range(parts)]
    return {**batch, **by_row, "part": part}, real


def joined(outputs: list[ModelOutput]) -> ModelOutput:
    """The output for a batch, of those for its micro-batches: rows behind one another, and sums of losses."""
    fields = dict[str, Any]()
    for name, value in outputs[0].items():
        if name != "loss" and all(isinstance(leaf, Tensor) and leaf.ndim for leaf in pytree.tree_leaves(value)):
            fields[name] = pytree.tree_map(lambda *leaves: torch.cat(leaves), *(output[name] for output in outputs))
    whole = type(outputs[0])(**fields)
    if of_parts := [terms for output in outputs if (terms := getattr(output, "loss_terms", None))]:
        summed = pytree.tree_map(lambda *leaves: torch.stack(leaves).sum(0), *of_parts)
        whole["loss"], whole["loss_terms"] = total(summed), summed
    return whole


class _Leaving(Exception):  # noqa: N818 (no error: the rest of the forward pass belongs to another stage)
    """Ends a forward pass with what the next stage is to receive."""

    def __init__(self, *states: Tensor) -> None:
        super().__init__()
        # What is sent is one piece of memory, and no view, which PyTorch could not take out of its graph.
        form = torch.contiguous_format
        self.states = tuple(x.clone(memory_format=form) if x._is_view() else x.contiguous() for x in states)
        if torch.is_grad_enabled():  # PyTorch sends a gradient back for them, also where all that made them is frozen
            for x in self.states:
                x.requires_grad_()


class Stage(nn.Module):
    """The layers ``ranges`` of the stacks of a model, which holds what this process has of it."""

    def __init__(self, model: Model, ranges: Sequence[tuple[int, int]], is_last: bool) -> None:
        super().__init__()
        self.model, self.ranges, self.is_last = model, tuple(ranges), is_last
        self.precision: Precision = nullcontext
        self.expect([], None)

    def expect(self, real: list[int], loss: Loss | None) -> None:
        """Begin a batch: ``real`` rows of each micro-batch are no padding, and ``loss`` gives its loss in training.

        The last stage reads both. Without a loss it collects ``outputs``. It keeps a ``failure`` until all are done.
        """
        self.real, self.loss = real, loss
        self.failure: TranseptError | None = None
        self.outputs: list[ModelOutput] = []

    def forward(self, *received: Tensor, part: Tensor | None = None, **inputs: Any) -> Tensor | Wires:
        """States or, of the last stage, the loss (1) of micro-batch number ``part`` (B); nothing without that."""
        ids = inputs.get("input_ids", inputs.get("inputs_embeds"))
        self.grid = tuple(ids.shape[:2]) if isinstance(ids, Tensor) else ()
        if part is None:
            with _replaced(self.model.stacks, [{"run": partial(self._see, stack)} for stack in self.model.stacks]):
                self._leave(inputs)
            return ()
        received = tuple(map(_with_whole_gradients, received))
        if not self.is_last:
            with self._cut(received):
                return self._leave(inputs)
        real = self.real[int(part[0])]
        if self.failure is None:
            rows = real or 1  # padding alone is read, too, since weights may be collected for it with other processes
            states = tuple(x[: x.shape[0] * rows // len(part)] for x in received)
            inputs = {name: value[:rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}
            try:
                loss = self._answer(states, inputs, is_real=real > 0)
                return loss if real else loss * 0.0
            except TranseptError as error:  # others would wait for this process
                self.failure = error
        return torch.stack([states.sum() for states in received]).sum()[None] * 0.0

    def _leave(self, inputs: dict[str, Any]) -> Wires:
        """What the model's forward pass leaves for the next stage."""
        try:
            with self.precision():
                self.model(**inputs, return_dict=True)
        except _Leaving as leaving:
            return leaving.states
        what = f"{type(self.model).__name__} runs its layers in its own way, and cannot be cut into stages."
        raise UnsupportedError(what)

    def _answer(self, received: Wires, inputs: dict[str, Any], is_real: bool) -> Tensor:
        """The loss (1) of rows, or zero where the output of real ones is collected."""
        if self.loss is None:
            received = tuple(states.clone() for states in received)  # the memory of received states is used again
        with self._cut(received), self.precision():
            output: ModelOutput = self.model(**inputs, return_dict=True)
        if self.loss is None:
            self.outputs += [output] if is_real else []
            return received[0].new_zeros(1)
        terms = getattr(output, "loss_terms", None)
        if not terms:
            raise UnsupportedError(f"{type(self.model).__name__} gave no terms of a loss.", hint="Pass labels.")
        for name, term in terms.items():
            if not term.additive:
                what = f"the term {name!r} of the loss is no sum over rows, which go through a pipeline apart."
                raise UnsupportedError(what, hint="Train without it, or with fsdp_size in place of pp_size.")
        return self.loss(terms).reshape(1)

    @torch.no_grad()
    def shapes(self, inputs: dict[str, Any]) -> list[States]:
        """The states (B, T, D) of each stack for these inputs, and behind an encoder its output; no layer runs."""
        self.seen: list[States] = []
        devices = [self.model.device] if self.model.device.type != "cpu" else []
        with torch.random.fork_rng(devices):
            self(**inputs)  # as it is called elsewhere, too, so that what wraps it gathers weights
        return self.seen

    def _see(self, stack: Backbone, x: Tensor, ctx: Context) -> Tensor:
        """Note what would travel in place of running layers; the last stack ends the pass."""
        for name in RECORDED:
            if getattr(ctx, name) is not None:
                what = f"`output_{name}` asks for what all layers record, which no stage of a pipeline has."
                raise UnsupportedError(what, hint="Leave it out.")
        if ctx.own is not None:
            what = f"the layers of {type(stack).__name__} share more than states and masks, which no other stage has."
            raise UnsupportedError(what, hint="Train without stages.")
        rows = self.grid if ctx.rows is not None else x.shape[:2]
        self.seen.append(((*rows, *x.shape[2:]), x.dtype))
        if (states := ctx.encoder_states) is not None and len(self.ranges) > 1:
            self.seen.append((tuple(states.shape), states.dtype))
        if stack is self.model.stacks[-1]:
            raise _Leaving
        return x

    def _cut(self, received: Wires) -> AbstractContextManager[None]:
        """Inside, the stacks run the layers of this stage alone."""
        replacements = []
        for stack, (start, stop) in zip(self.model.stacks, self.ranges):
            methods: dict[str, Any] = {"run": partial(self._run, stack, (start, stop), received)}
            if start == stop == len(stack.layers):  # an encoder before this stage, whose output was received
                methods["forward"] = lambda *args, **inputs: BackboneOutput(last_hidden_state=received[-1])
            elif stop == 0:
                methods["forward"] = _leave_before
            replacements.append(methods)
        return _replaced(self.model.stacks, replacements)

    def _run(self, stack: Backbone, layers: tuple[int, int], received: Wires, x: Tensor, ctx: Context) -> Tensor:
        start, stop = layers
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


def _with_whole_gradients(states: Tensor) -> Tensor:
    """States as they are, whose gradients are one piece of memory, as processes need it to send them."""
    states = states.view_as(states)
    if states.requires_grad:
        states.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return states


def _leave_before(*args: Any, encoder_hidden_states: Tensor, **inputs: Any) -> Any:
    raise _Leaving(encoder_hidden_states.view_as(encoder_hidden_states))


@contextmanager
def _replaced(stacks: Sequence[Backbone], replacements: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    """Inside, each stack has other methods, by name."""
    for stack, methods in zip(stacks, replacements):
        vars(stack).update(methods)
    try:
        yield
    finally:
        for stack in stacks:
            for name in ("run", "forward"):
                vars(stack).pop(name, None)


class ScheduledStage(PipelineStage):
    """PyTorch's stage, which can evaluate where the next one is in the same process: it hands over no gradients."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)
