"""The encoding of texts: what a call asks for, turned into requests to the backend and back into columns."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from tokenizers import Encoding, Tokenizer

from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.preprocess.padding import check_fill
from transept.preprocess.text.backend import Truncation, guarded
from transept.preprocess.text.encoding import BatchEncoding
from transept.preprocess.text.padding import Fill, Padding, pad_array, pad_rows, resolve
from transept.preprocess.text.vocabulary import Vocabulary

_ORDER = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask", "offset_mapping", "length")
Piece = Callable[[Any, int], list[int]]


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


class Encoder(Vocabulary):
    """A vocabulary that encodes."""

    model_input_names: list[str]
    model_max_length: int
    padding_side: str
    truncation_side: str
    chat_template: str | dict[str, str] | None
    split_special_tokens: bool
    _warned: bool

    def encode_ids(
        self,
        texts: Sequence[Any],
        *,
        add_special_tokens: bool = True,
        max_length: int | None = None,
        src_lang: str | None = None,
    ) -> list[list[int]]:
        """The ids of each text, or pair of texts, of a batch and nothing else, as fast as the library gives them.

        Args:
            texts: texts, or pairs of them.
            add_special_tokens: whether special tokens are put around texts.
            max_length: cut longer ones to this many tokens.
            src_lang: the language of the texts, where the tokenizer knows several.
        """
        cut = None if max_length is None else Truncation(max_length, direction=self.truncation_side)
        request = Request(add_special_tokens, truncation=cut, split_special_tokens=self.split_special_tokens)
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise InputTypeError(f"encode_ids takes a batch, but got {texts!r:.60}.", hint="Pass a list of texts.")
        batch, _ = batch_of(list(texts), None, words=False)
        encoder = self if src_lang is None else self._in_language(src_lang)
        return [encoding.ids for encoding in encoder._run(batch, request, maps=False)]

    def _in_language(self, code: str) -> Self:
        """What encodes texts of one language, with the vocabulary and the settings of this tokenizer."""
        raise InputError(
            f"{type(self).__name__} has no languages, but the language {code!r:.40} was passed.",
            hint="Leave src_lang and tgt_lang out.",
        )

    @property
    def pad_token_type_id(self) -> int:
        """The token type of padding."""
        return self.family.pad_type

    def _request(
        self, wanted: Mapping[str, bool | None], limits: tuple[Padding | None, Truncation | None], **others: Any
    ) -> Request:
        """A request for the columns that are wanted, those of ``None`` where the model takes them."""
        columns = {name: name in self.model_input_names if want is None else want for name, want in wanted.items()}
        names = tuple(name for name in _ORDER if name == "input_ids" or columns.get(name))
        padding, truncation = limits
        return Request(padding=padding, truncation=truncation, columns=names, **others)

    def _limits(self, padding: Any, truncation: Any, max_length: int | None, **others: Any) -> tuple[Any, Any]:
        """The padding and the truncation that are asked for; ``InputError`` where there is nothing to pad with."""
        rows, cut = resolve(
            padding,
            truncation,
            max_length,
            truncation_side=self.truncation_side,
            model_max_length=self.model_max_length,
            **others | {"padding_side": others.get("padding_side") or self.padding_side},
        )
        if rows is not None and self.pad_token_id is None:
            what = "has no pad_token" if self.pad_token is None else f"lacks its pad_token {self.pad_token!r}"
            raise InputError(
                f"padding needs a padding token, but the vocabulary {what}.",
                hint="Set tokenizer.pad_token = tokenizer.eos_token, or add_special_tokens({'pad_token': '[PAD]'}).",
            )
        return rows, cut

    def _fill(self) -> Fill | None:
        if (index := self.pad_token_id) is None or (token := self.pad_token) is None:
            return None
        return Fill.of(index, self.pad_token_type_id, token)

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
        view = self._views.get(request.truncation, request.split_special_tokens)
        return run(view, batch, request, maps=maps)

    def _rows(self, batch: list[Any], request: Request, *, maps: bool) -> tuple[list[Encoding], list[int]]:
        """The encodings of a batch, and for each the text that it is of."""
        encodings = self._run(batch, request, maps=maps)
        if not request.overflow:
            return encodings, []
        windows = [[encoding, *encoding.overflowing] for encoding in encodings]
        samples = [place for place, group in enumerate(windows) for _ in group]
        return list(itertools.chain.from_iterable(windows)), samples

    def _encode(self, text: Any, pair: Any, request: Request, *, verbose: bool) -> BatchEncoding:
        batch, single = batch_of(text, pair, words=request.words)
        # The faster way loses offsets and, of windows that overflow, token types.
        maps, fill = request.overflow or "offset_mapping" in request.columns, self._fill()
        encodings, samples = self._rows(batch, request, maps=maps)
        if verbose and request.truncation is None:
            self._warn_of_length(encodings)
        if request.padding is not None:
            lengths = [len(encoding) for encoding in encodings]
            check_fill(lengths, request.padding.width(lengths))
        columns = columns_of(encodings, request, fill)
        if request.overflow:
            columns["overflow_to_sample_mapping"] = samples
        if single and request.tensors is None and not request.overflow:
            columns = {name: value if name == "length" else value[0] for name, value in columns.items()}

        def later() -> list[Encoding]:
            found = encodings if maps else self._rows(batch, request, maps=True)[0]
            if request.padding is not None and fill is not None:
                pad_encodings(found, request.padding, fill)
            return found

        pairs = any(isinstance(item, tuple) for item in batch)
        return BatchEncoding(columns, later, tensor_type=request.tensors, n_sequences=2 if pairs else 1)

    def _warn_of_length(self, encodings: Sequence[Encoding]) -> None:
        longest = max(map(len, encodings), default=0)
        if longest > self.model_max_length and not self._warned:
            self._warned = True
            warnings.warn(
                f"a text has {longest} tokens, but the model takes {self.model_max_length}. "
                "Pass truncation=True to cut longer texts.",
                TranseptWarning,
                stacklevel=4,
            )

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens are put around a text, or around a pair."""
        return self._backend.num_special_tokens_to_add(pair)

    @property
    def max_len_single_sentence(self) -> int:
        """How many tokens of one text fit the model, beside the special ones."""
        return self.model_max_length - self.num_special_tokens_to_add()

    @property
    def max_len_sentences_pair(self) -> int:
        """How many tokens of a pair fit the model, beside the special ones."""
        return self.model_max_length - self.num_special_tokens_to_add(pair=True)

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        """Ids with the special tokens around them."""
        return self._templated(token_ids_0, token_ids_1, lambda index, kind: [index], lambda ids, kind: list(ids))

    def create_token_type_ids_from_sequences(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        """The token type ids of what :meth:`build_inputs_with_special_tokens` gives."""
        return self._templated(token_ids_0, token_ids_1, lambda index, kind: [kind], lambda ids, kind: [kind] * len(ids))

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for special tokens and 0 for others, of ids that get special tokens or that have them already."""
        if not already_has_special_tokens:
            return self._templated(token_ids_0, token_ids_1, lambda index, kind: [1], lambda ids, kind: [0] * len(ids))
        if token_ids_1 is not None:
            raise InputError("ids that have special tokens already are one list.", hint="Leave token_ids_1 out.")
        special = set(self.all_special_ids)
        return [int(int(index) in special) for index in token_ids_0]

    def _templated(self, first: list[int], second: list[int] | None, special: Piece, text: Piece) -> list[int]:
        """What ``special`` gives of each special token and ``text`` of each text, in the order of the template."""
        sample = self._sample()
        encoding = self._backend.encode(sample, None if second is None else sample)
        result: list[int] = []
        last: int | None = None
        for index, kind, sequence in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if sequence is None:
                result += special(index, kind)
            elif sequence != last:
                result += text(second if sequence else first, kind)
            last = sequence
        return result

    def _sample(self) -> str:
        """A text that has tokens."""
        candidates = itertools.chain(("a", "1", "."), self.get_vocab())
        view = self._backend
        return next((text for text in candidates if view.encode(text, add_special_tokens=False).ids), "")
