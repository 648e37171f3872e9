"""Response templates: a model's own description of its answers, as ``tokenizer_config.json`` may hold it.

A template names the fields of a message. A field is what stands between its ``open`` and its ``close``; the one field
without ``open`` is everything else. Patterns come out of files and could take for ever over a long answer, which the
standard library cannot stop, so they are looked for by the package ``regex``, with a limit of time; plain texts need none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from transept.errors import FormatError, InputError, MissingExtraError, TranseptError, nearest
from transept.files import parse_json
from transept.preprocess.text.tools import Properties, cast_call

SECONDS = 5.0
_FIELD_KEYS = frozenset(
    {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"}
    | {"transform", "transform_each"}
)
_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_PLACEHOLDER = re.compile(r"\{(\w{1,64}(?:\.\w{1,64}){0,8})\}")
_BARE_KEY = re.compile(r"(?<=[{,])(\w{1,64}):")
_HINT = "See the model's documents, or pass another response template."
Found = tuple[int, int, dict[str, str]]
"""Where a mark stands, first character and one after the last, and what its named groups hold."""


class _Mark:
    """What opens or closes a field: one of several texts, or a pattern."""

    def __init__(self, place: str, value: Mapping[str, Any], key: str) -> None:
        self.texts: list[str] = []
        self.pattern: Any = None
        texts, pattern = value.get(key), value.get(f"{key}_pattern")
        if texts is not None and pattern is not None:
            raise FormatError(f"{place} has both {key!r} and '{key}_pattern'.", hint=_HINT)
        if texts is not None:
            self.texts = [texts] if isinstance(texts, str) else texts
            if not isinstance(self.texts, list) or not self.texts or not all(map(_is_text, self.texts)):
                raise FormatError(f"{place} has the {key!r} {texts!r:.80}, but needs a text or a list of texts.", hint=_HINT)
        if pattern is not None:
            self.pattern = _compiled(place, pattern)

    def __bool__(self) -> bool:
        return bool(self.texts) or self.pattern is not None

    def find(self, text: str, start: int) -> Found | None:
        """Where it stands first from ``start`` on, the longest of several."""
        if not self:
            return None
        if self.pattern is None:
            places = [(place, -len(one)) for one in self.texts if (place := text.find(one, start)) >= 0]
            return (min(places)[0], min(places)[0] - min(places)[1], {}) if places else None
        found = _timed(lambda: self.pattern.search(text, start, timeout=SECONDS))
        groups = {} if found is None else {key: value for key, value in found.groupdict().items() if value is not None}
        return None if found is None else (found.start(), found.end(), groups)


def _compiled(place: str, pattern: Any) -> Any:
    try:
        import regex  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("regex", "serve", "a response template with patterns") from error
    if not isinstance(pattern, str) or len(pattern) > 1000:
        raise FormatError(f"{place} has the pattern {pattern!r:.80}, but needs a text of up to 1000 characters.", hint=_HINT)
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise FormatError(f"{place} has the pattern {pattern!r:.80}, which is none: {error}.", hint=_HINT) from error


def _timed(search: Callable[[], Any]) -> Any:
    try:
        return search()
    except TimeoutError as error:
        raise FormatError(f"a pattern takes longer than {SECONDS:g} seconds over the answer.", hint=_HINT) from error


@dataclass(frozen=True)
class _Field:
    """One field of a message and how its text becomes its value."""

    name: str
    open: _Mark
    close: _Mark
    options: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, value: Any) -> _Field:
        place = f"the response template's field {name!r}"
        if not isinstance(value, dict):
            raise FormatError(f"{place} must be an object, but is {value!r:.80}.", hint=_HINT)
        for key in value.keys() - _FIELD_KEYS:
            raise FormatError(f"{place} has the unknown key {key!r}.", hint=nearest(key, _FIELD_KEYS))
        content = value.get("content", "text")
        if value.get("join") is not None and not (isinstance(value["join"], str) and value.get("repeats")):
            raise FormatError(f"{place} has a 'join', which must be a text and needs 'repeats'.", hint=_HINT)
        value = value | {"content_args": _checked(place, content, value.get("content_args", {}))}
        return cls(name, _Mark(place, value, "open"), _Mark(place, value, "close"), value)

    def value(self, text: str, groups: Mapping[str, str]) -> Any:
        """The field's value; ``FormatError`` or ``ValueError`` where the text is none."""
        read = _READERS[self.options.get("content", "text")](text, self.options.get("content_args", {}))
        transform = self.options.get("transform")
        if transform is None:
            return read
        if not self.options.get("transform_each"):
            return _filled(transform, {**groups, "content": read})
        if not isinstance(read, list) or not all(isinstance(item, dict) for item in read):
            raise FormatError("is no list of objects")
        return [_filled(transform, {**groups, **item}) for item in read]


