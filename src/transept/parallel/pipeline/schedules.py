"""PyTorch's pipeline schedules over our stages; only who runs one imports this, since it takes a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from transept.parallel.pipeline.stage import Stage

Wires = tuple[Tensor, ...]  # without values, of the shapes and types of what travels


class _Stage(PipelineStage):
    """PyTorch's stage, which also evaluates where the next one is in the same process: there are no gradients to hand over."""

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def schedule_named(
    name: str, stages: Iterable[tuple[int, Stage, Wires, Wires]], parts: int, *, training: bool, split: bool, **options: Any
) -> Any:
    """The schedule of a process for so many micro-batches.

    Args:
        name: PyTorch's.
        stages: the number and the module of each of the process's stages, what it receives and what it sends; PyTorch would
            else run a pass to find that out.
        parts: micro-batches.
        training: whether there is a backward pass, of what the last stage gives.
        split: whether gradients of weights may be left for later.
        options: ``num_stages``, ``device`` and ``group``.
    """
    if not split:
        options["dw_builder"] = _leave_nothing
    own = [
        _Stage(module, number, input_args=received, output_args=sent, **options) for number, module, received, sent in stages
    ]
    kind: Any = get_schedule_class(name)
    given = own if issubclass(kind, PipelineScheduleMulti) else own[0]
    return kind(given, parts, loss_fn=_loss if training else None, scale_grads=False)


def _loss(output: Tensor, target: Any) -> Tensor:
    """What the last stage gives is the loss."""
    return output.sum()


def _leave_nothing() -> Callable[[], None]:
    """What is left of a backward pass after one for states and weights at once."""
    return lambda: None
