"""Loading a tokenizer: its files found and read, and put together with what its class and the caller say."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptWarning, nearest
from transept.files import load_object
from transept.preprocess.text.backend import (
    FIELDS,
    Document,
    change_options,
    document_of,
    guarded,
    make_backend,
    read_backend,
    read_options,
)
from transept.preprocess.text.build import Family, Template, VocabularyFiles, ends_template, template_processor
from transept.preprocess.text.settings import Settings, from_caller, from_file
from transept.preprocess.text.special import Token, as_special
from transept.preprocess.text.templates import read_templates
from transept.source import Source, model_name, take_source_options

TOKENIZER_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
SPECIAL_NAME, ADDED_NAME = "special_tokens_map.json", "added_tokens.json"
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
OTHER_NAMES = ("tiktoken.model", "vocab.json", "vocab.txt")
_ENDS = ("add_bos_token", "add_eos_token")
_MAX_GAP = 100_000


@dataclass
class Parts:
    """A backend whose vocabulary and rules are complete, and the settings that hold for it."""

    backend: tokenizers.Tokenizer
    settings: Settings


def known_options(family: Family) -> dict[str, Any]:
    """All options that can be said of a family's tokenizers, and the defaults of those that are its own."""
    return dict.fromkeys(FIELDS) | dict.fromkeys(_ENDS, False) | dict(family.options)


# Finding


def load_parts(family: Family, name: str | os.PathLike[str], arguments: dict[str, Any]) -> Parts:
    """The parts of the tokenizer of a directory, of a repository or of one vocabulary file."""
    source, caller = where_and_what(family, name, arguments)
    if os.path.isfile(name):
        return _of_file(family, Path(name), caller)
    config, document = source.find(CONFIG_NAME), source.find(TOKENIZER_NAME)
    files = None if document is not None else _vocabulary(family, source)
    if document is None and files is None:
        raise _nothing(family, source)
    stated = stated_settings(family, source, config)
    if (templates := read_templates(source)) is not None:
        stated.attributes["chat_template"] = templates
    if document is not None:
        return from_document(family, *read_backend(document), stated, caller)
    assert files is not None
    return from_vocabulary(family, files, stated, caller)


def where_and_what(family: Family, name: Any, arguments: dict[str, Any]) -> tuple[Source, Settings]:
    """The source that the arguments of a ``from_pretrained`` name, and the settings that they give."""
    hub = take_source_options(values := dict(arguments))
    caller = from_caller(values, known_options(family))
    caller.attributes.setdefault("name_or_path", model_name(name))
    return Source(model_name(name), **hub), caller


def _of_file(family: Family, path: Path, caller: Settings) -> Parts:
    if path.suffix == ".json" and path.name != "vocab.json":
        return from_document(family, *read_backend(path), Settings(), caller)
    merges = path.with_name("merges.txt")
    files = VocabularyFiles(path, merges if path.suffix == ".json" and merges.is_file() else None)
    return from_vocabulary(family, files, Settings(), caller)


def stated_settings(family: Family, source: Source, config: Path | None) -> Settings:
    """What ``tokenizer_config.json`` says and, in older models, the two files that went before it."""
    known = known_options(family)
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


def _vocabulary(family: Family, source: Source) -> VocabularyFiles | None:
    """The vocabulary files of a model without ``tokenizer.json``: those of its family, else any that is there."""
    for name in _names(family, source):
        if (vocab := source.find(name)) is None:
            continue
        merges = source.find("merges.txt") if name == "vocab.json" else None
        if name != "vocab.json" or merges is not None:
            return VocabularyFiles(vocab, merges)
    return None


def _names(family: Family, source: Source) -> Iterator[str]:
    own = family.files.get("vocab_file")
    if own is not None:
        yield own
    if own is None or own.endswith(".model"):
        yield from SENTENCEPIECE_NAMES
    if own is None:
        yield from OTHER_NAMES
    if (own is None or own.endswith(".model")) and (directory := source.directory) is not None:
        for suffix in (".model", ".tiktoken"):
            yield from sorted(path.name for path in directory.glob(f"*{suffix}"))


def _nothing(family: Family, source: Source) -> FileError:
    own = [name for name in family.files.values() if name != TOKENIZER_NAME]
    wanted = " nor ".join([TOKENIZER_NAME, *(own or ["a vocabulary file"])])
    hint = "Check the name, or pass subfolder= where the tokenizer lies in one."
    return FileError(f"holds neither {wanted}.", path=source.directory or source.name, hint=hint)


# Putting together


def parts_of_caller(
    family: Family, files: VocabularyFiles, tokenizer_object: Any, tokenizer_file: Any, values: Mapping[str, Any]
) -> Parts:
    """The parts of a tokenizer that is made by calling its class."""
    caller = from_caller(values, known_options(family))
    if tokenizer_object is not None:
        if not isinstance(tokenizer_object, tokenizers.Tokenizer):
            raise InputTypeError(f"tokenizer_object is {type(tokenizer_object).__name__}, not a tokenizers.Tokenizer.")
        document = document_of(tokenizer_object)
        return from_document(family, make_backend(document), document, Settings(), caller)
    if tokenizer_file is not None:
        return from_document(family, *read_backend(model_name(tokenizer_file)), Settings(), caller)
    return from_vocabulary(family, files, Settings(), caller)


