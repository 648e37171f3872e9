"""The one place where templates are rendered: in a sandbox, with limits of time and memory, in the thread that asks.

Templates are hostile: they see plain values, no files and no attributes of Python's own, and what they make is counted.
"""

from __future__ import annotations

import functools
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from time import thread_time
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from transept.errors import FormatError, InputError

MAX_SOURCE, MAX_TOKENS = 2**18, 10_000  # characters of a template, and its words and marks
MAX_CHAT = 2**24  # characters of a chat, and of all that is passed to a template with it
SECONDS = 1.0  # of the processor that one rendering may take, and as many again for each MiB of the chat
MEMORY = 2**22  # bytes that a template may use, beyond 32 for each character of the chat
_LONG = 2**12  # characters from which on a text counts only as long as it is held: putting a long one together makes many
_MAX_BITS = 2**14  # of a number
_DENIED = frozenset({"encode", "to_bytes", "translate", "expandtabs"})
_QUADRATIC = frozenset({"pprint", "striptags", "urlize", "wordwrap", "xmlattr"})
_LINEAR = frozenset(
    {"default", "d", "map", "select", "selectattr", "reject", "rejectattr", "truncate"}
)  # whatever their arguments
_NESTED, _DIGITS = re.compile(r"%[-+ #0\d.]*\*|\{[^{}]*\{"), re.compile(r"\d+")
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, type({}.keys()), type({}.values()), type({}.items()))
_SCOPES = frozenset({"_loop_vars", "_block_vars"})  # what jinja2 passes with every call, and no method sees
_MAKING = nodes.List | nodes.Tuple | nodes.Dict | nodes.Concat | nodes.UnaryExpr | nodes.Compare | nodes.Test


class ExcessError(Exception):
    """A template is too large, makes too much or takes too long; the message completes "the template ..."."""


class _Text(str):
    """A long text: what it counts is given back when nothing holds it any more."""

    budget: Budget | None = None

    def __del__(self) -> None:
        if self.budget is not None:
            self.budget.left += _size_in_bytes(self)


def _size_in_bytes(text: str) -> int:
    return 64 + len(text) * (1 if text.isascii() else 4)


