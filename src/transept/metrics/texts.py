"""Figures of texts and of labelled tokens: BLEU, chrF, ROUGE, error rates, entities, answers, perplexity."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from transept.errors import InputError, InputTypeError, refuse
from transept.metrics.base import Integers, MeanMetric, Metric, array, class_arrays, f1, f1_scores, ratio, same_number
from transept.objectives.classification import IGNORED, cross_entropy

_MARKS = [
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]
_REPLACED = {"<skipped>": "", "-\n": "", "\n": " ", "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}


def words_13a(text: str) -> list[str]:
    """The words of mteval-v13a, sacrebleu's usual ones: marks are words but for those within numbers."""
    for sequence, replacement in _REPLACED.items():
        text = text.replace(sequence, replacement)
    text = f" {text} "
    for pattern, apart in _MARKS:
        text = pattern.sub(apart, text)
    return text.split()


def pairs_of(predictions: Any, labels: Any) -> Iterator[tuple[str, list[str]]]:
    """Each text with its references, of which there may be one or several."""
    same_number(predictions, labels)
    for row, (text, label) in enumerate(zip(predictions, labels)):
        references = list(label) if isinstance(label, list | tuple) else [label]
        if not references or not all(isinstance(part, str) for part in (text, *references)):
            raise InputTypeError(f"row {row} must be a text and its references, but is {str((text, label))[:80]}.")
        yield text, references


