"""Padding of what is encoded already: what a collator does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import check_tensor_type
from transept.preprocess.padding import check_fill
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.limits import Padding, pad_rows
from transept.preprocess.text.requests import Fill


def pad_batch(
    encoded: Any, main: str, padding: Padding | None, fill: Fill | None, mask: bool, tensors: str | None
) -> BatchEncoding:
    """Pad one encoding, a batch, or a list of encodings.

    Args:
        encoded: columns by name, or a list of such mappings.
        main: the column whose rows give the lengths.
        padding: how long rows become, or ``None``.
        fill: what the padding is made of; ``None`` where there is no padding.
        mask: whether to make an attention mask where there is none.
        tensors: ``pt``, ``np``, or ``None`` for the kind that was passed.

    Raises:
        InputError: no column ``main``, or columns of different lengths.
    """
    check_tensor_type(tensors)
    columns, kind = _columns(encoded, main)
    tensors = tensors or kind
    rows = columns[main]
    if not rows:
        return BatchEncoding(columns | ({"attention_mask": []} if mask else {}), tensor_type=tensors)
    single = not isinstance(rows[0], list | tuple)
    if single:
        columns = {name: [value] for name, value in columns.items()}
    sizes = {name: len(value) for name, value in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns have different numbers of rows: {sizes}.")
    lengths = [len(row) for row in columns[main]]
    if mask and "attention_mask" not in columns:
        columns["attention_mask"] = [[1] * length for length in lengths]
    if padding is not None and fill is not None:
        width = padding.width(lengths)
        check_fill(lengths, width)
        for name in columns.keys() & fill.values.keys() - {"offset_mapping"}:
            columns[name] = pad_rows([list(row) for row in columns[name]], width, fill.values[name], padding.side)
    if single:
        columns = {name: value[0] for name, value in columns.items()}
    return BatchEncoding(columns, tensor_type=tensors)


def _columns(encoded: Any, main: str) -> tuple[dict[str, Any], str | None]:
    """The columns as lists, and which kind of tensors they were."""
    if isinstance(encoded, list | tuple) and encoded and all(isinstance(one, Mapping) for one in encoded):
        names = dict.fromkeys(name for one in encoded for name in one)
        lacking = [(place, name) for place, one in enumerate(encoded) for name in names if name not in one]
        if lacking:
            raise InputError(f"encoding {lacking[0][0]} lacks {lacking[0][1]!r}, which others have.")
        encoded = {name: [one[name] for one in encoded] for name in names}
    if not isinstance(encoded, Mapping):
        raise InputTypeError(
            f"{type(encoded).__name__} cannot be padded.", hint="Pass encodings by name, or a list of such mappings."
        )
    if main not in encoded:
        raise InputError(f"there is no {main!r} to pad by, only {list(encoded)}.")
    kind = _kind(encoded[main])
    return {name: _plain(value) for name, value in encoded.items()}, kind


def _kind(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return _kind(value[0]) if value else None
    if not hasattr(value, "tolist"):
        return None
    return "pt" if type(value).__module__.startswith("torch") else "np"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) if not isinstance(one, int) else one for one in value]
    return value
