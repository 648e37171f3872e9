"""The one place where templates are rendered: in a sandbox, with limits of time and memory, in the thread that asks.

The language is jinja2's as chat templates know it: blocks without their line ends, ``break`` and ``continue``,
``{% generation %}`` around what a model wrote, ``raise_exception``, ``strftime_now`` and a ``tojson`` that escapes nothing.
Templates come out of files, so they are hostile until they have ended: they see plain values, and no files, no other templates
and none of Python's own attributes, and all that they make passes a :class:`transept.preprocess.text.budget.Budget`.
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from transept.errors import FormatError, InputError
from transept.preprocess.text.budget import GROWING, MAX_CHAT, SECONDS, SLOW, Budget, ExcessError, size_in_bytes

MAX_SOURCE, MAX_TOKENS = 2**18, 10_000
"""Characters of a template, and its words and marks."""
HINT = "Use another template, or pass one as chat_template=."
_DENIED = frozenset({"encode", "to_bytes", "translate", "expandtabs"})
_budget: ContextVar[Budget] = ContextVar("budget")


@dataclass(frozen=True)
class Rendered:
    """A text that a template made, and where in it ``{% generation %}`` blocks stand: first character, one after the last."""

    text: str
    spans: tuple[tuple[int, int], ...]


def render(source: str, variables: Mapping[str, Any], *, name: str = "default", seconds: float = SECONDS) -> Rendered:
    """Render a template.

    Args:
        source: the template, at most 256 thousand characters.
        variables: what it can see: texts, numbers, truth values, ``None``, and lists and dicts of these; nothing else.
        name: what messages call it.
        seconds: how long it may take; see :data:`transept.preprocess.text.budget.SECONDS`.

    Raises:
        InputError: the template itself refuses these values, by ``raise_exception``, or they are too large.
        FormatError: it is no template, it fails, or it goes beyond a limit; names template, line and reason.
    """
    template = _template(source, name)
    try:
        budget = Budget(variables, seconds)
    except ExcessError as error:
        raise InputError(f"the chat holds more than the {MAX_CHAT} characters that a template may see.") from error
    token, pieces = _budget.set(budget), []
    try:
        stream: Any = template.generate(dict(variables))
        for piece in stream:
            pieces.append(piece)
            budget.written += len(piece)
            if budget.written > 4 * budget.room:
                stream.throw(ExcessError(f"writes more than the {4 * budget.room} characters that are allowed for this chat"))
        return Rendered("".join(pieces), tuple(budget.spans))
    except Exception as error:
        raise _failed(error, name) from error
    finally:
        _budget.reset(token)


@functools.lru_cache(maxsize=16)
def words_of(source: str, *, name: str = "default") -> tuple[frozenset[str], frozenset[str]]:
    """The names that a template reads and does not set itself, and the texts that it holds; errors as those of ``render``."""
    _template(source, name)
    tree = _environment().parse(source)
    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    texts |= {node.data for node in tree.find_all(nodes.TemplateData)}
    return frozenset(find_undeclared_variables(tree)), frozenset(texts)


def _template(source: str, name: str) -> jinja2.Template:
    try:
        return _compiled(source)
    except Exception as error:
        raise _failed(error, name, "is no template") from error


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ExcessError(f"has {len(source)} characters, of which {MAX_SOURCE} are allowed")
    if sum(1 for _ in _environment().lex(source)) > MAX_TOKENS:
        raise ExcessError(f"has more than the {MAX_TOKENS} words and marks that are allowed")
    return _environment().from_string(source)


def _failed(error: Exception, name: str, what: str = "fails") -> Exception:
    """The error of ours for what went wrong with a template, with the line: jinja2 puts the template's own in tracebacks."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if "__jinja_exception__" in frame.f_globals and what == "fails"]
    where = f"the chat template {name!r}" + (f", line {lines[-1]}," if lines else "")
    text = str(error)[:400].encode(errors="backslashreplace").decode() or "no reason given"
    if isinstance(error, jinja2.TemplateSyntaxError):
        text = f"{error.message} (line {error.lineno})"
    elif not isinstance(error, jinja2.TemplateError):
        text = f"{type(error).__name__}: {text}"
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    if isinstance(error, _Refusal):
        return InputError(f"{where} refuses this chat: {text}")
    if isinstance(error, ExcessError):
        return FormatError(f"{where} {error}.", hint=HINT)
    if isinstance(error, RecursionError) and lines:
        return FormatError(f"{where} calls itself without end, or nests too deeply.", hint=HINT)
    return FormatError(f"{where} {what}: {text}", hint=HINT)


