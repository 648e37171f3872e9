"""Figures of texts and of labelled tokens: BLEU, chrF, ROUGE, error rates, entities, answers, perplexity."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from transept.errors import InputError, InputTypeError, refuse
from transept.metrics.base import Integers, Metric, array, f1, f1_scores, ratio, same_number
from transept.objectives.classification import IGNORED, cross_entropy

_MARKS = [
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]
_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}


def words_13a(text: str) -> list[str]:
    """The words of mteval-v13a, sacrebleu's usual ones: marks are apart but for those within numbers."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, mark in _ENTITIES.items():
        text = text.replace(entity, mark)
    text = f" {text} "
    for pattern, apart in _MARKS:
        text = pattern.sub(apart, text)
    return text.split()


def pairs_of(predictions: Any, labels: Any) -> Iterator[tuple[str, list[str]]]:
    """Each text with its references, of which there may be one or several."""
    same_number(predictions, labels)
    for row, (text, right) in enumerate(zip(predictions, labels)):
        references = list(right) if isinstance(right, list | tuple) else [right]
        if not isinstance(text, str) or not references or not all(isinstance(one, str) for one in references):
            raise InputTypeError(f"row {row} must be a text and its references, but is {str((text, right))[:80]}.")
        yield text, references


def grams(items: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    """How often each run of so many items is there."""
    return Counter(tuple(items[place : place + size]) for place in range(len(items) - size + 1))


class Bleu(Metric):
    """``bleu`` from 0 to 100 (Papineni et al. 2002), by the words and smoothing of sacrebleu's ``tok:13a|smooth:exp``."""

    def reset(self) -> None:
        self.hits, self.totals, self.length, self.reference = [0] * 4, [0] * 4, 0, 0

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            words, right = words_13a(text), [words_13a(reference) for reference in references]
            self.length += len(words)
            self.reference += min(map(len, right), key=lambda length: (abs(length - len(words)), length))
            for size in range(1, 5):
                most: Counter[tuple[str, ...]] = Counter()
                for reference in right:
                    most |= grams(reference, size)
                own = grams(words, size)
                self.hits[size - 1] += (own & most).total()
                self.totals[size - 1] += own.total()

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
        self.counts = np.zeros((6, 3), np.int64)  # hits, those of the texts and of the references, by size

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            self.counts += max((_counts(text, reference) for reference in references), key=_chrf)

    def result(self) -> dict[str, float]:
        return {"chrf": _chrf(self.counts) if self.counts[:, 2].any() else math.nan}


def _counts(text: str, reference: str) -> Integers:
    """(6, 3) of runs of one to six characters; those of a text do not count where the reference has none so long."""
    letters, right, counts = "".join(text.split()), "".join(reference.split()), []
    for size in range(1, 7):
        own, other = grams(letters, size), grams(right, size)
        counts.append(((own & other).total(), own.total() if other else 0, other.total()))
    return np.array(counts)


def _chrf(counts: Integers) -> float:
    there = [(hits, own, right) for hits, own, right in counts.tolist() if own and right]
    if not there:
        return 0.0
    precision = sum(hits / own for hits, own, _ in there) / len(there)
    recall = sum(hits / right for hits, _, right in there) / len(there)
    return 100 * ratio(5 * precision * recall, 4 * precision + recall)


class Rouge(Metric):
    """``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum`` (Lin 2004): means of F from 0 to 1, without stemming.

    ``rougeLsum`` sees each line by itself. Of several references the best counts, for each figure.
    """

    def reset(self) -> None:
        self.sums, self.count = dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), 0.0), 0

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            scores = [_rouge(text, reference) for reference in references]
            self.sums = {name: value + max(score[name] for score in scores) for name, value in self.sums.items()}
            self.count += 1

    def result(self) -> dict[str, float]:
        return {name: ratio(value, self.count, math.nan) for name, value in self.sums.items()}


def _rouge(text: str, reference: str) -> dict[str, float]:
    words, right = rouge_words(text), rouge_words(reference)
    scores = {"rougeL": f1(len(common(right, words)), len(words), len(right))}
    for size in (1, 2):
        own, other = grams(words, size), grams(right, size)
        scores[f"rouge{size}"] = f1((own & other).total(), own.total(), other.total())
    lines = ([rouge_words(line) for line in whole.split("\n") if line] for whole in (text, reference))
    return scores | {"rougeLsum": _summary(*lines)}


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


def _summary(text: list[list[str]], reference: list[list[str]]) -> float:
    """F of all that lines of the reference have in common with any line; no word counts oftener than it is there."""
    left = [Counter(word for line in side for word in line) for side in (text, reference)]
    sizes, hits = [counter.total() for counter in left], 0
    for line in reference:
        for place in sorted(set().union(*(common(line, other) for other in text))):
            if all(counter[line[place]] > 0 for counter in left):
                hits += 1
                for counter in left:
                    counter[line[place]] -= 1
    return f1(hits, *sizes)


def edits(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements between two lists (Levenshtein 1966)."""
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


class WordErrorRate(Metric):
    """``wer``: edits of words over the words of the references; above 1 where much is inserted."""

    name = "wer"

    def reset(self) -> None:
        self.wrong, self.total = 0, 0

    def pieces(self, text: str) -> Sequence[str]:
        """What is compared."""
        return text.split()

    def update(self, predictions: Any, labels: Any) -> None:
        for text, references in pairs_of(predictions, labels):
            right = self.pieces(references[0])
            self.wrong += edits(right, self.pieces(text))
            self.total += len(right)

    def result(self) -> dict[str, float]:
        return {self.name: ratio(self.wrong, self.total, math.nan)}


class CharacterErrorRate(WordErrorRate):
    """``cer``: edits of characters over the characters of the references."""

    name = "cer"

    def pieces(self, text: str) -> Sequence[str]:
        return text.strip()


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
