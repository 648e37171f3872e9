"""The special tokens of a tokenizer: named ones such as ``pad_token``, a model's own, and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from tokenizers import AddedToken

from transept.errors import InputError, InputTypeError, nearest

if TYPE_CHECKING:
    from typing import Self

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = str | AddedToken
_OLDER = "additional_special_tokens"


def as_token(value: Any, name: str) -> Token:
    """A token as tokenizers take it, from text, an ``AddedToken``, or such a one's dictionary in a file.

    Raises:
        InputTypeError: anything else, or an empty text.
    """
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        flags = {key: value[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value}
        if all(isinstance(flag, bool) for flag in flags.values()):
            return AddedToken(value["content"], **flags)
    if isinstance(value, AddedToken) or (isinstance(value, str) and value):
        return value
    raise InputTypeError(f"`{name}` must be a token's text or an AddedToken, but is {value!r:.80}.")


def as_tokens(values: Any, name: str) -> list[Token]:
    """A list of tokens, each as :func:`as_token` gives it."""
    if not isinstance(values, list | tuple):
        raise InputTypeError(f"`{name}` must be a list of tokens, but is {values!r:.80}.")
    return [as_token(value, f"{name}[{place}]") for place, value in enumerate(values)]


class _Named:
    """The attribute ``pad_token``: the text of the special token of that name, or ``None``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, tokens: None, owner: type) -> Self: ...
    @overload
    def __get__(self, tokens: SpecialTokens, owner: type) -> str | None: ...
    def __get__(self, tokens: SpecialTokens | None, owner: type) -> str | Self | None:
        if tokens is None:
            return self
        token = tokens._special.get(self.name)
        return None if token is None else str(token)

    def __set__(self, tokens: SpecialTokens, value: Token | None) -> None:
        tokens._special[self.name] = None if value is None else as_token(value, self.name)


class _NamedId:
    """The attribute ``pad_token_id``: the id of that token; ``None`` where it is not set or not in the vocabulary."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.removesuffix("_id")

    @overload
    def __get__(self, tokens: None, owner: type) -> Self: ...
    @overload
    def __get__(self, tokens: SpecialTokens, owner: type) -> int | None: ...
    def __get__(self, tokens: SpecialTokens | None, owner: type) -> int | Self | None:
        return self if tokens is None else tokens._id_of(tokens._special.get(self.name))

    def __set__(self, tokens: SpecialTokens, value: int | None) -> None:
        tokens._special[self.name] = None if value is None else tokens._token_of(value)


class SpecialTokens:
    """Names and ids of special tokens. What a name stands for can be set; its token must then be in the vocabulary."""

    bos_token, eos_token, unk_token, sep_token = _Named(), _Named(), _Named(), _Named()
    pad_token, cls_token, mask_token = _Named(), _Named(), _Named()
    bos_token_id, eos_token_id, unk_token_id, sep_token_id = _NamedId(), _NamedId(), _NamedId(), _NamedId()
    pad_token_id, cls_token_id, mask_token_id = _NamedId(), _NamedId(), _NamedId()

    _special: dict[str, Token | None]
    _extra: list[Token]

    def __getattr__(self, name: str) -> Any:
        """A model's own special tokens, such as ``image_token`` and ``image_token_id``."""
        special = self.__dict__.get("_special", {})
        if name in special:
            return None if special[name] is None else str(special[name])
        if (base := name.removesuffix("_id")) in special:
            return self._id_of(special[base])
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _find(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        raise NotImplementedError

    def _text(self, index: int) -> str | None:
        """The token of an id."""
        raise NotImplementedError

    def _id_of(self, token: Token | None) -> int | None:
        return None if token is None else self._find(str(token))

    def _token_of(self, index: int) -> str:
        if (text := self._text(index)) is None:
            raise InputError(f"the id {index!r} is not in the vocabulary.")
        return text

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
        self._extra = [] if tokens is None else as_tokens(list(tokens), "extra_special_tokens")

    @property
    def extra_special_tokens_ids(self) -> list[int | None]:
        """Their ids."""
        return [self._id_of(token) for token in self._extra]

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

    def _name_special(self, tokens: Mapping[str, Any], *, replace_extra: bool) -> list[AddedToken]:
        """Give special tokens their names; returns those tokens, to be added to the vocabulary."""
        # The older name comes last, as in the reference: the order is that of new ids.
        older = {"extra_special_tokens": tokens[_OLDER]} if _OLDER in tokens else {}
        named: dict[str, Token] = {}
        extra: list[Token] | None = None
        for name, value in ({name: value for name, value in tokens.items() if name != _OLDER} | older).items():
            if name == "extra_special_tokens":
                extra = as_tokens(value, name)
            elif name in self._special:
                named[name] = as_token(value, name)
            else:
                known = [*self._special, "extra_special_tokens"]
                raise InputError(f"{name!r} is not the name of a special token.", hint=nearest(name, known))
        if extra is not None and not replace_extra:
            extra = [*self._extra, *(token for token in extra if str(token) not in self.extra_special_tokens)]
        self._special |= named
        self._extra = self._extra if extra is None else extra
        groups = {name: [token] for name, token in named.items()} | {"extra_special_tokens": extra or []}
        order = [name for name in {**tokens, **older} if name in groups]
        return [as_special(token) for name in order for token in groups[name]]


def as_special(token: Token) -> AddedToken:
    """``token`` as one that is special: never normalized where it says nothing of that, and left out on request."""
    if isinstance(token, str):
        return AddedToken(token, normalized=False, special=True)
    if token.special:
        return token
    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token.content, special=True, **flags)
