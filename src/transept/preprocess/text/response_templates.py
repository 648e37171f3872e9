"""Response templates: a model's own description of its answers, as ``tokenizer_config.json`` may hold it.

A template names the fields of a message. A field is what stands between its ``open`` and its ``close``; the one field without
``open`` is everything else. Patterns have a limit of time (:mod:`transept.storage.patterns`); plain texts need none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial, reduce
from typing import Any

from transept.errors import FormatError, InputError, TranseptError, nearest
from transept.preprocess.text.tools import Properties, cast_call
from transept.storage.files import parse_json
from transept.storage.patterns import compile_pattern, timed

_KEYS = ("version", "defaults", "fields", "start_anchor", "start_anchor_pattern")
_FIELD_KEYS = (
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"),
    *("transform", "transform_each"),
)
_PLACEHOLDER = re.compile(r"\{(\w{1,64}(?:\.\w{1,64}){0,8})\}")
_MIXED = re.compile(r'[^"]\{\w{1,64}(?:\.\w{1,64}){0,8}\}|\{\w{1,64}(?:\.\w{1,64}){0,8}\}[^"]')  # in JSON
_BARE_KEY = re.compile(r"(?<=[{,])(\w{1,64}):")
Options = Mapping[str, Any]
Search = Callable[..., Any]


def _ensure(condition: Any, message: str, hint: str = "See the model's documents, or pass another response template.") -> None:
    if not condition:
        raise FormatError(message, hint=hint)


def _mark(place: str, spec: Options, key: str) -> Search | None:
    """What finds the mark that opens or closes a field: one of several texts, the longest first, or a pattern."""
    texts, pattern = spec.get(key), spec.get(f"{key}_pattern")
    _ensure(texts is None or pattern is None, f"{place} has both {key!r} and '{key}_pattern'.")
    if texts is None:
        return None if pattern is None else partial(timed, _compiled(place, pattern).search, over="the answer")
    listed = [texts] if isinstance(texts, str) else texts
    good = isinstance(listed, list) and listed and all(isinstance(text, str) and text for text in listed)
    _ensure(good, f"{place} has the {key!r} {texts!r:.80}, but needs a text or a list of texts.")
    return re.compile("|".join(map(re.escape, sorted(listed, key=len, reverse=True)))).search


def _compiled(place: str, pattern: Any) -> Any:
    return compile_pattern(place, pattern, "a response template with patterns")


def _field(name: str, value: Any) -> dict[str, Any]:
    """A field's options, its marks as what finds them, and under ``read`` what reads its text."""
    place = f"the response template's field {name!r}"
    _ensure(isinstance(value, dict), f"{place} must be an object, but is {value!r:.80}.")
    for key in value.keys() - set(_FIELD_KEYS):
        _ensure(False, f"{place} has the unknown key {key!r}.", nearest(key, _FIELD_KEYS))
    join = value.get("join")
    good = join is None or (isinstance(join, str) and value.get("repeats"))
    _ensure(good, f"{place} has a 'join' that is no text, or no 'repeats'.")
    mixed = _MIXED.search(json.dumps(value.get("transform"), ensure_ascii=False))
    _ensure(mixed is None, f"{place} has a 'transform' with text beside a placeholder: {mixed and mixed[0]!r:.80}.")
    marks = {key: _mark(place, value, key) for key in ("open", "close")}
    return {**value, **marks, "name": name, "read": _reader(place, value.get("content", "text"), value.get("content_args", {}))}


def _put(message: dict[str, Any], field: Options, text: str, groups: Mapping[str, str]) -> None:
    """Read a field's text into a message; a built-in error or ``FormatError`` where the text is none."""
    name, value = field["name"], field["read"](text)
    if (transform := field.get("transform")) is not None and field.get("transform_each"):
        good = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        _ensure(good, "is no list of objects")
        value = [_filled(transform, {**groups, **item}) for item in value]
    elif transform is not None:
        value = _filled(transform, {**groups, "content": value})
    if (join := field.get("join")) is not None:
        _ensure(isinstance(value, str), "is no text to join")
        message[name] = message[name] + join + value if name in message else value
    elif field.get("repeats"):
        message.setdefault(name, []).append(value)
    else:
        message[name] = value


