"""What is asked of a tokenizer in one call: the texts, checked, and what to return of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenizers import Encoding, Tokenizer

from transept.errors import InputError, InputTypeError
from transept.preprocess.text.backend import Truncation, guarded
from transept.preprocess.text.limits import Padding, pad_array, pad_rows


@dataclass(frozen=True)
class Request:
    """What a call wants.

    Args:
        add_special_tokens: whether special tokens are put around texts.
        words: whether each text is a list of words.
        padding: how rows get one length, or ``None``.
        truncation: how long rows may become, or ``None``.
        overflow: whether what is cut off follows in rows of its own.
        split_special_tokens: whether the text of special tokens is split like any other.
        columns: which of ``input_ids``, ``token_type_ids``, ``attention_mask``, ``special_tokens_mask``,
            ``offset_mapping`` and ``length``, in this order.
        tensors: ``pt``, ``np`` or ``None``.
    """

    add_special_tokens: bool = True
    words: bool = False
    padding: Padding | None = None
    truncation: Truncation | None = None
    overflow: bool = False
    split_special_tokens: bool = False
    columns: tuple[str, ...] = ("input_ids",)
    tensors: str | None = None


@dataclass(frozen=True)
class Fill:
    """What padding is made of: the values of each column, and the text of the padding token."""

    values: dict[str, Any]
    token: str

    @classmethod
    def of(cls, pad_id: int, pad_type_id: int, token: str) -> Fill:
        """The padding of a tokenizer."""
        values = {"input_ids": pad_id, "token_type_ids": pad_type_id, "attention_mask": 0, "special_tokens_mask": 1}
        return cls(values | {"offset_mapping": (0, 0)}, token)


_READ = {
    "input_ids": "ids",
    "token_type_ids": "type_ids",
    "special_tokens_mask": "special_tokens_mask",
    "offset_mapping": "offsets",
}


def batch_of(text: Any, pair: Any, *, words: bool) -> tuple[list[Any], bool]:
    """The texts, or pairs of texts, that a call passes, and whether it passes one alone and no batch.

    Raises:
        InputTypeError: something that is no text.
        InputError: two batches of different lengths.
    """
    listed = isinstance(text, list | tuple)
    single = not listed or (words and not (text and isinstance(text[0], list | tuple)))
    if not listed and not isinstance(text, str):
        _refuse(text, "the text")
    if single:
        return _items([text if pair is None else (text, pair)], words), True
    if pair is None:
        return _items(text, words), False
    if not isinstance(pair, list | tuple):
        raise InputTypeError(
            f"text is a batch of {len(text)}, but text_pair is {_shown(pair)}.",
            hint="Pass a list of as many second texts.",
        )
    if len(text) != len(pair):
        raise InputError(f"there are {len(text)} texts, but {len(pair)} texts to pair them with.")
    return list(zip(text, pair, strict=True)), False


def _items(items: Sequence[Any], words: bool) -> list[Any]:
    """A batch in which tuples are pairs and nothing else is."""
    if words:
        return [list(item) if isinstance(item, tuple) and all(isinstance(w, str) for w in item) else item for item in items]
    return [tuple(item) if isinstance(item, list) else item for item in items]


def run(view: Tokenizer, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
    """Encode a batch; without ``maps`` the encodings hold ids and masks only, which is faster.

    Raises:
        InputTypeError, InputError: a text that is none, or that cannot be encoded; names its place.
    """
    _check_room(view, batch, request)
    encode = view.encode_batch if maps else view.encode_batch_fast
    try:
        with guarded(InputError, "a text cannot be encoded"):
            return encode(batch, is_pretokenized=request.words, add_special_tokens=request.add_special_tokens)
    except InputError as error:
        if isinstance(error.__cause__, TypeError | UnicodeError):
            check_texts(batch, words=request.words)
        if len(batch) > 1:
            _place(view, batch, request, error)
        raise


def _check_room(view: Tokenizer, batch: list[Any], request: Request) -> None:
    if request.truncation is None or not request.add_special_tokens or not batch:
        return
    paired = any(isinstance(item, tuple) for item in batch)
    special = view.num_special_tokens_to_add(is_pair=paired)
    length, stride = request.truncation.max_length, request.truncation.stride
    if special > length or (stride and stride >= length - special):
        raise InputError(
            f"max_length {length} leaves no room for {special} special tokens"
            + (f" and a stride of {stride}." if stride else "."),
            hint="Pass a larger max_length, or add_special_tokens=False.",
        )


def _place(view: Tokenizer, batch: list[Any], request: Request, error: InputError) -> None:
    """Find the text that an error is about, and raise it again with its place."""
    for place, item in enumerate(batch):
        try:
            run(view, [item], request, maps=False)
        except InputError as found:
            raise InputError(f"text {place}: {found.message}", hint=found.hint) from error


def check_texts(batch: list[Any], *, words: bool) -> None:
    """Raise the error that names the first thing in a batch that is no text."""
    for place, item in enumerate(batch):
        where = f"text {place}" if len(batch) > 1 else "the text"
        pair = isinstance(item, tuple | list) and len(item) == 2 and (not words or not isinstance(item[0], str))
        for side, text in enumerate(item if pair else (item,)):
            name = where if not pair else f"{where}, {('first', 'second')[side]} of the pair"
            if words and not isinstance(text, list | tuple):
                _refuse(text, name, "a list of words")
            for number, word in enumerate(text if words else (text,)):
                _check_text(word, f"word {number} of {name}" if words else name)


def _check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        _refuse(text, name)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has half of a surrogate pair at character {error.start} ({text[error.start]!r}), which is no text.",
            hint='Clean it: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").',
        ) from error


def _refuse(value: Any, name: str, wanted: str = "a text (str)") -> NoReturn:
    hint = "Pass a str, a list of them, or with is_split_into_words=True lists of words."
    if isinstance(value, bytes):
        hint = 'Decode bytes first: data.decode("utf-8").'
    raise InputTypeError(f"{name} is {_shown(value)}, but must be {wanted}.", hint=hint)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def columns_of(encodings: Sequence[Encoding], request: Request, fill: Fill | None) -> dict[str, Any]:
    """The columns that a request wants, as lists, or as arrays (N, T) where it wants tensors and all rows fit."""
    rows: dict[str, Any] = {
        name: [getattr(encoding, _READ[name]) for encoding in encodings] for name in request.columns if name in _READ
    }
    lengths = [len(encoding) for encoding in encodings]
    if "attention_mask" in request.columns:
        rows["attention_mask"] = [[1] * length for length in lengths]
    if request.padding is not None and fill is not None:
        width, side = request.padding.width(lengths), request.padding.side
        if request.tensors is not None and max(lengths, default=0) <= width and "offset_mapping" not in rows:
            rows = {name: pad_array(values, width, fill.values[name], side) for name, values in rows.items()}
        else:
            rows = {name: pad_rows(values, width, fill.values[name], side) for name, values in rows.items()}
        lengths = [max(length, width) for length in lengths]
    return {name: rows.get(name, lengths) for name in request.columns}


def pad_encodings(encodings: Sequence[Encoding], padding: Padding, fill: Fill) -> None:
    """Pad the library's own encodings in place."""
    width = padding.width([len(encoding) for encoding in encodings])
    for encoding in encodings:
        encoding.pad(
            width,
            direction=padding.side,
            pad_id=fill.values["input_ids"],
            pad_type_id=fill.values["token_type_ids"],
            pad_token=fill.token,
        )
