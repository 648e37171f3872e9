"""The vocabulary of a tokenizer: tokens and ids, tokens that are added, and ids back to text."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, overload

from tokenizers import AddedToken, Tokenizer, models

from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.preprocess.text.backend import Views, guarded
from transept.preprocess.text.build import Family
from transept.preprocess.text.settings import DEFAULTS, from_caller
from transept.preprocess.text.special import SpecialTokens, Token, as_text, as_tokens

_APART = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What :meth:`Vocabulary.clean_up_tokenization` writes without its spaces, in this order."""
_MAX_ID = 2**32 - 1


class Vocabulary(SpecialTokens):
    """A backend and the names of its special tokens."""

    family: ClassVar[Family] = Family()
    clean_up_tokenization_spaces: bool
    _views: Views
    _options: dict[str, Any]
    _other: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DEFAULTS:
            value = copy.copy(DEFAULTS[name]) if value is None else from_caller({name: value}, {}).attributes[name]
        super().__setattr__(name, value)

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The library's own tokenizer, whose rules can be changed in place. It neither truncates nor pads."""
        return self._views.expose()

    _tokenizer = backend_tokenizer

    @property
    def is_fast(self) -> bool:
        """Whether the compiled library cuts texts into tokens."""
        return True

    @property
    def vocab_size(self) -> int:
        """How many tokens the model of the tokenizer has, without added ones."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        """How many tokens there are, with added ones."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        """Always true, so that ``if tokenizer:`` asks whether there is one."""
        return True

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, with added tokens."""
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, Any]:
        """Token -> id, with added tokens."""
        return self.get_vocab()

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

        A model's embeddings then have to grow: ``model.resize_token_embeddings(len(tokenizer))``.

        Args:
            new_tokens: texts or ``AddedToken``.
            special_tokens: whether they are special: never normalized, and skipped by ``skip_special_tokens``.

        Raises:
            InputTypeError: what is no token; names its place.
        """
        tokens = [new_tokens] if isinstance(new_tokens, str | AddedToken) else new_tokens or []
        return self._add(as_tokens(tokens, "new_tokens"), special=special_tokens)

    def _add(self, tokens: list[Token], *, special: bool) -> int:
        add = self._backend.add_special_tokens if special else self._backend.add_tokens
        with guarded(InputError, "the tokens cannot be added"):
            added = add(tokens)
        self._views.clear()
        return added

    def add_special_tokens(self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True) -> int:
        """Name special tokens and add those that are none yet; returns how many were not.

        Args:
            special_tokens_dict: such as ``{"pad_token": "[PAD]", "extra_special_tokens": ["<a>", "<b>"]}``.
            replace_extra_special_tokens: whether those given replace the extra tokens that were there, or follow them.
        """
        tokens = self._name_special(special_tokens_dict, replace_extra=replace_extra_special_tokens)
        return self.add_tokens(tokens, special_tokens=True)

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: Any) -> int | list[int | None] | None:
        """The id of a token, or of each of several: that of ``unk_token`` for others, ``None`` where there is none."""
        unknown = self.unk_token_id
        if isinstance(tokens, Iterable) and not isinstance(tokens, str):
            return [unknown if (found := self._find(token)) is None else found for token in tokens]
        return unknown if (found := self._find(tokens)) is None else found

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
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> Any:
        """Ids back to text; ids beyond the vocabulary stand for nothing.

        Args:
            token_ids: an id, a list, array or tensor of ids (T,), or a batch of them (N, T).
            skip_special_tokens: whether special tokens are left out.
            clean_up_tokenization_spaces: whether the space before punctuation is taken away; by default as
                ``self.clean_up_tokenization_spaces`` says, but never for byte-pair models, whose spaces are exact.

        Returns:
            A text, or for a batch a list of texts.

        Raises:
            InputTypeError: what holds no ids.
            InputError: an id below 0.
        """
        rows = listed(token_ids)
        if isinstance(rows, list) and rows and isinstance(rows[0], list):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in rows]
        text = self._decoded(_checked([rows] if isinstance(rows, int) else rows), skip_special_tokens)
        clean = self.clean_up_tokenization_spaces if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
        if not clean:
            return text
        if isinstance(self._backend.model, models.BPE):
            if clean_up_tokenization_spaces:
                warnings.warn(
                    "clean_up_tokenization_spaces is ignored: a byte-pair model's spaces are exact.",
                    TranseptWarning,
                    stacklevel=2,
                )
            return text
        return self.clean_up_tokenization(text)

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> list[str]:
        """Like :meth:`decode`, for each of several."""
        rows = listed(sequences)
        if isinstance(rows, int):
            raise InputTypeError(f"batch_decode takes a batch, but the id {rows} was passed.", hint="Use decode().")
        return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in rows]

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

    def _find(self, token: Any) -> int | None:
        return self._backend.token_to_id(as_text(token, "a token"))

    def _text(self, index: Any) -> str | None:
        if not isinstance(index, int) or not 0 <= index <= _MAX_ID:
            raise InputError(f"{index!r:.80} is no id: ids are integers from 0 on.")
        return self._backend.id_to_token(index)


def _checked(ids: list[Any]) -> list[int]:
    for place, index in enumerate(ids):
        if type(index) is not int or not 0 <= index <= _MAX_ID:
            raise InputError(
                f"id {place} is {index!r:.80}, which is no token.",
                hint="Labels hold -100 where they are ignored: replace it by pad_token_id before decoding.",
            )
    return ids


def listed(ids: Any) -> Any:
    """Ids as Python's own integers and lists, from arrays and tensors too.

    Raises:
        InputTypeError: what holds no ids.
    """
    if isinstance(ids, int):
        return ids
    if isinstance(ids, list | tuple):
        return [listed(row) for row in ids] if ids and not isinstance(ids[0], int) else list(ids)
    if hasattr(ids, "tolist"):
        return ids.tolist()
    if isinstance(ids, Mapping) and "input_ids" in ids:
        return listed(ids["input_ids"])
    if isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping):
        return [listed(row) for row in ids]
    raise InputTypeError(f"ids are integers or lists of them, but {type(ids).__name__} was passed.")
