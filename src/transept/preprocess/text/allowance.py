"""How much one rendering of a template may make, and for how long: counted while it runs, in the thread that runs it.

Templates come out of files, so they are hostile until they have ended. Whatever a template can do passes a counter: each
block that it enters, each value that it prints, each call, filter, operator and container. What could make a huge value in
a single step is estimated before it is done. Nothing here knows jinja2.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from string import Formatter
from sys import getrefcount
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

MAX_CHARACTERS = 2**24
"""Of one text, or of the values of one container together."""
MAX_MADE = 2**26
"""Characters that one rendering may make, and twice what it may hold at a time."""
MAX_SLOW = 2**16
"""Characters of what goes into a filter that takes long."""
MAX_BITS = 2**16
MAX_WIDTH = 10_000
MIN_HELD = 2**12
"""Shorter texts are not looked after: there are at most as many as a template has names, or a container has room for."""
LOOK = 2**22
"""Characters made before the allowance looks which texts are still held."""
SLOT = 8
"""What a place in a container counts."""
UNIT = 16
"""What any value counts, besides its characters."""
_MAX_KNOWN = 2**16
_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, type({}.keys()), type({}.values()), type({}.items()))
_CODECS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")
_WIDE = re.compile(r"\d{5}|\*|\{")
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]{0,64}?(?:\d{5}|\*)")
WIDTHS = frozenset(
    {"center", "ljust", "rjust", "zfill", "to_bytes", "expandtabs", "indent", "batch", "slice", "round", "wordwrap"}
)
"""Methods and filters with a number that says how much they make."""
SLOW = frozenset({"pprint", "striptags", "sum", "title", "urlencode", "urlize", "wordwrap", "xmlattr"})
"""Filters that take longer than their input's length."""
_SEARCHES = frozenset({"strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition"})
_SEARCH_SHARE = 256
"""Comparisons of characters that cost as much as making one."""


class ExcessError(Exception):
    """A rendering makes too much or takes too long; the message completes "the template ..."."""


