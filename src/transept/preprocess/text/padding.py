"""What ``padding``, ``truncation`` and ``max_length`` of a call mean, and the padding itself, of encoded rows too."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.preprocess.features import check_tensor_type
from transept.preprocess.padding import check_fill
from transept.preprocess.text.backend import Truncation
from transept.preprocess.text.encoding import BatchEncoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_LIMIT = int(1e30)
"""What the ecosystem's files write for a model that takes any length."""
_UNLIMITED = int(1e20)
PADDINGS = {False: None, None: None, "do_not_pad": None, True: "longest", "longest": "longest", "max_length": "max_length"}
TRUNCATIONS = {False: None, None: None, "do_not_truncate": None, True: "longest_first"} | {
    name: name for name in ("longest_first", "only_first", "only_second")
}
SIDES = ("right", "left")


@dataclass(frozen=True)
class Padding:
    """How rows of ids get one length.

    Args:
        length: the least length of a row; ``None`` for that of the longest.
        multiple: lengths are rounded up to a multiple of it.
        side: where the padding goes, ``right`` or ``left``.
    """

    length: int | None = None
    multiple: int | None = None
    side: str = "right"

    def width(self, lengths: Sequence[int]) -> int:
        """The length that rows shorter than it get."""
        width = max(lengths, default=0) if self.length is None else self.length
        return width if not self.multiple else -(-width // self.multiple) * self.multiple


def resolve(
    padding: bool | str | None,
    truncation: bool | str | None,
    max_length: int | None,
    *,
    stride: int = 0,
    pad_to_multiple_of: int | None = None,
    padding_side: str = "right",
    truncation_side: str = "right",
    model_max_length: int = NO_LIMIT,
    verbose: bool = True,
) -> tuple[Padding | None, Truncation | None]:
    """The padding and the truncation that a call's arguments ask for, by the rules of the ecosystem.

    ``max_length`` alone truncates; where it is absent, the model's own limit takes its place, and where that is absent
    too, nothing is done.

    Raises:
        InputError: an unknown name, a number out of range, or two that exclude each other.
    """
    _check_numbers(max_length=max_length, stride=stride, pad_to_multiple_of=pad_to_multiple_of)
    pad = _choice("padding", _value(padding), PADDINGS)
    cut = _choice("truncation", _value(truncation), TRUNCATIONS)
    if padding_side not in SIDES:
        raise InputError(f"padding_side is {padding_side!r}.", hint='Pass "right" or "left".')
    if max_length is not None and truncation is None and not padding:
        cut = "longest_first"
    if max_length is not None and pad == "longest" and cut is None and padding is True and verbose:
        warnings.warn(
            "max_length is ignored with padding=True and no truncation; padding='max_length' pads to it.",
            TranseptWarning,
            stacklevel=4,
        )
    if max_length is None and model_max_length <= _UNLIMITED:
        max_length = model_max_length
    if max_length is None:
        pad, cut = (None if pad == "max_length" else pad), None
    if cut and pad and pad_to_multiple_of and max_length is not None and max_length % pad_to_multiple_of:
        raise InputError(f"max_length {max_length} is no multiple of pad_to_multiple_of {pad_to_multiple_of}.")
    rows = Padding(max_length if pad == "max_length" else None, pad_to_multiple_of, padding_side) if pad else None
    if cut is None or max_length is None:
        return rows, None
    return rows, Truncation(max_length, stride, cut, truncation_side)


def _value(value: Any) -> Any:
    """The reference's enumerations say the same as their values."""
    return getattr(value, "value", value)


def _choice(name: str, value: Any, known: dict[Any, str | None]) -> str | None:
    try:
        return known[value]
    except (KeyError, TypeError):
        names = ", ".join(repr(key) for key in known if key is not None)
        raise InputError(f"{name} is {value!r}.", hint=f"It can be {names}.") from None


def _check_numbers(**numbers: int | None) -> None:
    least = {"max_length": 0, "stride": 0, "pad_to_multiple_of": 1}
    for name, value in numbers.items():
        wrong = not isinstance(value, int) or isinstance(value, bool) or value < least[name]
        if value is not None and (wrong or value > _UNLIMITED):
            raise InputError(f"{name} is {value!r}, but must be an integer from {least[name]} on.")


def pad_rows(rows: Sequence[list[Any]], width: int, value: Any, side: str) -> list[list[Any]]:
    """Rows as lists that are at least ``width`` long."""
    if side == "left":
        return [[value] * (width - len(row)) + row for row in rows]
    return [row + [value] * (width - len(row)) for row in rows]


def pad_array(rows: Sequence[list[int]], width: int, value: int, side: str) -> NDArray[np.int64]:
    """Rows of integers, none longer than ``width``, as an array (N, T) of int64."""
    import numpy as np

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    places = np.arange(width)
    filled = places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]
    array = np.full((len(rows), width), value, np.int64)
    array[filled] = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return array


@dataclass(frozen=True)
class Fill:
    """What padding is made of: the values of each column, and the text of the padding token."""

    values: dict[str, Any]
    token: str

    @classmethod
    def of(cls, pad_id: int, pad_type_id: int, token: str) -> Fill:
        """The padding of a tokenizer."""
        values = {"input_ids": pad_id, "token_type_ids": pad_type_id, "attention_mask": 0, "special_tokens_mask": 1}
        return cls(values | {"offset_mapping": (0, 0)}, token)


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
