"""Checkpoints whose weights are stored in few bits: read as if they held plain weights, which are unpacked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.layouts import Layout, Parts
from transept.checkpoint.methods import METHODS
from transept.checkpoint.names import Names
from transept.checkpoint.store import PickleStore, Stored, TensorStore
from transept.errors import FormatError, TranseptError, UnsupportedError
from transept.quantized.weights import GroupedWeight

T = TypeVar("T")


class QuantizedStore(Mapping[str, Tensor]):
    """The tensors of a checkpoint, with plain weights in the place of what they are stored as.

    A weight is unpacked when it is asked for by :meth:`passing`; before, a tensor without memory tells type and shape.
    """

    def __init__(self, store: TensorStore | PickleStore, layout: Layout) -> None:
        self.store, self.layout, self.files = store, layout, store.files
        self._groups = {name: parts for name, parts in layout.groups(store).items() if _is_packed(store, parts)}
        hidden = {stored for parts in self._groups.values() for stored in parts.values()}
        self._plain = [name for name in store if name not in hidden]

    def names(self, model: Any) -> Names:
        """The names of a model's tensors in the files."""
        return self.store.names(model)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._groups:
            return self.store[name]
        parts = {end: self.store[stored] for end, stored in self._groups[name].items()}
        return self._guarded(name, lambda: torch.empty(self.layout.shape(parts), dtype=_type_of(parts), device="meta"))

    def passing(self, name: str) -> Tensor:
        """The weight, unpacked, or a tensor that is stored as it is; ``FormatError`` where its parts do not fit together."""
        if name not in self._groups:
            return self.store.passing(name)
        parts = {end: self.store.passing(stored) for end, stored in self._groups[name].items()}
        weight = self._guarded(name, lambda: self.layout.unpack(parts))
        if weight.shape != self[name].shape:
            raise self._wrong(name, f"gives {tuple(weight.shape)}")
        return weight

    def grouped(self, name: str, expert: int | None = None) -> GroupedWeight | None:
        """The weight, or that of one of several experts, in its bits, where there are products by such; ``None`` for others."""
        if name not in self._groups:
            return None
        parts = {end: self.store.passing(stored) for end, stored in self._groups[name].items()}
        if expert is not None:
            parts = {end: part[expert : expert + 1] for end, part in parts.items()}
        return self._guarded(name, lambda: self.layout.group(parts))

    def reading_order(self, names: Iterable[str]) -> list[str]:
        """Names in the order of the files."""
        first = {name: next(iter(parts.values())) for name, parts in self._groups.items()}
        back = {first.get(name, name): name for name in names}
        return [back[stored] for stored in self.store.reading_order(back)]

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._groups

    def __len__(self) -> int:
        return len(self._plain) + len(self._groups)

    def _guarded(self, name: str, make: Callable[[], T]) -> T:
        try:
            return make()
        except (RuntimeError, IndexError, KeyError, ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
            raise self._wrong(name, " ".join(str(error).split())[:200]) from error

    def _wrong(self, name: str, why: str) -> FormatError:
        sizes = {end.lstrip("._"): (*self.store[stored].shape,) for end, stored in self._groups[name].items()}
        return FormatError(f"holds {name[:200]!r} as {sizes}, which cannot be unpacked ({why}).", path=self.files[0].parent)


def _is_packed(store: Mapping[str, Tensor], parts: Mapping[str, str]) -> bool:
    """Whether one of the parts holds what no plain weight does."""
    return any(store[name].dtype.itemsize == 1 or not store[name].is_floating_point() for name in parts.values())


def _type_of(parts: Parts) -> torch.dtype:
    """The type of an unpacked weight: that of its scales."""
    wide = (part.dtype for part in parts.values() if part.is_floating_point() and part.dtype.itemsize > 1)
    return next(wide, torch.float32)


Store = Stored | QuantizedStore


def unpacked(store: Stored, settings: Any) -> Store:
    """A store of plain weights, where a ``quantization_config`` says that they are stored in few bits.

    Raises:
        UnsupportedError: the method is not one that is read.
        FormatError: the settings are none.
    """
    if settings is None or isinstance(store, GGUFStore):
        return store
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if method is None and isinstance(settings, Mapping) and ("load_in_4bit" in settings or "load_in_8bit" in settings):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in METHODS:
        hint = f"Those that are read: {', '.join(METHODS)}. Load the weights that it was made of, or save it unpacked."
        raise UnsupportedError(
            f"is quantised by {str(method)[:60]!r}, which is not read.", path=str(store.files[0].parent), hint=hint
        )
    try:
        layout = METHODS[method](settings)
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, TranseptError):
            raise
        raise FormatError(f"`quantization_config` cannot be {str(settings)[:200]!r}.", path=store.files[0].parent) from error
    return QuantizedStore(store, layout)
