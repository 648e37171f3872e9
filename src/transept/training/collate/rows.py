"""What collators share: rows that are checked one by one, tensors made of them, and padding.

Rows are mappings by name; their values are numbers, lists, arrays or tensors. Every error names the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError, refuse
from transept.objectives.classification import IGNORED

Row = dict[str, Any]
NO_TENSOR = (ValueError, TypeError, RuntimeError, OverflowError)  # what PyTorch raises
PER_TOKEN = {"attention_mask", "token_type_ids", "special_tokens_mask"}  # columns that tokenizers pad


class Collator:
    """A callable that makes a batch of rows: tensors, or arrays with ``return_tensors="np"``.

    Collators describe their own arguments; these have the same meaning in all that take them:

    Args:
        tokenizer: what encodes and pads: a tokenizer, or another object with its ``pad``.
        padding: ``True`` or ``longest``, ``max_length``, or ``False``.
        max_length: the length for ``max_length``; the tokenizer's own when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`DrawingCollator`.

    Raises:
        InputError: arguments that do not fit each other or the tokenizer.
    """

    tokenizer: Any
    pad_to_multiple_of: int | None
    return_tensors: str

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        """Rows -> batch (``InputError``: a row that does not fit, by its number)."""
        return of_kind(self.collate(features), return_tensors or self.return_tensors)

    def collate(self, features: Any) -> Any:
        raise NotImplementedError

    def pad(self, rows: Sequence[Row], padding: bool | str = True, max_length: int | None = None) -> Any:
        """The rows, padded by the tokenizer's own rules, as a batch of tensors."""
        # Arrays and tensors of floats, such as waves, would take long as lists.
        plain = [{key: value if _has_floats(value) else listed(value) for key, value in row.items()} for row in rows]
        main = str(self.tokenizer.model_input_names[0])
        refuse(main not in plain[0], f"row 0 lacks {main!r}.", hint=f"It has: {', '.join(map(str, plain[0]))}.")
        for number, row in enumerate(plain):
            for name in PER_TOKEN & row.keys():
                size = len(row[name]) if isinstance(row[name], list | tuple) else repr(row[name])[:40]
                wrong = size != len(row[main])
                refuse(wrong, f"row {number}: `{name}` has the length {size}, but `{main}` has {len(row[main])}.")
        step = self.pad_to_multiple_of
        batch = self.tokenizer.pad(plain, padding=padding, max_length=max_length, pad_to_multiple_of=step)
        for name in list(batch):
            batch[name] = stacked(name, batch[name])
        return batch

    def check_shares(self, *names: str) -> None:
        for name in names:
            share = getattr(self, name)
            wrong = not isinstance(share, int | float) or not 0 <= share <= 1
            refuse(wrong, f"`{name}` must be from 0 to 1, but is {share!r}.")


