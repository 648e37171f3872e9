"""Learning a new vocabulary for the rules of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, pre_tokenizers, trainers

from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.preprocess.text.backend import Document, document_of, guarded, make_backend
from transept.preprocess.text.loading import Parts
from transept.preprocess.text.settings import DEFAULTS, Settings
from transept.preprocess.text.special import Token

if TYPE_CHECKING:
    from transept.preprocess.text.encoder import Encoder

_TRAINERS = {
    "BPE": trainers.BpeTrainer,
    "Unigram": trainers.UnigramTrainer,
    "WordLevel": trainers.WordLevelTrainer,
    "WordPiece": trainers.WordPieceTrainer,
}


def train(
    tokenizer: Encoder,
    texts: Iterable[Any],
    vocab_size: int,
    length: int | None,
    new_special_tokens: Sequence[Token],
    names: Mapping[str, str],
    arguments: dict[str, Any],
) -> Parts:
    """The parts of a new tokenizer; arguments as of :meth:`Tokenizer.train_new_from_iterator`."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputTypeError(f"texts to train on come from an iterable, not from {type(texts).__name__}.")
    document = document_of(tokenizer._backend)
    added, after = document.pop("added_tokens"), document.pop("post_processor")
    kind = document["model"].get("type")
    if kind not in _TRAINERS:
        raise UnsupportedError(f"a tokenizer with the model {kind!r} cannot be trained.")
    arguments = _arguments(document, names) | arguments
    backend = make_backend(document | {"added_tokens": [], "post_processor": None})
    special = [*_kept(added, kind, names), *new_special_tokens]
    with guarded(InputError, "the vocabulary cannot be trained"):
        trainer = _TRAINERS[kind](vocab_size=vocab_size, special_tokens=special, **arguments)
        backend.train_from_iterator(_checked(texts), length=length, trainer=trainer)
    if after is not None:
        backend = make_backend(document_of(backend) | {"post_processor": _renumbered(after, backend, names)})
    extra = [names.get(text, text) for text in tokenizer.extra_special_tokens] + [str(token) for token in new_special_tokens]
    settings = Settings(
        tokens={name: names.get(text, text) for name, text in tokenizer.special_tokens_map.items()},
        extra=list(dict.fromkeys(extra)),
        attributes={name: getattr(tokenizer, name) for name in DEFAULTS if name != "name_or_path"},
        options=dict(tokenizer._options),
        other=dict(tokenizer._other),
    )
    return Parts(backend, settings)


def _checked(texts: Iterable[Any]) -> Iterator[Any]:
    for place, text in enumerate(texts):
        rows = [text] if isinstance(text, str) else text
        if not isinstance(rows, list | tuple) or not all(isinstance(row, str) for row in rows):
            raise InputTypeError(f"item {place} to train on is {text!r:.60}, but must be a text or a list of texts.")
        yield text


def _arguments(document: Document, names: Mapping[str, str]) -> dict[str, Any]:
    """Empty the model of its vocabulary; returns what its trainer has to know of it."""
    model, arguments = document["model"], dict[str, Any]()
    if model["type"] == "Unigram":
        if model["unk_id"] is not None:
            unknown = model["vocab"][model["unk_id"]][0]
            arguments["unk_token"] = names.get(unknown, unknown)
            model |= {"unk_id": 0, "vocab": [[arguments["unk_token"], 0.0]]}
    else:
        model["vocab"] = {}
    if model["type"] == "BPE":
        model["merges"] = []
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name) is not None:
                arguments[name] = model[name]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if '"ByteLevel"' in str(document["pre_tokenizer"]).replace("'", '"'):
        arguments["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return arguments


def _kept(added: list[dict[str, Any]], kind: str, names: Mapping[str, str]) -> list[AddedToken]:
    kept = []
    for token in added:
        flags = {key: value for key, value in token.items() if key not in ("id", "content")}
        if token["special"] or kind == "Unigram":
            kept.append(AddedToken(names.get(token["content"], token["content"]), **flags))
    return kept


def _renumbered(after: Any, backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> Any:
    """A rule that puts special tokens around texts, with their new names and ids."""

    def index(token: str) -> int:
        if (found := backend.token_to_id(token)) is None:
            raise InputError(f"{token!r} goes around texts, but is not in the new vocabulary.")
        return found

    for processor in after.get("processors", [after]):
        for role in ("cls", "sep"):
            if role in processor:
                token = names.get(processor[role][0], processor[role][0])
                processor[role] = [token, index(token)]
        if special := processor.get("special_tokens"):
            for entry in special.values():
                entry["tokens"] = [names.get(token, token) for token in entry["tokens"]]
                entry["ids"] = [index(token) for token in entry["tokens"]]
    return after
