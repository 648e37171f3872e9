"""From the tokens of a speech model that writes times to a text, to pieces with times, and to words with times.

A window of sound is written by itself, and its times begin at 0 again. Windows that overlap are joined where the tokens of one
are those of the next, as far as that can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transept.preprocess.audio.languages import LANGUAGES, language_code

WINDOW = 1500
"""Positions of a time in one window, each as long as ``time_precision``."""
_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}  # languages that put no spaces between words
_OPENING, _CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_INCOMPLETE = "\ufffd"  # what bytes that are no character yet decode to


class Written(NamedTuple):
    """A token of text, and its times in seconds where they are known."""

    token: int
    start: float = 0.0
    end: float = 0.0


class Clock:
    """Makes times of the whole sound from times that begin again with each window."""

    def __init__(self, precision: float) -> None:
        self.window = precision * WINDOW
        self.base = self.last = self.before = 0.0

    def read(self, time: float, follows_pair: bool) -> tuple[float, bool]:
        """The time in the whole sound, and whether it takes the place of the time before it.

        A time below the last one begins a window. The one before was used up as a whole, or, where it ended with two times, up
        to the first of them.
        """
        again = time < self.last
        if again and not follows_pair:
            self.base += self.window
        elif again:
            self.last = self.before
            self.base += self.before
        self.before, self.last = self.last, time
        return self.base + time, again and follows_pair


def joined(runs: Sequence[Sequence[Written]]) -> list[Written]:
    """Tokens of windows that overlap as one sequence: each pair is joined in the middle of where most of their tokens agree."""
    import numpy as np  # with an import of the tokenizer this would cost every command

    left, whole = list(runs[0]), list[Written]()
    for run in runs[1:]:
        right, size = list(run), len(left)
        (tokens, starts, ends), (others, later, last) = (
            np.array(side, dtype=np.float64).reshape(-1, 3).T for side in (left, right)
        )
        in_order = (starts[:, None] < later) | ((starts[:, None] == later) & (ends[:, None] <= last))
        rows, columns = np.nonzero((tokens[:, None] == others) & in_order)
        shift = np.arange(1, size + len(right))  # by how much the right run is moved over the left one
        matches = np.bincount(columns - rows + size, minlength=size + len(right))[1:]
        cut, begin = size, 0
        if (matches > 1).any():
            best = int(shift[np.argmax(np.where(matches > 1, matches / shift + shift / 10000, 0))])
            cut = (max(0, size - best) + min(size, size + len(right) - best)) // 2
            begin = (max(0, best - size) + min(len(right), best)) // 2
        whole += left[:cut]
        left = right[begin:]
    return whole + left


class Transcript:
    """The text of a sound, from the tokens of its windows in order.

    Args:
        tokenizer: of the model; its times follow ``<|notimestamps|>``.
        words: whether pieces are words, for which each output has ``"token_timestamps"``.
        times, languages: whether times or languages are told; where no times are, a piece is what is in one language.
        precision: seconds of a position.
    """

    def __init__(self, tokenizer: Any, *, times: bool, words: bool, languages: bool, precision: float) -> None:
        self.tokenizer, self.times, self.words, self.languages, self.precision = tokenizer, times, words, languages, precision
        self.first_time = tokenizer.first_time_id
        self.special = set(tokenizer.all_special_ids)
        self.language: str | None = None
        self.pieces: list[dict[str, Any]] = []
        self.piece = self._new()
        self.runs: list[list[Written]] = []  # what is in the piece, window by window
        self.run: list[Written] = []  # and in this window
        self.offset = 0.0  # seconds before the window
        self.skip = False

    def _new(self) -> dict[str, Any]:
        return {"language": self.language, "timestamp": [None, None], "text": ""}

    def add(self, output: Mapping[str, Any]) -> None:
        """Read a window: ``"tokens"`` (1, T); ``"stride"`` is its length and what it shares at left and right, in seconds."""
        tokens = self.tokenizer.without_prompt(output["tokens"][0].tolist())
        times = output["token_timestamps"][0].tolist() if self.words else None
        length, left, right = output.get("stride", (0.0, 0.0, 0.0))
        self.offset -= left
        first = left / self.precision + self.first_time
        held = self._held_back(tokens, length - right) if right else None
        clock, self.run = Clock(self.precision), []
        for place, token in enumerate(tokens):
            if token in self.special:
                self._hear_language(token)
            elif token >= self.first_time:
                pair = place < 2 or min(tokens[place - 2 : place]) >= self.first_time
                time, _ = clock.read((token - self.first_time) * self.precision, pair)
                self._time(token, round(time + self.offset, 2), first, held)
            else:
                span = () if times is None else (times[place - 1] if place else 0.0, times[place])
                self.run.append(Written(token, *(round(time + self.offset, 2) for time in span)))
        self.offset += length - right
        if self.run:
            self.runs.append(self.run)
        elif not any(self.runs):
            self.piece, self.runs = self._new(), []

    def _held_back(self, tokens: Iterable[int], end: float) -> int | None:
        """The first time of those that fall into what the next window writes too; the last of all is always one of them."""
        held = None
        for token in reversed([token for token in tokens if token >= self.first_time]):
            if held is not None and (token - self.first_time) * self.precision < end:
                break
            held = token
        return held

    def _hear_language(self, token: int) -> None:
        if (name := LANGUAGES.get(self.tokenizer.decode([token])[2:-2])) is None:
            return
        if self.language and name != self.language and not self.times:
            self._close()
        self.piece["language"] = self.language = name

    def _time(self, token: int, time: float, first: float, held: int | None) -> None:
        """A time begins a piece or ends it; those that windows share are left to the window that does not end there."""
        begin = self.piece["timestamp"][0]
        if held and token >= held:
            self.skip = True  # and the one after it, since times come in pairs
        elif self.skip or (self.runs and token < first):
            self.skip = False
        elif begin is None:
            self.piece["timestamp"][0] = time
        elif time != begin:
            self.piece["timestamp"][1] = time
            self._close()

    def _close(self) -> None:
        self._finish([*self.runs, self.run])
        self.piece, self.runs, self.run = self._new(), [], []

    def _finish(self, runs: Sequence[Sequence[Written]]) -> None:
        written = joined(runs)
        self.piece["text"] = self.tokenizer.decode([one.token for one in written])
        if self.words:
            self.piece["words"] = self._timed_words(written)
        self.pieces.append(self.piece)

    def _timed_words(self, written: Sequence[Written]) -> list[dict[str, Any]]:
        more = {"language": self.language} if self.languages else {}
        return [word | more for word in timed_words(written, self.tokenizer, self.language)]

    def result(self) -> tuple[str, dict[str, Any]]:
        """The text, and, where times or languages are told, ``"chunks"``."""
        if self.runs:
            self._finish(self.runs)
            self.runs = []
        text = "".join([piece["text"] for piece in self.pieces])
        if not (self.times or self.languages):
            return text, {}
        if self.words:
            return text, {"chunks": [word for piece in self.pieces for word in piece["words"]]}
        kept = [name for name, shown in (("language", self.languages), ("timestamp", self.times), ("text", True)) if shown]
        chunks = [{name: piece[name] for name in kept} for piece in self.pieces]
        return text, {"chunks": [one | {"timestamp": tuple(one["timestamp"])} if self.times else one for one in chunks]}


# Words

Word = tuple[str, list[int]]  # its text, and the places of its tokens


def split_words(tokens: Sequence[int], tokenizer: Any, language: str | None = None) -> list[Word]:
    """Tokens as words with the punctuation beside them; characters, where a language puts no spaces between words.

    Where no language is given it is the tokenizer's own, or English.
    """
    language = language or tokenizer.language
    words = _characters(tokens, tokenizer.text_of)
    if language is None or language_code(language) not in _UNSPACED:
        words = _between_spaces(words, lambda place: tokens[place] >= tokenizer.eos_token_id)
    return _with_punctuation(words)


def timed_words(written: Sequence[Written], tokenizer: Any, language: str | None = None) -> list[dict[str, Any]]:
    """The words of tokens with times, each a ``"text"`` and its ``"timestamp"`` (start, end) in seconds."""
    words = split_words([one.token for one in written], tokenizer, language)
    return [{"text": text, "timestamp": (written[span[0]].start, written[span[-1]].end)} for text, span in words]


def _characters(tokens: Sequence[int], decode: Callable[[list[int]], str]) -> list[Word]:
    """The shortest runs of tokens that are whole characters."""
    whole, words, begin, shown = decode(list(tokens)), list[Word](), 0, 0
    for end in range(1, len(tokens) + 1):
        text = decode(list(tokens[begin:end]))
        place = text.find(_INCOMPLETE)
        # A replacement character that the whole text has there too is one that was written.
        if place < 0 or whole[shown + place : shown + place + 1] in ("", _INCOMPLETE):
            words.append((text, list(range(begin, end))))
            begin, shown = end, shown + len(text)
    return words


def _between_spaces(parts: Sequence[Word], is_special: Callable[[int], bool]) -> list[Word]:
    words: list[Word] = []
    for text, places in parts:
        if not words or is_special(places[0]) or text.startswith(" ") or text.strip() in _PUNCTUATION:
            words.append((text, places))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + places
    return words


def _with_punctuation(words: list[Word]) -> list[Word]:
    """Opening punctuation joined to the word behind it, and closing punctuation to the one before it."""
    opened: list[Word] = []
    for text, places in reversed(words):
        if opened and text.startswith(" ") and text.strip() in _OPENING:
            opened[-1] = text + opened[-1][0], places + opened[-1][1]
        else:
            opened.append((text, places))
    closed: list[Word] = []
    for text, places in reversed(opened):
        if closed and not closed[-1][0].endswith(" ") and text in _CLOSING:
            closed[-1] = closed[-1][0] + text, closed[-1][1] + places
        else:
            closed.append((text, places))
    return [word for word in closed if word[0]]
