"""The door to ``tokenizers``, the Rust library: reading ``tokenizer.json``, learning, and catching what the library throws.

The library panics on some files and texts, and a panic derives from ``BaseException``, which no caller catches. What a
file can make it do is bounded before it sees the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers

from transept.errors import FormatError, InputError, InputTypeError, TranseptError, UnsupportedError
from transept.preprocess.text.settings import PathOr
from transept.storage.files import parse_json, read_text

Document = dict[str, Any]
_MAX_PATTERN = 2**16
"""Longest regular expression of a file, in characters."""
MAX_GROWTH = 1000
"""How many times longer a file's rules may make a text, and how many tokens they may put around it."""
_MAX_RULES = 200
"""How many rules one part of a file may apply one after the other."""
_MAX_OBJECTS = 20_000
_MAX_PIECE = 2000
"""Longest piece of a vocabulary, in characters: the library frees a Unigram model by a recursion as deep as its pieces."""
_MAX_WORD = 500
"""Longest word that WordPiece may look at, in characters: the time grows with its third power."""
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


@contextmanager
def guarded(error: type[TranseptError], what: str, path: PathOr | None = None) -> Iterator[None]:
    """Turn what the library throws, panics among it, into one of our errors; ``what`` begins its message."""
    try:
        yield
    except (TranseptError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as cause:
        if not isinstance(cause, Exception) and type(cause).__name__ != "PanicException":
            raise
        reason = str(cause).strip().removesuffix(".")
        raise error(f"{what}: {reason[:300]}.", path=path) from (cause if isinstance(cause, Exception) else None)


def read_backend(path: PathOr) -> tuple[Tokenizer, Document]:
    """The backend of a ``tokenizer.json``, and the document; ``FormatError`` where it is corrupt, hostile or no such file."""
    text = read_text(path)
    if (parts := text.count('"SpecialToken"') + text.count('"Sequence"')) > _MAX_OBJECTS:
        raise FormatError(f"its rules have {parts} parts, which is more than {_MAX_OBJECTS}.", path=path)
    document = parse_json(text, path=path)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise FormatError("is no tokenizer: it must hold a JSON object with a 'model'.", path=path)
    try:
        _check(document)
    except FormatError as error:
        error.path = str(path)
        raise
    return make_backend(text, path), document


def make_backend(source: str | Document, path: PathOr | None = None) -> Tokenizer:
    """A backend from the text of a ``tokenizer.json``, or from its document. It neither truncates nor pads."""
    with guarded(FormatError, "is no tokenizer that can be used", path):
        backend = Tokenizer.from_str(source if isinstance(source, str) else json.dumps(source))
    backend.no_truncation()
    backend.no_padding()
    return backend


def document_of(backend: Tokenizer) -> Document:
    """The content of the ``tokenizer.json`` that this backend would be saved as."""
    document: Document = json.loads(backend.to_str())
    return document


# What a file may make the library do


def check_piece(text: Sized, what: str, path: PathOr | None = None) -> None:
    """Raise ``FormatError`` for a piece of a vocabulary that is too long; ``what`` says which."""
    if len(text) > _MAX_PIECE:
        raise FormatError(f"{what} has {len(text)} characters, but {_MAX_PIECE} are allowed.", path=path)


def _check(document: Document) -> None:
    """Raise ``FormatError`` where the rules could take unbounded time or memory, or crash the library."""
    for name in (*PARTS, "model"):
        rules = 0
        for node in _objects(document.get(name)):
            rules += isinstance(node.get("type"), str)
            pattern = node.get("Regex")
            if isinstance(pattern, str) and len(pattern) > _MAX_PATTERN:
                raise FormatError(f"holds a regular expression of {len(pattern)} characters.")
        if rules > _MAX_RULES:
            raise FormatError(f"its {name} has {rules} rules, but {_MAX_RULES} are allowed.")
    for name in ("normalizer", "decoder"):
        if (growth := sum(_growth(document.get(name)))) > MAX_GROWTH:
            raise FormatError(f"its {name} can make a text {growth:.0f} times longer.")
    if (tokens := _around(document.get("post_processor"))) > MAX_GROWTH:
        raise FormatError(f"its post_processor puts {tokens} texts and tokens around a text, which is more than {MAX_GROWTH}.")
    longest, vocab = document["model"].get("max_input_chars_per_word"), document["model"].get("vocab")
    if isinstance(longest, int) and longest > _MAX_WORD:
        raise FormatError(f"max_input_chars_per_word is {longest}, but at most {_MAX_WORD} is allowed.")
    for place, entry in enumerate(vocab if isinstance(vocab, list) else ()):
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            check_piece(entry[0], f"piece {place}")


def _objects(part: Any) -> Iterator[Document]:
    """All JSON objects of a part in order, but for those in vocabularies, which are large and hold no rules."""
    waiting, count = [part], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count + len(waiting) > _MAX_OBJECTS:
            raise FormatError(f"one of its parts holds more than {_MAX_OBJECTS} JSON objects, apart from a vocabulary.")
        if isinstance(node, list):
            waiting += [child for child in reversed(node) if isinstance(child, dict | list)]
        elif isinstance(node, dict):
            yield node
            waiting += [node[key] for key in reversed(node) if key not in ("vocab", "merges")]


def _around(part: Any) -> int:
    """How many texts and special tokens a post-processor puts in a row, at most: each token counts with the most ids."""
    nodes = list(_objects(part))
    lists = [(name, value) for node in nodes for name, value in node.items() if isinstance(value, list)]
    pieces = sum(len(value) for name, value in lists if name in ("single", "pair"))
    tokens = sum("SpecialToken" in node for node in nodes)
    return pieces + tokens * (max((len(value) for name, value in lists if name == "ids"), default=1) - 1)


def _growth(part: Any) -> tuple[float, float]:
    """By what factor a chain of rewriting rules can lengthen a text, at most, and how many characters it adds besides."""
    if not isinstance(part, dict):
        return 1.0, 0.0
    factor, more = 1.0, 0.0
    for name in ("normalizers", "decoders"):
        for child in children if isinstance(children := part.get(name), list) else ():
            inner, added = _growth(child)
            factor, more = factor * inner, more * inner + added
    content, pattern, prefix = part.get("content"), part.get("pattern"), part.get("prepend")
    if isinstance(content, str) and isinstance(pattern, dict):
        text = pattern.get("String")  # a regular expression may match nothing at all
        factor *= max(1.0, len(content) / len(text)) if isinstance(text, str) and text else 1.0 + len(content)
    if isinstance(charsmap := part.get("precompiled_charsmap"), str):
        with guarded(FormatError, "its map of characters cannot be used"):
            factor *= longest_result(base64.b64decode(charsmap))
    return factor, more + (len(prefix) if isinstance(prefix, str) else 0)


def longest_result(charsmap: bytes) -> int:
    """How many bytes one character can become by a compiled map: a trie, before it its size, after it the results."""
    return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")), default=0) or 1


# Options, such as `do_lower_case`, in the document of a `tokenizer.json`

FIELDS = {
    "do_lower_case": ("normalizer", "lowercase", ("BertNormalizer",)),
    "strip_accents": ("normalizer", "strip_accents", ("BertNormalizer",)),
    "tokenize_chinese_chars": ("normalizer", "handle_chinese_chars", ("BertNormalizer",)),
    "add_prefix_space": ("pre_tokenizer", "add_prefix_space", ("ByteLevel",)),
    "trim_offsets": ("post_processor", "trim_offsets", ("RobertaProcessing", "ByteLevel")),
}
"""Option -> the part of the document, the field of its rules, and the types of these rules."""


def _rules(document: Document, part: str, key: str, types: tuple[str, ...] = ()) -> list[Document]:
    """The rules of a part that have a field, in their order."""
    rules = _objects(document.get(part))
    return [rule for rule in rules if key in rule and (not types or rule.get("type") in types)]


def read_options(document: Document) -> dict[str, Any]:
    """The options that a document holds."""
    found = {name: rule[key] for name, (part, key, types) in FIELDS.items() for rule in _rules(document, part, key, types)}
    if "add_prefix_space" not in found and (spaces := _rules(document, "pre_tokenizer", "prepend_scheme")):
        found["add_prefix_space"] = any(rule["prepend_scheme"] != "never" for rule in spaces)
    return found


def change_options(document: Document, options: Document) -> None:
    """Write options into a document; ``InputError`` where its rules have no such option."""
    for name, value in options.items():
        part, key, types = FIELDS.get(name, ("", "", ()))
        rules = _rules(document, part, key, types)
        after = _rules(document, "post_processor", key) if name == "add_prefix_space" else []
        for rule in rules + after:
            rule[key] = value
        if name == "add_prefix_space":
            rules += (spaces := _rules(document, "pre_tokenizer", "prepend_scheme"))
            for rule in spaces:
                if (rule["prepend_scheme"] != "never") is not bool(value):
                    rule["prepend_scheme"] = "always" if value else "never"
        if not rules:
            hint = "Leave it out, or load from the vocabulary files alone."
            raise InputError(f"{name}={value!r} cannot be set: the rules of its tokenizer.json have no such option.", hint=hint)


# Truncation


@dataclass(frozen=True)
class Truncation:
    """How many tokens an encoding may have, special ones included, and how many each overflowing one repeats."""

    max_length: int
    stride: int = 0
    strategy: str = "longest_first"
    direction: str = "right"


class Views:
    """Backends that share one backend's vocabulary and rules and differ in how they truncate.

    Truncation is state of a backend, so setting it for one call would change what another thread's call does. A view
    is made once per setting, costs microseconds, and is never changed.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self._views: dict[tuple[Truncation | None, bool], Tokenizer] = {}
        self._twins: dict[str, Views] = {}
        self._keep = True

    def get(self, truncation: Truncation | None = None, split_special_tokens: bool = False) -> Tokenizer:
        """The view that truncates so, and that splits the text of special tokens like any other if asked to."""
        key = truncation, split_special_tokens
        if key == (None, False):
            return self.backend
        if (view := self._views.get(key)) is None:
            view = self._copy()
            view.encode_special_tokens = split_special_tokens
            if truncation is not None:
                with guarded(InputError, "the truncation cannot be done"):
                    view.enable_truncation(**asdict(truncation))
            if self._keep and len(self._views) < 64:
                self._views[key] = view
        return view

    def twin(self, name: str, change: Callable[[Tokenizer], None]) -> Views:
        """Views of a backend of their own, with the same vocabulary and the rules as ``change`` leaves them."""
        if (twin := self._twins.get(name)) is None:
            twin = Views(self._copy())
            change(twin.backend)
            if self._keep:
                self._twins[name] = twin
        return twin

    def expose(self) -> Tokenizer:
        """The backend itself, for a caller who may change its rules: from now on views are made anew each time."""
        self._keep = False
        self.clear()
        return self.backend

    def clear(self) -> None:
        """Forget all views, after the backend has changed."""
        self._views.clear()
        self._twins.clear()

    def _copy(self) -> Tokenizer:
        view = Tokenizer(self.backend.model)
        for part in PARTS:
            if (value := getattr(self.backend, part)) is not None:
                setattr(view, part, value)
        added = self.backend.get_added_tokens_decoder()
        view.add_tokens([added[index] for index in sorted(added)])
        return view if view.get_added_tokens_decoder().keys() == added.keys() else make_backend(self.backend.to_str())


# Learning a vocabulary

_TRAINERS = {
    "BPE": trainers.BpeTrainer,
    "Unigram": trainers.UnigramTrainer,
    "WordLevel": trainers.WordLevelTrainer,
    "WordPiece": trainers.WordPieceTrainer,
}


def train_backend(
    backend: Tokenizer,
    texts: Iterable[Any],
    new: Sequence[str | AddedToken],
    names: Mapping[str, str],
    length: int | None,
    **arguments: Any,
) -> Tokenizer:
    """A backend with the rules of another, special tokens renamed and ``new`` ones, and a vocabulary learnt from texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputTypeError(f"texts to train on come from an iterable, not from {type(texts).__name__}.")
    document = document_of(backend)
    added, after, kind = document.pop("added_tokens"), document.pop("post_processor"), document["model"].get("type")
    if kind not in _TRAINERS:
        raise UnsupportedError(f"a tokenizer with the model {kind!r} cannot be trained.")
    arguments = _of_model(document, names) | arguments
    learnt = make_backend(document | {"added_tokens": [], "post_processor": None})
    special: list[str | AddedToken] = []
    for token in added:
        if token["special"] or kind == "Unigram":
            flags = {key: value for key, value in token.items() if key not in ("id", "content")}
            special.append(AddedToken(names.get(token["content"], token["content"]), **flags))
    with guarded(InputError, "the vocabulary cannot be trained"):
        trainer = _TRAINERS[kind](special_tokens=[*special, *new], **arguments)
        learnt.train_from_iterator(_checked(texts), length=length, trainer=trainer)
    if after is not None:
        learnt = make_backend(document_of(learnt) | {"post_processor": _renumbered(after, learnt, names)})
    return learnt


def _checked(texts: Iterable[Any]) -> Iterator[Any]:
    for place, text in enumerate(texts):
        rows = [text] if isinstance(text, str) else text
        if not isinstance(rows, list | tuple) or not all(isinstance(row, str) for row in rows):
            raise InputTypeError(f"item {place} to train on is {text!r:.60}, but must be a text or a list of texts.")
        yield text


def _of_model(document: Document, names: Mapping[str, str]) -> dict[str, Any]:
    """What a trainer has to know of the model, whose unknown token is renamed."""
    model, arguments = document["model"], dict[str, Any]()
    if model["type"] == "Unigram" and model["unk_id"] is not None:
        unknown = model["vocab"][model["unk_id"]][0]
        arguments["unk_token"] = names.get(unknown, unknown)
    if model["type"] == "BPE":
        ends = ("continuing_subword_prefix", "end_of_word_suffix")
        arguments |= {name: model[name] for name in ends if model.get(name) is not None}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "'ByteLevel'" in str(document["pre_tokenizer"]):
        arguments["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return arguments


def _renumbered(after: Document, backend: Tokenizer, names: Mapping[str, str]) -> Document:
    """A rule that puts special tokens around texts, with their new names and ids."""

    def renamed(old: str) -> tuple[str, int]:
        token = names.get(old, old)
        if (index := backend.token_to_id(token)) is None:
            raise InputError(f"{token!r} goes around texts, but is not in the new vocabulary.")
        return token, index

    for processor in after.get("processors", [after]):
        processor |= {role: renamed(processor[role][0]) for role in ("cls", "sep") if role in processor}
        for entry in (processor.get("special_tokens") or {}).values():
            entry["tokens"], entry["ids"] = zip(*map(renamed, entry["tokens"]), strict=True)
    return after
