"""PyTorch's pipeline schedules over our stages; only who runs one imports this, since it takes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from transept.parallel.pipeline.stage import Stage


class Ends(NamedTuple):
    """Tensors without values, of the shapes and types that a stage receives, and that it sends."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class _Stage(PipelineStage):
    """PyTorch's stage, which also evaluates where the next one is in the same process: there are no gradients to hand over."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def schedule_named(name: str, stages: Sequence[tuple[int, Stage, Ends]], parts: int, *, training: bool, **options: Any) -> Any:
    """The schedule of a process that has these ``stages``, with their numbers, for so many micro-batches.

    Args:
        name: PyTorch's.
        stages: their numbers, modules, and what travels; PyTorch would else run a pass to find that out.
        parts: micro-batches.
        training: whether there is a backward pass, of what the last stage gives.
        options: ``num_stages``, ``device``, ``group``, and ``split``, whether gradients of weights may be left for later.
    """
    split = options.pop("split")
    own: list[Any] = []
    for number, module, ends in stages:
        late: Callable[..., Any] | None = None if split else _done
        made = _Stage(module, number, input_args=ends.inputs, output_args=ends.outputs, dw_builder=late, **options)
        own.append(made)
    kind: Any = get_schedule_class(name)
    given = own if issubclass(kind, PipelineScheduleMulti) else own[0]
    return kind(given, parts, loss_fn=_own if training else None, scale_grads=False)


def _own(output: Tensor, target: Any) -> Tensor:
    """The loss, which the last stage gives itself."""
    return output.sum()


def _done() -> Callable[[], None]:
    """What is left of a backward pass after one for states and weights at once: nothing."""
    return _nothing


def _nothing() -> None:
    pass
