"""The vocabulary of a tokenizer: tokens and ids, special and added tokens, and ids back to text and bytes."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, overload

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from transept.errors import InputError, InputTypeError, TranseptWarning, nearest
from transept.preprocess.settings import need
from transept.preprocess.text.backend import Views, guarded
from transept.preprocess.text.loading import ENDS, Family, put_ends
from transept.preprocess.text.settings import (
    DEFAULTS,
    NAMED,
    Token,
    TokenizerSettings,
    as_special,
    as_text,
    as_token,
    as_tokens,
    checked,
)
from transept.storage.files import parse_json

_APART = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What :meth:`Vocabulary.clean_up_tokenization` writes without its spaces, in this order."""
_MAX_ID = 2**32 - 1
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_EXTRA, _OLDER = "extra_special_tokens", "additional_special_tokens"


def _end(name: str) -> tuple[Callable[[Any], Any], Callable[[Any, bool], None]]:
    """What reads an option of the ends of texts, and what sets it: special tokens then stand as these options say."""

    def get(self: Any) -> Any:
        return self._options.get(name, False)

    def put(self: Any, value: bool) -> None:
        self._options[name] = value
        put_ends(self._backend, TokenizerSettings(tokens=self._special, options=dict.fromkeys(ENDS, False) | self._options))
        self._views.clear()

    return get, put


