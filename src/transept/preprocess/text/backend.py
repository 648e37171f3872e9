"""The door to ``tokenizers``, the Rust library: reading ``tokenizer.json``, and catching what the library throws.

The library panics on some files and texts, and a panic derives from ``BaseException``, which no caller catches. What a
file can make it do is bounded before it sees the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import Tokenizer

from transept.errors import FormatError, InputError, TranseptError
from transept.files import parse_json, read_text

MAX_PATTERN = 2**16
"""Longest regular expression of a file, in characters."""
MAX_GROWTH = 1000
"""How many times longer a file's rules may make a text."""
_FIXED = re.compile(r"(?:\\x\{[0-9A-F]+\}|\|)+")
_PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")


@contextmanager
def guarded(error: type[TranseptError], what: str, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
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


def read_backend(path: str | os.PathLike[str]) -> tuple[Tokenizer, dict[str, Any]]:
    """The backend of a ``tokenizer.json``, and the document itself.

    Raises:
        FileError: it cannot be read.
        FormatError: it is corrupt, hostile or of another format.
    """
    text = read_text(path)
    document = parse_json(text, path=path)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise FormatError("is no tokenizer: it must hold a JSON object with a 'model'.", path=path)
    for name in _PARTS:
        _check_patterns(document.get(name), path)
    _check_growth(document, path)
    return make_backend(text, path), document


def make_backend(source: str | dict[str, Any], path: str | os.PathLike[str] | None = None) -> Tokenizer:
    """A backend from the text of a ``tokenizer.json``, or from its document. It neither truncates nor pads."""
    with guarded(FormatError, "is no tokenizer that can be used", path):
        backend = Tokenizer.from_str(source if isinstance(source, str) else json.dumps(source))
    backend.no_truncation()
    backend.no_padding()
    return backend


def document_of(backend: Tokenizer) -> dict[str, Any]:
    """The content of the ``tokenizer.json`` that this backend would be saved as."""
    document: dict[str, Any] = json.loads(backend.to_str())
    return document


def _check_patterns(part: Any, path: str | os.PathLike[str]) -> None:
    waiting = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += [child for child in node if isinstance(child, dict | list)]
        elif isinstance(node, dict):
            pattern = node.get("Regex")
            if isinstance(pattern, str) and len(pattern) > MAX_PATTERN:
                raise FormatError(f"holds a regular expression of {len(pattern)} characters.", path=path)
            # Vocabularies are large and hold no rules.
            waiting += [child for key, child in node.items() if key not in ("vocab", "merges")]


def _check_growth(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    for name in ("normalizer", "decoder"):
        if (growth := _growth(document.get(name))) > MAX_GROWTH:
            raise FormatError(f"its {name} can make a text {growth:.0f} times longer.", path=path)
    templates = document.get("post_processor")
    if json.dumps(templates).count('"Sequence"') > MAX_GROWTH:
        raise FormatError(f"its post_processor repeats a text more than {MAX_GROWTH} times.", path=path)


def _growth(part: Any) -> float:
    """By what factor a chain of rewriting rules can lengthen a text, at most."""
    if not isinstance(part, dict):
        return 1.0
    factor = 1.0
    for key in ("normalizers", "decoders"):
        children = part.get(key)
        for child in children if isinstance(children, list) else ():
            factor *= _growth(child)
    content, pattern = part.get("content"), part.get("pattern")
    if isinstance(content, str) and isinstance(pattern, dict):
        shortest = _shortest(pattern)
        factor *= max(1.0, len(content) / shortest) if shortest else 1.0 + len(content)
    return factor


def _shortest(pattern: dict[str, Any]) -> int:
    """How many characters a pattern matches at least: known of fixed texts and of alternatives of such, else 0."""
    text = pattern.get("String")
    if isinstance(text, str):
        return len(text)
    text = pattern.get("Regex")
    if not isinstance(text, str) or not _FIXED.fullmatch(text):
        return 0
    return min(part.count("x") for part in text.split("|"))  # one "x" a character


@dataclass(frozen=True)
class Truncation:
    """How long encodings may become.

    Args:
        max_length: tokens of one encoding, special ones included.
        stride: tokens that an overflowing window repeats of the one before.
        strategy: ``longest_first``, ``only_first`` or ``only_second``.
        direction: the side that is cut, ``right`` or ``left``.
    """

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
        self._keep = True

    def get(self, truncation: Truncation | None = None, split_special_tokens: bool = False) -> Tokenizer:
        """The view that truncates so, and that splits the text of special tokens like any other if asked to.

        Raises:
            InputError: a stride that leaves no room for other tokens.
        """
        key = truncation, split_special_tokens
        if key == (None, False):
            return self.backend
        if (view := self._views.get(key)) is None:
            view = self._make(truncation, split_special_tokens)
            if self._keep and len(self._views) < 64:
                self._views[key] = view
        return view

    def twin(self) -> Views:
        """Views of a backend of their own, with the same vocabulary and rules."""
        return Views(self._make(None, False))

    def expose(self) -> Tokenizer:
        """The backend itself, for a caller who may change its rules: from now on views are made anew each time."""
        self._keep = False
        self._views.clear()
        return self.backend

    def clear(self) -> None:
        """Forget all views, after the backend has changed."""
        self._views.clear()

    def _make(self, truncation: Truncation | None, split_special_tokens: bool) -> Tokenizer:
        backend = self.backend
        view = Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            if (value := getattr(backend, part)) is not None:
                setattr(view, part, value)
        added = backend.get_added_tokens_decoder()
        view.add_tokens([added[index] for index in sorted(added)])
        if view.get_added_tokens_decoder().keys() != added.keys():
            view = make_backend(backend.to_str())
        view.encode_special_tokens = split_special_tokens
        if truncation is not None:
            with guarded(InputError, "the truncation cannot be done"):
                view.enable_truncation(**asdict(truncation))
        return view