class ResponseTemplate:
    """A checked response template.

    Args:
        spec: the template, as JSON holds it.

    Raises:
        FormatError: it is none; names the place.
        MissingExtraError: it has patterns, and the package ``regex`` is not installed.
    """

    def __init__(self, spec: Any) -> None:
        if not isinstance(spec, dict) or not isinstance(spec.get("fields"), dict) or not spec["fields"]:
            raise FormatError(f"a response template must be an object with fields, but is {spec!r:.80}.", hint=_HINT)
        for key in spec.keys() - _KEYS:
            raise FormatError(f"a response template has no key {key!r}.", hint=nearest(key, _KEYS))
        if spec.get("version", 1) != 1 or not isinstance(spec.get("defaults", {}), dict):
            raise FormatError("a response template needs the version 1, and an object of defaults.", hint=_HINT)
        self.defaults = spec.get("defaults", {})
        self.anchor = _Mark("the response template", spec, "start_anchor")
        if not self.anchor:
            raise FormatError("a response template needs a 'start_anchor' or a 'start_anchor_pattern'.", hint=_HINT)
        self.fields = [_Field.of(name, value) for name, value in spec["fields"].items()]
        rest = [field for field in self.fields if not field.open]
        if len(rest) > 1:
            raise FormatError(f"only one field can be without 'open', but {[field.name for field in rest]} are.", hint=_HINT)
        self.rest = rest[0] if rest else None

    def parse(self, text: str, *, prefix: str = "", known: Mapping[str, Properties] | None = None) -> dict[str, Any]:
        """A message of what a model wrote after ``prefix``, whose last start anchor begins the message.

        Raises:
            InputError: a field that is not optional is missing.
            FormatError: a pattern takes too long.
        """
        place = 0
        while prefix and (found := self.anchor.find(prefix, place)) is not None and found[1] > place:
            place = found[1]
        message: dict[str, Any] = deepcopy(self.defaults)
        unread = []
        for field, body, groups, raw in self._regions(prefix[place:] + text):
            try:
                _put(message, field, cast_call(field.value(body, groups), known or {}))
            except (TranseptError, ValueError, LookupError):
                unread.append(raw)
        if unread and self.rest is not None:
            message[self.rest.name] = "".join([str(message.get(self.rest.name, "")), *unread])
        for field in self.fields:
            if not field.options.get("optional", True) and field.name not in message:
                raise InputError(f"the answer has no {field.name!r}, which its response template wants.")
        return {key: value for key, value in message.items() if key in self.defaults or value not in (None, "", [], {})}

    def _regions(self, text: str) -> Iterator[tuple[_Field, str, dict[str, str], str]]:
        """Each field's text in order: the field, its text, the named groups of its mark, and all that was written."""
        field, start, place = self.rest, 0, 0
        groups: dict[str, str] = {}
        while True:
            explicit = field is not None and field is not self.rest
            marks: list[tuple[Found, _Field | None]] = []
            if not explicit:
                opened = [(found, one) for one in self.fields if (found := one.open.find(text, place))]
                marks += [(found, one) for found, one in opened if found[1] > found[0]]
            if field is not None and (found := field.close.find(text, place)):
                marks.append((found, None))
            if not marks:
                break
            (first, last, named), after = min(marks, key=lambda item: (item[0][0], -item[0][1], item[1] is None))
            if field is not None and (explicit or first > place):
                yield field, text[place:first], groups, text[start:last] if explicit else text[place:first]
            elif first == last:
                break
            field, start, place = self.rest if after is None else after, first, last
            groups = {} if after is None else named
        if field is not None and (place < len(text) or field is not self.rest):
            yield field, text[place:], groups, text[start if field is not self.rest else place :]


