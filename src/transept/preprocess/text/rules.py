"""Options of a tokenizer, such as ``do_lower_case``, where the document of ``tokenizer.json`` holds them.

A document is what counts: its options are read from it, and an option that a caller sets is written into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from transept.errors import InputError

Document = dict[str, Any]
Nodes = Callable[[Document], Iterator[Document]]


@dataclass(frozen=True)
class _Field:
    """An option that is a field of rules of some types.

    Args:
        part: the part of the document, such as ``normalizer``.
        types: which rules there have it.
        key: the field's name.
    """

    part: str
    types: tuple[str, ...]
    key: str

    def nodes(self, document: Document) -> Iterator[Document]:
        return (node for node in _nodes(document.get(self.part)) if node.get("type") in self.types and self.key in node)


def _nodes(part: Any) -> Iterator[Document]:
    """The rules of a part: itself, or those of a sequence."""
    waiting = [part]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, dict):
            yield node
            for key in ("normalizers", "pretokenizers", "processors", "decoders"):
                waiting += node[key] if isinstance(node.get(key), list) else []


FIELDS = {
    "do_lower_case": _Field("normalizer", ("BertNormalizer",), "lowercase"),
    "strip_accents": _Field("normalizer", ("BertNormalizer",), "strip_accents"),
    "tokenize_chinese_chars": _Field("normalizer", ("BertNormalizer",), "handle_chinese_chars"),
    "add_prefix_space": _Field("pre_tokenizer", ("ByteLevel",), "add_prefix_space"),
    "trim_offsets": _Field("post_processor", ("RobertaProcessing", "ByteLevel"), "trim_offsets"),
}


def read_options(document: Document) -> dict[str, Any]:
    """The options that a document holds."""
    found: dict[str, Any] = {}
    for name, field in FIELDS.items():
        for node in field.nodes(document):
            found[name] = node[field.key]
    schemes = [node["prepend_scheme"] for node in _metaspaces(document)]
    if "add_prefix_space" not in found and schemes:
        found["add_prefix_space"] = any(scheme != "never" for scheme in schemes)
    return found


def change_options(document: Document, options: dict[str, Any]) -> None:
    """Write options into a document.

    Raises:
        InputError: the document's rules have no such option.
    """
    for name, value in options.items():
        nodes = list(FIELDS[name].nodes(document)) if name in FIELDS else []
        for node in nodes:
            node[FIELDS[name].key] = value
        if name == "add_prefix_space":
            nodes += _change_prefix(document, value)
        if not nodes:
            raise InputError(
                f"{name}={value!r} cannot be set: the rules of its tokenizer.json have no such option.",
                hint="Leave it out, or load from the vocabulary files alone.",
            )


def _change_prefix(document: Document, value: Any) -> list[Document]:
    post = [node for node in _nodes(document.get("post_processor")) if "add_prefix_space" in node]
    for node in post:
        node["add_prefix_space"] = value
    spaces = list(_metaspaces(document))
    for node in spaces:
        if (node["prepend_scheme"] != "never") is not bool(value):
            node["prepend_scheme"] = "always" if value else "never"
    return spaces


def _metaspaces(document: Document) -> Iterator[Document]:
    return (node for node in _nodes(document.get("pre_tokenizer")) if "prepend_scheme" in node)
