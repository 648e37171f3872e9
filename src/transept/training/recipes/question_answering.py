"""Answers that stand in a text: where they begin and end (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transept.core.auto import AutoModelForQuestionAnswering
from transept.errors import refuse
from transept.metrics.texts import AnswerF1
from transept.tables.dataset import Row, TableDataset
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.recipes.base import Options, TextRecipe

MOST_ANSWER_TOKENS = 30
# The first and last character of each token of a window, and `None` for those that are not of the context.
Offsets = Sequence[tuple[int, int] | None]


class QuestionOptions(Options):
    stride: int = 64  # tokens that windows over a long text share


class QuestionAnswering(TextRecipe):
    """Windows over a context; where the answer is not in a window, its label is the first token."""

    task = pipeline_tag = "question-answering"
    model_class = AutoModelForQuestionAnswering
    options_class = QuestionOptions
    columns = (
        Column("question", ("question", "query"), is_text),
        Column("context", ("context", "passage", "document"), is_text),
        Column("answers", ("answers", "answer"), is_mapping),
    )
    metric = "f1"
    has_default_model = True
    batch_size = 16

    def encode(self, dataset: TableDataset) -> TableDataset:
        # Of the rows that were encoded last, which are those to evaluate: windows with the numbers of their rows.
        self.dataset, self.windows, self.right_answers = dataset, list[tuple[int, Offsets]](), list[list[str]]()
        return super().encode(dataset)

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        columns = [self.column(dataset, column.role) for column in self.columns]
        options: dict[str, Any] = {"truncation": "only_second", "max_length": self.limit}
        options |= {"stride": min(self.options.stride, self.limit // 4), "return_overflowing_tokens": True}
        for index, (question, context, answer) in enumerate(zip(*columns)):
            texts, span = read_answer(answer, context, dataset.place(index))
            self.right_answers.append(texts)
            encoded = self.processor([question], [context], return_offsets_mapping=True, **options)
            for window, pairs in enumerate(encoded["offset_mapping"]):
                sequences = encoded.sequence_ids(window)
                offsets = [pair if sequence == 1 else None for pair, sequence in zip(pairs, sequences)]
                self.windows.append((len(self.right_answers) - 1, offsets))
                start, end = answer_tokens(offsets, span)
                names = [name for name in self.processor.model_input_names if name in encoded]
                inputs = {name: encoded[name][window] for name in names}
                yield inputs | {"start_positions": start, "end_positions": end}

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Exact matches, and the F1 of words, of the best span of all windows of each row; ``labels`` are tokens."""
        contexts, answers = self.column(self.dataset, "context"), [""] * len(self.right_answers)
        best = [-np.inf] * len(answers)
        for start, end, (row, offsets) in zip(predictions[0], predictions[1], self.windows):
            score, span = best_span(start, end, offsets)
            if span is not None and score > best[row]:
                best[row], answers[row] = score, contexts[row][slice(*span)]
        return {name: percent / 100 for name, percent in AnswerF1()(answers, self.right_answers).items()}

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        start, end = int(batch["start_positions"][index]), int(batch["end_positions"][index])
        answer = self.processor.decode(batch["input_ids"][index][start : end + 1].tolist())
        return super().describe(batch, index) | {"answer": answer if start else "(not in this window)"}


def read_answer(answer: Mapping[str, Any], context: str, place: str) -> tuple[list[str], tuple[int, int] | None]:
    """The texts that are right, one that is empty where there is none, and the characters of the first.

    Raises:
        InputError: the first one does not stand where it should.
    """
    texts, starts = answer.get("text", []), answer.get("answer_start", [])
    texts = [texts] if isinstance(texts, str) else list(texts) or [""]
    starts = [starts] if isinstance(starts, int) else starts
    if not len(starts):
        return texts, None
    start, end = starts[0], starts[0] + len(texts[0])
    what = f"the answer {texts[0]!r:.60} does not stand at character {start} of its context"
    refuse(context[start:end] != texts[0], f"{what}, but {context[start:end]!r:.60}.", path=place)
    return texts, (start, end)


def answer_tokens(offsets: Offsets, span: tuple[int, int] | None) -> tuple[int, int]:
    """The first and last token of a span of characters; twice the first token where a window lacks a part of it."""
    start, end = span or (0, 0)
    inside = [(token, at) for token, at in enumerate(offsets) if at is not None and at[0] < end and at[1] > start]
    if not inside or inside[0][1][0] > start or inside[-1][1][1] < end:
        return 0, 0
    return inside[0][0], inside[-1][0]


def best_span(start: Any, end: Any, offsets: Offsets) -> tuple[float, tuple[int, int] | None]:
    """The score of a window's best answer, and its characters, which are none where the first token is likelier.

    The span is ``None`` where the window has no token of the context.
    """
    tokens = np.array([token for token, at in enumerate(offsets) if at is not None and at[1] > at[0]], dtype=int)
    if not len(tokens):
        return -np.inf, None
    sums = start[tokens][:, None] + end[tokens][None, :]
    is_span = np.triu(np.tri(len(tokens), k=MOST_ANSWER_TOKENS - 1, dtype=bool))  # forward, and not too long
    sums = np.where(is_span, sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    score, no_answer = float(sums[first, last]), float(start[0] + end[0])
    span = (offsets[tokens[first]][0], offsets[tokens[last]][1]) if score >= no_answer else (0, 0)
    return max(score, no_answer), span