class Vocabulary:
    """A backend and the names of its special tokens.

    ``pad_token`` is the text of the special token of that name, ``None`` where there is none, and ``pad_token_id`` its id,
    ``None`` where it is not in the vocabulary. Both can be set; the token must then be in the vocabulary. So it is with the
    other names below and with a model's own, such as ``image_token``.
    """

    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    unk_token: str | None
    unk_token_id: int | None
    sep_token: str | None
    sep_token_id: int | None
    pad_token: str | None
    pad_token_id: int | None
    cls_token: str | None
    cls_token_id: int | None
    mask_token: str | None
    mask_token_id: int | None

    SPECIAL_TOKENS_ATTRIBUTES: ClassVar[tuple[str, ...]] = NAMED
    family: ClassVar[Family] = Family()
    is_fast: ClassVar[bool] = True  # whether the compiled library cuts texts into tokens
    clean_up_tokenization_spaces: bool
    _views: Views
    _special: dict[str, Token | None]
    _extra: list[Token]
    _options: dict[str, Any]
    _other: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        special, options = self.__dict__.get("_special", {}), self.__dict__.get("_options", {})
        if name in options:
            return options[name]
        if name in special:
            return None if special[name] is None else str(special[name])
        if name.endswith("_id") and (base := name.removesuffix("_id")) in special:
            return None if special[base] is None else self._find(str(special[base]))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        special, base = self.__dict__.get("_special", {}), name.removesuffix("_id")
        if name in DEFAULTS:
            super().__setattr__(name, copy.copy(DEFAULTS[name]) if value is None else checked(name, value))
        elif name in self.__dict__.get("_options", {}) and not hasattr(type(self), name):
            self._options[name] = value
        elif base not in special:
            super().__setattr__(name, value)
        elif value is None or name in special:
            special[base] = None if value is None else as_token(value, name)
        elif (text := self._text(value)) is not None:
            special[base] = text
        else:
            raise InputError(f"the id {value!r} is not in the vocabulary.")

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The library's own tokenizer, whose rules can be changed in place. It neither truncates nor pads."""
        return self._views.expose()

    _tokenizer = backend_tokenizer

    @property
    def decoder(self) -> Any:
        """The library's rule that joins tokens to a text, or ``None``."""
        return self._backend.decoder

    add_bos_token = property(*_end("add_bos_token"), doc="Whether the begin token stands before each text.")
    add_eos_token = property(*_end("add_eos_token"), doc="Whether the end token stands behind each text.")

    @property
    def vocab_size(self) -> int:
        """How many tokens the model of the tokenizer has, without added ones."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, with added tokens."""
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, Any]:
        """Token -> id, with added tokens."""
        return self.get_vocab()

    # Special tokens

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Name -> text of the special tokens that have a name."""
        return {name: str(token) for name, token in self._special.items() if token is not None}

    @property
    def extra_special_tokens(self) -> list[str]:
        """Texts of the special tokens without a name."""
        return [str(token) for token in self._extra]

    @extra_special_tokens.setter
    def extra_special_tokens(self, tokens: Iterable[Token] | None) -> None:
        self._extra = [] if tokens is None else as_tokens(tokens, _EXTRA)

    @property
    def extra_special_tokens_ids(self) -> list[int | None]:
        """Their ids."""
        return [self._find(token) for token in self.extra_special_tokens]

    additional_special_tokens = extra_special_tokens
    additional_special_tokens_ids = extra_special_tokens_ids

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of all special tokens, each once: the named ones first."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens that are in the vocabulary."""
        return [index for token in self.all_special_tokens if (index := self._find(token)) is not None]

    def add_special_tokens(self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True) -> int:
        """Name special tokens and add those that are none yet; returns how many were not.

        They are such as ``{"pad_token": "[PAD]", "extra_special_tokens": ["<a>", "<b>"]}``; ``replace_extra_special_tokens``
        says whether these extra tokens replace those that were there, or follow them.
        """
        given: Any = special_tokens_dict
        need("special_tokens_dict", given, Mapping, "a mapping of names to tokens")
        # The older name comes last, as in the reference: the order is that of new ids.
        older = {_EXTRA: given[_OLDER]} if _OLDER in given else {}
        given = {name: value for name, value in given.items() if name != _OLDER} | older
        for name in given:
            if name not in (known := [*self._special, _EXTRA]):
                raise InputError(f"{name!r} is not the name of a special token.", hint=nearest(str(name), known))
        named = {name: as_token(value, name) for name, value in given.items() if name != _EXTRA}
        if _EXTRA in given:
            extra, held = as_tokens(given[_EXTRA], _EXTRA), self.extra_special_tokens
            new = [token for token in extra if str(token) not in held]
            self._extra = extra if replace_extra_special_tokens else [*self._extra, *new]
        self._special |= named
        groups = [self._extra if name == _EXTRA else [named[name]] for name in given]
        return self.add_tokens([as_special(token) for group in groups for token in group], special_tokens=True)

    def sanitize_special_tokens(self) -> int:
        """Add the special tokens that the vocabulary lacks; returns how many these were."""
        tokens = [token for token in (*self._special.values(), *self._extra) if token is not None]
        return self.add_tokens(tokens, special_tokens=True)

    # Added tokens

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Id -> added token, by id."""
        return dict(sorted(self._backend.get_added_tokens_decoder().items()))

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Text of an added token -> id, by id."""
        return {token.content: index for index, token in self.added_tokens_decoder.items()}

    def get_added_vocab(self) -> dict[str, int]:
        """Text of an added token -> id, by id."""
        return self.added_tokens_encoder

    def add_tokens(self, new_tokens: Token | Sequence[Token] | None, special_tokens: bool = False) -> int:
        """Add tokens that are found in a text before it is split otherwise; returns how many were none such before.

        A model's embeddings then have to grow: ``model.resize_token_embeddings(len(tokenizer))``. Special tokens are never
        normalized, and skipped by ``skip_special_tokens``.
        """
        tokens = [new_tokens] if isinstance(new_tokens, str | AddedToken) else new_tokens or []
        return self._add(as_tokens(tokens, "new_tokens"), special=special_tokens)

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        add = self._backend.add_special_tokens if special else self._backend.add_tokens
        with guarded(InputError, "the tokens cannot be added"):
            added = add(tokens)
        self._views.clear()
        return added

    # Ids

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: Any) -> int | list[int | None] | None:
        """The id of a token, or of each of several: that of ``unk_token`` for others, ``None`` where there is none."""
        if isinstance(tokens, Iterable) and not isinstance(tokens, str):
            unknown = self.unk_token_id
            return [unknown if (found := self._find(token)) is None else found for token in tokens]
        return self.unk_token_id if (found := self._find(tokens)) is None else found

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int], skip_special_tokens: bool = False) -> list[str | None]: ...
    def convert_ids_to_tokens(
        self, ids: int | Iterable[int], skip_special_tokens: bool = False
    ) -> str | list[str | None] | None:
        """The token of an id, or of each of several; ``None`` for ids that are not in the vocabulary."""
        row = listed(ids)
        if isinstance(row, int):
            return self._text(row)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self._text(index) for index in row if index not in skipped]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens, as the vocabulary writes them, joined to a text."""
        decoder = self._backend.decoder
        texts = [as_text(token, f"token {place}") for place, token in enumerate(tokens)]
        return " ".join(texts) if decoder is None else decoder.decode(texts)

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        *,
        spaces_between_special_tokens: Any = None,
    ) -> Any:
        """Ids back to text; ids beyond the vocabulary stand for nothing.

        Args:
            token_ids: an id, a list, array or tensor of ids (T,), or a batch of them (N, T), which gives a list of texts.
            clean_up_tokenization_spaces: whether the space before punctuation is taken away; by default as
                ``self.clean_up_tokenization_spaces`` says, but never for byte-pair models, whose spaces are exact.
            spaces_between_special_tokens: taken for the reference's sake; it has no effect.

        Raises:
            InputTypeError, InputError: what holds no ids, or an id below 0.
        """
        rows = listed(token_ids)
        if isinstance(rows, list) and rows and isinstance(rows[0], list):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in rows]
        ids = [rows] if isinstance(rows, int) else rows
        for place, index in enumerate(ids):
            if type(index) is not int or not 0 <= index <= _MAX_ID:
                hint = "Labels hold -100 where they are ignored: replace it by pad_token_id before decoding."
                raise InputError(f"id {place} is {index!r:.80}, which is no token.", hint=hint)
        text, is_exact = self._decoded(ids, skip_special_tokens), self._is_exact
        if is_exact and clean_up_tokenization_spaces:
            message = "clean_up_tokenization_spaces is ignored: a byte-pair model's spaces are exact."
            warnings.warn(message, TranseptWarning, stacklevel=2)
        clean = self.clean_up_tokenization_spaces if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
        return self.clean_up_tokenization(text) if clean and not is_exact else text

    def batch_decode(self, sequences: Any, *args: Any, **options: Any) -> Any:
        """Like :meth:`decode`, for each of several; one alone gives a list of one text."""
        rows = listed(sequences)
        if isinstance(rows, int):
            raise InputTypeError(f"batch_decode takes a batch, but the id {rows} was passed.", hint="Use decode().")
        rows = [rows] if rows and isinstance(rows[0], int) else rows
        return [self.decode(row, *args, **options) for row in rows]

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        with guarded(InputError, "the ids cannot be decoded"):
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @staticmethod
    def clean_up_tokenization(text: str) -> str:
        """``text`` without the spaces that word-piece models leave before punctuation and in contractions."""
        for apart in _APART:
            text = text.replace(apart, apart.strip())
        return text

    @property
    def _backend(self) -> Tokenizer:
        return self._views.backend

    @property
    def _is_exact(self) -> bool:
        """Whether the spaces of decoded texts are those of the vocabulary, and never taken away."""
        return isinstance(self._backend.model, models.BPE)

    def _find(self, token: Any) -> int | None:
        """The id of a token of the vocabulary."""
        return self._backend.token_to_id(as_text(token, "a token"))

    def _text(self, index: Any) -> str | None:
        """The token of an id."""
        if not isinstance(index, int) or not 0 <= index <= _MAX_ID:
            raise InputError(f"{index!r:.80} is no id: ids are integers from 0 on.")
        return self._backend.id_to_token(index)


def listed(ids: Any) -> Any:
    """Ids as Python's own integers and lists, from arrays and tensors too; ``InputTypeError`` for what holds none."""
    if isinstance(ids, int):
        return ids
    if isinstance(ids, list | tuple):
        return [listed(row) for row in ids] if ids and not isinstance(ids[0], int) else list(ids)
    if hasattr(ids, "tolist"):
        return ids.tolist()
    if isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping):
        return [listed(row) for row in ids]
    raise InputTypeError(f"ids are integers or lists of them, but {type(ids).__name__} was passed.")


