"""Collators for pairs of texts: sentence embeddings from pairs and triplets, and next-sentence prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from transept.errors import InputError, refuse
from transept.training.collate.language import DataCollatorForLanguageModeling
from transept.training.collate.padding import labels_of
from transept.training.collate.rows import Collator, DrawingCollator, checked_rows, padded

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


@dataclass
class DataCollatorForNextSentencePrediction(DrawingCollator):
    """BERT's pretraining (Devlin et al. 2019): whether the second text of a row follows the first, and hidden tokens.

    Of the rows, which are ``first`` and ``second``, texts that follow each other, a share get another row's second text;
    where rows have a ``document``, one of another document. ``next_sentence_label`` (``labels`` without ``mlm``) is 0 where it
    follows and 1 elsewhere.

    Args:
        tokenizer: what encodes, pads and has the mask token.
        follow_probability: the share of rows that keep their second text.
        mlm: hide tokens too, for which the batch has ``labels``.
        mlm_probability: the share of tokens that are hidden.
        max_length: pairs are cut to this; the tokenizer's own limit when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a row that is no pair of texts, by its number.
    """

    tokenizer: Any
    follow_probability: float = 0.5
    mlm: bool = True
    mlm_probability: float = 0.15
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        share = self.follow_probability
        refuse(not 0 <= share <= 1, f"`follow_probability` must be from 0 to 1, but is {share!r}.")
        self.masking = DataCollatorForLanguageModeling(self.tokenizer, self.mlm, mlm_probability=self.mlm_probability)

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features, "first", "second")
        for number, row in enumerate(rows):
            for name in ("first", "second"):
                refuse(not isinstance(row[name], str), f"row {number}: `{name}` must be a text, but is {row[name]!r}.")
        follows = (torch.rand(len(rows), generator=self.generator) < self.follow_probability).tolist()
        pairs, labels = [], []
        for number, (row, keeps) in enumerate(zip(rows, follows)):
            others = [] if keeps else [n for n, other in enumerate(rows) if n != number and self._differs(row, other)]
            pick = others[int(torch.randint(len(others), (1,), generator=self.generator))] if others else number
            pairs.append((row["first"], rows[pick]["second"]))
            labels.append(int(pick != number))
        encoded = [dict(self.tokenizer(*pair, truncation=True, max_length=self.max_length)) for pair in pairs]
        batch = padded(self.tokenizer, encoded, pad_to_multiple_of=self.pad_to_multiple_of)
        batch["next_sentence_label" if self.mlm else "labels"] = torch.tensor(labels)
        if self.mlm:
            ids = batch["input_ids"]
            self.masking.generator = self.generator
            batch["input_ids"], batch["labels"] = self.masking.hide(ids, self.masking.special(ids), None)
        return batch

    @staticmethod
    def _differs(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether another row's second text cannot follow this one's first."""
        same = "document" in row and row["document"] == other["document"]
        return not same and other["second"] != row["second"]
