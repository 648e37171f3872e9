"""Collators in which nothing is random: stacking, padding, pairs of texts, and rows laid end to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import (
    Collator,
    Row,
    checked_rows,
    filled,
    ids_of,
    listed,
    multiple,
    of_kind,
    padded,
    stacked,
)


def default_data_collator(features: Any, return_tensors: str = "pt") -> dict[str, Any]:
    """Rows of one shape -> a batch by name; ``label`` and ``label_ids`` become ``labels``, and texts are left out.

    Args:
        features: mappings, or objects with attributes.
        return_tensors: ``pt`` or ``np``.

    Raises:
        InputError: a row that does not fit, by its number.
    """
    rows = checked_rows([row if isinstance(row, Mapping) else getattr(row, "__dict__", row) for row in features])
    batch: dict[str, Any] = {}
    name = next((name for name in ("label", "label_ids") if rows[0].get(name) is not None), None)
    if name is not None:
        batch["labels"] = labels_of(rows, name)
    for key, first in rows[0].items():
        if key not in ("label", "label_ids") and first is not None and not isinstance(first, str):
            batch[key] = stacked(key, [row[key] for row in rows])
    return of_kind(batch, return_tensors)  # type: ignore[no-any-return]


def labels_of(rows: list[Row], name: str) -> torch.Tensor:
    """Integers as int64 and other numbers as float32, whatever they came as."""
    labels = stacked(name, [row[name] for row in rows])
    if isinstance(rows[0][name], torch.Tensor) and labels.ndim > 1:
        return labels
    return labels.to(torch.float32 if labels.is_floating_point() else torch.int64)


@dataclass
class DefaultDataCollator(Collator):
    """:func:`default_data_collator` as an object that keeps ``return_tensors``."""

    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        return default_data_collator(features)


class PaddingCollator(Collator):
    """A collator whose tokenizer pads; the settings are fields of the subclasses, in the order of their signatures."""

    tokenizer: Any
    padding: bool | str
    max_length: int | None
    pad_to_multiple_of: int | None

    def pad(self, rows: list[Row]) -> Any:
        """The rows as a batch, padded as the settings say."""
        return padded(self.tokenizer, rows, self.padding, self.max_length, self.pad_to_multiple_of)

    def split(self, features: Any) -> tuple[list[Row], list[Any] | None]:
        """The rows without their labels, and these, ``None`` where there are none."""
        rows = checked_rows(features)
        name = "label" if "label" in rows[0] else "labels"
        labels = [row.pop(name, None) for row in rows]
        if all(label is None for label in labels):
            return rows, None
        lacking = next((number for number, label in enumerate(labels) if label is None), None)
        if lacking is not None:
            raise InputError(f"row {lacking}: `{name}` is None, but other rows have labels.")
        return rows, labels


@dataclass
class DataCollatorWithPadding(PaddingCollator):
    """Pads rows of tokens to the longest of the batch; ``label`` and ``label_ids`` become ``labels``.

    Args:
        tokenizer: what pads: a tokenizer, or another object with its ``pad``.
        padding: ``True`` or ``longest``, ``max_length``, or ``False``.
        max_length: the length for ``max_length``; the tokenizer's own when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        batch = self.pad(checked_rows(features))
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification(PaddingCollator):
    """Pads rows of tokens, and with them the ``label`` or ``labels`` of each token, which become ``labels``.

    Args:
        tokenizer, padding, max_length, pad_to_multiple_of, return_tensors: see :class:`DataCollatorWithPadding`.
        label_pad_token_id: the label of padding.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        rows, labels = self.split(features)
        batch = self.pad(rows)
        if labels is None:
            return batch
        main = self.tokenizer.model_input_names[0]
        for number, (row, own) in enumerate(zip(rows, map(listed, labels))):
            if not isinstance(own, list | tuple) or len(own) != len(row[main]):
                size = f"{len(own)} labels" if isinstance(own, list | tuple) else f"the label {own!r}"
                raise InputError(f"row {number} has {size} for {len(row[main])} tokens.", hint="Give each token a label.")
        length, side = batch[main].shape[1], self.tokenizer.padding_side
        batch["labels"] = filled("labels", labels, length, side=side, fill=self.label_pad_token_id)
        return batch


@dataclass
class DataCollatorForSeq2Seq(PaddingCollator):
    """Pads rows of tokens, and their ``labels`` to a length of their own.

    Args:
        tokenizer, padding, max_length, pad_to_multiple_of, return_tensors: see :class:`DataCollatorWithPadding`.
        model: one whose ``prepare_decoder_input_ids_from_labels`` makes ``decoder_input_ids``, which a loss outside of the
            model needs.
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
        rows, labels = self.split(features)
        batch = self.pad(rows)
        if labels is None:
            return batch
        if self.padding in (False, "do_not_pad"):
            batch["labels"] = stacked("labels", labels, torch.int64)
        else:
            whole = self.padding == "max_length" and self.max_length is not None
            sizes = [len(label) if isinstance(label := listed(each), list | tuple) else 0 for each in labels]
            length = multiple(self.max_length if whole and self.max_length else max(sizes), self.pad_to_multiple_of)
            side = self.tokenizer.padding_side
            batch["labels"] = filled("labels", labels, length, side=side, fill=self.label_pad_token_id)
        if self.model is not None and hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch


