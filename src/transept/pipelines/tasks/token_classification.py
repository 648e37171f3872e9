"""Texts to classes of their tokens, and to the names, places and other spans that these make up.

Models name classes ``B-X`` for tokens that begin a span of kind X and ``I-X`` for those that go on with it.

Shapes: T tokens, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForTokenClassification
from transept.errors import InputError, TranseptWarning
from transept.pipelines.base import check_choice, check_count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.labels import scores
from transept.pipelines.text import TextPipeline, check_text, unexpected, unpadded
from transept.pipelines.windows import Tokens, cut

T = TypeVar("T")

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class TokenClassificationOptions:
    """Options of ``token-classification``.

    Args:
        aggregation_strategy: ``none`` for the class of each token. ``simple`` joins neighbouring tokens of one kind into
            spans. The others first give all tokens of a word one class: that of its ``first`` token, that of its token
            with the highest (``max``) score, or the best of the ``average`` scores.
        ignore_labels: classes that are left out.
        stride: tokens that two windows share, where a text longer than the model takes is read in windows. Without it
            such a text is cut, with a warning.
        is_split_into_words: inputs are lists of words; spans are places in the words joined by ``delimiter``.
        delimiter: what stands between words.

    Raises:
        InputError: another strategy, or windows without a strategy that joins what they share.
    """

    aggregation_strategy: str = "none"
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = None
    is_split_into_words: bool = False
    delimiter: str | None = None

    def __post_init__(self) -> None:
        check_choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        check_count("stride", self.stride, optional=True, least=0)
        if self.stride is not None and self.aggregation_strategy == "none":
            raise InputError(
                "`stride` reads a text in windows, whose shared tokens only a strategy can join.",
                hint='Pass aggregation_strategy="simple", or another one.',
            )
        if isinstance(self.ignore_labels, str):
            raise InputError(f"`ignore_labels` must be a list of labels, but is {self.ignore_labels!r}.")


class Token(NamedTuple):
    """A token, or all tokens of a word: as written in the vocabulary, its scores (C), and its place in the text."""

    text: str
    scores: NDArray[np.float32]
    start: int
    end: int
    position: int
    goes_on: bool
    """Whether it goes on with the word of the token before it."""


class TokenClassificationPipeline(TextPipeline[TokenClassificationOptions]):
    """For a text, a list of ``{"entity", "score", "index", "word", "start", "end"}``, one a token.

    With a strategy, ``entity_group`` in place of ``entity`` and ``index``, one a span.
    """

    task, auto, options_class = "token-classification", AutoModelForTokenClassification, TokenClassificationOptions

    def check_model(self) -> None:
        super().check_model()
        self._goes_on = getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """As of every pipeline; a single list of words is a list of one input, as for the reference."""
        split = options.get("is_split_into_words", self.options.is_split_into_words)
        words = split and isinstance(inputs, list | tuple) and all(isinstance(word, str) for word in inputs)
        return super().__call__([inputs] if words else inputs, **options)

    def read(self, item: Any, options: TokenClassificationOptions) -> Sequence[Any]:
        if not options.is_split_into_words:
            return [(check_text(item), None)]
        if not isinstance(item, list | tuple):
            raise unexpected("a list of words was", item)
        return [([check_text(word) for word in item], None)]

    def encode(self, texts: Sequence[Any], options: TokenClassificationOptions) -> Sequence[Tokens]:
        return self.tokens([text for text, _ in texts], is_split_into_words=options.is_split_into_words)

    def rows(self, encoded: Any, options: TokenClassificationOptions) -> list[Sample]:
        found = cut(encoded, 0, self.max_length, options.stride or 0)
        if options.stride is None and len(found) > 1:
            warnings.warn(
                f"a text of {len(encoded)} tokens is cut to the {self.max_length} that the model takes. Pass stride=... to "
                "read it in windows.",
                TranseptWarning,
                stacklevel=2,
            )
            return found[:1]
        return found

    def forward(self, samples: Sequence[Sample], options: TokenClassificationOptions) -> Sequence[NDArray[np.float32]]:
        """Logits (T, C) of each row."""
        return unpadded(to_numpy(self.logits(samples)), samples)

    def answer(
        self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: TokenClassificationOptions
    ) -> list[dict[str, Any]]:
        text, starts = item, None
        if options.is_split_into_words:
            between = " " if options.delimiter is None else options.delimiter
            text, starts = between.join(item), _starts(item, len(between))
        found: list[dict[str, Any]] = []
        for sample, logits in zip(samples, results, strict=True):
            read = self.placed(sample, scores(logits, "softmax"), text, starts)
            entities = self.entities(read, options.aggregation_strategy)
            kept = (e for e in entities if e.get("entity", e.get("entity_group")) not in options.ignore_labels)
            found += kept
        return _without_overlap(found) if len(samples) > 1 else found

    def placed(self, sample: Sample, found: NDArray[np.float32], text: str, starts: Sequence[int] | None) -> list[Token]:
        """The tokens of one window that are not special, with their places in the text."""
        row: Tokens = sample.inputs["tokens"]
        prefix = self._goes_on
        made = []
        for place, (i, values) in enumerate(zip(sample.inputs["window"], found, strict=True)):
            if row.sequences[i] is None:
                continue
            start, end = row.offsets[i]
            if starts is not None and (word := row.words[i]) is not None:
                start, end = start + starts[word], end + starts[word]
            written = self.tokenizer.convert_ids_to_tokens(row.ids[i])
            # Vocabularies that do not mark where words go on have words where there are spaces.
            goes_on = written.startswith(prefix) if prefix else start > 0 and " " not in text[start - 1 : start + 1]
            if row.ids[i] == self.tokenizer.unk_token_id:
                written, goes_on = text[start:end], False
            made.append(Token(written, values, start, end, place, goes_on))
        return made

    def entities(self, read: Sequence[Token], strategy: str) -> list[dict[str, Any]]:
        if strategy in ("none", "simple"):
            single = [self._entity(token, token.text) for token in read]
            return single if strategy == "none" else self.spans(single)
        words = _grouped(read, lambda _, token: token.goes_on)
        return self.spans([self._word(word, strategy) for word in words])

    def _entity(self, token: Token, text: str) -> dict[str, Any]:
        best = int(token.scores.argmax())
        label = (self.model.config.id2label or {}).get(best, f"LABEL_{best}")
        found = {"entity": label, "score": float(token.scores[best]), "index": token.position, "word": text}
        return found | {"start": token.start, "end": token.end}

    def _word(self, word: Sequence[Token], strategy: str) -> dict[str, Any]:
        chosen = word[0]
        if strategy == "max":
            chosen = max(word, key=lambda token: token.scores.max())
        found = np.mean([token.scores for token in word], axis=0) if strategy == "average" else chosen.scores
        whole = Token("", found, word[0].start, word[-1].end, word[0].position, False)
        return self._entity(whole, self.tokenizer.convert_tokens_to_string([token.text for token in word]))

    def spans(self, entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Join neighbours of one kind; one that begins a span is never joined to those before it."""

        def goes_on(last: dict[str, Any], entity: dict[str, Any]) -> bool:
            begins, kind = _tag(entity["entity"])
            return not begins and kind == _tag(last["entity"])[1]

        return [
            {
                "entity_group": group[0]["entity"].split("-", 1)[-1],
                "score": float(np.mean([entity["score"] for entity in group])),
                "word": self.tokenizer.convert_tokens_to_string([entity["word"] for entity in group]),
                "start": group[0]["start"],
                "end": group[-1]["end"],
            }
            for group in _grouped(entities, goes_on)
        ]


def _starts(words: Sequence[str], between: int) -> list[int]:
    """Where each word begins in the joined text."""
    return [0, *accumulate(len(word) + between for word in words)]


def _tag(label: str) -> tuple[bool, str]:
    """Whether a class begins a span, and of which kind."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _grouped(items: Sequence[T], goes_on: Callable[[T, T], bool]) -> list[list[T]]:
    """Neighbours together, where one goes on with the one before it."""
    groups: list[list[T]] = []
    for item in items:
        if groups and goes_on(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _without_overlap(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of spans that overlap, as those of two windows do, keep the longest, or of two alike the surer one."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or entity["start"] >= kept[-1]["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(kept[-1]):
            kept[-1] = entity
    return kept


def _weight(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