def _alphabet() -> dict[str, int]:
    """The bytes that characters of byte-level vocabularies stand for (GPT-2): printable ones for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
    assert found.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return found


class TokenBytes:
    """The bytes that each token of a tokenizer writes in the middle of a text.

    A token of a byte-level vocabulary, or one for a single byte, may write a part of a character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {int(index): str(token) for index, token in tokenizer.added_tokens_decoder.items()}
        decoder = repr(parse_json(tokenizer.backend_tokenizer.to_str()).get("decoder"))
        self._of: Callable[[int, str], bytes] = self._plain
        if "'ByteLevel'" in decoder:
            self._alphabet = _alphabet()
            self._of = self._by_alphabet
        elif "▁" in decoder:
            self._of = self._pieces

    def __call__(self, index: int) -> bytes:
        """The bytes of one token; those of its name, where it is special."""
        token = self._added.get(index)
        if token is not None:
            return token.encode()
        token = self._tokenizer.convert_ids_to_tokens(index)
        return b"" if token is None else self._of(index, token)

    def _by_alphabet(self, index: int, token: str) -> bytes:
        return b"".join(bytes([self._alphabet[each]]) if each in self._alphabet else each.encode() for each in token)

    def _pieces(self, index: int, token: str) -> bytes:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def _plain(self, index: int, token: str) -> bytes:
        before = self._tokenizer.decode([index])
        return str(self._tokenizer.decode([index, index])[len(before) :]).encode()
