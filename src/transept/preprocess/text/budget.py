"""How much one rendering of a template may make, and for how long: counted while it runs, in the thread that runs it.

What a template makes passes :meth:`Budget.keep`, which looks at its size, at the memory in use and at the clock. What could
make much more than it was given in one step (``*``, ``replace``, ``join``, ...) passes :meth:`Budget.foresee` first. All limits
grow with the chat, since what was passed in is not the template's doing. Nothing here knows jinja2.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from time import thread_time
from typing import Any

SECONDS = 1.0
"""Seconds of the processor that one rendering may take, and as many again for each MiB of the chat."""
MAX_CHAT = 2**24
"""Characters of a chat, and of all that is passed to a template with it."""
ROOM = 2**18
"""Characters of one value that a template makes, beyond four times those of the chat; four such values make the result."""
MEMORY = 2**23
"""Bytes that a template may use, beyond 32 for each character of the chat."""
MAX_BITS = 2**12
_LONG = 2**12
"""Characters from which on a text counts only as long as it is held: putting a long one together makes many."""
_UNIT = 16
"""What a value counts besides its characters."""
_SEARCHES = frozenset({"strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition"})
"""Methods and filters that may compare each character of a text with each of another."""
GROWING = frozenset({"join", "center", "ljust", "rjust", "zfill", "batch", "slice", "list", "sort", "unique", "groupby"})
"""Those that may make of each part of a value as much as their arguments say, or an object of each character."""
_LOOPS = frozenset({"map", "select", "reject", "selectattr", "rejectattr", "min", "max"})
"""Those that may go over a whole value, with their arguments, before they give anything."""
SLOW = frozenset({"sum", "pprint", "striptags", "urlize", "wordwrap", "xmlattr", "round"})
"""Those that may take as long as the square of their input."""
_STAR, _NESTED = re.compile(r"%[-+ #0\d.]*\*"), re.compile(r"\{[^{}]*\{")
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, type({}.keys()), type({}.values()), type({}.items()))


class ExcessError(Exception):
    """A template is too large, makes too much or takes too long; the message completes "the template ..."."""


class _Text(str):
    """A long text: what it counts is given back when nothing holds it any more."""

    __slots__ = ("budget",)
    budget: Budget

    def __new__(cls, text: str, budget: Budget) -> _Text:
        made = super().__new__(cls, text)
        made.budget = budget
        return made

    def __del__(self) -> None:
        self.budget.left += size_in_bytes(self)


class Budget:
    """What one rendering may still make, and until when.

    Args:
        variables: what the template sees, which the limits grow with.
        seconds: see :data:`SECONDS`.
    """

    def __init__(self, variables: Mapping[str, Any], seconds: float = SECONDS) -> None:
        # Containers are kept with their weights, since an id is another's as soon as its object is gone.
        self.known: dict[int, tuple[Any, int]] = {}
        self.room = MAX_CHAT
        weight = self.weigh(dict(variables))
        self.room = ROOM + 4 * weight
        self.left = MEMORY + 32 * weight
        self.seconds = seconds * (1 + weight / 2**20)
        self.deadline = thread_time() + self.seconds
        self.steps = self.written = 0
        self.spans: list[tuple[int, int]] = []

    def step(self, used: int = 0) -> None:
        """Count a step and the bytes that it uses."""
        self.left -= used
        self.steps += 1
        if self.left < 0:
            raise ExcessError("makes more values than it may hold")
        if not self.steps % 8:
            self.look()

    def look(self) -> None:
        if thread_time() > self.deadline:
            raise ExcessError(f"takes longer than {self.seconds:.3g} seconds")

    def fit(self, characters: int) -> None:
        if characters > self.room:
            raise ExcessError(f"makes a value of more than the {self.room} characters that are allowed for this chat")

    def weigh(self, value: Any) -> int:
        """An upper bound, but for escapes, of the characters that a value is written with; what it holds twice counts twice."""
        if isinstance(value, str):
            return _UNIT + len(value)
        if not isinstance(value, _CONTAINERS):
            return _UNIT + (value.bit_length() // 3 if isinstance(value, int) else 0)
        if (known := self.known.get(id(value))) is None:
            total = _UNIT
            for part in itertools.chain(value, value.values()) if isinstance(value, dict) else value:
                total += self.weigh(part)
                self.fit(total)
            known = self.known[id(value)] = value, total
        return known[1]

    def keep(self, value: Any) -> Any:
        """A value that the template has made, if it is not too large; an iterator counts as it is read."""
        if isinstance(value, str):
            self.fit(len(value))
            self.step(size_in_bytes(value))
            return _Text(value, self) if len(value) >= _LONG and type(value) is str else value
        if value is None or value is True or value is False:
            self.step()
        elif isinstance(value, _CONTAINERS):
            self.step(0 if id(value) in self.known else 64 * (1 + len(value)))
            self.weigh(value)
        elif isinstance(value, int):
            self.step()
            _check_bits(value.bit_length())
        else:
            self.step(128)
        return self._counted(value) if isinstance(value, Iterator) else value

    def _counted(self, values: Iterator[Any]) -> Iterator[Any]:
        total = 0
        for value in values:
            total += self.weigh(value)
            self.fit(total)
            yield self.keep(value)

    def foresee(self, name: str, value: Any, args: Sequence[Any], *, written: bool = False) -> None:
        """Raise if an operator, a method or a filter of that name would make or cost too much.

        Args:
            name: its name; that of ``str.format`` is ``format()``.
            value: what it is used on.
            args: its arguments.
            written: whether it writes arguments that are no texts as texts.
        """
        size = _size(value)
        total = sum(self.weigh(one) if written and isinstance(one, _CONTAINERS) else _size(one) for one in args)
        if size > _LONG:
            self.look()
        if name in SLOW:
            self.fit((size if name == "sum" else self.weigh(value)) ** 2 // 64 + (1 + size) * total)
        elif name in GROWING or name in _LOOPS:
            self.fit((1 + size) * (8 + total))
        elif name in _SEARCHES:
            self.fit(size * total // 64)
        elif name == "replace" and len(args) > 1:
            text, one, other = str(value), str(args[0]), str(args[1])  # either may be the new text, if they have names
            self.fit(len(text) + max(text.count(one) * len(other), text.count(other) * len(one)))
        elif name == "indent":
            self.fit(size + (len(str(value).splitlines()) + 1) * total)
        elif name == "tojson" and total > 4 * _UNIT:
            raise ExcessError(f"asks tojson for {total} characters between values")
        elif name == "*" and not (isinstance(value, int) and isinstance(args[0], int)):
            self.fit(size * total)
        elif name in ("*", "**") and isinstance(value, int) and isinstance(args[0], int):
            bits = value.bit_length()
            _check_bits(bits + args[0].bit_length() if name == "*" else bits * abs(args[0]))
        elif name in ("%", "format", "format()") and not isinstance(value, int | float):
            self._foresee_format(str(value), args, "{" if name == "format()" else "%")

    def _foresee_format(self, text: str, values: Sequence[Any], mark: str) -> None:
        """Any number in the text may be a width, and each mark a place where all values are written."""
        if (_STAR if mark == "%" else _NESTED).search(text):
            raise ExcessError("formats with a width that is a value itself")
        widths = sum(map(int, re.findall(r"\d+", text)))
        self.fit(len(text) + widths + text.count(mark) * (_UNIT + sum(map(self.weigh, values))))


def _size(value: Any) -> int:
    """How long a text or container is, or how large a number."""
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, Sized) else 0


def size_in_bytes(text: str) -> int:
    return 64 + len(text) * (1 if text.isascii() else 4)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise ExcessError(f"makes a number of more than {MAX_BITS} bits")