def _checked(place: str, content: Any, options: Any) -> dict[str, Any]:
    """The options of a content, with its patterns compiled."""
    if not isinstance(content, str) or content not in _READERS:
        raise FormatError(f"{place} has the unknown content {content!r:.80}.", hint=nearest(str(content), _READERS))
    if not isinstance(options, dict):
        raise FormatError(f"{place} has 'content_args' of {options!r:.80}, which are no object.", hint=_HINT)
    marks = options.get("string_delims", [])
    pairs = marks if isinstance(marks, list) else [None]
    if not all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs):
        raise FormatError(f"{place} has 'string_delims' of {marks!r:.80}, which are no list of two texts each.", hint=_HINT)
    if not all(_is_text(options[key]) for key in ("kv_sep", "line_sep") if key in options):
        raise FormatError(f"{place} has separators that are no texts.", hint=_HINT)
    if content == "xml-inline":
        options = options | {"tag_pattern": _compiled(place, options.get("tag_pattern"))}
    if (parser := options.get("value_parser")) is not None:
        if not isinstance(parser, dict):
            raise FormatError(f"{place} has the 'value_parser' {parser!r:.80}, which is no object.", hint=_HINT)
        name = parser.get("name", "text")
        options = options | {"value_parser": {"name": name, "args": _checked(place, name, parser.get("args", {}))}}
    return dict(options)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _put(message: dict[str, Any], field: _Field, value: Any) -> None:
    join = field.options.get("join")
    if join is not None:
        if not isinstance(value, str):
            raise FormatError("is no text to join")
        message[field.name] = message[field.name] + join + value if field.name in message else value
    elif field.options.get("repeats"):
        message.setdefault(field.name, []).append(value)
    else:
        message[field.name] = value


def _filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    """A transform with its placeholders, such as ``{content.name}``, replaced."""
    if isinstance(transform, dict):
        return {key: _filled(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_filled(value, scope) for value in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise FormatError(f"has no {found[1]!r}")
        value = value[key]
    return value


def _text(text: str, options: Mapping[str, Any]) -> str:
    return text.strip() if options.get("strip", True) else text


def _json(text: str, options: Mapping[str, Any]) -> Any:
    try:
        return parse_json("".join(_standard(text, options)))
    except FormatError:
        if options.get("allow_non_json"):
            return _text(text, options)
        raise


def _standard(text: str, options: Mapping[str, Any]) -> Iterator[str]:
    """JSON with its own marks around strings, or bare keys, as standard JSON."""
    marks = options.get("string_delims", [])
    place = 0
    while True:
        starts = [(start, mark) for mark in marks if (start := text.find(mark[0], place)) >= 0]
        start, mark = min(starts, default=(len(text), ("", "")))
        end = text.find(mark[1], start + len(mark[0])) if starts else -1
        outside = text[place:start] if end >= 0 else text[place:]
        yield _BARE_KEY.sub(r'"\1":', outside) if options.get("unquoted_keys") else outside
        if end < 0:
            return
        yield json.dumps(text[start + len(mark[0]) : end])
        place = end + len(mark[1])


def _part(text: str, options: Mapping[str, Any]) -> Any:
    parser = options.get("value_parser")
    return text if parser is None else _READERS[parser.get("name", "text")](text, parser.get("args", {}))


def _tags(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag in _timed(lambda: list(options["tag_pattern"].finditer(text, timeout=SECONDS))):
        groups = tag.groupdict()
        key, value = groups["key"], _part(groups.get("value") or "", options)
        if key in found and options.get("merge_duplicates"):
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _lines(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    mark = options.get("kv_sep", ":")
    pairs = [line.partition(mark) for line in text.split(options.get("line_sep", "\n")) if mark in line]
    return {_text(key, options): _part(_text(value, options), options) for key, _, value in pairs}


_READERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _text,
    "int": lambda text, options: int(_text(text, options)[:64]),
    "float": lambda text, options: float(_text(text, options)),
    "bool": lambda text, options: _text(text, options).lower() in ("true", "1"),
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
