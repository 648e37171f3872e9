"""Saving a tokenizer, so that the reference reads the same ids out of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken

from transept.directory import replace_directory
from transept.errors import FileError, InputError, TranseptError, nearest
from transept.files import dump_json, write_file
from transept.preprocess.text.backend import document_of, guarded
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.loading import CONFIG_NAME, SPECIAL_NAME
from transept.preprocess.text.settings import DEFAULTS
from transept.preprocess.text.templates import FOLDER, TEMPLATE_NAME, write_templates
from transept.publish import Pushable

if TYPE_CHECKING:
    from transept.preprocess.text.encoder import Encoder

GENERIC = "PreTrainedTokenizerFast"
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
_SAVE = ("save_directory", "legacy_format", "filename_prefix", "push_to_hub")
_PUSH = ("repo_id", "private", "commit_message", "token", "revision", "create_pr")
Contents = Mapping[str, str | bytes]


def save(tokenizer: Encoder, directory: Any, files: Contents, prefix: str | None) -> tuple[str, ...]:
    """Write all files of a tokenizer in one step, in place of those of an earlier one; returns their paths.

    Args:
        tokenizer: the tokenizer.
        directory: made where needed; files in it that are none of a tokenizer stay.
        files: name -> content of the files that hold its rules and its vocabulary.
        prefix: put before each name, with a hyphen.
    """
    return replaced(directory, lambda stage: write(tokenizer, stage, files, prefix))


def write(tokenizer: Encoder, folder: Path, files: Contents, prefix: str | None = None) -> None:
    """Write all files of a tokenizer into a folder that is there; arguments as of :func:`save`."""
    write_templates(folder, tokenizer.chat_template)
    settings = {SPECIAL_NAME: dump_json(_special_map(tokenizer)), CONFIG_NAME: dump_json(config_of(tokenizer))}
    write_files(folder, {**files, **settings}, prefix)


def save_vocabulary(tokenizer: Encoder, directory: Any, prefix: str | None) -> tuple[str, ...]:
    """Write the vocabulary files of the library's model, such as ``vocab.txt``; returns their paths."""
    _check_prefix(prefix)

    def model(stage: Path) -> None:
        with guarded(FileError, "the vocabulary cannot be written", directory):
            tokenizer._backend.model.save(str(stage), prefix)

    return replaced(directory, model, is_stale=lambda name: False)


def replaced(
    directory: Any,
    fill: Callable[[Path], Any],
    is_stale: Callable[[str], bool] = lambda name: name in (TEMPLATE_NAME, FOLDER),
) -> tuple[str, ...]:
    """Let ``fill`` fill a directory that then replaces the files of ``directory`` in one step; returns their paths."""
    with replace_directory(directory, drop=is_stale) as stage:
        fill(stage)
        names = sorted(path.relative_to(stage) for path in stage.rglob("*") if path.is_file())
    return tuple(str(Path(directory, name)) for name in names)


def write_files(folder: Path, files: Contents, prefix: str | None = None) -> None:
    """Write files into a folder that is there."""
    _check_prefix(prefix)
    for name, content in files.items():
        write_file(folder / (f"{prefix}-{name}" if prefix else name), content)


def publish(saved: Pushable, directory: Any, wanted: bool, options: dict[str, Any]) -> None:
    """Publish what was saved into a directory, where ``push_to_hub`` of the ``save_pretrained`` asks for it."""
    if wanted:
        saved.push_to_hub(options.pop("repo_id", None) or Path(directory).resolve().name, **options)
        return
    for name in options:
        hint = "It is an argument of publishing: pass push_to_hub=True too." if name in _PUSH else nearest(name, _SAVE)
        raise InputError(f"save_pretrained has no argument {name!r}.", hint=hint)


def _check_prefix(prefix: Any) -> None:
    if prefix is not None and (not isinstance(prefix, str) or os.path.basename(prefix) != prefix):
        raise InputError(f"filename_prefix {prefix!r:.80} cannot begin the name of a file.")


def _special_map(tokenizer: Encoder) -> dict[str, Any]:
    known = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    named: dict[str, Any] = {name: _flags(known.get(text), text) for name, text in tokenizer.special_tokens_map.items()}
    if extra := tokenizer.extra_special_tokens:
        named["additional_special_tokens"] = [_flags(known.get(text), text) for text in extra]
    return named


def _flags(token: AddedToken | None, text: str) -> Any:
    return text if token is None else {name: getattr(token, name) for name in _FLAGS if name != "special"}


def config_of(tokenizer: Encoder) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``."""
    config = dict(tokenizer._other)
    config |= {name: value for name, value in tokenizer._options.items() if value is not None}
    stated = {name: getattr(tokenizer, name) for name in DEFAULTS if name not in ("chat_template", "name_or_path")}
    config |= {name: value for name, value in stated.items() if value is not None}
    config |= dict.fromkeys(tokenizer.family.tokens) | tokenizer.special_tokens_map
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


def _class_name(tokenizer: Encoder) -> str:
    """The class's name if the reference, told it, builds these very rules; else the name that makes it read them."""
    name, family = type(tokenizer).__name__, tokenizer.family
    if not family.portable:
        return name if family.applied else GENERIC
    texts = tokenizer.special_tokens_map
    options = {name: tokenizer._options[name] for name in family.options}
    vocab = {token: place for place, token in enumerate(dict.fromkeys(texts.values()))}
    try:
        built = document_of(family.build(VocabularyFiles(vocab, []), texts, options))
    except (TranseptError, KeyError):
        return GENERIC
    held = document_of(tokenizer._backend)
    models = [{key: value for key, value in one["model"].items() if key not in ("vocab", "merges")} for one in (held, built)]
    return name if models[0] == models[1] and all(held[part] == built[part] for part in _PARTS) else GENERIC
