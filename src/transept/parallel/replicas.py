"""The processes that take other rows of the data, and what they tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from transept.parallel.launch import everywhere, world_size
from transept.parallel.mesh import Layout

T = TypeVar("T")


@dataclass(frozen=True)
class Replicas:
    """The R processes, or groups of them, that take other rows.

    Args:
        size: R.
        rank: which of the R shares this process takes.
        members: for each share the process that speaks for it.
    """

    size: int = 1
    rank: int = 0
    members: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, layout: Layout, is_v: bool = False) -> Replicas:
        """Those of this process's grid; the first tensor rank of the last stage, which has the outputs, speaks for a share.

        ``is_v`` tells that the process of a pipeline's first stage has the last one too.
        """
        if layout.world == 1:
            return cls()
        last = 0 if is_v else layout.world - layout.data * layout.tp
        members = tuple(last + share * layout.tp for share in range(layout.data))
        return cls(layout.data, layout.data_rank(dist.get_rank()), members)

    def gathered(self, value: T) -> list[T]:
        """What each share's process has, in order; the same on all. Values are pickled, so they are small.

        The order of a sum over them is the same everywhere, and so is the sum to the last bit.
        """
        return self.among(everywhere(value))

    def among(self, found: Sequence[T]) -> list[T]:
        """What each share's process has, in order, of what all processes have."""
        return [found[member] for member in self.members]

    def from_first(self, value: T) -> T:
        """What the first process of all has."""
        if world_size() == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]
