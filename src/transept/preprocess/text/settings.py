"""What is said of a tokenizer besides its rules: by its class, by its files and by its caller."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tokenizers import AddedToken

from transept.errors import FormatError, InputError, InputTypeError, TranseptError, nearest
from transept.preprocess.text.padding import NO_LIMIT, SIDES
from transept.preprocess.text.special import NAMED, Token, as_token, as_tokens

PathOr = str | os.PathLike[str]
DEFAULTS: dict[str, Any] = {
    "model_max_length": NO_LIMIT,
    "padding_side": "right",
    "truncation_side": "right",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": False,
    "chat_template": None,
    "response_template": None,
    "chat_control_tokens": None,
    "name_or_path": "",
}
_ALIASES = {"additional_special_tokens": "extra_special_tokens", "max_len": "model_max_length"}
# Names of code and of files: no file decides about them. The rest says nothing that the files themselves do not.
_UNREAD = frozenset(
    {"auto_map", "tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "init_inputs", "device_map"}
    | {"special_tokens_map_file", "name_or_path", "is_local", "local_files_only", "files_loaded", "backend"}
    | {"trust_remote_code", "use_fast", "slow_tokenizer_class", "added_tokens_file", "tokenizer_object"}
)
IGNORED = frozenset({"use_fast", "trust_remote_code", "proxies", "resume_download"})
"""Arguments that callers of the reference pass and that change nothing here."""
MAX_ADDED = 1_000_000


@dataclass
class Settings:
    """What a source says, by what it is about.

    Args:
        tokens: special tokens by name; ``None`` says that there is none.
        extra: special tokens without a name.
        added: tokens beyond those of the model, by the id they should have.
        attributes: values of :data:`DEFAULTS`.
        options: options of the rules, such as ``do_lower_case``.
        other: keys of a file that nothing here knows, kept for saving.
    """

    tokens: dict[str, Token | None] = field(default_factory=dict)
    extra: list[Token] | None = None
    added: dict[int, AddedToken] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)

    def over(self, below: Settings) -> Settings:
        """These settings, and those of ``below`` where these say nothing."""
        return Settings(
            below.tokens | self.tokens,
            below.extra if self.extra is None else self.extra,
            below.added | self.added,
            below.attributes | self.attributes,
            below.options | self.options,
            below.other | self.other,
        )


def from_caller(values: Mapping[str, Any], options: Mapping[str, Any]) -> Settings:
    """Settings that a caller passed.

    Raises:
        InputError: a name that is none, or a value of the wrong type; names both.
    """
    settings = _sorted_out({key: value for key, value in values.items() if key not in IGNORED}, options)
    for name in settings.other:
        known = [*DEFAULTS, *NAMED, *options, "extra_special_tokens"]
        raise InputError(f"there is no setting {name!r} of this tokenizer.", hint=nearest(name, known))
    return settings


def from_file(values: Mapping[str, Any], options: Mapping[str, Any], path: PathOr) -> Settings:
    """Settings of a ``tokenizer_config.json`` or ``special_tokens_map.json``, of either layout.

    Raises:
        FormatError: a value of the wrong type; names file and key.
    """
    kept = {key: value for key, value in values.items() if key not in _UNREAD and not key.startswith("_")}
    # Empty strings in old files mean that there is no such token.
    kept = {key: None if value == "" and key.endswith("_token") else value for key, value in kept.items()}
    try:
        return _sorted_out(kept, options)
    except TranseptError as error:
        raise FormatError(error.message, path=path, hint=error.hint) from error


def _sorted_out(values: dict[str, Any], options: Mapping[str, Any]) -> Settings:
    settings = Settings()
    for key, value in values.items():
        name = _ALIASES.get(key, key)
        if name == "extra_special_tokens":
            _add_extra(settings, value, key)
        elif name == "added_tokens_decoder":
            settings.added = _added(value)
        elif name in DEFAULTS:
            if value is not None:
                settings.attributes[name] = _checked(name, value)
        elif name in options:
            settings.options[name] = value
        elif name in NAMED or (name.endswith("_token") and isinstance(value, str | AddedToken | Mapping)):
            settings.tokens[name] = None if value is None else as_token(value, name)
        elif name == "model_specific_special_tokens" and isinstance(value, Mapping):
            settings.tokens |= {str(one): as_token(token, str(one)) for one, token in value.items()}
        else:
            settings.other[name] = value
    return settings


def _add_extra(settings: Settings, value: Any, key: str) -> None:
    if isinstance(value, Mapping):
        settings.tokens |= {str(name): as_token(token, str(name)) for name, token in value.items()}
    elif value is not None and not (settings.extra and not value):
        settings.extra = as_tokens(value, key)


def _added(value: Any) -> dict[int, AddedToken]:
    if not isinstance(value, Mapping) or len(value) > MAX_ADDED:
        raise InputTypeError(f"`added_tokens_decoder` must map ids to tokens, but is {value!r:.80}.")
    found: dict[int, AddedToken] = {}
    for index, token in value.items():
        if not (isinstance(index, int) or (isinstance(index, str) and index.isdecimal() and len(index) < 10)):
            raise InputTypeError(f"`added_tokens_decoder` has the id {index!r}, which is no integer from 0 on.")
        made = as_token(token, f"added_tokens_decoder[{index}]")
        found[int(index)] = AddedToken(made) if isinstance(made, str) else made
    return found


def _checked(name: str, value: Any) -> Any:
    if name == "model_max_length":
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        value = int(value) if good else value
    elif name in ("padding_side", "truncation_side"):
        good = value in SIDES
    elif name == "model_input_names":
        good = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
        value = list(value) if good else value
    elif name == "chat_template":
        value, good = _templates(value)
    elif name == "response_template":
        good = isinstance(value, dict)
    elif name == "chat_control_tokens":
        good = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        value = list(value) if good else value
    elif name == "name_or_path":
        good = isinstance(value, str | os.PathLike)
    else:
        good = isinstance(value, bool)
    if not good:
        raise InputTypeError(f"`{name}` of a tokenizer cannot be {value!r:.80}.")
    return value


def _templates(value: Any) -> tuple[Any, bool]:
    """A chat template, or several by name: as a mapping, or as files hold them, a list of names and templates."""
    if isinstance(value, list | tuple):
        if not all(isinstance(item, Mapping) and {"name", "template"} <= item.keys() for item in value):
            return value, False
        value = {item["name"]: item["template"] for item in value}
    if not isinstance(value, Mapping):
        return value, isinstance(value, str)
    for name in value:
        check_template_name(name)
    return dict(value), all(isinstance(template, str) for template in value.values())


def check_template_name(name: Any) -> None:
    """Raise ``InputError`` unless a chat template's name can be a file's name: it becomes one when it is saved."""
    plain = isinstance(name, str) and PurePosixPath(name).name == name and name not in ("", ".", "..")
    if not plain or any(character in name for character in "\\:\0") or len(name) > 200:
        raise InputError(f"the chat template's name {name!r:.80} cannot be the name of a file.")
