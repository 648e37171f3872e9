"""The encoding of texts: what a call asks for, turned into requests to the backend and back into columns."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

from tokenizers import Encoding, Tokenizer

from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.preprocess.features import PADDINGS, choice
from transept.preprocess.text.backend import Truncation, guarded
from transept.preprocess.text.encoding import BatchEncoding, Padding
from transept.preprocess.text.settings import SIDES, as_text
from transept.preprocess.text.vocabulary import Vocabulary

_UNLIMITED = int(1e20)
TRUNCATIONS = {False: None, None: None, "do_not_truncate": None, True: "longest_first"} | {
    name: name for name in ("longest_first", "only_first", "only_second")
}
_LEAST = {"max_length": 0, "stride": 0, "pad_to_multiple_of": 1}
# Column -> what the library calls it; masks and lengths are made here.
_COLUMNS = {
    "input_ids": "ids",
    "token_type_ids": "type_ids",
    "attention_mask": "",
    "special_tokens_mask": "special_tokens_mask",
    "offset_mapping": "offsets",
    "length": "",
}


@dataclass(frozen=True)
class Request:
    """What a call wants.

    Args:
        columns: the names of what it returns.
        words: whether each text is a list of words.
        overflow: whether what is cut off follows in rows of its own.
        split_special_tokens: whether the text of special tokens is split like any other.
        tensors: ``pt``, ``np`` or ``None``.
        verbose: whether to warn of texts that are longer than the model takes.
    """

    columns: Sequence[str] = ("input_ids",)
    padding: Padding | None = None
    truncation: Truncation | None = None
    add_special_tokens: bool = True
    words: bool = False
    overflow: bool = False
    split_special_tokens: bool = False
    tensors: str | None = None
    verbose: bool = False


# Texts


def _batch_of(text: Any, pair: Any, *, words: bool) -> tuple[list[Any], bool]:
    """The texts, or pairs of texts, that a call passes, and whether it passes one alone and no batch.

    In the batch tuples are pairs and nothing else is.
    """
    listed = isinstance(text, list | tuple)
    if not listed and not isinstance(text, str):
        _refuse(text, "the text")
    single = not listed or (words and not (text and isinstance(text[0], list | tuple)))
    if not single and pair is not None:
        if not isinstance(pair, list | tuple):
            message = f"text is a batch of {len(text)}, but text_pair is {pair!r:.60} ({type(pair).__name__})."
            raise InputTypeError(message, hint="Pass a list of as many second texts.")
        if len(text) != len(pair):
            raise InputError(f"there are {len(text)} texts, but {len(pair)} texts to pair them with.")
        return list(zip(text, pair, strict=True)), False
    items = ([text] if pair is None else [(text, pair)]) if single else text
    if words:
        items = [list(one) if isinstance(one, tuple) and all(isinstance(w, str) for w in one) else one for one in items]
    return [tuple(item) if isinstance(item, list) and not words else item for item in items], single


def run(view: Tokenizer, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
    """Encode a batch; without ``maps`` the encodings hold ids and masks only, which is faster. Errors name a text's place."""
    if request.truncation is not None and request.add_special_tokens and batch:
        special = view.num_special_tokens_to_add(is_pair=any(isinstance(item, tuple) for item in batch))
        length, stride = request.truncation.max_length, request.truncation.stride
        if special > length or (stride and stride >= length - special):
            and_stride = f" and a stride of {stride}" if stride else ""
            hint = "Pass a larger max_length, or add_special_tokens=False."
            raise InputError(f"max_length {length} leaves no room for {special} special tokens{and_stride}.", hint=hint)
    encode = view.encode_batch if maps else view.encode_batch_fast
    try:
        with guarded(InputError, "a text cannot be encoded"):
            return encode(batch, is_pretokenized=request.words, add_special_tokens=request.add_special_tokens)
    except InputError as error:
        if isinstance(error.__cause__, TypeError | UnicodeError):
            check_texts(batch, words=request.words)
        for place, item in enumerate(batch if len(batch) > 1 else ()):
            try:
                run(view, [item], request, maps=False)
            except InputError as found:
                raise InputError(f"text {place}: {found.message}", hint=found.hint) from error
        raise


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
                found = f"word {number} of {name}" if words else name
                if not isinstance(word, str):
                    _refuse(word, found)
                as_text(word, found)