def _filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    """A transform with its placeholders, such as ``{content.name}``, replaced."""
    if isinstance(transform, dict):
        return {key: _filled(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_filled(value, scope) for value in transform]
    match = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    return transform if match is None else reduce(lambda value, key: value[key], match[1].split("."), scope)


class ResponseTemplate:
    """A response template, as JSON holds it, which is checked: ``FormatError`` names what is wrong."""

    def __init__(self, spec: Any) -> None:
        good = isinstance(spec, dict) and isinstance(spec.get("fields"), dict) and spec["fields"]
        _ensure(good, f"a response template must be an object with fields, but is {spec!r:.80}.")
        for key in spec.keys() - set(_KEYS):
            _ensure(False, f"a response template has no key {key!r}.", nearest(key, _KEYS))
        self.defaults = spec.get("defaults", {})
        good = spec.get("version", 1) == 1 and isinstance(self.defaults, dict)
        _ensure(good, "a response template needs the version 1, and an object of defaults.")
        self.anchor: Any = _mark("the response template", spec, "start_anchor")
        _ensure(self.anchor, "a response template needs a 'start_anchor' or a 'start_anchor_pattern'.")
        self.fields = [_field(name, value) for name, value in spec["fields"].items()]
        rest = [field for field in self.fields if field["open"] is None]
        _ensure(len(rest) < 2, f"only one field can be without 'open', but {[field['name'] for field in rest]} are.")
        self.rest = rest[0] if rest else None

    def parse(self, text: str, *, prefix: str = "", known: Mapping[str, Properties] | None = None) -> dict[str, Any]:
        """A message of what a model wrote after ``prefix``, whose last start anchor begins the message."""
        place = 0
        while prefix and (found := self.anchor(prefix, place)) is not None and found.end() > place:
            place = found.end()
        message: dict[str, Any] = deepcopy(self.defaults)
        unread = []
        for field, body, groups, raw in self._regions(prefix[place:] + text):
            try:
                _put(message, field, body, groups)
            except (TranseptError, ValueError, LookupError, TypeError):
                unread.append(raw)
        if unread and self.rest is not None:
            name = self.rest["name"]
            message[name] = "".join([str(message.get(name, "")), *unread])
        for field in self.fields:
            if field["name"] in message:
                message[field["name"]] = cast_call(message[field["name"]], known or {})
            elif not field.get("optional", True):
                raise InputError(f"the answer has no {field['name']!r}, which its response template wants.")
        return {key: value for key, value in message.items() if key in self.defaults or value not in (None, "", [], {})}

    def _regions(self, text: str) -> Iterator[tuple[Options, str, Mapping[str, str], str]]:
        """Each field's text in order: the field, its text, the named groups of its mark, and all that was written."""
        field, start, place = self.rest, 0, 0
        groups: Mapping[str, str] = {}
        while True:
            explicit = field is not self.rest
            opens = [] if explicit else [one for one in self.fields if one["open"]]
            marks: list[tuple[Any, Any]] = [(found, one) for one in opens if (found := one["open"](text, place)) and found[0]]
            if field is not None and field["close"] and (found := field["close"](text, place)):
                marks.append((found, None))
            if not marks:
                break
            mark, after = min(marks, key=lambda item: (item[0].start(), -item[0].end(), item[1] is None))
            first, last = mark.span()
            if field is not None and (explicit or first > place):
                yield field, text[place:first], groups, text[start if explicit else place : last if explicit else first]
            elif first == last:
                break
            field, start, place = self.rest if after is None else after, first, last
            groups = {} if after is None else {key: value for key, value in mark.groupdict().items() if value is not None}
        if field is not None and (place < len(text) or field is not self.rest):
            yield field, text[place:], groups, text[start if field is not self.rest else place :]


def _reader(place: str, content: Any, options: Any) -> Callable[[str], Any]:
    """What reads the text of a field, with its options checked and its patterns compiled."""
    known = isinstance(content, str) and content in _READERS
    _ensure(known, f"{place} has the unknown content {content!r:.80}. {nearest(str(content), _READERS)}")
    _ensure(isinstance(options, dict), f"{place} has 'content_args' of {options!r:.80}, which are no object.")
    marks, parser = options.get("string_delims", []), options.get("value_parser", {})
    pairs = marks if isinstance(marks, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in marks) else [[None]]
    good = all(isinstance(text, str) and text for pair in pairs for text in pair)
    _ensure(good, f"{place} has 'string_delims' of {marks!r:.80}, which are no list of two texts each.")
    good = all(isinstance(text, str) and text for text in (options.get("kv_sep", ":"), options.get("line_sep", "\n")))
    _ensure(good, f"{place} has separators that are no texts.")
    _ensure(isinstance(parser, dict), f"{place} has the 'value_parser' {parser!r:.80}, which is no object.")
    if content == "xml-inline":
        options = options | {"tag_pattern": (tags := _compiled(place, options.get("tag_pattern")))}
        _ensure("key" in tags.groupindex, f"{place} has a 'tag_pattern' without a group 'key'.")
    inner = _reader(place, parser.get("name", "text"), parser.get("args", {})) if parser else str
    return partial(_READERS[content], options=options | {"read": inner})


def _text(text: str, options: Options) -> str:
    return text.strip() if options.get("strip", True) else text


def _json(text: str, options: Options) -> Any:
    try:
        return parse_json("".join(_standard(text, options)))
    except FormatError:
        if options.get("allow_non_json"):
            return _text(text, options)
        raise


def _standard(text: str, options: Options) -> Iterator[str]:
    """JSON with its own marks around strings, or bare keys, as standard JSON."""
    marks, place, keys = options.get("string_delims", []), 0, r'"\1":' if options.get("unquoted_keys") else r"\1:"
    while True:
        starts = [(start, mark) for mark in marks if (start := text.find(mark[0], place)) >= 0]
        start, (opened, closed) = min(starts, default=(0, ("", "")))
        end = text.find(closed, start + len(opened)) if starts else -1
        yield _BARE_KEY.sub(keys, text[place : start if end >= 0 else None])
        if end < 0:
            return
        yield json.dumps(text[start + len(opened) : end])
        place = end + len(closed)


def _tags(text: str, options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag in timed(lambda **limit: list(options["tag_pattern"].finditer(text, **limit)), over="the answer"):
        key, value = tag["key"], options["read"](tag.groupdict().get("value") or "")
        if key in found and options.get("merge_duplicates"):
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _lines(text: str, options: Options) -> dict[str, Any]:
    mark = options.get("kv_sep", ":")
    pairs = [line.partition(mark) for line in text.split(options.get("line_sep", "\n")) if mark in line]
    return {_text(key, options): options["read"](_text(value, options)) for key, _, value in pairs}


_READERS: dict[str, Callable[..., Any]] = {
    "text": _text,
    "int": lambda text, options: int(_text(text, options)),
    "float": lambda text, options: float(_text(text, options)),
    "bool": lambda text, options: _text(text, options).lower() in ("true", "1"),
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
