"""Texts as tokens that know where they stand, and long ones as windows that overlap.

Shapes: T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from transept.errors import InputError
from transept.pipelines.batching import Sample


@dataclass(frozen=True)
class Tokens:
    """A text, or a pair of texts, as T tokens.

    Args:
        ids: the tokens.
        types: which segment each is of, where the model is told.
        sequences: 0 for tokens of the first text, 1 for those of the second, ``None`` for special ones.
        offsets: first character of each in its text and the one behind its last.
        words: number of its word in its text; ``None`` where it is in no word.
    """

    ids: list[int]
    types: list[int] | None
    sequences: list[int | None]
    offsets: list[tuple[int, int]]
    words: list[int | None]

    @classmethod
    def of(cls, encoded: Any, index: int) -> Self:
        """One text or pair out of a batch that the tokenizer made with ``return_offsets_mapping=True``."""
        types = encoded["token_type_ids"][index] if "token_type_ids" in encoded else None
        offsets = encoded["offset_mapping"][index]
        return cls(encoded["input_ids"][index], types, encoded.sequence_ids(index), offsets, encoded.word_ids(index))

    def __len__(self) -> int:
        return len(self.ids)

    def window(self, chosen: list[int]) -> Sample:
        """The row of some of the tokens, whose inputs hold these tokens' indices and all tokens, too."""
        types = {} if self.types is None else {"token_type_ids": [self.types[i] for i in chosen]}
        return Sample.of([self.ids[i] for i in chosen], **types, tokens=self, window=chosen)


def cut(row: Tokens, sequence: int, limit: int, stride: int = 0) -> list[Sample]:
    """Windows over one text of a row, each with all other tokens around it; one window where everything fits.

    Args:
        row: the tokens.
        sequence: the text to cut.
        limit: tokens of a window at most.
        stride: tokens that a window shares with the one before it.

    Raises:
        InputError: the other tokens leave too little room.
    """
    total = len(row)
    if total <= limit:
        return [row.window(list(range(total)))]
    inside = [i for i, of in enumerate(row.sequences) if of == sequence]
    room = limit - (total - len(inside))
    if not inside or room <= stride:
        raise InputError(
            f"of {limit} tokens, {total - len(inside)} are taken by what cannot be cut, which leaves no room for windows "
            f"that share {stride}.",
            hint="Shorten the other text, share less, or allow longer windows.",
        )
    before, after = list(range(inside[0])), list(range(inside[-1] + 1, total))
    found = []
    for start in range(0, len(inside), room - stride):
        found.append(row.window([*before, *inside[start : start + room], *after]))
        if start + room >= len(inside):
            break
    return found
