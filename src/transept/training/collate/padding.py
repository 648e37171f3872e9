"""Collators in which nothing is random: stacking, padding, pairs of texts, and rows laid end to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import Collator, Row, checked_rows, filled, listed, of_kind, stacked, token_ids

SCORES = ("label", "labels", "score")


def default_data_collator(features: Any, return_tensors: str = "pt") -> dict[str, Any]:
    """Rows of one shape -> a batch by name; ``label`` and ``label_ids`` become ``labels``, and texts are left out.

    Rows are mappings, or objects with attributes; ``return_tensors`` is ``pt`` or ``np``.

    Raises:
        InputError: a row that does not fit, by its number.
    """
    rows = checked_rows([row if isinstance(row, Mapping) else getattr(row, "__dict__", row) for row in features])
    batch: dict[str, Any] = {}
    label = next((name for name in ("label", "label_ids") if rows[0].get(name) is not None), None)
    if label is not None:
        batch["labels"] = labels_of(label, [row[label] for row in rows])
    for name, value in rows[0].items():
        if name not in ("label", "label_ids") and value is not None and not isinstance(value, str):
            batch[name] = stacked(name, [row[name] for row in rows])
    return of_kind(batch, return_tensors)  # type: ignore[no-any-return]


def labels_of(name: str, values: Sequence[Any]) -> Tensor:
    """Integers as int64 and other numbers as float32, whatever they came as."""
    labels = stacked(name, values)
    if isinstance(values[0], Tensor) and labels.ndim > 1:
        return labels
    return labels.to(torch.float32 if labels.is_floating_point() else torch.int64)


@dataclass
class DefaultDataCollator(Collator):
    """:func:`default_data_collator` as an object that keeps ``return_tensors``."""

    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        return default_data_collator(features)


class PaddingCollator(Collator):
    """A collator that pads rows, and labels apart from them."""

    padding: bool | str
    max_length: int | None

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features)
        name = "label" if "label" in rows[0] else "labels"
        labels = [row.pop(name, None) for row in rows]
        lacking = [number for number, label in enumerate(labels) if label is None]
        if 0 < len(lacking) < len(rows):
            raise InputError(f"row {lacking[0]}: `{name}` is None, but other rows have labels.")
        batch = self.pad_rows(rows)
        if not lacking:
            batch["labels"] = self.pad_labels(labels, rows, batch)
        return batch

    def pad_rows(self, rows: list[Row]) -> Any:
        return self.pad(rows, self.padding, self.max_length)

    def pad_labels(self, labels: list[Any], rows: list[Row], batch: Any) -> Tensor:
        """The labels of rows as a tensor that fits the batch of these rows."""
        raise NotImplementedError


@dataclass
class DataCollatorWithPadding(PaddingCollator):
    """Pads rows of tokens to the longest of the batch; ``label`` and ``label_ids`` become ``labels``."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        batch = self.pad_rows(checked_rows(features))
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification(PaddingCollator):
    """Pads rows of tokens, and with them the ``label`` or ``labels`` of each token, which become ``labels``.

    Args:
        label_pad_token_id: the label of padding.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    return_tensors: str = "pt"

    def pad_labels(self, labels: list[Any], rows: list[Row], batch: Any) -> Tensor:
        main = self.tokenizer.model_input_names[0]
        for number, (row, label) in enumerate(zip(rows, map(listed, labels))):
            is_list = isinstance(label, list | tuple)
            if not is_list or len(label) != len(row[main]):
                size = f"{len(label)} labels" if is_list else f"the label {label!r}"
                message = f"row {number} has {size} for {len(row[main])} tokens."
                raise InputError(message, hint="Give each token a label.")
        side = self.tokenizer.padding_side
        return filled("labels", labels, batch[main].shape[1], side=side, fill=self.label_pad_token_id)


@dataclass
class DataCollatorForSeq2Seq(PaddingCollator):
    """Pads rows of tokens, and their ``labels`` to a length of their own.

    Args:
        model: one whose ``prepare_decoder_input_ids_from_labels`` makes ``decoder_input_ids``, which a loss outside
            of the model needs.
        label_pad_token_id: the label of padding.
    """

    tokenizer: Any
    model: Any = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        batch = super().collate(features)
        if "labels" in batch and hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def pad_labels(self, labels: list[Any], rows: list[Row], batch: Any) -> Tensor:
        if self.padding in (False, "do_not_pad"):
            return stacked("labels", labels, torch.int64)
        length = (self.max_length or None) if self.padding == "max_length" else None
        side, fill = self.tokenizer.padding_side, self.label_pad_token_id
        return filled("labels", labels, length, side=side, fill=fill, step=self.pad_to_multiple_of or 1)


@dataclass
class DataCollatorForMultipleChoice(DataCollatorWithPadding):
    """Pads rows of several choices, all to one length: tensors (rows, choices, length), and ``labels`` (rows)."""

    def collate(self, features: Any) -> Any:
        return PaddingCollator.collate(self, features)

    def pad_rows(self, rows: list[Row]) -> Any:
        main = self.tokenizer.model_input_names[0]
        choices = len(checked_rows(rows, main)[0][main])
        for number, row in enumerate(rows):
            for name, values in row.items():
                size = len(values) if hasattr(values, "__len__") else None
                if size != choices:
                    content = repr(values) if size is None else f"{size} choices"
                    raise InputError(f"row {number}: `{name}` has {content}, but row 0 has {choices} choices.")
        flat = [{name: values[i] for name, values in row.items()} for row in rows for i in range(choices)]
        return {name: value.view(len(rows), choices, -1) for name, value in super().pad_rows(flat).items()}

    def pad_labels(self, labels: list[Any], rows: list[Row], batch: Any) -> Tensor:
        return stacked("labels", labels, torch.int64)


@dataclass
class DataCollatorForPairs(Collator):
    """Rows of texts, such as anchor, positive and negatives -> ``anchor_input_ids``, ``positive_input_ids`` ...

    Each of two or more columns is a text or the encoding of one, and is padded by itself. ``label``, ``labels`` and
    ``score`` become ``labels``.

    Args:
        max_length: texts are cut to this; the tokenizer's own limit when absent.
    """

    tokenizer: Any
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features)
        names = [name for name in rows[0] if name not in SCORES]
        hint = f"Its columns: {', '.join(rows[0])}."
        refuse(len(names) < 2, f"row 0 has {len(names)} texts, but pairs need two.", hint)
        batch: dict[str, Any] = {}
        for name in names:
            encoded = [self._encoded(row[name], name, number) for number, row in enumerate(rows)]
            batch |= {f"{name}_{key}": value for key, value in self.pad(encoded).items()}
        label = next((name for name in SCORES if name in rows[0]), None)
        return batch if label is None else batch | {"labels": labels_of(label, [row[label] for row in rows])}

    def _encoded(self, value: Any, name: str, number: int) -> dict[str, Any]:
        if isinstance(value, str):
            return dict(self.tokenizer(value, truncation=True, max_length=self.max_length))
        if isinstance(value, Mapping):
            return dict(value)
        raise InputError(f"row {number}: `{name}` must be a text or its encoding, but is {str(value)[:60]!r}.")


@dataclass(eq=False)
class DataCollatorWithFlattening(Collator):
    """Lays rows of tokens end to end: a batch (1, sum of lengths) whose ``seq_idx`` are the numbers of the rows.

    Models see by these that the rows are apart: none sees another, and none is predicted from another.

    Args:
        return_position_ids: make ``position_ids``, which begin anew with each row.
        separator_id: the label of each row's first token, which nothing predicts.
        return_flash_attn_kwargs: make ``cu_seq_lens_q``, ``cu_seq_lens_k`` (rows + 1), where rows begin and end, and
            ``max_length_q`` and ``max_length_k``.
        return_seq_idx: make ``seq_idx`` (1, N), the number of each token's row. Without these and the above, only
            families that infer it from positions keep the rows apart.
        position_ids_start: the number of the first position; the model's ``first_position``.
    """

    return_tensors: str = "pt"
    _: KW_ONLY
    return_position_ids: bool = True
    separator_id: int = IGNORED
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = True
    position_ids_start: int = 0

    def __call__(self, features: Any, return_tensors: str | None = None, separator_id: int | None = None) -> Any:
        rows = checked_rows(features, "input_ids")
        ids = token_ids(rows)
        labels = token_ids(rows, "labels") if "labels" in rows[0] else ids
        for number, (tokens, targets) in enumerate(zip(ids, labels)):
            wrong = not tokens or len(tokens) != len(targets)
            refuse(wrong, f"row {number} has {len(tokens)} tokens and {len(targets)} labels.")
        separator = self.separator_id if separator_id is None else separator_id
        batch: dict[str, Any] = {"input_ids": _end_to_end(ids)}
        batch["labels"] = _end_to_end([separator, *targets[1:]] for targets in labels)
        lengths = list(map(len, ids))
        if self.return_position_ids:
            batch["position_ids"] = _end_to_end(map(range, lengths)) + self.position_ids_start
        if self.return_seq_idx:
            batch["seq_idx"] = _end_to_end([number] * length for number, length in enumerate(lengths)).int()
        if self.return_flash_attn_kwargs:
            bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            batch |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds)
            batch |= dict.fromkeys(("max_length_q", "max_length_k"), max(lengths))
        return of_kind(batch, return_tensors or self.return_tensors)


def _end_to_end(rows: Iterable[Iterable[int]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64)[None]
