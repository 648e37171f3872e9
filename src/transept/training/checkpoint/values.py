"""Plain values as JSON, with the tensors among them beside it: what pickle is used for elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from transept.checkpoint.store import TensorStore, write_tensors
from transept.errors import CheckpointError, FormatError, InputTypeError
from transept.files import PathName, dump_json, load_json, write_text
from transept.schema import kind_of, typed

# An object with one of these keys alone stands for what JSON does not have.
_TAGS = ("tensor", "tuple", "float", "pairs", "counter")
# The ``state_dict()`` of a schedule, a scaler or their like, with the name of its class.
_STATE: Any = {"class": str, "state": dict[str, Any]}


def pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors are put into ``tensors`` under names that begin with ``place``.

    Raises:
        InputTypeError: a value that is no number, text, tensor, list, tuple or mapping of such.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case np.generic():
            return pack(value.item(), place, tensors)
        case Tensor():
            tensors[place] = value.detach()
            return {"tensor": place}
        case list() | tuple():
            items = [pack(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        case Mapping():
            if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)) in _TAGS):
                return {key: pack(item, f"{place}.{key}", tensors) for key, item in value.items()}
            pairs = [[pack(key, place, tensors), pack(item, f"{place}.{key}", tensors)] for key, item in value.items()]
            return {"counter" if isinstance(value, Counter) else "pairs": pairs}
    raise InputTypeError(
        f"{place} is {type(value).__name__}, which a checkpoint cannot hold.",
        hint="Checkpoints hold numbers, texts, tensors, and lists and dictionaries of them.",
    )


def unpack(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value of what :func:`pack` gave (``FormatError``: it did not give that)."""
    match document:
        case list():
            return [unpack(item, tensors) for item in document]
        case dict() if len(document) == 1 and (tag := next(iter(document))) in _TAGS:
            return _tagged(tag, document[tag], tensors)
        case dict():
            return {key: unpack(item, tensors) for key, item in document.items()}
    return document


def _tagged(tag: str, inner: Any, tensors: Mapping[str, Tensor]) -> Any:
    try:
        if tag == "tensor":
            return tensors[inner].clone()
        if tag == "float":
            return float(inner)
        if tag == "tuple":
            return tuple(unpack(list(inner), tensors))
        pairs = {unpack(key, tensors): unpack(item, tensors) for key, item in inner}
        return Counter(pairs) if tag == "counter" else pairs
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"holds the {tag} {str(inner)[:80]!r}, which is none.") from error


def write_values(folder: Path, name: str, value: Any) -> list[Path]:
    """Write plain values and the tensors among them as ``NAME.json`` and ``NAME.safetensors``; gives the latter."""
    tensors: dict[str, Tensor] = {}
    write_text(folder / f"{name}.json", dump_json(pack(value, name, tensors)))
    if not tensors:
        return []
    write_tensors(tensors, path := folder / f"{name}.safetensors")
    return [path]


def read_values(path: PathName) -> Any:
    """The values that :func:`write_values` wrote to ``NAME.json`` and beside it (``FormatError``: it did not write that)."""
    return unpack(load_json(path), tensors_beside(Path(path)))


def tensors_beside(path: Path) -> Mapping[str, Tensor]:
    """The tensors of ``NAME.safetensors`` beside ``NAME.json``, if there are any."""
    stored = path.with_suffix(".safetensors")
    return TensorStore([stored]) if stored.exists() else {}


def save_state(owner: Any, place: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state of a schedule, a scaler or their like as JSON."""
    return {"class": type(owner).__name__, "state": pack(owner.state_dict(), place, tensors)}


def load_state(owner: Any, document: Any, tensors: Mapping[str, Tensor]) -> None:
    """Put what :func:`save_state` gave into an object of the same class.

    Raises:
        CheckpointError: the state of another class, or with entries that this class has not.
        FormatError: a document that :func:`save_state` did not give.
    """
    saved, own = typed(document, _STATE), type(owner).__name__
    if saved["class"] != own:
        raise CheckpointError(f"holds the state of {saved['class'][:80]}, but this run has {own}.")
    state, current = unpack(saved["state"], tensors), owner.state_dict()
    if not isinstance(state, dict):
        raise FormatError(f"holds no state of {own}.")
    if unknown := sorted(state.keys() - current.keys()):
        raise CheckpointError(f"holds {unknown[:5]}, which {own} has not.")
    owner.load_state_dict(typed(state, kind_of(current, lengths=True)))