class DrawingCollator(Collator):
    """A collator that draws random numbers: from ``generator``, from one that ``seed`` begins, or from PyTorch's own.

    With ``seed``, another generator is begun in each worker of a loader. A trainer's loader begins it anew for each
    batch, by ``seed`` and the place of the batch, so that draws depend neither on workers nor on earlier batches.
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


def of_kind(batch: Any, return_tensors: str) -> Any:
    """A batch of tensors as such (``pt``), or as arrays (``np``)."""
    if return_tensors not in ("pt", "np"):
        raise InputError(f"`return_tensors` is {return_tensors!r}.", hint="Pass 'pt' or 'np'.")
    for name in list(batch) if return_tensors == "np" else ():
        batch[name] = batch[name].numpy() if isinstance(batch[name], Tensor) else batch[name]
    return batch


def checked_rows(features: Any, *needed: str) -> list[Row]:
    """Rows as mappings of the same names, which have ``needed`` among them (``InputError``: rows that are not)."""
    if isinstance(features, str | bytes | Mapping) or not isinstance(features, Sequence):
        raise InputTypeError(f"a collator takes a list of rows, but got {type(features).__name__}.")
    refuse(not len(features), "there are no rows to make a batch of.")
    for number, row in enumerate(features):
        if not isinstance(row, Mapping):
            message = f"row {number} is no mapping, but {type(row).__name__}: {str(row)[:60]!r}."
            raise InputTypeError(message, hint="A row has values by name, such as {'input_ids': [1, 2]}.")
    rows = [dict(row) for row in features]
    for number, row in enumerate(rows):
        if lacking := [name for name in (*needed, *rows[0]) if name not in row]:
            raise InputError(f"row {number} lacks {lacking[0]!r}.", hint=f"It has: {', '.join(map(str, row))}.")
        if more := [name for name in row if name not in rows[0]]:
            raise InputError(f"row {number} has {more[0]!r}, which row 0 lacks.")
    return rows


def token_rows(features: Any) -> list[Row]:
    """Rows that have ``input_ids``; the ids of a row alone are one too."""
    bare = len(features) > 0 and not isinstance(features[0], Mapping)
    return checked_rows([{"input_ids": row} for row in features] if bare else features, "input_ids")


def token_ids(rows: Sequence[Row], name: str = "input_ids") -> list[list[int]]:
    """The ids of rows as lists (``InputError``: what is no list of integers)."""
    columns = [listed(row[name]) for row in rows]
    for number, ids in enumerate(columns):
        is_list = isinstance(ids, list | tuple)
        if not is_list or not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
            message = f"row {number}: `{name}` must be a list of integers, but is {str(ids)[:60]!r}."
            raise InputError(message, hint="Turn texts into ids first: tokenizer(text).")
    return list(map(list, columns))


def listed(value: Any) -> Any:  # arrays and tensors as lists or numbers
    return value.tolist() if hasattr(value, "tolist") else value


def stacked(name: str, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    """One tensor of a value for each row (``InputError``: values that are no numbers, or of different shapes)."""
    arrays = isinstance(values[0], Tensor | np.ndarray)
    if not arrays:
        with suppress(*NO_TENSOR):  # below it is found which row is wrong
            return torch.tensor([listed(value) for value in values], dtype=dtype)
    tensors: list[Tensor] = []
    for number, value in enumerate(values):
        if arrays and not isinstance(value, Tensor | np.ndarray):
            raise InputTypeError(f"row {number}: `{name}` is {type(value).__name__}, but that of row 0 is a tensor.")
        try:
            tensors.append(torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value))
        except NO_TENSOR as error:
            raise InputError(f"row {number}: `{name}` holds no numbers of one shape: {str(value)[:60]!r}.") from error
        shape, first = tuple(tensors[-1].shape), tuple(tensors[0].shape)
        if shape != first:
            message = f"row {number}: `{name}` has the shape {shape}, but that of row 0 has {first}."
            raise InputError(message, hint="Collators with padding bring rows of tokens to one length.")
    whole = torch.stack(tensors)
    return whole if dtype is None else whole.to(dtype)


def filled(
    name: str, values: Any, length: int | None = None, *, side: str = "right", fill: float = IGNORED, step: int = 1
) -> Tensor:
    """Lists of numbers as one tensor (rows, length), with ``fill`` after them, or before them.

    Without ``length`` it is as long as the longest; the length becomes a multiple of ``step`` (``InputError``: a row
    that is longer, or no list of numbers).
    """
    lists = [listed(value) for value in values]
    for number, numbers in enumerate(lists):
        if not isinstance(numbers, list | tuple):
            raise InputError(f"row {number}: `{name}` must be a list with one for each place, but is {numbers!r}.")
    size = max(map(len, lists)) if length is None else length
    size = -(-size // step) * step
    for number, numbers in enumerate(lists):
        refuse(len(numbers) > size, f"row {number}: `{name}` has {len(numbers)} places, but there are {size}.")
    rests = [[fill] * (size - len(numbers)) for numbers in lists]
    rows = [[*numbers, *rest] if side == "right" else [*rest, *numbers] for numbers, rest in zip(lists, rests)]
    return stacked(name, rows, torch.int64 if isinstance(fill, int) else None)


def _has_floats(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