def grams(items: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    """How often each run of ``size`` items occurs."""
    return Counter(tuple(items[place : place + size]) for place in range(len(items) - size + 1))


def shared_grams(items: Sequence[str], reference: Sequence[str], size: int = 1) -> tuple[int, int, int]:
    """The number of runs of ``size`` items that both have, that the first has, and that the second has."""
    first, second = grams(items, size), grams(reference, size)
    return (first & second).total(), first.total(), second.total()


class Bleu(Metric):
    """``bleu`` from 0 to 100 (Papineni et al. 2002), with words and smoothing of sacrebleu's ``13a`` and ``exp``."""

    def reset(self) -> None:
        self.hits, self.totals, self.length, self.reference = [0] * 4, [0] * 4, 0, 0

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            words, targets = words_13a(text), [words_13a(reference) for reference in references]
            self.length += len(words)
            self.reference += min(map(len, targets), key=lambda length: (abs(length - len(words)), length))
            for order in range(4):
                counts = grams(words, order + 1)
                most = reduce(or_, (grams(target, order + 1) for target in targets))
                self.hits[order] += (counts & most).total()
                self.totals[order] += counts.total()

    def result(self) -> dict[str, float]:
        if not any(self.hits) or not all(self.totals):
            return {"bleu": 0.0 if self.reference else math.nan}
        logarithms, halved = 0.0, 1.0
        for hits, total in zip(self.hits, self.totals):
            halved = halved if hits else 2 * halved  # n-grams without a hit count as a half, a quarter ...
            logarithms += math.log(hits / total if hits else 1 / (halved * total))
        brevity = min(0.0, 1 - self.reference / self.length)
        return {"bleu": 100 * math.exp(brevity + logarithms / 4)}


class ChrF(Metric):
    """``chrf`` from 0 to 100 (Popović 2015): F2 of runs of up to six characters, sacrebleu's ``chrF2``."""

    def reset(self) -> None:
        self.counts = np.zeros((6, 3), np.int64)  # hits, runs of the texts and of the references, by size

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            self.counts += max((_character_counts(text, reference) for reference in references), key=_chrf)

    def result(self) -> dict[str, float]:
        return {"chrf": _chrf(self.counts) if self.counts[:, 2].any() else math.nan}


def _character_counts(text: str, reference: str) -> Integers:
    """(6, 3) of runs of one to six characters; those of a text do not count where the reference has none so long."""
    letters, target = "".join(text.split()), "".join(reference.split())
    counts = np.array([shared_grams(letters, target, size) for size in range(1, 7)])
    counts[counts[:, 2] == 0] = 0
    return counts


def _chrf(counts: Integers) -> float:
    counts = counts[(counts[:, 1:] > 0).all(axis=1)]
    if not len(counts):
        return 0.0
    precision, recall = (sum((counts[:, 0] / counts[:, side]).tolist()) / len(counts) for side in (1, 2))
    return 100 * ratio(5 * precision * recall, 4 * precision + recall)


class Rouge(MeanMetric):
    """``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum`` (Lin 2004): means of F from 0 to 1, without stemming.

    ``rougeLsum`` sees each line by itself. Of several references the best counts, for each figure.
    """

    names = ("rouge1", "rouge2", "rougeL", "rougeLsum")

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            scores = zip(*(_rouge(text, reference) for reference in references))
            self.add(1, *map(max, scores))


def _rouge(text: str, reference: str) -> tuple[float, float, float, float]:
    words, target = rouge_words(text), rouge_words(reference)
    lines, target_lines = ([rouge_words(line) for line in whole.split("\n") if line] for whole in (text, reference))
    # What lines of the reference have in common with any line; no word counts oftener than the text has it.
    union = [line[place] for line in target_lines for place in set().union(*(common(line, other) for other in lines))]
    all_words = Counter(chain(*lines))
    return (
        f1(*shared_grams(words, target, 1)),
        f1(*shared_grams(words, target, 2)),
        f1(len(common(target, words)), len(words), len(target)),
        f1((Counter(union) & all_words).total(), all_words.total(), sum(map(len, target_lines))),
    )


def rouge_words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()


def common(first: Sequence[str], second: Sequence[str]) -> set[int]:
    """Places in the first list of a longest subsequence that the second has too."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if one == other else max(lengths[i][j + 1], lengths[i + 1][j])
    i, j, places = len(first), len(second), set()
    while i and j:
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            places.add(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places


def edits(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements between two lists (Levenshtein 1966)."""
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


class WordErrorRate(MeanMetric):
    """``wer``: edits of words over the words of the references; above 1 where much is inserted."""

    names = ("wer",)

    def pieces(self, text: str) -> Sequence[str]:
        """What is compared."""
        return text.split()

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            target = self.pieces(references[0])
            self.add(len(target), edits(target, self.pieces(text)))


class CharacterErrorRate(WordErrorRate):
    """``cer``: edits of characters over the characters of the references."""

    names = ("cer",)

    def pieces(self, text: str) -> Sequence[str]:
        return text.strip()


# The last token of an entity and an entity of one token have two names each.
MARKS = {"O": "O", "B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}


def is_entity_tag(tag: str) -> bool:
    """Whether a tag is ``O``, or a place in an entity and its type."""
    mark, dash, _ = tag.partition("-")
    return tag == "O" or (bool(dash) and mark in MARKS)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first, last) of a row's tags: ``B-``, ``I-``, ``E-`` (``L-``) and ``S-`` (``U-``) with a type, or ``O``.

    As in seqeval and CoNLL's script, an ``I-`` or ``E-`` that follows nothing of its type begins an entity.
    """
    spans: set[tuple[str, int, int]] = set()
    start, before, kind_before = 0, "O", ""
    for place, tag in enumerate((*tags, "O")):
        mark, _, kind = tag.partition("-")
        refuse(mark not in MARKS, f"the tag {tag!r} at {place} is none of B-, I-, E-, S-, L-, U- and O.")
        mark = MARKS[mark]
        if before in ("O", "E", "S") or mark in ("B", "S", "O") or kind != kind_before:
            if before != "O":
                spans.add((kind_before, start, place - 1))
            start = place
        before, kind_before = mark, kind
    return spans


class EntityF1(Metric):
    """``precision``, ``recall``, ``f1`` of whole entities, ``accuracy`` of tags; of each type as ``{type}_f1``.

    Args:
        names: the tags by number, for predictions and labels that are numbers; labels of -100 are left out.
        by_type: whether to give the figures of each type too.
    """

    def __init__(self, names: Mapping[int, str] | Sequence[str] | None = None, by_type: bool = False) -> None:
        self.names, self.by_type = names, by_type
        super().__init__()

    def reset(self) -> None:
        self.counters = Counter[str](), Counter[str](), Counter[str]()  # entities by type: hits, predicted, right
        self.same = self.count = 0

    def update(self, predictions: Any, labels: Any) -> None:
        if not isinstance(labels, list | tuple):
            predictions, labels = (classes.tolist() for classes in class_arrays(predictions, labels))
        same_number(predictions, labels)
        for row, (predicted, target) in enumerate(zip(predictions, labels)):
            if len(predicted) != len(target):
                raise InputError(f"row {row} has {len(predicted)} predicted tags for {len(target)} labels.")
            pairs = [(self._tag(tag), self._tag(label)) for tag, label in zip(predicted, target) if label != IGNORED]
            found, wanted = (entities([pair[side] for pair in pairs]) for side in (0, 1))
            for counter, spans in zip(self.counters, (found & wanted, found, wanted)):
                counter.update(kind for kind, _, _ in spans)
            self.same += sum(tag == label for tag, label in pairs)
            self.count += len(pairs)

    def _tag(self, tag: Any) -> str:
        if isinstance(tag, str):
            return tag
        if self.names is None:
            message = f"tags are numbers, such as {tag}, but have no names."
            raise InputError(message, hint="Pass `names`: config.id2label.")
        return str(self.names[int(tag)])

    def result(self) -> dict[str, float]:
        scores = f1_scores(*(counter.total() for counter in self.counters))
        scores |= {"accuracy": ratio(self.same, self.count, math.nan)}
        _, predicted, target = self.counters
        for kind in sorted({*predicted, *target}) if self.by_type else ():
            of_kind = f1_scores(*(counter[kind] for counter in self.counters))
            scores |= {f"{kind}_{name}": value for name, value in of_kind.items()}
        return scores


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_MARKS = str.maketrans("", "", string.punctuation)


def normal_answer(text: str) -> str:
    """An answer in lower case, without punctuation, articles and spare spaces, as SQuAD compares them."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_MARKS)).split())


class AnswerF1(MeanMetric):
    """``exact_match`` and ``f1`` of answers in percent, as SQuAD's script has them (Rajpurkar et al. 2016).

    Predictions are texts; labels are lists of right answers, or SQuAD's ``{"text": [...]}``. Of several right ones
    the best counts; where there is none, an empty answer is right.
    """

    names = ("exact_match", "f1")

    def update(self, predictions: Any, labels: Any) -> None:
        same_number(predictions, labels)
        for prediction, label in zip(predictions, labels):
            references = label["text"] if isinstance(label, Mapping) else [label] if isinstance(label, str) else label
            answer, targets = normal_answer(prediction), [normal_answer(text) for text in references] or [""]
            self.add(1, answer in targets, max(word_overlap(answer.split(), target.split()) for target in targets))

    def result(self) -> dict[str, float]:
        return {name: ratio(100 * value, self.count, math.nan) for name, value in self.sums.items()}


def word_overlap(words: list[str], target: list[str]) -> float:
    """F1 of the words of two answers."""
    return f1(*shared_grams(words, target)) if words and target else float(words == target)


class Perplexity(MeanMetric):
    """``perplexity`` and ``loss``, in nats a token, of logits (B, T, V) and labels (B, T), of which -100 is left out.

    Args:
        shift: whether each label is what the position before it predicts, as in causal language models.
    """

    names = ("loss",)

    def __init__(self, shift: bool = False) -> None:
        self.shift = shift
        super().__init__()

    def update(self, predictions: Any, labels: Any) -> None:
        logits, target = (
            value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(array(value, name))
            for value, name in ((predictions, "predictions"), (labels, "labels"))
        )
        target = F.pad(target, (0, 1), value=IGNORED)[:, 1:] if self.shift else target
        term = cross_entropy(logits, target)
        self.add(int(term.count), float(term.sum))

    def result(self) -> dict[str, float]:
        loss = super().result()["loss"]
        return {"perplexity": math.inf if loss >= 700 else math.exp(loss), "loss": loss}
