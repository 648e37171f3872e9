"""From a path of CTC symbols to a text (Graves et al. 2006): merge what repeats, then drop the blanks.

Offsets count frames of the path; multiply by the model's hop (``inputs_to_logits_ratio / sampling_rate``) for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple


@dataclass
class Wav2Vec2CTCTokenizerOutput:
    """A decoded text with offsets; or, for a batch, a list of each.

    Args:
        text: the text.
        char_offsets: mappings with ``char``, ``start_offset`` and ``end_offset``, or ``None`` where not asked for.
        word_offsets: the same with ``word``.
    """

    text: Any
    char_offsets: Any = None
    word_offsets: Any = None

    def __getitem__(self, name: str) -> Any:
        if name not in ("text", "char_offsets", "word_offsets"):
            raise KeyError(name)
        return getattr(self, name)


class Span(NamedTuple):
    """A token and the frames from ``start`` up to ``end`` that spell it."""

    token: str
    start: int
    end: int


def collapse(tokens: Sequence[str], blank: str | None, *, group: bool = True) -> list[Span]:
    """Merge equal neighbours (unless ``group`` is false), then drop the blanks."""
    spans, start = [], 0
    for token, run in groupby(tokens) if group else ((token, (token,)) for token in tokens):
        end = start + sum(1 for _ in run)
        spans.append(Span(token, start, end))
        start = end
    return [span for span in spans if span.token != blank]


def char_offsets(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """One mapping a token."""
    return [{"char": span.token, "start_offset": span.start, "end_offset": span.end} for span in spans]


def word_offsets(spans: Iterable[Span], delimiter: str) -> list[dict[str, Any]]:
    """One mapping a word: a run of tokens that are not the delimiter."""
    words = []
    for is_delimiter, run in groupby(spans, key=lambda span: span.token == delimiter):
        if not is_delimiter:
            word = list(run)
            text = "".join(span.token for span in word)
            words.append({"word": text, "start_offset": word[0].start, "end_offset": word[-1].end})
    return words
