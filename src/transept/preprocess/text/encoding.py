"""What a tokenizer returns: a batch of encoded texts, and the maps between its tokens, words and characters."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tokenizers import Encoding

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import check_tensor_type

if TYPE_CHECKING:
    import torch


class CharSpan(NamedTuple):
    """Characters of a text: the first, and the one after the last."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens of an encoding: the first, and the one after the last."""

    start: int
    end: int


class BatchEncoding(UserDict[str, Any]):
    """A model's inputs by name, also as attributes; ``model(**encoding)`` takes them.

    Shapes, for N encodings of T tokens: ``input_ids``, ``token_type_ids``, ``attention_mask`` and
    ``special_tokens_mask`` (N, T), ``offset_mapping`` (N, T, 2), ``overflow_to_sample_mapping`` and ``length`` (N,);
    lists of lists where no tensors were asked for, and without N for one text.

    Args:
        data: names and values.
        encoding: the library's own encodings that they came from, or a function that makes them when they are needed.
        tensor_type: ``"pt"`` or ``"np"`` to turn the values into tensors.
        prepend_batch_axis: whether the values are of one text and get an axis for N first.
        n_sequences: 2 where each encoding is of a pair of texts, else 1.

    Raises:
        InputError: an unknown ``tensor_type``, or rows of unequal lengths that make no tensor.
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
        self._later = encoding if callable(encoding) else None
        self._encodings: list[Encoding] | None = None
        if isinstance(encoding, Encoding):
            self._encodings = [encoding]
        elif isinstance(encoding, Sequence):
            self._encodings = list(encoding)
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

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "_encodings": self.encodings, "_later": None, "_n_sequences": self._n_sequences}

    @property
    def encodings(self) -> list[Encoding] | None:
        """The library's own encodings, or ``None`` where this was not made by a tokenizer."""
        if self._encodings is None and self._later is not None:
            self._encodings, self._later = self._later(), None
        return self._encodings

    @property
    def is_fast(self) -> bool:
        """Whether tokens can be mapped to words and characters."""
        return self._encodings is not None or self._later is not None

    @property
    def n_sequences(self) -> int | None:
        """How many texts each encoding is of: 1, or 2 for pairs; ``None`` where it is not known."""
        if self._n_sequences is None and self.encodings:
            return self.encodings[0].n_sequences
        return self._n_sequences

    def _known(self) -> list[Encoding]:
        if self.encodings is None:
            raise InputError(
                "this encoding has no map to words and characters.", hint="Only a tokenizer's call makes one that has."
            )
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

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which text of the pair a token is of. Takes ``(token)`` or ``(text, token)``."""
        encoding, token = self._at(batch_or_token_index, token_index)
        return encoding.token_to_sequence(_from_end(token, len(encoding)))

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Which word a token is of. Takes ``(token)`` or ``(text, token)``."""
        encoding, token = self._at(batch_or_token_index, token_index)
        return encoding.token_to_word(_from_end(token, len(encoding)))

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """The characters of a token, ``None`` for special tokens. Takes ``(token)`` or ``(text, token)``."""
        encoding, token = self._at(batch_or_token_index, token_index)
        span = encoding.token_to_chars(_from_end(token, len(encoding)))
        return None if span is None else CharSpan(*span)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word. Takes ``(word)`` or ``(text, word)``."""
        encoding, word = self._at(batch_or_word_index, word_index)
        span = encoding.word_to_tokens(_place(word, "word"), sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word. Takes ``(word)`` or ``(text, word)``."""
        encoding, word = self._at(batch_or_word_index, word_index)
        span = encoding.word_to_chars(_place(word, "word"), sequence_index)
        return None if span is None else CharSpan(*span)

    def char_to_token(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        """The token of a character, ``None`` where there is none. Takes ``(character)`` or ``(text, character)``."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_token(_place(char, "character"), sequence_index)

    def char_to_word(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        """The word of a character, ``None`` where there is none. Takes ``(character)`` or ``(text, character)``."""
        encoding, char = self._at(batch_or_char_index, char_index)
        return encoding.char_to_word(_place(char, "character"), sequence_index)

    def _at(self, first: int, second: int | None) -> tuple[Encoding, int]:
        return (self._known()[0], first) if second is None else (self._known()[first], second)

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> Self:
        """Turn every value into a tensor, in place; values that are tensors of that kind stay as they are."""
        check_tensor_type(tensor_type)
        if tensor_type is not None:
            for name, value in self.data.items():
                self.data[name] = as_tensor([value] if prepend_batch_axis else value, tensor_type, name)
        return self

    def to(
        self,
        device: str | int | torch.device | torch.dtype | None = None,
        *,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Move tensors to a device, in place; those of floating point are cast where a dtype is given. Ids never are."""
        import torch

        if isinstance(device, torch.dtype):
            device, dtype = None, device
        for name, value in self.data.items():
            if isinstance(value, torch.Tensor):
                kind = dtype if value.is_floating_point() else None
                self.data[name] = value.to(device=device, dtype=kind, non_blocking=non_blocking)
        return self


def _from_end(index: int, length: int) -> int:
    if not -length <= index < length:
        raise InputError(f"there is no token {index} among {length}.")
    return index % length


def _place(index: int, what: str) -> int:
    if index < 0:
        raise InputError(f"{what}s are counted from 0 on, but {index} was asked for.")
    return index


def as_tensor(value: Any, tensor_type: str, name: str) -> Any:
    """``value`` as a torch tensor or a numpy array.

    Raises:
        InputError: rows of unequal lengths, or values that are no numbers; names the value.
    """
    import numpy as np

    if tensor_type == "pt":
        import torch

        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
            _check_rows(value, name)
            return torch.stack(list(value))
    try:
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind in "US":
            raise ValueError("it holds what is no number")
    except ValueError as error:
        _check_rows(value, name)
        raise InputTypeError(f"{name!r} makes no tensor: {error}.") from error
    if array.size == 0:
        array = array.astype(np.int64)
    if tensor_type == "np":
        return array
    return torch.from_numpy(array) if array.dtype != np.float64 else torch.tensor(value)


def _check_rows(value: Any, name: str) -> None:
    lengths = sorted({len(row) for row in value if hasattr(row, "__len__")})
    if len(lengths) > 1:
        some = ", ".join(map(str, lengths[:4])) + (", ..." if len(lengths) > 4 else "")
        raise InputError(
            f"{name!r} has rows of different lengths ({some}) and makes no tensor.",
            hint="Pass padding=True, and truncation=True where texts are longer than the model takes.",
        )
