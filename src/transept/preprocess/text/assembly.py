"""Putting a tokenizer together: a backend, and what class, files and caller say of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken

from transept.errors import FormatError, InputError, InputTypeError, TranseptWarning, nearest
from transept.preprocess.text.backend import document_of, guarded, make_backend, read_backend
from transept.preprocess.text.build import VocabularyFiles, ends_template, template_processor
from transept.preprocess.text.rules import FIELDS, Document, change_options, read_options
from transept.preprocess.text.settings import Settings, from_caller
from transept.preprocess.text.special import Token, as_special

if TYPE_CHECKING:
    from transept.preprocess.text.tokenizer import Tokenizer

_ENDS = ("add_bos_token", "add_eos_token")
_MAX_GAP = 100_000


@dataclass
class Parts:
    """A backend whose vocabulary and rules are complete, and the settings that hold for it."""

    backend: tokenizers.Tokenizer
    settings: Settings


def known_options(kind: type[Tokenizer]) -> dict[str, Any]:
    """All options that can be said of a class's tokenizers, and the defaults of those that are its own."""
    return dict.fromkeys(FIELDS) | dict.fromkeys(_ENDS, False) | dict(kind.options)


def parts_of_caller(
    kind: type[Tokenizer],
    files: VocabularyFiles,
    tokenizer_object: tokenizers.Tokenizer | None,
    tokenizer_file: str | os.PathLike[str] | None,
    values: Mapping[str, Any],
) -> Parts:
    """The parts of a tokenizer that is made by calling its class."""
    caller = from_caller(values, known_options(kind))
    if tokenizer_object is not None:
        if not isinstance(tokenizer_object, tokenizers.Tokenizer):
            raise InputTypeError(f"tokenizer_object is {type(tokenizer_object).__name__}, not a tokenizers.Tokenizer.")
        document = document_of(tokenizer_object)
        return from_document(kind, make_backend(document), document, Settings(), caller)
    if tokenizer_file is not None:
        return from_document(kind, *read_backend(tokenizer_file), Settings(), caller)
    return from_vocabulary(kind, files, Settings(), caller)


def from_document(
    kind: type[Tokenizer], backend: tokenizers.Tokenizer, document: Document, stated: Settings, caller: Settings
) -> Parts:
    """The parts of a tokenizer with a ``tokenizer.json``, which only the caller can change.

    Args:
        kind: the class; its special tokens get their names where the vocabulary has them, and are never added.
        backend: what the document describes.
        document: the content of the ``tokenizer.json``.
        stated: what the other files say.
        caller: what the caller says.
    """
    held = read_options(document)
    wished = {
        name: value for name, value in caller.options.items() if value is not None and name not in (*_ENDS, *kind.applied)
    }
    if changes := {name: value for name, value in wished.items() if held.get(name) != value}:
        change_options(document, changes)
        backend = make_backend(document)
        held = read_options(document)
    settings = caller.over(stated)
    settings.options = known_options(kind) | stated.options | caller.options | held
    _add_stated(backend, settings)
    _take_padding(document, backend, settings)
    for name, token in kind.special_tokens.items():
        if name not in settings.tokens and token is not None and backend.token_to_id(str(token)) is not None:
            settings.tokens[name] = token
    if settings.extra is None:
        extra = kind.extra_tokens(settings.options)
        settings.extra = [token for token in extra if backend.token_to_id(token) is not None]
    if any(name in caller.options for name in _ENDS):
        _put_ends(backend, settings)
    return Parts(backend, settings)


def from_vocabulary(kind: type[Tokenizer], files: VocabularyFiles, stated: Settings, caller: Settings) -> Parts:
    """The parts of a tokenizer whose backend its class builds; arguments as in :func:`from_document`."""
    for name in caller.options:
        if name not in kind.options and name not in _ENDS:
            raise InputError(f"{kind.__name__} has no option {name!r}.", hint=nearest(name, kind.options))
    tokens: dict[str, Token | None] = dict(kind.special_tokens)
    if not tokens and (model := files.sentencepiece) is not None:
        tokens = {f"{role}_token": text for role in ("bos", "eos", "unk", "pad") if (text := model.special(role))}
    settings = caller.over(stated).over(Settings(tokens=tokens, options=known_options(kind)))
    if settings.extra is None:
        settings.extra = list[Token](kind.extra_tokens(settings.options))
    texts = {name: str(token) for name, token in settings.tokens.items() if token is not None}
    options = {name: settings.options[name] for name in kind.options if name not in _ENDS}
    with guarded(FormatError, "no tokenizer can be built from the vocabulary", files.path):
        backend = kind.build(files, texts, options)
    _fill_gap(backend, settings)
    _add_stated(backend, settings)
    if kind.template is not None:
        with_roles = kind.template
        missing = [role for role in _roles(with_roles) if f"{role}_token" not in texts]
        if missing:
            raise InputError(f"{kind.__name__} needs a {missing[0]}_token, which is not set.")
        backend.post_processor = template_processor(with_roles, texts, backend)
    elif backend.post_processor is None or any(settings.options[name] for name in _ENDS):
        _put_ends(backend, settings)
    kind.adjust(backend, texts, options)
    return Parts(backend, settings)


def _roles(template: tuple[tuple[str, ...], tuple[str, ...]]) -> set[str]:
    return {spec.partition(":")[0] for specs in template for spec in specs} - {"A", "B"}


def _put_ends(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Put the begin and the end token around texts, as the options say."""
    texts = {name: str(token) for name, token in settings.tokens.items() if token is not None}
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
    special = {str(token): as_special(flagged.get(str(token), token)) for token in [*named, *(settings.extra or ())]}
    new |= special
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