def _refuse(value: Any, name: str, wanted: str = "a text (str)") -> NoReturn:
    hint = "Pass a str, a list of them, or with is_split_into_words=True lists of words."
    if isinstance(value, bytes):
        hint = 'Decode bytes first: data.decode("utf-8").'
    raise InputTypeError(f"{name} is {value!r:.60} ({type(value).__name__}), but must be {wanted}.", hint=hint)


class Encoder(Vocabulary):
    """A vocabulary that encodes."""

    model_max_length: int
    maps: ClassVar[bool] = False  # whether columns are made of what tokens say of their words
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

        Texts longer than ``max_length`` are cut; ``src_lang`` is their language, where the tokenizer knows several.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise InputTypeError(f"encode_ids takes a batch, but got {texts!r:.60}.", hint="Pass a list of texts.")
        cut = None if max_length is None else Truncation(max_length, direction=self.truncation_side)
        request = Request(truncation=cut, add_special_tokens=add_special_tokens, split_special_tokens=self.split_special_tokens)
        batch, _ = _batch_of(list(texts), None, words=False)
        encoder = self if src_lang is None else self._in_language(src_lang)
        return [encoding.ids for encoding in encoder._run(batch, request, maps=False)]

    def _in_language(self, code: str) -> Self:
        """What encodes texts of one language, with the vocabulary and the settings of this tokenizer."""
        hint = "Leave src_lang and tgt_lang out."
        raise InputError(f"{type(self).__name__} has no languages, but the language {code!r:.40} was passed.", hint=hint)

    @property
    def pad_token_type_id(self) -> int:
        """The token type of padding."""
        return self.family.pad_type

    def _limits(
        self, padding: Any, truncation: Any, max_length: Any, multiple: Any, side: Any, stride: Any = 0, verbose: bool = True
    ) -> tuple[Padding | None, Truncation | None]:
        """The padding and the truncation that a call's arguments ask for, by the rules of the ecosystem.

        ``max_length`` alone truncates; where it is absent, the model's own limit takes its place, and where that is absent
        too, nothing is done.
        """
        for name, value in {"max_length": max_length, "stride": stride, "pad_to_multiple_of": multiple}.items():
            good = isinstance(value, int) and not isinstance(value, bool) and _LEAST[name] <= value <= _UNLIMITED
            if value is not None and not good:
                raise InputError(f"{name} is {value!r}, but must be an integer from {_LEAST[name]} on.")
        pad, cut = choice("padding", padding, PADDINGS), choice("truncation", truncation, TRUNCATIONS)
        if (side := side or self.padding_side) not in SIDES:
            raise InputError(f"padding_side is {side!r}.", hint='Pass "right" or "left".')
        if max_length is None:
            max_length = self.model_max_length if self.model_max_length <= _UNLIMITED else None
        elif truncation is None and not padding:
            cut = "longest_first"
        elif padding is True and cut is None and verbose:
            message = "max_length is ignored with padding=True and no truncation; padding='max_length' pads to it."
            warnings.warn(message, TranseptWarning, stacklevel=4)
        if max_length is None:
            pad, cut = (None if pad == "max_length" else pad), None
        if cut and pad and multiple and max_length % multiple:
            raise InputError(f"max_length {max_length} is no multiple of pad_to_multiple_of {multiple}.")
        if pad and self.pad_token_id is None:
            what = "has no pad_token" if self.pad_token is None else f"lacks its pad_token {self.pad_token!r}"
            hint = "Set tokenizer.pad_token = tokenizer.eos_token, or add_special_tokens({'pad_token': '[PAD]'})."
            raise InputError(f"padding needs a padding token, but the vocabulary {what}.", hint=hint)
        fill: dict[str, Any] = {"attention_mask": 0, "special_tokens_mask": 1, "offset_mapping": (0, 0)}
        fill |= {"input_ids": self.pad_token_id, "token_type_ids": self.pad_token_type_id}
        rows = Padding(fill, max_length if pad == "max_length" else None, multiple, side) if pad else None
        return rows, Truncation(max_length, stride, cut, self.truncation_side) if cut else None

    def _run(self, batch: list[Any], request: Request, *, maps: bool) -> list[Encoding]:
        view = self._views.get(request.truncation, request.split_special_tokens)
        return run(view, batch, request, maps=maps)

    def _encode(self, text: Any, pair: Any, request: Request) -> BatchEncoding:
        batch, single = _batch_of(text, pair, words=request.words)
        # The faster way loses offsets and, of windows that overflow, token types.
        maps, padding = self.maps or request.overflow or "offset_mapping" in request.columns, request.padding
        token = self.pad_token

        def rows(maps: bool) -> tuple[list[Encoding], list[int]]:
            """The encodings, and for each the text that it is of where texts can have several."""
            found = self._run(batch, request, maps=maps)
            if not request.overflow:
                return found, []
            windows = [[one, *one.overflowing] for one in found]
            return list(itertools.chain.from_iterable(windows)), [place for place, row in enumerate(windows) for _ in row]

        encodings, samples = rows(maps)
        if request.verbose and request.truncation is None:
            self._warn_of_length(encodings)
        columns = self._columns(encodings, samples or range(len(encodings)), request)
        if request.overflow:
            columns["overflow_to_sample_mapping"] = samples
        if single and request.tensors is None and not request.overflow:
            columns = {name: value if name == "length" else value[0] for name, value in columns.items()}

        def later() -> list[Encoding]:
            found = encodings if maps else rows(True)[0]
            if padding is not None:
                width, ids = padding.width([len(one) for one in found]), (padding.fill["input_ids"], self.pad_token_type_id)
                for one in found:
                    one.pad(width, direction=padding.side, pad_id=ids[0], pad_type_id=ids[1], pad_token=token)
            return found

        pairs = any(isinstance(item, tuple) for item in batch)
        return BatchEncoding(columns, later, tensor_type=request.tensors, n_sequences=2 if pairs else 1)

    def _columns(self, encodings: Sequence[Encoding], samples: Sequence[int], request: Request) -> dict[str, Any]:
        """What a request wants of encodings, of which each is of the text whose number is in ``samples``."""
        return columns_of(encodings, request)

    def _warn_of_length(self, encodings: Sequence[Sized]) -> None:
        longest = max(map(len, encodings), default=0)
        if longest > self.model_max_length and not self._warned:
            self._warned = True
            message = f"a text has {longest} tokens, but the model takes {self.model_max_length}."
            warnings.warn(f"{message} Pass truncation=True to cut longer texts.", TranseptWarning, stacklevel=4)

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
        return [index for index, _, _ in self._templated(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        """The token type ids of what :meth:`build_inputs_with_special_tokens` gives."""
        return [kind for _, kind, _ in self._templated(token_ids_0, token_ids_1)]

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for special tokens and 0 for others, of ids that get special tokens or that have them already."""
        if not already_has_special_tokens:
            return [special for _, _, special in self._templated(token_ids_0, token_ids_1)]
        if token_ids_1 is not None:
            raise InputError("ids that have special tokens already are one list.", hint="Leave token_ids_1 out.")
        known = set(self.all_special_ids)
        return [int(int(index) in known) for index in token_ids_0]

    def _templated(self, first: list[int], second: list[int] | None) -> list[tuple[int, int, int]]:
        """The ids of texts in their template: each with its token type, and 1 where it is special, else 0."""
        words = itertools.chain(("a", "1", "."), self.get_vocab())
        sample = next((word for word in words if self._backend.encode(word, add_special_tokens=False).ids), "")
        encoding = self._backend.encode(sample, None if second is None else sample)
        result: list[tuple[int, int, int]] = []
        last: int | None = None
        for index, kind, sequence in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if sequence is None:
                result.append((index, kind, 1))
            elif sequence != last:
                result += [(one, kind, 0) for one in ((second or []) if sequence else first)]
            last = sequence
        return result


def columns_of(encodings: Sequence[Encoding], request: Request) -> dict[str, Any]:
    """The columns that a request wants, as lists, or as arrays (N, T) where it wants tensors and all rows fit."""
    rows: dict[str, Any] = {
        name: [getattr(encoding, _COLUMNS[name]) for encoding in encodings] for name in request.columns if _COLUMNS[name]
    }
    lengths, padding = [len(encoding) for encoding in encodings], request.padding
    if "attention_mask" in request.columns:
        rows["attention_mask"] = [[1] * length for length in lengths]
    if padding is not None:
        width = padding.width(lengths)
        fits = request.tensors is not None and max(lengths, default=0) <= width and "offset_mapping" not in rows
        pad: Callable[..., Any] = padding.array if fits else padding.rows
        rows = {name: pad(values, width, padding.fill[name]) for name, values in rows.items()}
        lengths = [max(length, width) for length in lengths]
    return {name: rows.get(name, lengths) for name in request.columns}
