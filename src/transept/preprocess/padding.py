"""How long the rows of a batch become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transept.errors import InputError, InputTypeError

# How many values padding may add to a batch of hardly any; a batch of N values may grow by 1,000 N more.
MAX_FILL = 2**25


def check_fill(sizes: Sequence[int], length: int) -> None:
    """Raise ``InputError`` where padding rows of these sizes to one length would take memory out of all proportion."""
    held = sum(sizes)
    added = length * len(sizes) - held
    if added > MAX_FILL + 1000 * held:
        hint = "Pass a smaller max_length or pad_to_multiple_of, or padding=True for the longest row's length."
        raise InputError(f"padding {len(sizes)} rows to a length of {length} adds {added} values to {held}.", hint=hint)


def pads(padding: bool | str | None) -> bool:
    """Whether rows are padded: ``True`` or ``"longest"``, ``"max_length"``; not for ``False`` or ``"do_not_pad"``."""
    if padding not in (True, False, None, "longest", "max_length", "do_not_pad"):
        raise InputError(f"padding is {padding!r}.", hint='Pass True, "longest", "max_length" or False.')
    return padding not in (False, None, "do_not_pad")


def row_lengths(
    sizes: Sequence[int], padding: bool | str | None, max_length: int | None, truncation: bool | None, multiple: int | None
) -> list[tuple[int, int]]:
    """For rows of these sizes, how much of each is kept and how long it becomes.

    ``max_length`` is what ``"max_length"`` pads to and ``truncation`` cuts to; these lengths are rounded up to a multiple.
    ``InputError``: an unknown name, a length that is not positive, or no ``max_length`` where it is needed.
    """
    given: dict[str, Any] = {"max_length": max_length, "pad_to_multiple_of": multiple}
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{name} must be a positive integer, but is {value!r}.")
    if max_length is None and (truncation or padding == "max_length"):
        raise InputError(f"{'truncation' if truncation else 'padding to max_length'} needs max_length, which is not given.")
    step = multiple or 1
    limit = -(-(max_length or 0) // step) * step
    kept = [min(size, limit) for size in sizes] if truncation else list(sizes)
    if not pads(padding):
        return [(size, size) for size in kept]
    target = limit if padding == "max_length" else -(-max(kept, default=0) // step) * step
    check_fill(kept, target)
    return [(size, max(size, target)) for size in kept]


def columns_of(examples: Any, main: str) -> dict[str, Any]:
    """A batch as columns by name, from such a mapping or from a list of mappings, one an example (``InputError``: no main)."""
    if isinstance(examples, list | tuple) and all(isinstance(example, Mapping) for example in examples):
        names = dict.fromkeys(name for example in examples for name in example)
        for place, example in enumerate(examples):
            if lacking := names.keys() - example.keys():
                raise InputError(f"encoding {place} lacks {min(lacking)!r}, which others have.")
        examples = {name: [example[name] for example in examples] for name in names}
    if not isinstance(examples, Mapping):
        raise InputTypeError(f"{type(examples).__name__} cannot be padded.", hint="Pass a mapping or a list of mappings.")
    if main not in examples:
        hint = f"Pass examples by name: here is no {main!r} to pad by."
        raise InputError(f"the batch has no {main!r}, only {sorted(examples)}.", hint=hint)
    return dict(examples)


def check_sizes(columns: Mapping[str, Any]) -> None:
    """Raise ``InputError`` where columns have different numbers of rows."""
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the batch has columns of different lengths: {sizes}.")
