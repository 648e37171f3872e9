"""Collators in which nothing is random: stacking, padding, and labels that are padded beside their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import Collator, Row, checked_rows, filled, listed, multiple, of_kind, padded, stacked


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
