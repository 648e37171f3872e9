"""Saving a tokenizer, so that the reference reads the same ids out of its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken

from transept.errors import FileError, InputError, TranseptError
from transept.files import dump_json, write_file
from transept.preprocess.text.backend import document_of
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.loading import CONFIG_NAME, SPECIAL_NAME
from transept.preprocess.text.settings import DEFAULTS
from transept.preprocess.text.templates import write_templates

if TYPE_CHECKING:
    from transept.preprocess.text.tokenizer import Tokenizer

GENERIC = "PreTrainedTokenizerFast"
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")


def save(
    tokenizer: Tokenizer, directory: str | os.PathLike[str], legacy_format: bool | None, prefix: str | None
) -> tuple[str, ...]:
    """See :meth:`Tokenizer.save_pretrained`."""
    if legacy_format:
        raise InputError("legacy_format=True is not supported.", hint="tokenizer.json holds all that those files held.")
    if prefix is not None and Path(prefix).name != prefix:
        raise InputError(f"filename_prefix {prefix!r} cannot begin the name of a file.")
    target, start = Path(directory), f"{prefix}-" if prefix else ""
    if target.exists() and not target.is_dir():
        raise FileError("is a file, but a directory is needed to save into.", path=directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot be made ({error.strerror}).", path=directory) from error
    # The rules go first: a crash between two files leaves new rules with old settings, which load.
    contents: dict[str, str | bytes] = {
        **tokenizer._files(),
        SPECIAL_NAME: dump_json(_special_map(tokenizer)),
        CONFIG_NAME: dump_json(_config(tokenizer)),
    }
    written = write_templates(target, tokenizer.chat_template)
    for name, content in contents.items():
        write_file(target / f"{start}{name}", content)
        written.append(target / f"{start}{name}")
    return tuple(str(path) for path in written)


def _special_map(tokenizer: Tokenizer) -> dict[str, Any]:
    known = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    named: dict[str, Any] = {name: _flags(known.get(text), text) for name, text in tokenizer.special_tokens_map.items()}
    if extra := tokenizer.extra_special_tokens:
        named["additional_special_tokens"] = [_flags(known.get(text), text) for text in extra]
    return named


def _flags(token: AddedToken | None, text: str) -> Any:
    return text if token is None else {name: getattr(token, name) for name in _FLAGS if name != "special"}


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    config = dict(tokenizer._other)
    config |= {name: value for name, value in tokenizer._options.items() if value is not None}
    stated = {name: getattr(tokenizer, name) for name in DEFAULTS if name not in ("chat_template", "name_or_path")}
    config |= {name: value for name, value in stated.items() if value is not None}
    config |= tokenizer.special_tokens_map
    if extra := tokenizer.extra_special_tokens:
        config["extra_special_tokens"] = extra
    config["added_tokens_decoder"] = {
        str(index): {name: getattr(token, name) for name in _FLAGS} for index, token in tokenizer.added_tokens_decoder.items()
    }
    # What the backend's rules say of these is in them; the reference would put its own rule in their place.
    for name in ("add_bos_token", "add_eos_token"):
        config.pop(name, None)
    config["tokenizer_class"] = _class_name(tokenizer)
    return config


def _class_name(tokenizer: Tokenizer) -> str:
    """The class's name if the reference, told it, builds these very rules; else the name that makes it read them."""
    kind = type(tokenizer)
    if not kind.portable:
        return kind.__name__ if kind.applied else GENERIC
    backend, texts = tokenizer._backend, tokenizer.special_tokens_map
    options = {name: tokenizer._options[name] for name in kind.options}
    held = document_of(backend)
    tokens = dict.fromkeys(texts.values())
    vocab = {token: place for place, token in enumerate(tokens)}
    try:
        built = document_of(kind.build(VocabularyFiles(vocab, []), texts, options))
    except (TranseptError, KeyError):
        return GENERIC
    model = {key: value for key, value in held["model"].items() if key not in ("vocab", "merges")}
    same = model == {key: value for key, value in built["model"].items() if key not in ("vocab", "merges")}
    return kind.__name__ if same and all(held[part] == built[part] for part in _PARTS) else GENERIC
