"""What is said of a tokenizer besides its rules: by its class, by its files and by its caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tokenizers import AddedToken

from transept.errors import FormatError, InputError, InputTypeError, TranseptError, nearest
from transept.preprocess.settings import is_number, need
from transept.storage.files import make_directory, read_text, safe_join, write_text
from transept.storage.source import Source

PathOr = str | os.PathLike[str]
Token = str | AddedToken
_TOKENS: Any = str | AddedToken | Mapping
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NO_LIMIT = int(1e30)
"""What the ecosystem's files write for a model that takes any length."""
SIDES = ("right", "left")
TEMPLATE_NAME, FOLDER, SUFFIX = "chat_template.jinja", "additional_chat_templates", ".jinja"
_MAX_BYTES = 2**20  # of a template
_ALIASES = {"additional_special_tokens": "extra_special_tokens", "max_len": "model_max_length"}
# Names of code and of files: no file decides about them. The rest says nothing that the files themselves do not.
_UNREAD = frozenset(
    {"auto_map", "tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "init_inputs", "device_map"}
    | {"special_tokens_map_file", "name_or_path", "is_local", "local_files_only", "files_loaded", "backend"}
    | {"trust_remote_code", "use_fast", "slow_tokenizer_class", "added_tokens_file", "tokenizer_object"}
)
_IGNORED = frozenset({"use_fast", "trust_remote_code", "proxies", "resume_download"})
"""Arguments that callers of the reference pass and that change nothing here."""


# Tokens


def as_token(value: Any, name: str) -> Token:
    """A token from text, an ``AddedToken``, or such a one's dictionary in a file; errors of all else are about ``name``."""
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        flags = {key: value[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in value}
        if all(isinstance(flag, bool) for flag in flags.values()):
            return AddedToken(as_text(value["content"], name), **flags)
    if isinstance(value, AddedToken):
        return value
    if isinstance(value, str) and value:
        return as_text(value, name)
    raise InputTypeError(f"`{name}` must be a token's text or an AddedToken, but is {value!r:.80}.")


def as_tokens(values: Any, name: str) -> list[Token]:
    """A list of tokens, each as :func:`as_token` gives it."""
    need(f"`{name}`", values, list | tuple, "a list of tokens")
    return [as_token(value, f"{name}[{place}]") for place, value in enumerate(values)]


def as_text(value: Any, name: str) -> str:
    """A text that can be written as UTF-8, which the library's own functions need."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name} must be text, but {type(value).__name__} was passed.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has half of a surrogate pair at character {error.start} ({value[error.start]!r}), which is no text.",
            hint='Clean it: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").',
        ) from error
    return value


def as_special(token: Token) -> AddedToken:
    """``token`` as one that is special: never normalized where it says nothing of that, and left out on request."""
    if isinstance(token, str):
        return AddedToken(token, normalized=False, special=True)
    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token.content, special=True, **flags)


# Settings


@dataclass
class TokenizerSettings:
    """What one source says.

    Args:
        tokens: special tokens by name; ``None`` says that there is none.
        extra: special tokens without a name.
        added: tokens beyond those of the model, by the id they should have.
        other: unknown keys of a file, kept for saving.
    """

    tokens: dict[str, Token | None] = field(default_factory=dict)
    extra: list[Token] | None = None
    added: dict[int, AddedToken] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    def over(self, below: TokenizerSettings) -> TokenizerSettings:
        """These settings, and those of ``below`` where these say nothing."""
        merged = {name: getattr(below, name) | value for name, value in vars(self).items() if name != "extra"}
        return TokenizerSettings(extra=below.extra if self.extra is None else self.extra, **merged)

    @property
    def texts(self) -> dict[str, str]:
        """Name -> text of the special tokens that there are."""
        return {name: str(token) for name, token in self.tokens.items() if token is not None}


def from_caller(values: Mapping[str, Any], options: Mapping[str, Any]) -> TokenizerSettings:
    """Settings that a caller passed; ``InputError`` for a name that is none, or a value of the wrong type."""
    settings = _sorted_out({key: value for key, value in values.items() if key not in _IGNORED}, options)
    for name in settings.other:
        known = [*DEFAULTS, *NAMED, *options, "extra_special_tokens"]
        raise InputError(f"there is no setting {name!r} of this tokenizer.", hint=nearest(name, known))
    return settings


def from_subclass(values: Mapping[str, Any]) -> TokenizerSettings:
    """Settings that a subclass passes on; ``other`` are its own."""
    return _sorted_out({key: value for key, value in values.items() if key not in _UNREAD - {"name_or_path"}}, {})


def from_file(values: Mapping[str, Any], options: Mapping[str, Any], path: PathOr) -> TokenizerSettings:
    """Settings of a ``tokenizer_config.json`` or ``special_tokens_map.json``, of either layout; errors name file and key."""
    kept = {key: value for key, value in values.items() if key not in _UNREAD and not key.startswith("_")}
    # Empty strings in old files mean that there is no such token.
    kept = {key: None if value == "" and key.endswith("_token") else value for key, value in kept.items()}
    try:
        return _sorted_out(kept, options)
    except TranseptError as error:
        raise FormatError(error.message, path=path, hint=error.hint) from error


def _sorted_out(values: dict[str, Any], options: Mapping[str, Any]) -> TokenizerSettings:
    settings = TokenizerSettings()
    for key, value in values.items():
        name = _ALIASES.get(key, key)
        if name in ("extra_special_tokens", "model_specific_special_tokens") and isinstance(value, Mapping):
            settings.tokens |= {str(one): as_token(token, str(one)) for one, token in value.items()}
        elif name == "extra_special_tokens":
            if value is not None and not (settings.extra and not value):
                settings.extra = as_tokens(value, key)
        elif name == "added_tokens_decoder":
            settings.added = _added(value)
        elif name in DEFAULTS:
            settings.attributes |= {} if value is None else {name: checked(name, value)}
        elif name in options:
            settings.options[name] = value
        elif name in NAMED or name == "word_delimiter_token" or (name.endswith("_token") and isinstance(value, _TOKENS)):
            settings.tokens[name] = None if value is None else as_token(value, name)
        else:
            settings.other[name] = value
    return settings


def _added(value: Any) -> dict[int, AddedToken]:
    if not isinstance(value, Mapping):
        raise InputTypeError(f"`added_tokens_decoder` must map ids to tokens, but is {value!r:.80}.")
    found: dict[int, AddedToken] = {}
    for index, token in value.items():
        if not (isinstance(index, int) or (isinstance(index, str) and index.isdecimal() and len(index) < 10)):
            raise InputTypeError(f"`added_tokens_decoder` has the id {index!r}, which is no integer from 0 on.")
        made = as_token(token, f"added_tokens_decoder[{index}]")
        found[int(index)] = AddedToken(made) if isinstance(made, str) else made
    return found


def _names(value: Any) -> list[str] | None:
    return list(value) if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value) else None


def _templates(value: Any) -> str | dict[str, str] | None:
    """A chat template, or several by name: as a mapping, or as files hold them, a list of names and templates."""
    if isinstance(value, list | tuple):
        if not all(isinstance(item, Mapping) and {"name", "template"} <= item.keys() for item in value):
            return None
        value = {item["name"]: item["template"] for item in value}
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else None
    for name in value:  # it becomes the name of a file when it is saved
        is_plain = isinstance(name, str) and PurePosixPath(name).name == name and name not in ("", ".", "..")
        if not is_plain or any(character in name for character in "\\:\0") or len(name) > 200:
            raise InputError(f"the chat template's name {name!r:.80} cannot be the name of a file.")
    return dict(value) if all(isinstance(template, str) for template in value.values()) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _side(value: Any) -> str | None:
    return value if value in SIDES else None


_ATTRIBUTES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "model_max_length": (NO_LIMIT, lambda value: int(value) if is_number(value) and value > 0 else None),
    "padding_side": ("right", _side),
    "truncation_side": ("right", _side),
    "model_input_names": (["input_ids", "attention_mask"], lambda value: _names(value) or None),
    "clean_up_tokenization_spaces": (False, _flag),
    "split_special_tokens": (False, _flag),
    "chat_template": (None, _templates),
    "response_template": (None, lambda value: value if isinstance(value, dict) else None),
    "chat_control_tokens": (None, _names),
    "name_or_path": ("", lambda value: value if isinstance(value, str | os.PathLike) else None),
}
"""Attribute of a tokenizer -> its default, and how a value is kept, or ``None`` where it cannot be one."""
DEFAULTS = {name: default for name, (default, _) in _ATTRIBUTES.items()}


def checked(name: str, value: Any) -> Any:
    """A value of an attribute as it is kept; ``InputTypeError`` where it cannot be one."""
    if (kept := _ATTRIBUTES[name][1](value)) is None:
        raise InputTypeError(f"`{name}` of a tokenizer cannot be {value!r:.80}.")
    return kept


def read_templates(source: Source) -> str | dict[str, str] | None:
    """The templates in files of their own: one, several by name, or ``None``."""
    paths = {path.name.removesuffix(SUFFIX): path for path in source.find_all(FOLDER, SUFFIX)}
    if (path := source.find(TEMPLATE_NAME)) is not None:
        paths = {"default": path} | paths
    found = {name: read_text(path, max_bytes=_MAX_BYTES) for name, path in paths.items()}
    return found["default"] if list(found) == ["default"] else found or None


def is_template(name: str) -> bool:
    """Whether a model's file of that name is a chat template."""
    return name == TEMPLATE_NAME or (name.startswith(f"{FOLDER}/") and name.endswith(SUFFIX))


def write_templates(directory: Path, templates: str | dict[str, str] | None) -> list[Path]:
    """Write templates into files of their own; returns their paths."""
    kept = _templates(templates)  # checked again, since names can be added to a mapping
    named, written = {"default": kept} if isinstance(kept, str) else kept or {}, []
    for name, template in named.items():
        path = directory / TEMPLATE_NAME if name == "default" else safe_join(directory, f"{FOLDER}/{name}{SUFFIX}")
        make_directory(path.parent)
        write_text(path, template)
        written.append(path)
    return written
