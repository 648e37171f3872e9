"""The special tokens of a tokenizer: named ones such as ``pad_token``, a model's own, and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken

from transept.errors import InputError, InputTypeError, nearest

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = str | AddedToken
_OLDER = "additional_special_tokens"


def as_token(value: Any, name: str) -> Token:
    """A token as tokenizers take it, from text, an ``AddedToken``, or such a one's dictionary in a file.

    Raises:
        InputTypeError: anything else, or an empty text.
        InputError: a text with half of a surrogate pair.
    """
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        flags = {key: value[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value}
        if all(isinstance(flag, bool) for flag in flags.values()):
            return AddedToken(as_text(value["content"], name), **flags)
    if isinstance(value, AddedToken) or (isinstance(value, str) and value):
        return value if isinstance(value, AddedToken) else as_text(value, name)
    raise InputTypeError(f"`{name}` must be a token's text or an AddedToken, but is {value!r:.80}.")


def as_tokens(values: Any, name: str) -> list[Token]:
    """A list of tokens, each as :func:`as_token` gives it."""
    if not isinstance(values, list | tuple):
        raise InputTypeError(f"`{name}` must be a list of tokens, but is {values!r:.80}.")
    return [as_token(value, f"{name}[{place}]") for place, value in enumerate(values)]


def as_text(value: Any, name: str) -> str:
    """A text that can be written as UTF-8, which the library's own functions need."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name} must be text, but {type(value).__name__} was passed.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has half of a surrogate pair at character {error.start}, which is no text.") from error
    return value


class SpecialTokens:
    """Names and ids of special tokens.

    ``pad_token`` is the text of the special token of that name, ``None`` where there is none, and ``pad_token_id`` its id,
    ``None`` where it is not in the vocabulary. Both can be set; the token must then be in the vocabulary. So it is with the
    names of :data:`NAMED` and with a model's own, such as ``image_token``.
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

    _special: dict[str, Token | None]
    _extra: list[Token]

    def __getattr__(self, name: str) -> Any:
        special = self.__dict__.get("_special", {})
        if name in special:
            return None if special[name] is None else str(special[name])
        if name.endswith("_id") and (base := name.removesuffix("_id")) in special:
            return None if special[base] is None else self._find(str(special[base]))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        special, base = self.__dict__.get("_special", {}), name.removesuffix("_id")
        if base not in special:
            super().__setattr__(name, value)
        elif value is None or name in special:
            special[base] = None if value is None else as_token(value, name)
        elif (text := self._text(value)) is not None:
            special[base] = text
        else:
            raise InputError(f"the id {value!r} is not in the vocabulary.")

    def _find(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        raise NotImplementedError

    def _text(self, index: int) -> str | None:
        """The token of an id."""
        raise NotImplementedError

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
        self._extra = [] if tokens is None else as_tokens(tokens, "extra_special_tokens")

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

    def _name_special(self, tokens: Any, *, replace_extra: bool) -> list[AddedToken]:
        """Give special tokens their names; returns those tokens, to be added to the vocabulary."""
        if not isinstance(tokens, Mapping):
            raise InputTypeError(f"special tokens are a mapping of names to tokens, but {type(tokens).__name__} was passed.")
        # The older name comes last, as in the reference: the order is that of new ids.
        given = {name: value for name, value in tokens.items() if name != _OLDER}
        given |= {"extra_special_tokens": tokens[_OLDER]} if _OLDER in tokens else {}
        groups: dict[str, list[Token]] = {}
        for name, value in given.items():
            if name != "extra_special_tokens" and name not in self._special:
                known = [*self._special, "extra_special_tokens"]
                raise InputError(f"{name!r} is not the name of a special token.", hint=nearest(str(name), known))
            groups[name] = as_tokens(value, name) if name == "extra_special_tokens" else [as_token(value, name)]
        if (extra := groups.get("extra_special_tokens")) is not None:
            if not replace_extra:
                known = self.extra_special_tokens
                extra[:] = [*self._extra, *(token for token in extra if str(token) not in known)]
            self._extra = list(extra)
        self._special |= {name: group[0] for name, group in groups.items() if name != "extra_special_tokens"}
        return [as_special(token) for group in groups.values() for token in group]


def as_special(token: Token) -> AddedToken:
    """``token`` as one that is special: never normalized where it says nothing of that, and left out on request."""
    if isinstance(token, str):
        return AddedToken(token, normalized=False, special=True)
    if token.special:
        return token
    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token.content, special=True, **flags)