@dataclass
class DataCollatorForMultipleChoice(DataCollatorWithPadding):
    """Pads rows of several choices each, all to one length: tensors (rows, choices, length), and ``labels`` (rows).

    The arguments are those of :class:`DataCollatorWithPadding`.
    """

    def collate(self, features: Any) -> Any:
        rows, labels = self.split(features)
        main = self.tokenizer.model_input_names[0]
        checked_rows(rows, main)
        choices = len(rows[0][main])
        for number, row in enumerate(rows):
            for name, values in row.items():
                if not hasattr(values, "__len__") or len(values) != choices:
                    own = f"{len(values)} choices" if hasattr(values, "__len__") else repr(values)
                    raise InputError(f"row {number}: `{name}` has {own}, but row 0 has {choices} choices.")
        flat = self.pad([{name: value[i] for name, value in row.items()} for row in rows for i in range(choices)])
        batch = {name: value.view(len(rows), choices, -1) for name, value in flat.items()}
        return batch if labels is None else batch | {"labels": stacked("labels", labels, torch.int64)}


SCORES = ("label", "labels", "score")


@dataclass
class DataCollatorForPairs(Collator):
    """Rows of two or more texts, such as anchor, positive and negatives -> ``anchor_input_ids``, ``positive_input_ids`` ...

    Each column but ``label``, ``labels`` and ``score``, which become ``labels``, is a text or the encoding of one, and is
    padded by itself.

    Args:
        tokenizer: what encodes and pads.
        max_length: texts are cut to this; the tokenizer's own limit when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.

    Raises:
        InputError: a row that is no pair, or whose column is neither a text nor an encoding, by its number.
    """

    tokenizer: Any
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features)
        names = [name for name in rows[0] if name not in SCORES]
        refuse(len(names) < 2, f"row 0 has {len(names)} texts, but pairs need two.", f"Its columns: {', '.join(rows[0])}.")
        batch: dict[str, Any] = {}
        for name in names:
            encoded = [self._encoded(row[name], name, number) for number, row in enumerate(rows)]
            for key, value in padded(self.tokenizer, encoded, pad_to_multiple_of=self.pad_to_multiple_of).items():
                batch[f"{name}_{key}"] = value
        label = next((name for name in SCORES if name in rows[0]), None)
        return batch if label is None else batch | {"labels": labels_of(rows, label)}

    def _encoded(self, value: Any, name: str, number: int) -> dict[str, Any]:
        if isinstance(value, str):
            return dict(self.tokenizer(value, truncation=True, max_length=self.max_length))
        if isinstance(value, Mapping):
            return dict(value)
        raise InputError(f"row {number}: `{name}` must be a text or its encoding, but is {str(value)[:60]!r}.")


class DataCollatorWithFlattening(Collator):
    """Lays rows of tokens end to end: a batch (1, sum of lengths) whose ``seq_idx`` are the numbers of the rows.

    Models see by these that the rows are apart: none sees another, and none is predicted from another.

    Args:
        return_tensors: ``pt`` or ``np``.
        return_position_ids: make ``position_ids``, which begin anew with each row.
        separator_id: the label of each row's first token, which nothing predicts.
        return_flash_attn_kwargs: make ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (rows + 1), where rows begin and end, and
            ``max_length_q`` and ``max_length_k``.
        return_seq_idx: make ``seq_idx`` (1, N), the number of each token's row. Without these and the above, only families that
            infer it from positions keep the rows apart.
        position_ids_start: the number of the first position; the model's ``first_position``.
    """

    def __init__(
        self,
        return_tensors: str = "pt",
        *,
        return_position_ids: bool = True,
        separator_id: int = IGNORED,
        return_flash_attn_kwargs: bool = False,
        return_seq_idx: bool = True,
        position_ids_start: int = 0,
    ) -> None:
        self.return_tensors, self.separator_id = return_tensors, separator_id
        self.return_position_ids, self.position_ids_start = return_position_ids, position_ids_start
        self.return_flash_attn_kwargs, self.return_seq_idx = return_flash_attn_kwargs, return_seq_idx

    def __call__(self, features: Any, return_tensors: str | None = None, separator_id: int | None = None) -> Any:
        """Rows -> batch (``InputError``: a row that does not fit, by its number)."""
        batch = self.flatten(features, self.separator_id if separator_id is None else separator_id)
        return of_kind(batch, return_tensors or self.return_tensors)

    def flatten(self, features: Any, separator: int) -> dict[str, Any]:
        """The rows' ids, labels and what else is asked for, as one row."""
        rows = checked_rows(features, "input_ids")
        ids = [ids_of(row, number) for number, row in enumerate(rows)]
        labels = [ids_of(row, number, "labels") for number, row in enumerate(rows)] if "labels" in rows[0] else ids
        for number, (own, labelled) in enumerate(zip(ids, labels)):
            if not own or len(own) != len(labelled):
                raise InputError(f"row {number} has {len(own)} tokens and {len(labelled)} labels.")
        batch: dict[str, Any] = {"input_ids": _joined(ids), "labels": _joined([[separator, *row[1:]] for row in labels])}
        lengths = list(map(len, ids))
        if self.return_position_ids:
            batch["position_ids"] = _joined([range(length) for length in lengths]) + self.position_ids_start
        if self.return_seq_idx:
            batch["seq_idx"] = _joined([[number] * length for number, length in enumerate(lengths)]).int()
        if self.return_flash_attn_kwargs:
            bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            batch |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
            batch |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
        return batch


def _joined(rows: Any) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64)[None]
