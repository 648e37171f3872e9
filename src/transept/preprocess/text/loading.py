"""Loading a tokenizer: its files found, read, and put in their order of precedence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transept.errors import FileError
from transept.files import load_object
from transept.preprocess.settings import split_options
from transept.preprocess.text.assembly import Parts, from_document, from_vocabulary, known_options
from transept.preprocess.text.backend import read_backend
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.settings import Settings, from_caller, from_file
from transept.preprocess.text.templates import read_templates
from transept.source import Source, model_name

if TYPE_CHECKING:
    from transept.preprocess.text.tokenizer import Tokenizer

TOKENIZER_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
SPECIAL_NAME, ADDED_NAME = "special_tokens_map.json", "added_tokens.json"
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
OTHER_NAMES = ("tiktoken.model", "vocab.json", "vocab.txt")

Kind = TypeVar("Kind", bound="Tokenizer")


def load(kind: type[Kind], name: str | os.PathLike[str], arguments: dict[str, Any]) -> Kind:
    """The tokenizer of a directory, of a repository or of one vocabulary file, as an instance of ``kind``."""
    hub, values = split_options(arguments)
    caller = from_caller(values, known_options(kind))
    caller.attributes.setdefault("name_or_path", model_name(name))
    if os.path.isfile(name):
        parts = _of_file(kind, Path(name), caller)
    else:
        source = Source(model_name(name), **hub)
        parts = _of_source(kind, source, caller)
    tokenizer = kind.__new__(kind)
    tokenizer._take(parts)
    return tokenizer


def _of_file(kind: type[Tokenizer], path: Path, caller: Settings) -> Parts:
    if path.suffix == ".json" and path.name != "vocab.json":
        return from_document(kind, *read_backend(path), Settings(), caller)
    merges = path.with_name("merges.txt")
    files = VocabularyFiles(path, merges if path.suffix == ".json" and merges.is_file() else None)
    return from_vocabulary(kind, files, Settings(), caller)


def _of_source(kind: type[Tokenizer], source: Source, caller: Settings) -> Parts:
    config, document = source.find(CONFIG_NAME), source.find(TOKENIZER_NAME)
    files = None if document is not None else _vocabulary(kind, source)
    if document is None and files is None:
        raise _nothing(kind, source)
    stated = stated_settings(kind, source, config)
    if (templates := read_templates(source)) is not None:
        stated.attributes["chat_template"] = templates
    if document is not None:
        return from_document(kind, *read_backend(document), stated, caller)
    assert files is not None
    return from_vocabulary(kind, files, stated, caller)


def stated_settings(kind: type[Tokenizer], source: Source, config: Path | None) -> Settings:
    """What ``tokenizer_config.json`` says and, in older models, the two files that went before it."""
    known = known_options(kind)
    values = {} if config is None else load_object(config)
    stated = Settings() if config is None else from_file(values, known, config)
    if "added_tokens_decoder" in values:
        return stated
    if (path := source.find(SPECIAL_NAME)) is not None:
        stated = from_file(load_object(path), known, path).over(stated)
    if (path := source.find(ADDED_NAME)) is not None:
        special = {str(token) for token in [*stated.tokens.values(), *(stated.extra or ())] if token is not None}
        added = {
            str(index): {"content": token, "normalized": token not in special, "special": token in special}
            for token, index in load_object(path).items()
        }
        stated = stated.over(from_file({"added_tokens_decoder": added}, known, path))
    return stated


def _vocabulary(kind: type[Tokenizer], source: Source) -> VocabularyFiles | None:
    """The vocabulary files of a model without ``tokenizer.json``: those of its class, else any that is there."""
    for name in _names(kind, source):
        if (vocab := source.find(name)) is None:
            continue
        merges = source.find("merges.txt") if name == "vocab.json" else None
        if name != "vocab.json" or merges is not None:
            return VocabularyFiles(vocab, merges)
    return None


def _names(kind: type[Tokenizer], source: Source) -> Iterator[str]:
    own = kind.vocab_files_names.get("vocab_file")
    if own is not None:
        yield own
    if own is None or own.endswith(".model"):
        yield from SENTENCEPIECE_NAMES
    if own is None:
        yield from OTHER_NAMES
    if (own is None or own.endswith(".model")) and (directory := source.directory) is not None:
        for suffix in (".model", ".tiktoken"):
            yield from sorted(path.name for path in directory.glob(f"*{suffix}"))


def _nothing(kind: type[Tokenizer], source: Source) -> FileError:
    own = [name for name in kind.vocab_files_names.values() if name != TOKENIZER_NAME]
    wanted = " nor ".join([TOKENIZER_NAME, *(own or ["a vocabulary file"])])
    hint = "Check the name, or pass subfolder= where the tokenizer lies in one."
    return FileError(f"holds neither {wanted}.", path=source.directory or source.name, hint=hint)