class Budget:
    """What one rendering may still make, and until when; the limits grow with ``variables``, which the template sees."""

    def __init__(self, variables: Mapping[str, Any], seconds: float = SECONDS) -> None:
        self.weights: dict[int, tuple[Any, int]] = {}  # of containers, which are kept, since ids are used again
        self.left, self.entry = MAX_CHAT, 0
        weight = self.weigh(dict(variables))
        self.left, self.entry, self.seconds = MEMORY + 32 * weight, 64, seconds * (1 + weight / 2**20)
        self.deadline = thread_time() + self.seconds
        self.steps = self.written = 0
        self.spans: list[tuple[int, int]] = []

    def step(self, used: int = 0) -> None:
        """Count a step and the bytes that it uses."""
        self.left -= used
        self.steps += 1
        self.fit(0)
        if not self.steps % 8 and thread_time() > self.deadline:
            raise ExcessError(f"takes longer than {self.seconds:.3g} seconds")

    def fit(self, size: int) -> None:
        if size > self.left:
            raise ExcessError("makes more values than it may hold")

    def weigh(self, value: Any) -> int:
        """An upper bound, but for escapes, of the characters that a value is written with; what it holds twice counts twice."""
        if isinstance(value, str):
            return 16 + len(value)
        if not isinstance(value, _CONTAINERS):
            return 16 + (value.bit_length() // 3 if isinstance(value, int) else 0)
        if id(value) not in self.weights:
            self.left -= self.entry * (1 + len(value))
            total = 16
            for part in [*value, *value.values()] if isinstance(value, dict) else value:
                total += self.weigh(part)
                self.fit(total)
            self.weights[id(value)] = value, total
        return self.weights[id(value)][1]

    def keep(self, value: Any) -> Any:
        """A value that the template has made, if there is room for it; an iterator counts as it is read."""
        if isinstance(value, str):
            self.step(_size_in_bytes(value))
            if len(value) >= _LONG and type(value) is str:
                value = _Text(value)
                value.budget = self
        elif isinstance(value, _CONTAINERS):
            self.weigh(value)
            self.step()
        elif isinstance(value, int):
            self.step(0 if value.bit_length() <= _MAX_BITS else self.left + 1)
        else:
            self.step(0 if value is None else 128)
        return map(self.keep, value) if isinstance(value, Iterator) else value

    def foresee(self, name: str, value: Any, args: Iterable[Any]) -> None:
        """Raise if an operator, method or filter may make, or go through, much more than it takes: the product of all sizes."""
        size, others = 0 if isinstance(value, int) else self._size(value), sum(map(self._size, args))
        if name == "sum" and isinstance(value, _CONTAINERS):
            size, others = len(value), others + len(value) // 16
        elif name in _QUADRATIC:
            others += size
        elif name in ("%", "format", "format_map") and isinstance(value, str):
            if _NESTED.search(value):
                raise ExcessError("formats with a width that is a value itself")
            # Any number may be a width, and every mark a place for all values.
            size = value.count("%") + value.count("{")
            others = sum(map(self.weigh, args)) + sum(map(int, _DIGITS.findall(value)))
        self.fit((1 + size) * (1 + others))

    def _size(self, value: Any) -> int:
        if isinstance(value, int):
            return abs(value)
        return self.weigh(value) if isinstance(value, _CONTAINERS) else len(value) if isinstance(value, str | range) else 0


_budget: ContextVar[Budget] = ContextVar("budget")


def render(
    source: str, variables: Mapping[str, Any], *, name: str = "default", seconds: float = SECONDS
) -> tuple[str, list[tuple[int, int]]]:
    """Render a template.

    Args:
        source: the template.
        variables: what it can see: texts, numbers, truth values, ``None``, and lists and dicts of these; nothing else.
        name: the template's name, for messages.
        seconds: of the processor that it may take, and as many again for each MiB of the variables.

    Returns:
        The text, and where in it ``{% generation %}`` blocks stand: first character, one after the last.

    Raises:
        InputError: the template itself refuses these values, by ``raise_exception``, or they are too large.
        FormatError: it is no template, it fails, or it goes beyond a limit; names template, line and reason.
    """
    template = _template(source, name)[0]
    try:
        budget = Budget(variables, seconds)
    except ExcessError as error:
        raise InputError(f"the chat holds more than the {MAX_CHAT} characters that a template may see.") from error
    token, pieces = _budget.set(budget), []
    try:
        for piece in template.generate(dict(variables)):
            pieces.append(piece)
            budget.written += len(piece)
        return "".join(pieces), budget.spans
    except Exception as error:
        raise _failed(error, name) from error
    finally:
        _budget.reset(token)


def words_of(source: str, *, name: str = "default") -> tuple[frozenset[str], frozenset[str]]:
    """The names that a template reads and does not set itself, and the texts that it holds; errors as those of ``render``."""
    return _template(source, name)[1:]


@functools.lru_cache(maxsize=16)
def _template(source: str, name: str) -> tuple[jinja2.Template, frozenset[str], frozenset[str]]:
    try:
        if len(source) > MAX_SOURCE:
            raise ExcessError(f"has {len(source)} characters, of which {MAX_SOURCE} are allowed")
        if sum(1 for _ in _ENVIRONMENT.lex(source)) > MAX_TOKENS:
            raise ExcessError(f"has more than the {MAX_TOKENS} words and marks that are allowed")
        template, tree = _ENVIRONMENT.from_string(source), _ENVIRONMENT.parse(source)
        texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        texts |= {node.data for node in tree.find_all(nodes.TemplateData)}
        return template, frozenset(find_undeclared_variables(tree)), frozenset(texts)
    except Exception as error:
        raise _failed(error, name, "is no template") from error


def _failed(error: Exception, name: str, what: str = "fails") -> Exception:
    """The error of ours for what went wrong with a template, with the line: jinja2 puts the template's own in tracebacks."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if "__jinja_exception__" in frame.f_globals and what == "fails"]
    where = f"the chat template {name!r}" + (f", line {lines[-1]}," if lines else "")
    text = str(error)[:400].encode(errors="backslashreplace").decode() or "no reason given"
    if isinstance(error, jinja2.TemplateSyntaxError):
        text = f"{error.message} (line {error.lineno})"
    elif isinstance(error, RecursionError) and lines:
        what, text = "", "calls itself without end, or nests too deeply"
    elif not isinstance(error, jinja2.TemplateError | ExcessError | InputError):
        text = f"{type(error).__name__}: {text}"
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    if isinstance(error, InputError):
        return InputError(f"{where} refuses this chat: {text}")
    text = f"{what}: {text}" if what and not isinstance(error, ExcessError) else text
    return FormatError(f"{where} {text}", hint="Use another template, or pass one as chat_template=.")


def _raise_exception(message: Any) -> None:
    raise InputError(str(message))


def _strftime_now(format: Any) -> str:
    if len(format) > 200:
        raise ExcessError(f"formats the time by a text of {len(format)} characters")
    return datetime.now().strftime(format)


def _tojson(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Deep values are indented far, so each piece counts before the whole is put together.
    return encoder.encode(x) if indent is None else "".join(_budget.get().keep(encoder.iterencode(x)))


class _Namespace(Namespace):
    """Values that a template may change. A name that begins with an underscore would reach into the object itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # without self, so that a value may have that name
        Namespace.__init__(*args, **kwargs)
        if wrong := [name for name in dict(*args[1:], **kwargs) if str(name).startswith("_")]:
            raise SecurityError(f"a namespace cannot hold {wrong[0][:80]!r}: the name begins with an underscore")

    def __repr__(self) -> str:
        return "<Namespace>"  # its values could hold itself


class _Generation(Extension):
    """``{% generation %}``: notes where the text between it and ``{% endgeneration %}`` stands."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Callable[[], str]) -> str:
        text, budget = caller(), _budget.get()
        budget.spans.append((budget.written, budget.written + len(text)))
        return text


class _Counting(CodeGenerator):
    """Code that passes the budget wherever it goes on, goes round, writes, or makes a value without a call."""

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        outputs = [child for node in nodes_ if isinstance(node, nodes.Output) for child in node.nodes]
        characters = sum(len(child.data) for child in outputs if isinstance(child, nodes.TemplateData))
        self.writeline(f"environment.budget.step({4 * characters})")
        super().blockvisit(nodes_, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        sliced = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        kept = (sliced or isinstance(node, _MAKING)) and getattr(node, "ctx", "load") == "load"
        self.write("environment.budget.keep(" if kept else "")
        super().visit(node, *args, **kwargs)
        self.write(")" if kept else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        if len(node.nodes) > 2:  # in halves, each of which is kept, so that none is far too long
            half = len(node.nodes) // 2
            node = nodes.Concat([nodes.Concat(part) for part in (node.nodes[:half], node.nodes[half:])])
        super().visit_Concat(node, frame)


@pass_context
def _printed(context: Any, value: Any) -> Any:
    """What is written for a value; of a context, so that nothing is printed while a template is compiled."""
    budget = _budget.get()
    if not isinstance(value, str):
        budget.weigh(value)
        value = str(value)
    budget.step(_size_in_bytes(value))
    return value


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose input and result are counted."""
    first = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget, value, others = _budget.get(), args[first], args[first + 1 :]
        if isinstance(value, Iterator) and name in ("join", "sum"):
            value = budget.keep(list(budget.keep(value)))
        if name not in _LINEAR:
            budget.foresee("%" if name == "format" else name, value, [*others, *kwargs.values()])
        return budget.keep(function(*args[:first], value, *others, **kwargs))

    return guarded


class _Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which every step is counted."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    budget = property(lambda self: _budget.get())

    def __init__(self) -> None:
        # Nothing is worked out while a template is compiled, where nothing is counted.
        options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "optimized": False, "finalize": _printed}
        super().__init__(extensions=[_Generation, LoopControlExtension], **options)
        del self.globals["lipsum"]  # made-up text, as much as is asked for
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "namespace": _Namespace}
        self.filters = {name: _guarded(name, function) for name, function in (self.filters | {"tojson": _tojson}).items()}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # No bytes, whose methods would need limits too, and no dict.update(...), which changes what is weighed.
        denied = attr in _DENIED or (isinstance(obj, type) and attr != "fromkeys")
        return not denied and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.budget.fit(left.bit_length() * abs(right) * MEMORY // _MAX_BITS)
        elif operator in ("*", "%"):
            value, other = (right, left) if isinstance(left, int) and operator == "*" else (left, right)
            if not isinstance(value, int | float):
                self.budget.foresee(operator, value, [other])
        return self.budget.keep(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget, method = _budget.get(), getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if not isinstance(owner, str):
            return budget.keep(super().call(__context, __obj, *args, **kwargs))
        args = tuple(budget.keep(list(value)) if isinstance(value, Iterator) else value for value in args)
        budget.foresee(name, owner, [*args, *(value for key, value in kwargs.items() if key not in _SCOPES)])
        result = super().call(__context, __obj, *args, **kwargs)
        return budget.keep(type(result)(map(budget.keep, result)) if isinstance(result, list | tuple) else result)


_ENVIRONMENT = _Sandbox()
