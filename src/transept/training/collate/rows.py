"""What collators share: rows that are checked one by one, tensors made of them, and padding.

Rows are mappings by name; their values are numbers, lists, arrays or tensors. Every error names the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError
from transept.objectives.classification import IGNORED

Row = dict[str, Any]
# Columns with something for each token, which tokenizers pad.
PER_TOKEN = {"attention_mask", "token_type_ids", "special_tokens_mask"}


def checked_rows(features: Any, *needed: str) -> list[Row]:
    """The rows as mappings of the same names, which have ``needed`` among them.

    Raises:
        InputError: there is no row, or a row lacks a name or has one that the first row has not.
        InputTypeError: a row is no mapping, or the rows are no sequence.
    """
    if isinstance(features, str | bytes | Mapping) or not isinstance(features, Sequence):
        raise InputTypeError(f"a collator takes a list of rows, but got {type(features).__name__}.")
    if not len(features):
        raise InputError("there are no rows to make a batch of.")
    rows = []
    for number, row in enumerate(features):
        if not isinstance(row, Mapping):
            hint = "A row has values by name, such as {'input_ids': [1, 2]}."
            raise InputTypeError(f"row {number} is no mapping, but {type(row).__name__}: {str(row)[:60]!r}.", hint=hint)
        rows.append(dict(row))
    for number, row in enumerate(rows):
        lacking = [name for name in (*needed, *rows[0]) if name not in row]
        more = [name for name in row if name not in rows[0]]
        if lacking:
            raise InputError(f"row {number} lacks {lacking[0]!r}.", hint=f"It has: {', '.join(map(str, row))}.")
        if more:
            raise InputError(f"row {number} has {more[0]!r}, which row 0 lacks.")
    return rows


def listed(value: Any) -> Any:
    """Arrays and tensors as lists or numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def ids_of(row: Mapping[str, Any], number: int, name: str = "input_ids") -> list[int]:
    """A row's ids as a list (``InputError``: what is no list of integers)."""
    ids = listed(row[name])
    ids = list(ids) if isinstance(ids, tuple) else ids
    if not isinstance(ids, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        what = f"row {number}: `{name}` must be a list of integers, but is {str(ids)[:60]!r}."
        raise InputError(what, hint="Turn texts into ids first: tokenizer(text).")
    return ids


def stacked(name: str, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    """One tensor of a value for each row (``InputError``: values that are no numbers, or of different shapes)."""
    if isinstance(values[0], np.ndarray):
        tensors = [
            torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value for value in values
        ]
    else:
        tensors = list(values)
    if isinstance(tensors[0], Tensor):
        for number, value in enumerate(tensors):
            if not isinstance(value, Tensor):
                raise InputTypeError(f"row {number}: `{name}` is {type(value).__name__}, but that of row 0 is a tensor.")
            if value.shape != tensors[0].shape:
                shapes = tuple(value.shape), tuple(tensors[0].shape)
                raise InputError("row {}: `{}` has the shape {}, but that of row 0 has {}.".format(number, name, *shapes))
        found = torch.stack(tensors)
        return found if dtype is None else found.to(dtype)
    try:
        return torch.tensor([listed(value) for value in values], dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise _bad_value(name, values) from error


def _bad_value(name: str, values: Sequence[Any]) -> InputError:
    """Which row's value does not fit with those before it."""
    shape: tuple[int, ...] | None = None
    for number, value in enumerate(values):
        try:
            own = tuple(torch.tensor(listed(value)).shape)
        except (ValueError, TypeError, RuntimeError, OverflowError):
            return InputError(f"row {number}: `{name}` holds no numbers of one shape: {str(value)[:60]!r}.")
        if shape is not None and own != shape:
            hint = "Collators with padding bring rows of tokens to one length."
            return InputError(f"row {number}: `{name}` has the shape {own}, but that of row 0 has {shape}.", hint=hint)
        shape = own
    return InputError(f"`{name}` cannot be made a tensor: {str(values)[:60]!r}.")


def padded(
    tokenizer: Any,
    rows: Sequence[Row],
    padding: bool | str = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
) -> Any:
    """The rows, padded by the tokenizer's own rules, as a batch of tensors.

    Raises:
        InputError: a row whose columns have different lengths, or rows that cannot be made tensors.
    """
    plain = [{name: value if _is_wave(value) else listed(value) for name, value in row.items()} for row in rows]
    main = _main_name(tokenizer, plain[0])
    for number, row in enumerate(plain):
        for name in PER_TOKEN & row.keys():
            if not isinstance(row[name], list | tuple) or len(row[name]) != len(row[main]):
                size = len(row[name]) if isinstance(row[name], list | tuple) else repr(row[name])[:40]
                raise InputError(f"row {number}: `{name}` has the length {size}, but `{main}` has {len(row[main])}.")
    batch = tokenizer.pad(plain, padding=padding, max_length=max_length, pad_to_multiple_of=pad_to_multiple_of)
    for name in list(batch):
        batch[name] = stacked(name, batch[name])
    return batch


def _is_wave(value: Any) -> bool:
    """Whether a value is an array or tensor of floats, which as a list would take long."""
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _main_name(tokenizer: Any, row: Row) -> str:
    """The name of the column that is padded."""
    name = str(tokenizer.model_input_names[0])
    if name not in row:
        raise InputError(f"row 0 lacks {name!r}.", hint=f"It has: {', '.join(map(str, row))}.")
    return name


def filled(
    name: str, values: Sequence[Sequence[Any]], length: int | None = None, *, side: str = "right", fill: float = IGNORED
) -> Tensor:
    """Lists of numbers as one tensor (rows, length), with ``fill`` after them, or before them; as long as the longest.

    Raises:
        InputError: a row that is longer than ``length``, or no list of numbers.
    """
    lists = [listed(value) for value in values]
    for number, value in enumerate(lists):
        if not isinstance(value, list | tuple):
            raise InputError(f"row {number}: `{name}` must be a list with one for each place, but is {value!r}.")
        if length is not None and len(value) > length:
            raise InputError(f"row {number}: `{name}` has {len(value)} places, but there are {length}.")
    length = max(map(len, lists)) if length is None else length
    rests = [[fill] * (length - len(value)) for value in lists]
    rows = [[*value, *rest] if side == "right" else [*rest, *value] for value, rest in zip(lists, rests)]
    return stacked(name, rows, torch.int64 if isinstance(fill, int) else None)


def multiple(length: int, of: int | None) -> int:
    """The next multiple of a number, where there is one."""
    return length if not of else -(-length // of) * of


def of_kind(batch: Any, return_tensors: str) -> Any:
    """A batch of tensors (``pt``) as such, or as arrays (``np``)."""
    if return_tensors not in ("pt", "np"):
        raise InputError(f"`return_tensors` is {return_tensors!r}.", hint="Pass 'pt' or 'np'.")
    for name in list(batch) if return_tensors == "np" else ():
        batch[name] = batch[name].numpy() if isinstance(batch[name], Tensor) else batch[name]
    return batch


class Collator:
    """A callable that makes a batch of rows: tensors, or arrays with ``return_tensors="np"``."""

    return_tensors: str

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        """Rows -> batch (``InputError``: a row that does not fit, by its number)."""
        return of_kind(self.collate(features), return_tensors or self.return_tensors)

    def collate(self, features: Any) -> Any:
        """The batch as tensors."""
        raise NotImplementedError


class DrawingCollator(Collator):
    """A collator that draws random numbers: from ``generator``, from one that ``seed`` begins, or from PyTorch's own.

    With ``seed``, another generator is begun in each worker of a loader. A trainer's loader begins it anew for each batch, by
    ``seed`` and the place of the batch, so that what is drawn depends neither on workers nor on what was read before.
    """

    seed: int | None
    generator: torch.Generator | None

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        if self.seed is not None and self.generator is None:
            worker = torch.utils.data.get_worker_info()
            self.generator = torch.Generator().manual_seed(self.seed + (0 if worker is None else worker.id))
        return super().__call__(features, return_tensors)

    def reseed(self, seed: int) -> None:
        """Draw from here on by the seed of a place, and the collator's own."""
        if self.seed is not None and self.generator is None:
            self.generator = torch.Generator()
        if self.generator is not None:  # otherwise numbers are PyTorch's own, which the loader seeds
            self.generator.manual_seed((seed + (self.seed or 0)) % 2**64)
