"""Figures of labelled tokens: entities, answers in a text, and perplexity."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from transept.errors import InputError, refuse
from transept.metrics.base import Metric, array, f1, f1_scores, ratio, same_number
from transept.objectives.classification import IGNORED, cross_entropy

Span = tuple[str, int, int]
# The last token of an entity and an entity of one token have two names each.
MARKS = {"O": "O", "B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}


def is_entity_tag(tag: str) -> bool:
    """Whether a tag is ``O``, or a place in an entity and its type."""
    mark, dash, _ = tag.partition("-")
    return tag == "O" or (bool(dash) and mark in MARKS)


def entities(tags: Sequence[str]) -> set[Span]:
    """(type, first, last) of a row's tags: ``B-``, ``I-``, ``E-`` (``L-``) and ``S-`` (``U-``) with a type, or ``O``.

    As in seqeval's usual mode and CoNLL's script, an ``I-`` or ``E-`` that follows nothing of its type begins an entity.
    """
    spans: set[Span] = set()
    kind, start, before = "", 0, "O"
    for place, tag in enumerate((*tags, "O")):
        mark, _, own = tag.partition("-")
        refuse(mark not in MARKS, f"the tag {tag!r} at {place} is none of B-, I-, E-, S-, L-, U- and O.")
        mark = MARKS[mark]
        ends = before in ("E", "S") or mark in ("B", "S", "O") or own != kind
        if ends and before != "O":
            spans.add((kind, start, place - 1))
        if mark != "O" and (before == "O" or ends):
            start = place
        kind, before = own, mark
    return spans


class EntityF1(Metric):
    """``precision``, ``recall`` and ``f1`` of whole entities, and ``accuracy`` of tags; of each type as ``{type}_f1``.

    Args:
        names: the tags by number, for predictions and labels that are numbers; labels of -100 are left out.
        by_type: whether to give the figures of each type too.
    """

    def __init__(self, names: Mapping[int, str] | Sequence[str] | None = None, by_type: bool = False) -> None:
        self.names, self.by_type = names, by_type
        super().__init__()

    def reset(self) -> None:
        self.hits, self.predicted, self.right = Counter[str](), Counter[str](), Counter[str]()
        self.same = self.count = 0

    def update(self, predictions: Any, labels: Any) -> None:
        if not isinstance(labels, list | tuple):
            right, predicted = array(labels, "labels"), array(predictions, "predictions")
            predicted = predicted.argmax(axis=-1) if predicted.ndim == right.ndim + 1 else predicted
            labels, predictions = right.tolist(), predicted.tolist()
        same_number(predictions, labels)
        for row, (predicted, right) in enumerate(zip(predictions, labels)):
            if len(predicted) != len(right):
                raise InputError(f"row {row} has {len(predicted)} predicted tags for {len(right)} labels.")
            pairs = [(self._tag(own), self._tag(other)) for own, other in zip(predicted, right) if other != IGNORED]
            ours, theirs = (entities([pair[side] for pair in pairs]) for side in (0, 1))
            for counter, spans in ((self.hits, ours & theirs), (self.predicted, ours), (self.right, theirs)):
                counter.update(kind for kind, _, _ in spans)
            self.same += sum(own == other for own, other in pairs)
            self.count += len(pairs)

    def _tag(self, tag: Any) -> str:
        if isinstance(tag, str):
            return tag
        if self.names is None:
            raise InputError(f"tags are numbers, such as {tag}, but have no names.", hint="Pass `names`: config.id2label.")
        return str(self.names[int(tag)])

    def result(self) -> dict[str, float]:
        counters = (self.hits, self.predicted, self.right)
        scores = f1_scores(*(counter.total() for counter in counters))
        scores |= {"accuracy": ratio(self.same, self.count, math.nan)}
        for kind in sorted({*self.predicted, *self.right}) if self.by_type else ():
            of_kind = f1_scores(*(counter[kind] for counter in counters))
            scores |= {f"{kind}_{name}": value for name, value in of_kind.items()}
        return scores


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_MARKS = str.maketrans("", "", string.punctuation)


def normal_answer(text: str) -> str:
    """An answer in lower case, without punctuation, articles and spare spaces, as SQuAD compares them."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_MARKS)).split())


class AnswerF1(Metric):
    """``exact_match`` and ``f1`` of answers in percent, as SQuAD's script has them (Rajpurkar et al. 2016).

    Predictions are texts; labels are lists of right answers, or SQuAD's ``{"text": [...]}``. Of several right ones the best
    counts; where there is none, an empty answer is right.
    """

    def reset(self) -> None:
        self.count, self.exact, self.overlap = 0, 0.0, 0.0

    def update(self, predictions: Any, labels: Any) -> None:
        same_number(predictions, labels)
        for prediction, right in zip(predictions, labels):
            references = right["text"] if isinstance(right, Mapping) else [right] if isinstance(right, str) else right
            own, answers = normal_answer(prediction), [normal_answer(answer) for answer in references] or [""]
            self.exact += max(own == answer for answer in answers)
            self.overlap += max(word_overlap(own.split(), answer.split()) for answer in answers)
            self.count += 1

    def result(self) -> dict[str, float]:
        parts = {"exact_match": self.exact, "f1": self.overlap}
        return {name: ratio(100 * part, self.count, math.nan) for name, part in parts.items()}


def word_overlap(own: list[str], right: list[str]) -> float:
    """F1 of the words of two answers."""
    if not own or not right:
        return float(own == right)
    return f1((Counter(own) & Counter(right)).total(), len(own), len(right))


class Perplexity(Metric):
    """``perplexity`` and ``loss``, in nats a token, of logits (B, T, V) and labels (B, T), of which -100 is left out.

    Args:
        shift: whether each label is what the position before it predicts, as in causal language models.
    """

    def __init__(self, shift: bool = False) -> None:
        self.shift = shift
        super().__init__()

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, predictions: Any, labels: Any) -> None:
        logits, right = (
            value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(array(value, name))
            for value, name in ((predictions, "predictions"), (labels, "labels"))
        )
        right = F.pad(right, (0, 1), value=IGNORED)[:, 1:] if self.shift else right
        term = cross_entropy(logits, right)
        self.sum, self.count = self.sum + float(term.sum), self.count + int(term.count)

    def result(self) -> dict[str, float]:
        loss = ratio(self.sum, self.count, math.nan)
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan, "loss": loss}
