"""What one layer of a model keeps of earlier positions: keys and values, a window of them, or states of one size.

Shapes: B batch, H key-value heads, T new positions, S cached positions, D head size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from transept.errors import InputError

# Keys and values.
Pair = tuple[Tensor, Tensor]

GROWTH = 64  # positions that a buffer gets more room for at least
OWNER = "A cache belongs to one model and one batch."

# The kinds of what layers keep, by name.
KINDS: dict[str, type[LayerCache]] = {}


class LayerCache:
    """What one layer keeps, of one kind or of several; a kind has a ``name``, which its varieties share.

    ``held`` positions are kept, and ``dropped`` ones came before them.
    """

    name: ClassVar[str]
    can_crop: ClassVar[bool] = True  # whether the last positions can be forgotten
    held: int = 0
    dropped: int = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            KINDS[cls.name] = cls

    @property
    def length(self) -> int:
        """Positions so far: those held, and those before them that were dropped since nothing looks back so far."""
        return self.dropped + self.held

    @property
    def parts(self) -> tuple[LayerCache, ...]:
        """What is kept, a part of each kind."""
        return (self,)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def rows(self) -> int:
        """B; 0 while empty."""
        return 0 if (shape := self.shape) is None else shape[0]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """(B, H, S, D) of keys and values; ``None`` where there are none."""
        return None

    @property
    def pair(self) -> Pair | None:
        """Keys and values (B, H, S, D) of the positions held; ``None`` where there are none."""
        return None

    @property
    def keys(self) -> Tensor | None:
        return None if (pair := self.pair) is None else pair[0]

    @property
    def values(self) -> Tensor | None:
        return None if (pair := self.pair) is None else pair[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        raise NotImplementedError

    def nbytes_at(self, positions: int) -> int:
        """About the bytes that will be kept of so many positions, from what is kept of those so far."""
        return self.nbytes * positions // max(self.length, 1)

    def check_crop(self, length: int) -> None:
        """Refuse to forget all but the first ``length`` positions where that cannot be done (``InputError``)."""

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; their room is used again."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget everything; buffers of one size stay."""
        raise NotImplementedError

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace what is kept by a function of it that changes the batch alone, such as a reordering."""
        raise NotImplementedError

    def spread(self, offsets: Sequence[int]) -> LayerCache:
        """What a row for each offset keeps: what this one's only row does, so many positions further right.

        Raises:
            InputError: rows would begin at different places, and the kind does not tell positions apart.
        """
        if any(offsets):
            message = f"a cache of one row with {self.name} serves rows of one length, but some are shorter."
            raise InputError(message, hint="Pass rows of one length, or each row alone with a copy of the cache.")
        twin = copy.deepcopy(self)
        twin.change(lambda kept: kept.repeat_interleave(len(offsets), dim=0))
        return twin

    def tensors(self) -> list[Tensor | None]:
        """All tensors, for graphs that take caches apart."""
        raise NotImplementedError

    def form(self) -> Any:
        """What of plain values is needed to put the tensors together again."""
        raise NotImplementedError

    def fill(self, tensors: Iterator[Any], form: Any) -> None:
        """Take back what ``tensors`` and ``form`` gave, while empty."""
        raise NotImplementedError


class Several(LayerCache):
    """What a layer keeps that has parts of several kinds, such as attention beside a recurrence, or of none."""

    def __init__(self, parts: Iterable[LayerCache]) -> None:
        self._parts = tuple(parts)

    @property
    def parts(self) -> tuple[LayerCache, ...]:
        return self._parts

    @property
    def length(self) -> int:
        return self._parts[0].length if self._parts else 0

    @property
    def rows(self) -> int:
        return max((part.rows for part in self._parts), default=0)

    @property
    def shape(self) -> tuple[int, ...] | None:
        return next((part.shape for part in self._parts if part.shape is not None), None)

    @property
    def pair(self) -> Pair | None:
        return next((part.pair for part in self._parts if part.pair is not None), None)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        for part in self._parts:
            part.change(function)

    def spread(self, offsets: Sequence[int]) -> LayerCache:
        return Several(part.spread(offsets) for part in self._parts)


class States(LayerCache):
    """States of one size, by name, that sum up all positions: those of a recurrence, or the last inputs of a convolution.

    They are (B, ...) each, and zeros before anything was read. What they sum up cannot be taken back.
    """

    name = "states"
    can_crop = False

    def __init__(self) -> None:
        self.held = 0
        self.states: dict[str, Tensor] = {}

    @property
    def rows(self) -> int:
        return next((state.shape[0] for state in self.states.values()), 0)

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states.values())

    def nbytes_at(self, positions: int) -> int:
        return self.nbytes

    def get(self, name: str) -> Tensor | None:
        """The state of that name, ``None`` before anything was read."""
        return self.states.get(name)

    def keep(self, positions: int, **states: Tensor) -> None:
        """Replace states by those behind so many ``positions`` more."""
        self.states.update(states)
        self.held += positions

    def check_crop(self, length: int) -> None:
        if length < self.length:
            message = f"{self.name} cannot be taken back from {self.length} to {length} positions: they sum up all of them."
            hint = "Copy the cache before what may have to be forgotten, or reset() it and read again from the beginning."
            raise InputError(message, hint=hint)

    def crop(self, length: int) -> None:
        self.check_crop(length)

    def reset(self) -> None:
        self.held = 0
        self.states = {}

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        self.states = {name: function(state) for name, state in self.states.items()}

    def tensors(self) -> list[Tensor | None]:
        return list(self.states.values())

    def form(self) -> Any:
        return tuple(self.states), self.length

    def fill(self, tensors: Iterator[Any], form: Any) -> None:
        names, length = form
        if states := {name: next(tensors) for name in names}:
            self.keep(length, **states)


class KeyValues(LayerCache):
    """The keys and values of one attention layer, or nothing yet.

    What is given first is kept as it is and never written to, since it belongs to the caller. Later positions go into
    buffers of our own, but not while gradients are recorded or a graph is traced: then each step makes new tensors.
    """

    name = "keys and values"
    extends: ClassVar[bool] = True  # whether room for later positions can be given away

    def __init__(self) -> None:
        self.held = self.dropped = 0
        self.buffers: Pair | None = None
        self.owned = False

    @property
    def pair(self) -> Pair | None:
        """As in every kind; views that hold until the cache changes."""
        return None if self.buffers is None else (self.buffers[0][:, :, : self.held], self.buffers[1][:, :, : self.held])

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._shape(self.held)

    def _shape(self, positions: int) -> tuple[int, ...] | None:
        return None if self.buffers is None else (*self.buffers[0].shape[:2], positions, self.buffers[0].shape[3])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.buffers or ())

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        """Add (B, H, T, D) new positions; return all that the new ones may look at.

        A query sees ``window`` positions, itself included, or all before it; some kinds of caches drop the others.
        """
        if self.buffers is None:
            self.buffers, self.held = (keys, values), keys.shape[2]
            return keys, values
        self._check(keys, values)
        old, held, end = self.buffers, self.held, self.held + keys.shape[2]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_frozen(old[0]):
            found = torch.cat([old[0][:, :, :held], keys], dim=2), torch.cat([old[1][:, :, :held], values], dim=2)
            self.owned = False
        else:
            found = self._extended(old[0], keys, end), self._extended(old[1], values, end)
            self.owned = True
        self.buffers, self.held = found, end
        return found[0][:, :, :end], found[1][:, :, :end]

    def can_extend(self) -> bool:
        """Whether :meth:`extend` can be called."""
        return self.extends and (self.buffers is None or not _is_frozen(self.buffers[0]))

    def extend(self, positions: int, like: Tensor) -> tuple[int, Pair]:
        """Count so many positions more, which the caller writes to the buffers (B, H, room, D) from the place that is given.

        Where there are no buffers yet, they are made like (B, H, 0, D) numbers.
        """
        if self.buffers is None:
            self.buffers, self.owned = (like, like), False
        self._check(like, like)
        place, end = self.held, self.held + positions
        if end > self.buffers[0].shape[2] or not self.owned:
            grown = [self._grown(buffer, end) for buffer in self.buffers]
            self.buffers, self.owned = (grown[0], grown[1]), True
        self.held = end
        return place, self.buffers

    def _check(self, *given: Tensor) -> None:
        for name, old, new in zip(("keys", "values"), self.buffers or (), given):
            if (old.shape[:2], old.shape[3], old.dtype, old.device) != (new.shape[:2], new.shape[3], new.dtype, new.device):
                held = (*old.shape[:2], self.held, old.shape[3])
                found = f"{name} of (batch, heads, positions, head size) = {held}, {old.dtype} on {old.device}"
                news = f"the new ones are {tuple(new.shape)}, {new.dtype} on {new.device}"
                raise InputError(f"the cache holds {found}, but {news}.", hint=OWNER)

    def _extended(self, buffer: Tensor, new: Tensor, end: int) -> Tensor:
        if end > buffer.shape[2] or not self.owned:
            buffer = self._grown(buffer, end)
        buffer[:, :, self.held : end] = new
        return buffer

    def _grown(self, buffer: Tensor, end: int) -> Tensor:
        """A copy with room for so many positions."""
        grown = self._empty(buffer, self._size(end))
        grown[:, :, : self.held] = buffer[:, :, : self.held]
        return grown

    def _size(self, end: int) -> int:
        """How many positions a buffer is made for that has to hold so many."""
        return max(end, self.held + max(self.held // 2, GROWTH))

    def _empty(self, like: Tensor, size: int) -> Tensor:
        return like.new_empty((*like.shape[:2], size, like.shape[3]))

    def crop(self, length: int) -> None:
        self.held = min(self.held, length)

    def reset(self) -> None:
        self.held = self.dropped = 0
        self.buffers = None

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        if (pair := self.pair) is not None:
            self.buffers, self.owned = (function(pair[0]), function(pair[1])), False

    def spread(self, offsets: Sequence[int]) -> LayerCache:
        def moved(states: Tensor) -> Tensor:
            found = states.new_zeros((len(offsets), *states.shape[1:]))
            for row, offset in zip(found, offsets, strict=True):
                row[:, offset:] = states[0, :, : max(states.shape[2] - offset, 0)]
            return found

        twin = KeyValues()
        if (pair := self.pair) is not None:
            twin.append(moved(pair[0]), moved(pair[1]))
        return twin

    def tensors(self) -> list[Tensor | None]:
        return list(self.pair or (None, None))

    def form(self) -> Any:
        return self.dropped

    def fill(self, tensors: Iterator[Any], form: Any) -> None:
        keys, values = next(tensors), next(tensors)
        if keys is not None:
            self.append(keys, values)
        self.dropped = form


def _is_frozen(made: Tensor) -> bool:
    # What inference mode has made cannot be written to outside of it.
    return made.is_inference() and not torch.is_inference_mode_enabled()


class SlidingKeyValues(KeyValues):
    """The keys and values of one layer: where it has a window, of those positions only that a later query may look at."""

    extends = False

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        """As in every kind, but of the earlier positions those alone are returned that are near enough to the first new one."""
        keys, values, new = *super().append(keys, values), keys.shape[2]
        if window is None:
            return keys, values
        keep, seen = window - 1, min(window - 1 + new, self.held)
        if (start := self.held - keep) > window // 4 and (pair := self.pair) is not None:  # not at every step, since it copies
            self.buffers = pair[0][:, :, start:].clone(), pair[1][:, :, start:].clone()
            self.owned, self.held, self.dropped = False, keep, self.dropped + start
        return keys[:, :, -seen:], values[:, :, -seen:]

    def check_crop(self, length: int) -> None:
        """Refused where earlier positions were dropped, which would be in sight."""
        if length < self.length and self.dropped:
            hint = "Use a DynamicCache, or copy the cache before what may have to be forgotten."
            reason = f"it has dropped the first {self.dropped}, which the window would reach again"
            raise InputError(f"the cache cannot be cropped from {self.length} to {length} positions: {reason}.", hint=hint)
