"""What models of every kind accept, and how it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError


class Recorded(TypedDict, total=False):
    """What else a caller may ask to see; the config's settings when absent."""

    output_attentions: bool | None
    output_hidden_states: bool | None


class RecordOptions(Recorded, total=False):
    """What image and audio backbones accept beside their inputs; ``return_dict=False`` asks for a tuple."""

    return_dict: bool | None


INTEGERS = (torch.int64, torch.int32)
TOKENIZE = 'Turn text into ids first: tokenizer(text, return_tensors="pt").'


def check_tensor(name: str, given: Any, dtypes: Sequence[torch.dtype], axes: str, hint: str | None = None) -> None:
    """Require a dense tensor with values, of one of some types, with the axes that a text names, such as ``(batch, size)``.

    Raises:
        InputTypeError: no tensor, or one without values.
        InputError: another type or number of axes, or an axis of no length.
    """
    if not isinstance(given, Tensor):
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(given).__name__}: {str(given)[:60]!r}.", hint=hint)
    if given.layout != torch.strided:
        raise InputError(f"`{name}` must be a dense tensor, but is {given.layout}.", hint=f"Pass {name}.to_dense().")
    if given.dtype not in dtypes or given.ndim != axes.count(",") + 1:
        kinds = " or ".join(str(kind).removeprefix("torch.") for kind in dtypes)
        remedy = hint if given.ndim != axes.count(",") + 1 else f"Pass {name}.to({dtypes[0]})."
        raise InputError(f"`{name}` must be {axes} of {kinds}, but is {tuple(given.shape)} of {given.dtype}.", hint=remedy)
    if 0 in given.shape:
        raise InputError(f"`{name}` is empty: its shape is {tuple(given.shape)}.", hint="Leave empty batches and rows out.")


def check_by_position(name: str, given: Any, x: Tensor) -> None:
    """Require integers (1 or B, T), for embeddings (B, T, D).

    Raises:
        InputTypeError: no tensor of integers.
        InputError: another shape than the inputs'.
    """
    if not isinstance(given, Tensor) or given.dtype not in INTEGERS:
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise InputTypeError(f"`{name}` must be a tensor of integers, but is {kind}.")
    if given.ndim != 2 or given.shape[0] not in (1, x.shape[0]) or given.shape[1] != x.shape[1]:
        raise InputError(f"`{name}` has the shape {tuple(given.shape)}, but the inputs are {tuple(x.shape[:2])}.")


def check_range(name: str, values: Tensor, size: int, rule: str, hint: str) -> None:
    """Refuse numbers below 0 and from ``size`` on, where they can be looked at (``InputError``)."""
    if torch.compiler.is_compiling() or values.device.type != "cpu" or not values.numel():
        return  # reading values would break the graph or wait for the device
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = (values == wrong).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {wrong} at {place}, but {rule} {size - 1}.", hint=hint)


def check_finite(values: Tensor, name: str) -> None:
    """Refuse infinite values and those that are not numbers; skipped while compiling or exporting, and off the CPU.

    Raises:
        InputError: naming the place of the first one.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return
    if not (finite := values.isfinite()).all():
        place = (~finite).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {float(values[tuple(place)])} at {place}.", hint="Check the file it was read from.")
