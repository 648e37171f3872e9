"""What a tokenizer returns: encoded texts, padded, and the maps between their tokens, words and characters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tokenizers import Encoding

from transept.errors import InputError
from transept.preprocess.features import BatchFeature, check_fill, check_sizes, check_tensor_type, columns_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Answer = TypeVar("Answer")


class CharSpan(NamedTuple):
    """Characters of a text: the first, and the one after the last."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens of an encoding: the first, and the one after the last."""

    start: int
    end: int


class BatchEncoding(BatchFeature):
    """A model's inputs by name, also as attributes; ``model(**encoding)`` takes them.

    Shapes, for N encodings of T tokens: ``input_ids``, ``token_type_ids``, ``attention_mask`` and
    ``special_tokens_mask`` (N, T), ``offset_mapping`` (N, T, 2), ``overflow_to_sample_mapping`` and ``length`` (N,);
    lists of lists where no tensors were asked for, and without N for one text.

    Args:
        encoding: the library's own encodings that they came from, or a function that makes them when they are needed.
        tensor_type: ``"pt"`` or ``"np"`` to turn the values into tensors; ``InputError`` for rows of unequal lengths.
        prepend_batch_axis: whether the values are of one text and get an axis for N first.
        n_sequences: 2 where each encoding is of a pair of texts, else 1.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        encoding: Encoding | Sequence[Encoding] | Callable[[], list[Encoding]] | None = None,
        tensor_type: str | None = None,
        prepend_batch_axis: bool = False,
        n_sequences: int | None = None,
    ) -> None:
        super().__init__(data)
        self._encodings: Any = [encoding] if isinstance(encoding, Encoding) else encoding
        self._n_sequences = n_sequences
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    def __getitem__(self, item: Any) -> Any:
        """The value of a name; for an integer the encoding of that text; for a slice those rows of every value."""
        if isinstance(item, str):
            return self.data[item]
        if self.is_fast:
            return self._known()[item]
        if isinstance(item, slice):
            return {name: value[item] for name, value in self.data.items()}
        raise KeyError(item)

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "_encodings": self.encodings, "_n_sequences": self._n_sequences}

    @property
    def encodings(self) -> list[Encoding] | None:
        """The library's own encodings, or ``None`` where this was not made by a tokenizer."""
        if callable(self._encodings):
            self._encodings = self._encodings()
        found: list[Encoding] | None = self._encodings
        return found

    @property
    def is_fast(self) -> bool:
        """Whether tokens can be mapped to words and characters."""
        return self._encodings is not None

    @property
    def n_sequences(self) -> int | None:
        """How many texts each encoding is of: 1, or 2 for pairs; ``None`` where it is not known."""
        if self._n_sequences is None and self.encodings:
            return self.encodings[0].n_sequences
        return self._n_sequences

    def _known(self) -> list[Encoding]:
        if self.encodings is None:
            hint = "Only a tokenizer's call makes one that has."
            raise InputError("this encoding has no map to words and characters.", hint=hint)
        return self.encodings

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of one text, as the vocabulary writes them."""
        return self._known()[batch_index].tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token which text of the pair it is of, ``None`` for special tokens."""
        return self._known()[batch_index].sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token which word it is of, ``None`` for special tokens."""
        return self._known()[batch_index].word_ids

    words = word_ids

    # The following take ``(index)`` in the first text, or ``(text, index)``; they give ``None`` where there is nothing.

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which text of the pair a token is of."""
        return self._ask(Encoding.token_to_sequence, batch_or_token_index, token_index)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which word a token is of."""
        return self._ask(Encoding.token_to_word, batch_or_token_index, token_index)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """The characters of a token."""
        span = self._ask(Encoding.token_to_chars, batch_or_token_index, token_index)
        return None if span is None else CharSpan(*span)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word."""
        span = self._ask(Encoding.word_to_tokens, batch_or_word_index, word_index, sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word."""
        span = self._ask(Encoding.word_to_chars, batch_or_word_index, word_index, sequence_index)
        return None if span is None else CharSpan(*span)

    def char_to_token(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        """The token of a character."""
        return self._ask(Encoding.char_to_token, batch_or_char_index, char_index, sequence_index)

    def char_to_word(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        """The word of a character."""
        return self._ask(Encoding.char_to_word, batch_or_char_index, char_index, sequence_index)

    def _ask(self, question: Callable[..., Answer], first: int, second: int | None, *more: int) -> Answer:
        """What an encoding says of its token, word or character."""
        encoding, index = (self._known()[0], first) if second is None else (self._known()[first], second)
        what, size = question.__name__.partition("_")[0], len(encoding)
        if what != "token" and index < 0:
            raise InputError(f"{what.replace('char', 'character')}s are counted from 0 on, but {index} was asked for.")
        if what == "token" and not -size <= index < size:
            raise InputError(f"there is no token {index} among {size}.")
        return question(encoding, index % size if what == "token" else index, *more)


# Padding


@dataclass(frozen=True)
class Padding:
    """How columns are filled up to one length: a given one or that of the longest row, rounded up to a multiple."""

    fill: dict[str, Any]
    length: int | None = None
    multiple: int | None = None
    side: str = "right"

    def width(self, lengths: Sequence[int]) -> int:
        """The length that rows shorter than it get; ``InputError`` where that is out of all proportion."""
        width = max(lengths, default=0) if self.length is None else self.length
        width = width if not self.multiple else -(-width // self.multiple) * self.multiple
        check_fill(lengths, width)
        return width

    def rows(self, rows: Sequence[list[Any]], width: int, value: Any) -> list[list[Any]]:
        """Rows as lists that are at least ``width`` long."""
        if self.side == "left":
            return [[value] * (width - len(row)) + row for row in rows]
        return [row + [value] * (width - len(row)) for row in rows]

    def array(self, rows: Sequence[list[int]], width: int, value: int) -> NDArray[np.int64]:
        """Rows of integers, none longer than ``width``, as an array (N, T) of int64."""
        import numpy as np

        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        places = np.arange(width)
        filled = places < lengths[:, None] if self.side == "right" else places >= width - lengths[:, None]
        array = np.full((len(rows), width), value, np.int64)
        array[filled] = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return array


def pad_batch(encoded: Any, main: str, padding: Padding | None, mask: bool, tensors: str | None) -> BatchEncoding:
    """Pad one encoding, a batch, or a list of encodings.

    Args:
        encoded: columns by name, or a list of such mappings.
        main: the column whose rows give the lengths.
        padding: how long rows become, or ``None``.
        mask: whether to make an attention mask where there is none.
        tensors: ``pt``, ``np``, or ``None`` for the kind that was passed.
    """
    check_tensor_type(tensors)
    given = columns_of(encoded, main)
    first, columns = given[main], {name: _plain(value) for name, value in given.items()}
    while isinstance(first, list | tuple) and first:
        first = first[0]
    kind = "pt" if type(first).__module__.startswith("torch") else "np" if hasattr(first, "tolist") else None
    tensors = tensors or kind
    if not columns[main]:
        return BatchEncoding(columns | ({"attention_mask": []} if mask else {}), tensor_type=tensors)
    if single := not isinstance(columns[main][0], list | tuple):
        columns = {name: [value] for name, value in columns.items()}
    check_sizes(columns)
    lengths = [len(row) for row in columns[main]]
    if mask and "attention_mask" not in columns:
        columns["attention_mask"] = [[1] * length for length in lengths]
    if padding is not None:
        width = padding.width(lengths)
        for name in columns.keys() & padding.fill.keys() - {"offset_mapping"}:
            if name == "labels" and not isinstance(columns[name][0], list | tuple):
                continue  # one for each row, and not for each token
            columns[name] = padding.rows([list(row) for row in columns[name]], width, padding.fill[name])
    if single:
        columns = {name: value[0] for name, value in columns.items()}
    return BatchEncoding(columns, tensor_type=tensors)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) if not isinstance(one, int) else one for one in value]
    return value