class _Refusal(jinja2.TemplateError):
    """What ``raise_exception`` raises."""


def _raise_exception(message: Any) -> None:
    raise _Refusal(str(message))


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

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *others = args  # so that a value may be called self
        Namespace.__init__(self)
        for name, value in dict(*others, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name[:80]!r}: the name begins with an underscore")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # its values could hold itself


class _Generation(Extension):
    """``{% generation %}``: notes where the text between it and ``{% endgeneration %}`` stands."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Macro) -> str:
        text, budget = caller(), _budget.get()
        budget.spans.append((budget.written, budget.written + len(text)))
        return text


class _Counting(CodeGenerator):
    """Code that passes the budget wherever it goes on, goes round, writes, or makes a value without a call."""

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        outputs = [child for node in nodes_ if isinstance(node, nodes.Output) for child in node.nodes]
        characters = sum(len(child.data) for child in outputs if isinstance(child, nodes.TemplateData))
        self.writeline(f"environment.step({4 * characters})")
        super().blockvisit(nodes_, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        kept = isinstance(
            node, nodes.List | nodes.Tuple | nodes.Dict | nodes.Concat | nodes.UnaryExpr | nodes.Compare | nodes.Test
        )
        kept = kept or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice))
        kept = kept and getattr(node, "ctx", "load") == "load"
        self.write("environment.keep(" if kept else "")
        super().visit(node, *args, **kwargs)
        self.write(")" if kept else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        if len(node.nodes) > 2:  # in halves, each of which is kept, so that none is far too long
            half = len(node.nodes) // 2
            node = nodes.Concat([nodes.Concat(part) for part in (node.nodes[:half], node.nodes[half:])])
        super().visit_Concat(node, frame)

    def start_write(self, frame: Frame, node: nodes.Node | None = None) -> None:
        super().start_write(frame, node)
        self.write("environment.finalize(context, ")

    def end_write(self, frame: Frame) -> None:
        self.write(")")
        super().end_write(frame)


@pass_context
def _printed(context: Context, value: Any) -> Any:
    """What is written for a value; of a context, so that nothing is printed while a template is compiled."""
    budget = _budget.get()
    if not isinstance(value, str):
        budget.weigh(value)
        value = str(value)
    budget.step(size_in_bytes(value))
    return value


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose input and result are counted."""
    first = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget, value, others = _budget.get(), args[first], args[first + 1 :]
        if isinstance(value, Iterator) and name in GROWING | SLOW:
            value = budget.keep(list(budget.keep(value)))
        budget.foresee(name, value, [*others, *kwargs.values()], written=True)
        return budget.keep(function(*args[:first], value, *others, **kwargs))

    return guarded


class _Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which every step is counted."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        # Nothing is worked out while a template is compiled, where nothing is counted.
        options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "optimized": False, "finalize": _printed}
        super().__init__(extensions=[_Generation, LoopControlExtension], **options)
        del self.globals["lipsum"]  # made-up text, as much as is asked for
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "namespace": _Namespace}
        self.filters = {name: _guarded(name, function) for name, function in (self.filters | {"tojson": _tojson}).items()}

    def step(self, used: int) -> None:
        _budget.get().step(used)

    def keep(self, value: Any) -> Any:
        return _budget.get().keep(value)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in _DENIED or (isinstance(obj, type) and attr != "fromkeys"):
            return (
                False  # no bytes, whose methods would need limits too, and no dict.update(...), which changes what is weighed
            )
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.foresee(operator, left, [right])
        return budget.keep(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget, method = _budget.get(), getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if not isinstance(owner, str):
            return budget.keep(super().call(__context, __obj, *args, **kwargs))
        args = tuple(budget.keep(list(value)) if isinstance(value, Iterator) else value for value in args)
        budget.foresee("format()" if name.startswith("format") else name, owner, [*args, *kwargs.values()])
        result = super().call(__context, __obj, *args, **kwargs)
        return budget.keep(type(result)(map(budget.keep, result)) if isinstance(result, list | tuple) else result)


@functools.lru_cache(maxsize=1)
def _environment() -> _Sandbox:
    return _Sandbox()
