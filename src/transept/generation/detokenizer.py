"""Ids to text, a few at a time, for text that is shown while it is written. No torch here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

CONTEXT = 8  # ids that are decoded again beside the new ones, since a token's text depends on those before it
_WINDOW, _MOST = 24, 96  # ids from which the window is cut where characters are whole, and where it is cut in any case
_PATIENCE = 8  # ids to wait for bytes that turn what was shown into characters again
_UNSURE = re.compile("\ufffd{1,3}$")  # bytes that may be a character's beginning
_UNSURE_SPACE = re.compile(
    r"(?: (?:'[vr]?|n(?:'| '?)?)?|\ufffd{1,3})$"
)  # and a space that may be taken away before punctuation


class Detokenizer:
    """Turns ids into text piece by piece: the pieces join to what decoding prompt and answer shows beyond the prompt.

    What more ids may change is held back: the bytes of an incomplete character, and where the tokenizer cleans texts up the
    space that may stand before punctuation. Time is linear in the length. One thing differs from decoding the whole: where
    tokens for single bytes write a whole character and then, in the same run, bytes that are none, decoders that give up the
    whole run would take the character back; here it stays.

    Args:
        tokenizer: has ``decode``.
        skip_special_tokens: leave special tokens out.
        prompt: ids before the first one; their text is not shown.
        keep: special tokens that are shown all the same.
    """

    def __init__(
        self,
        tokenizer: Any,
        skip_special_tokens: bool = True,
        prompt: Sequence[int] = (),
        keep: Collection[int] = (),
    ) -> None:
        self._skipped = (special_ids(tokenizer) if skip_special_tokens else frozenset[int]()) - frozenset(keep)
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens and not keep)
        self._unsure = _UNSURE_SPACE if getattr(tokenizer, "clean_up_tokenization_spaces", False) is True else _UNSURE
        self._ids = self._end_of(prompt)
        text = self._shown = self._text(self._ids)  # what is shown of the ids' text
        self._whole, self._whole_length = len(self._ids), len(text)  # ids whose text is shown whole, and its length
        self._cut(text)
        self._least = self._sure(self._shown)  # of the prompt's text, whose end the first ids may complete

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """The last ids of a prompt, from where a character begins."""
        found = [[index for index in prompt[-size:] if index not in self._skipped] for size in range(_MOST, _MOST + 4)]
        whole = len(prompt) <= _MOST
        return next((ids for ids in found if whole or not self._text(ids).startswith("\ufffd")), found[0])

    def add(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        self._ids += [index for index in ids if index not in self._skipped]
        text = self._text(self._ids)
        sure = self._sure(text)
        if text.startswith(self._shown) and len(sure) < len(self._shown):
            return ""
        if not sure.startswith(self._shown) and text.startswith(self._least):
            self._shown = self._least
        if not sure.startswith(self._shown):
            if len(self._ids) - self._whole <= _PATIENCE:
                return ""
            text = self._restart()
            sure = self._sure(text)
        piece, self._shown = sure[len(self._shown) :], max(sure, self._shown, key=len)
        self._least = self._shown
        if sure == text:
            self._whole, self._whole_length = len(self._ids), len(text)
        if len(self._ids) >= _WINDOW:
            self._cut(text)
        return piece

    @property
    def is_whole(self) -> bool:
        """Whether all text of the ids so far is shown."""
        return self._whole == len(self._ids)

    def end(self) -> str:
        """What was held back, now that no more comes."""
        text = self._text(self._ids)
        if not text.startswith(self._shown):
            self._shown = self._least
            text = text if text.startswith(self._shown) else self._restart()
        piece, self._shown = text[len(self._shown) :], text
        return piece

    def _text(self, ids: list[int]) -> str:
        return str(self._decode(ids)) if ids else ""

    def _sure(self, text: str) -> str:
        held = self._unsure.search(text)
        return text[: held.start()] if held else text

    def _restart(self) -> str:
        """Begin behind the ids whose text was shown whole; the text of the others, with what is shown of it."""
        self._ids, self._shown = self._ids[self._whole :], self._shown[self._whole_length :]
        self._whole = self._whole_length = 0
        return self._text(self._ids)

    def _cut(self, text: str) -> None:
        """Leave out ids that have no part in what the next ones show."""
        held = len(text) - len(self._shown)
        sizes = range(CONTEXT, CONTEXT + 4)  # of four places in a run of bytes, a character begins at one
        ends = {size: self._text(self._ids[-size:]) for size in sizes}
        fits = [size for size, end in ends.items() if held == 0 and end.strip() and text.endswith(end)]
        if not fits and len(self._ids) >= _MOST:
            fits = [size for size in sizes if len(ends[size]) > held >= 0]
            fits.sort(key=lambda size: ends[size].startswith("\ufffd"))
        if fits:
            end = ends[fits[0]]
            self._ids, self._shown = self._ids[-fits[0] :], end[: len(end) - held]
            self._whole, self._whole_length = (len(self._ids), len(end)) if held == 0 else (0, 0)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The tokens that decoding leaves out as special: those with a part to play, and those that were added as such."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    return frozenset((*getattr(tokenizer, "all_special_ids", ()), *(int(index) for index, token in added if token.special)))