class Allowance:
    """What one rendering has made so far.

    Args:
        seconds: how long it may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = monotonic() + seconds
        self.made = 0
        self.written = 0
        """Characters of the result so far."""
        self.spans: list[tuple[int, int]] = []
        """Where in the result generated text stands: first character, and the one after the last."""
        # Containers are kept with their weights, since an id is another's as soon as its object is gone.
        self._known: dict[int, tuple[Any, int]] = {}
        self._texts: list[str | bytes] = []
        self._held = 0
        self._look_at = LOOK

    def charge(self, characters: int = 0) -> bool:
        """Count characters and look at the clock; always true, so that it can stand in a condition."""
        self.made += characters
        if self.made > MAX_MADE:
            raise ExcessError(f"makes more than {MAX_MADE} characters")
        if monotonic() > self.deadline:
            raise ExcessError(f"takes longer than {self.seconds:g} seconds")
        return True

    def weigh(self, value: Any) -> int:
        """An upper bound, but for escapes, of the characters that ``value`` is written with, shared parts counted each time."""
        if isinstance(value, str | bytes):
            return UNIT + len(value)
        if isinstance(value, int):
            return UNIT + value.bit_length() // 3
        if not isinstance(value, _CONTAINERS):
            return UNIT
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        total = UNIT
        parts: Any = itertools.chain(value.keys(), value.values()) if isinstance(value, dict) else value
        for part in parts:
            total += self.weigh(part)
            if total > MAX_CHARACTERS:
                raise ExcessError(f"makes a value of more than {MAX_CHARACTERS} characters")
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[id(value)] = value, total
        return total

    def keep(self, value: T) -> T:
        """``value``, which the template has made, if it is not too large."""
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ExcessError(f"makes a number of {value.bit_length()} bits")
        if isinstance(value, str | bytes):
            self.foresee(len(value))
            self._hold(value)
        elif isinstance(value, dict | list | tuple | set):
            self.weigh(value)
            self.charge(SLOT * len(value))
        return value

    def _hold(self, text: str | bytes) -> None:
        """Count a text as long as the template holds it: putting a long one together makes many that are gone at once."""
        self.charge()
        if len(text) < MIN_HELD:
            return
        self._texts.append(text)
        self._held += len(text)
        if self._held > self._look_at:
            self._known.clear()
            self._texts = list({id(text): text for text in self._texts}.values())
            free = _references([" " * MIN_HELD])[0]
            counts = _references(self._texts)
            self._texts = [text for text, count in zip(self._texts, counts, strict=True) if count > free]
            self._held = sum(map(len, self._texts))
            self._look_at = max(LOOK, 2 * self._held)
            if self._held > MAX_MADE // 2:
                raise ExcessError(f"holds more than {MAX_MADE // 2} characters")

    def watched(self, values: Iterator[T]) -> Iterator[T]:
        """The same values, each counted when it is taken."""
        for value in values:
            self.charge(self.weigh(value))
            yield value

    def foresee(self, characters: int) -> None:
        """Raise if a value of so many characters is too large."""
        if characters > MAX_CHARACTERS:
            raise ExcessError(f"makes a value of {characters} characters, of which {MAX_CHARACTERS} are allowed")

    def foresee_operator(self, operator: str, left: Any, right: Any) -> None:
        """Raise if ``left operator right`` would be too large."""
        self.charge()
        if operator == "+" and isinstance(left, Sequence) and isinstance(right, Sequence):
            self.foresee(self.weigh(left) + self.weigh(right))
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, Sequence) and isinstance(times, int):
                    self.foresee(self.weigh(value) * times)
            self.foresee(_bits(left) + _bits(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.foresee(_bits(left) * abs(right))
        elif operator == "%" and isinstance(left, str | bytes):
            self.foresee_percent(left, right)

    def foresee_percent(self, template: Any, values: Any) -> None:
        """Raise if ``template % values`` would be too large."""
        text = template if isinstance(template, str) else str(template)
        self._foresee_slow(text)
        if _WIDE_PERCENT.search(text.replace("%%", "")):
            raise ExcessError(f"formats with a width beyond {MAX_WIDTH}")
        self.foresee(len(text) + text.count("%") * (self.weigh(values) + MAX_WIDTH))

    def foresee_format(self, template: str, values: Sequence[Any]) -> None:
        """Raise if ``template.format(*values)`` would be too large."""
        self._foresee_slow(template)
        if any(_WIDE.search(spec or "") for _, _, spec, _ in Formatter().parse(template)):
            raise ExcessError(f"formats with a width beyond {MAX_WIDTH}")
        self.foresee(len(template) + template.count("{") * (sum(map(self.weigh, values)) + MAX_WIDTH))

    def _foresee_slow(self, value: Any) -> None:
        if (size := self.weigh(value)) > MAX_SLOW + UNIT:
            raise ExcessError(f"formats or filters {size} characters, of which {MAX_SLOW} are allowed at once")

    def foresee_filter(self, name: str, value: Any, values: Sequence[Any]) -> None:
        """Raise if the filter of that name would make or cost too much."""
        if name in SLOW:
            self._foresee_slow(value)
        if name == "format":
            self.foresee_percent(value, values)
        elif name == "join" and values and isinstance(values[0], str):
            self.foresee_method(values[0], name, [value])
        elif name == "tojson":
            self._foresee_json(value, values)
        else:
            self.foresee_method(value, name, values)

    def _foresee_json(self, value: Any, values: Sequence[Any]) -> None:
        numbers = [value for value in _flat(values) if not isinstance(value, bool)]
        spaces = max((len(value) if isinstance(value, str) else value for value in numbers), default=0)
        if spaces > UNIT:
            raise ExcessError(f"asks tojson for {spaces} characters between values, of which {UNIT} are allowed")
        if spaces:
            self.foresee(self.weigh(value) * _depth(value))

    def foresee_method(self, owner: Any, name: str, values: Sequence[Any]) -> None:
        """Raise if the method of a text or number of that name would make or cost too much."""
        if name in WIDTHS:
            self._foresee_width(owner, name, values)
        if not isinstance(owner, str | bytes) or not values:
            return
        first = values[0]
        if name in _SEARCHES and isinstance(first, str | bytes):
            self.foresee(len(owner) * len(first) // _SEARCH_SHARE)
        elif name == "replace" and len(values) > 1 and isinstance(first, str | bytes):
            places = owner.count(first) if isinstance(owner, type(first)) else 0  # type: ignore[arg-type]
            self.foresee(len(owner) + places * self.weigh(values[1]))
        elif name == "join":
            self.foresee(len(owner) * len(first))
        elif name == "translate":
            self.foresee(len(owner) * self.weigh(first))
        elif name in ("encode", "decode") and str(first).lower() not in _CODECS:
            raise ExcessError(f"asks for the encoding {str(first)[:40]!r}")

    def _foresee_width(self, owner: Any, name: str, values: Sequence[Any]) -> None:
        widths = [len(value) if isinstance(value, str) else value for value in values if isinstance(value, int | str)]
        width = max(map(abs, widths), default=0)
        if width > MAX_WIDTH:
            raise ExcessError(f"asks {name} for {width}, of which {MAX_WIDTH} is allowed")
        if name in ("expandtabs", "indent") and isinstance(owner, str):
            self.foresee(len(owner) + (owner.count("\t") + owner.count("\n") + 1) * max(width, 8))


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    """The numbers and texts among values, and in lists among them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        elif isinstance(value, int | str):
            yield value


def _depth(value: Any) -> int:
    """How many levels of containers a value has, which its weight has shown to be a small one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + max(map(_depth, parts), default=0)


def _references(texts: list[str | bytes]) -> list[int]:
    return [getrefcount(text) for text in texts]


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
