"""State caches: what recurrent layers keep of earlier positions, of one size however many those were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from transept.errors import InputError, InputTypeError
from transept.layers.cache import Cache, KeyValues
from transept.layers.context import Context


@dataclass(eq=False)
class LayerState:
    """What one layer keeps, or nothing yet: the last inputs that it looks at again, such as those of its convolution
    (batch, channels, its width - 1), and a state (batch, channels, size).
    """

    inputs: Tensor | None = None
    state: Tensor | None = None


class StateCache(Cache):
    """The states of all layers of a recurrent model, which sum up all positions, so that none of these can be forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[LayerState] = []
        self.length = 0
        self.begun: int | None = None  # positions before the last forward pass that touched a layer

    def state(self, index: int) -> LayerState:
        while len(self.states) <= index:
            self.states.append(LayerState())
        return self.states[index]

    def layer(self, index: int) -> KeyValues:
        raise InputError("a cache of states was passed to a model that needs keys and values.", hint="Start without a cache.")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    @property
    def batch_size(self) -> int:
        held = self.states[0].state if self.states else None
        return 0 if held is None else held.shape[0]

    def get_memory_footprint(self) -> int:
        return sum(part.nbytes for part in self.take_apart()[0] if part is not None)

    def footprint_at(self, positions: int) -> int:
        return self.get_memory_footprint()

    def reset(self) -> None:
        self.check_unused()
        self.states, self.length, self.begun = [], 0, None

    def check_finished(self) -> None:
        self.check_unused()
        if self.begun == self.length:
            raise InputError(
                f"a forward pass was interrupted behind {self.length} positions: some states sum up more of them than others.",
                hint="States cannot be taken back: reset() the cache and read again from the beginning, or keep copies.",
            )

    def rollback(self) -> int:
        self.check_finished()
        return self.length

    def crop(self, length: int) -> None:
        self.check_unused()
        keep = length if length >= 0 else self.length + length
        if keep < self.length:
            message = f"states cannot be taken back from {self.length} to {keep} positions: they sum up all that was read."
            hint = "Copy the cache before what may have to be forgotten, or reset() it and read again from the beginning."
            raise InputError(message, hint=hint)

    def __len__(self) -> int:
        return len(self.states)

    def take_apart(self) -> tuple[list[Tensor | None], Any]:
        return [part for layer in self.states for part in (layer.inputs, layer.state)], self.length

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        cache, parts = cls(), iter(parts)
        cache.states, cache.length = [LayerState(inputs, next(parts)) for inputs in parts], sizes
        return cache

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        self.check_unused()
        for layer in self.states:
            layer.inputs = None if layer.inputs is None else function(layer.inputs)
            layer.state = None if layer.state is None else function(layer.state)


def state_of(ctx: Context) -> LayerState | None:
    if ctx.cache is None:
        return None
    if not isinstance(ctx.cache, StateCache):
        hint = "Pass what an earlier call returned, or a StateCache()."
        raise InputTypeError(f"the model keeps states, but `past_key_values` is a {type(ctx.cache).__name__}.", hint=hint)
    ctx.cache.begun = ctx.cache.length
    return ctx.cache.state(ctx.layer)
