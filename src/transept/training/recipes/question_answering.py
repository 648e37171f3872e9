"""Answers that stand in a text: where they begin and end (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transept.core.auto import AutoModelForQuestionAnswering
from transept.errors import InputError
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.tokens import AnswerF1
from transept.training.recipes.base import Options, TextRecipe

MOST_ANSWER_TOKENS = 30


class QuestionOptions(Options):
    """Options of question answering.

    Args:
        stride: tokens that windows over a long text share.
    """

    stride: int = 64


class QuestionAnswering(TextRecipe):
    """Windows over a context; where the answer is not in a window, its label is the first token."""

    task = tag = "question-answering"
    auto = AutoModelForQuestionAnswering
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
        self.windows: list[tuple[int, list[Any]]] = []
        self.dataset, self.golds = dataset, list[list[str]]()
        return super().encode(dataset)

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        question, context, answers = (dataset.column(self.found[role]) for role in ("question", "context", "answers"))
        rows: list[Row] = []
        for index, (asked, text, answer) in enumerate(zip(question, context, answers)):
            span = _span(answer, text, dataset.place(index))
            self.golds.append(_texts(answer))
            encoded = self.reader(
                [asked],
                [text],
                truncation="only_second",
                max_length=self.limit,
                stride=min(self.options.stride, self.limit // 4),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for window in range(len(encoded["input_ids"])):
                offsets = [
                    pair if sequence == 1 else None
                    for pair, sequence in zip(encoded["offset_mapping"][window], encoded.sequence_ids(window))
                ]
                start, end = _tokens(offsets, span)
                named = {name: encoded[name][window] for name in self.reader.model_input_names if name in encoded}
                rows.append(named | {"start_positions": start, "end_positions": end})
                self.windows.append((len(self.golds) - 1, offsets))
        return rows

    def scores(self) -> Callable[[Any], dict[str, float]]:
        windows, golds, texts = self.windows, self.golds, self.dataset.column(self.found["context"])

        def scores(prediction: Any) -> dict[str, float]:
            answers = _answers(prediction.predictions[0], prediction.predictions[1], windows, texts)
            percents = AnswerF1()([answers.get(index, "") for index in range(len(golds))], golds)
            return {name: value / 100 for name, value in percents.items()}

        return scores

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        found = super().shown(batch, index)
        start, end = int(batch["start_positions"][index]), int(batch["end_positions"][index])
        answer = self.reader.decode(batch["input_ids"][index][start : end + 1].tolist()) if start else "(not in this window)"
        return found | {"answer": answer}


def _texts(answer: Mapping[str, Any]) -> list[str]:
    """The right answers; one that is empty where there is none."""
    text = answer.get("text", [])
    return [text] if isinstance(text, str) else list(text) or [""]


def _span(answer: Mapping[str, Any], context: str, place: str) -> tuple[int, int] | None:
    """The characters of the first answer (``InputError``: they are not its text)."""
    starts = answer.get("answer_start", [])
    starts, texts = ([starts] if isinstance(starts, int) else list(starts)), _texts(answer)
    if not starts:
        return None
    start, end = starts[0], starts[0] + len(texts[0])
    if context[start:end] != texts[0]:
        found = context[start:end]
        what = f"the answer {texts[0]!r:.60} does not stand at character {start} of its context, but {found!r:.60}."
        raise InputError(what, path=place)
    return start, end


def _tokens(offsets: Sequence[Any], span: tuple[int, int] | None) -> tuple[int, int]:
    """The first and last token of a span of characters; twice the first token where a window lacks a part of it."""
    held = [] if span is None else [i for i, at in enumerate(offsets) if at is not None and at[0] < span[1] and at[1] > span[0]]
    if not held or span is None or offsets[held[0]][0] > span[0] or offsets[held[-1]][1] < span[1]:
        return 0, 0
    return held[0], held[-1]


def _answers(starts: Any, ends: Any, windows: Sequence[tuple[int, Any]], texts: Sequence[str]) -> dict[int, str]:
    """For each row the best span of all its windows."""
    best: dict[int, tuple[float, str]] = {}
    for start, end, (index, offsets) in zip(starts, ends, windows):
        inside = np.array([i for i, at in enumerate(offsets) if at is not None and at[1] > at[0]], dtype=int)
        if not len(inside):
            continue
        sums = start[inside][:, None] + end[inside][None, :]
        distance = np.arange(len(inside))[None, :] - np.arange(len(inside))[:, None]
        sums = np.where((distance >= 0) & (distance < MOST_ANSWER_TOKENS), sums, -np.inf)
        first, last = np.unravel_index(int(sums.argmax()), sums.shape)
        score, none = float(sums[first, last]), float(start[0] + end[0])
        text = texts[index][offsets[inside[first]][0] : offsets[inside[last]][1]] if score >= none else ""
        if index not in best or max(score, none) > best[index][0]:
            best[index] = max(score, none), text
    return {index: text for index, (_, text) in best.items()}
