"""The right one of several endings or answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transept.core.auto import AutoModelForMultipleChoice
from transept.errors import InputError
from transept.training.collate.padding import DataCollatorForMultipleChoice
from transept.training.data.columns import Column, is_label, is_text, is_texts
from transept.training.data.table import Row, TableDataset
from transept.training.recipes.base import TextRecipe
from transept.training.recipes.classes import best_class, class_scores

ENDINGS = ("ending", "choice", "option", "answer")


class MultipleChoice(TextRecipe):
    """A question or a beginning with several choices, of which ``label`` is the right one's number, letter or text.

    The choices are one column of lists, or columns such as ``ending0``, ``ending1``, ... (then ``sent2`` goes before each).
    """

    task = tag = "multiple-choice"
    auto = AutoModelForMultipleChoice
    columns = (
        Column("question", ("question", "context", "prompt", "premise", "sent1", "startphrase"), is_text),
        Column("choices", ("choices", "options", "endings"), is_texts, optional=True, by_kind=False),
        Column("label", ("label", "answer", "answerkey", "correct"), is_label),
    )
    collator_class = DataCollatorForMultipleChoice
    metric = "accuracy"
    has_default_model = True
    batch_size = 8

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        rows = []
        for index, row in enumerate(dataset):
            place = dataset.place(index)
            choices = self.choices(row, place)
            encoded = self.tokens([row[self.found["question"]]] * len(choices), choices)
            label = number_of(row[self.found["label"]], choices, place)
            rows.append({**{name: encoded[name] for name in encoded}, "labels": label})
        return rows

    def choices(self, row: Mapping[str, Any], place: str) -> list[str]:
        """The choices of a row (``InputError``: there are fewer than two)."""
        if "choices" in self.found:
            choices = list(row[self.found["choices"]])
        else:
            named = [name for name in row if name.lower().rstrip("0123456789") in ENDINGS and name[-1:].isdecimal()]
            start = row.get("sent2")
            choices = [f"{start} {row[name]}" if start else str(row[name]) for name in sorted(named)]
        if len(choices) < 2:
            hint = "--choices names a column of lists; or there are columns ending0, ending1, ..."
            raise InputError(f"there are {len(choices)} choices.", path=place, hint=hint)
        return choices

    def reduce(self) -> Callable[[Any, Any], Any]:
        return best_class

    def scores(self) -> Callable[[Any], dict[str, float]]:
        return lambda prediction: {"accuracy": class_scores(prediction)["accuracy"]}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        texts = self.reader.batch_decode(batch["input_ids"][index].tolist(), skip_special_tokens=True)
        right = int(batch["labels"][index])
        return {f"choice {number}{' (right)' if number == right else ''}": text for number, text in enumerate(texts)}


def number_of(label: Any, choices: Sequence[str], place: str) -> int:
    """The number of the right choice from its number, its letter (A is the first) or its text."""
    text = str(label).strip()
    if text in choices:
        return list(choices).index(text)
    number = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
    if not 0 <= number < len(choices):
        raise InputError(f"the label {label!r:.60} is none of the {len(choices)} choices.", path=place)
    return number