def from_document(
    family: Family, backend: tokenizers.Tokenizer, document: Document, stated: Settings, caller: Settings
) -> Parts:
    """The parts of a tokenizer with a ``tokenizer.json``, which only the caller can change.

    Args:
        family: its special tokens get their names where the vocabulary has them, and are never added.
        backend: what the document describes.
        document: the content of the ``tokenizer.json``.
        stated: what the other files say.
        caller: what the caller says.
    """
    held = read_options(document)
    wished = {
        name: value for name, value in caller.options.items() if value is not None and name not in (*_ENDS, *family.applied)
    }
    if changes := {name: value for name, value in wished.items() if held.get(name) != value}:
        change_options(document, changes)
        backend = make_backend(document)
        held = read_options(document)
    settings = caller.over(stated)
    settings.options = known_options(family) | stated.options | caller.options | held
    _add_stated(backend, settings)
    _take_padding(document, backend, settings)
    for name, token in family.tokens.items():
        if name not in settings.tokens and token is not None and backend.token_to_id(str(token)) is not None:
            settings.tokens[name] = token
    if settings.extra is None:
        settings.extra = [token for token in family.extra_tokens(settings.options) if backend.token_to_id(token) is not None]
    if any(name in caller.options for name in _ENDS):
        _put_ends(backend, settings)
    return Parts(backend, settings)


def from_vocabulary(family: Family, files: VocabularyFiles, stated: Settings, caller: Settings) -> Parts:
    """The parts of a tokenizer whose backend its family builds; arguments as in :func:`from_document`."""
    for name in caller.options:
        if name not in family.options and name not in _ENDS:
            raise InputError(f"a tokenizer of this class has no option {name!r}.", hint=nearest(name, family.options))
    tokens = dict(family.tokens)
    if not tokens and (model := files.sentencepiece) is not None:
        tokens = {f"{role}_token": text for role in ("bos", "eos", "unk", "pad") if (text := model.special(role))}
    settings = caller.over(stated).over(Settings(tokens=tokens, options=known_options(family)))
    if settings.extra is None:
        settings.extra = list[Token](family.extra_tokens(settings.options))
    texts = _texts(settings)
    options = {name: settings.options[name] for name in family.options if name not in _ENDS}
    with guarded(FormatError, "no tokenizer can be built from the vocabulary", files.path):
        backend = family.build(files, texts, options)
    _fill_gap(backend, settings)
    _add_stated(backend, settings)
    if family.template is not None:
        _check_roles(family.template, texts)
        backend.post_processor = template_processor(family.template, texts, backend)
    elif backend.post_processor is None or any(settings.options[name] for name in _ENDS):
        _put_ends(backend, settings)
    if family.finish is not None:
        family.finish(backend, texts, options)
    return Parts(backend, settings)


def _texts(settings: Settings) -> dict[str, str]:
    return {name: str(token) for name, token in settings.tokens.items() if token is not None}


def _check_roles(template: Template, texts: Mapping[str, str]) -> None:
    for spec in (*template[0], *template[1]):
        if (role := spec.partition(":")[0]) not in ("A", "B") and f"{role}_token" not in texts:
            raise InputError(f"a tokenizer of this class needs a {role}_token, which is not set.")


def _put_ends(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Put the begin and the end token around texts, as the options say."""
    texts = _texts(settings)
    bos, eos = (bool(settings.options[f"add_{end}_token"]) and f"{end}_token" in texts for end in ("bos", "eos"))
    backend.post_processor = template_processor(ends_template(add_bos=bos, add_eos=eos), texts, backend)


def _take_padding(document: Document, backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """What a document's own padding and truncation say of sides and of the padding token; its lengths mean nothing."""
    for part, name in (("padding", "padding_side"), ("truncation", "truncation_side")):
        value = document.get(part)
        if isinstance(value, dict):
            settings.attributes.setdefault(name, "left" if value.get("direction") == "Left" else "right")
            token = value.get("pad_token")
            if isinstance(token, str) and backend.token_to_id(token) is not None:
                settings.tokens.setdefault("pad_token", token)


def _fill_gap(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Reserve the ids between the vocabulary and the tokens that the files put further on."""
    free = backend.get_vocab_size(with_added_tokens=True)
    beyond = [index for index in settings.added if index >= free]
    if not beyond or min(beyond) == free:
        return
    if min(beyond) - free > _MAX_GAP:
        raise FormatError(f"added_tokens_decoder has the id {min(beyond)}, but the vocabulary ends at {free - 1}.")
    backend.add_special_tokens([f"<|reserved_token_{index}|>" for index in range(free, min(beyond))])


def _add_stated(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Add the tokens that files or caller state and that the backend does not know as added tokens."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    flagged = {token.content: token for token in settings.added.values()}
    named = [token for token in settings.tokens.values() if token is not None]
    new: dict[str, AddedToken] = {token.content: token for _, token in sorted(settings.added.items())}
    new |= {str(token): as_special(flagged.get(str(token), token)) for token in [*named, *(settings.extra or ())]}
    with guarded(FormatError, "the added tokens cannot be used"):
        backend.add_tokens([token for content, token in new.items() if content not in present])
    _check_ids(backend, settings.added.items())


def _check_ids(backend: tokenizers.Tokenizer, stated: Iterable[tuple[int, AddedToken]]) -> None:
    moved = [(token.content, index) for index, token in stated if backend.token_to_id(token.content) != index]
    if moved:
        content, index = moved[0]
        warnings.warn(
            f"{len(moved)} added tokens have other ids than their file says: {content!r} should be {index}, but is "
            f"{backend.token_to_id(content)}. The tokenizer's files contradict each other.",
            TranseptWarning,
            stacklevel=2,
        )
