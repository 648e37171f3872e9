"""The one door for templates: rendered in a sandbox, with limits of time and size, in the thread that asks for it.

The language is jinja2's as chat templates know it: blocks without their line ends, ``break`` and ``continue``,
``{% generation %}`` around what a model wrote, ``raise_exception``, ``strftime_now`` and a ``tojson`` that escapes nothing.
There is no way to files, to other templates or to Python's own attributes, and no way to wait or to fill the memory: see
:mod:`transept.preprocess.text.allowance`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import TracebackType
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
from transept.preprocess.text.allowance import MAX_CHARACTERS, Allowance, ExcessError

SECONDS = 10.0
MAX_SOURCE = 2**18
HINT = "Use another template, or pass one as chat_template=."
_MAX_FORMAT = 200
_allowance: ContextVar[Allowance] = ContextVar("allowance")


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
        seconds: how long it may take.

    Raises:
        InputError: the template itself refuses these values, by ``raise_exception``.
        FormatError: it is no template, it fails, or it goes beyond a limit; names template, line and reason.
    """
    template = _template(source, name)
    allowance = Allowance(seconds)
    try:
        allowance.weigh(dict(variables))
    except ExcessError as error:
        raise InputError(f"the chat holds more than the {MAX_CHARACTERS} characters that a template may see.") from error
    token = _allowance.set(allowance)
    try:
        pieces = []
        for piece in template.generate(dict(variables)):
            pieces.append(piece)
            allowance.written += len(piece)
        allowance.foresee(allowance.written)
        return Rendered("".join(pieces), tuple(allowance.spans))
    except Exception as error:
        raise _failed(error, name) from error
    finally:
        _allowance.reset(token)


@lru_cache(maxsize=64)
def names_of(source: str, *, name: str = "default") -> frozenset[str]:
    """The names that a template reads and does not set itself; errors as those of :func:`render`."""
    _template(source, name)
    return frozenset(find_undeclared_variables(_environment().parse(source)))


@lru_cache(maxsize=64)
def literals_of(source: str, *, name: str = "default") -> tuple[str, ...]:
    """The texts that a template writes by itself, and those in its expressions; errors as those of :func:`render`."""
    _template(source, name)
    tree = _environment().parse(source)
    data = {node.data for node in tree.find_all(nodes.TemplateData)}
    return tuple(data | {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)})


def _template(source: str, name: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise FormatError(
            f"the chat template {name!r} has {len(source)} characters, of which {MAX_SOURCE} are allowed.", hint=HINT
        )
    try:
        return _compiled(source)
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template {name!r} is no template: {error.message} (line {error.lineno})."
        raise FormatError(message, hint=HINT) from error
    except Exception as error:
        raise FormatError(f"the chat template {name!r} is no template: {_said(error)}", hint=HINT) from error


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _failed(error: Exception, name: str) -> Exception:
    """The error of ours for what went wrong while a template was rendered."""
    line = _line(error.__traceback__)
    where = f"the chat template {name!r}" + (f", line {line}," if line else "")
    if isinstance(error, _Refusal):
        return InputError(f"{where} refuses this chat: {_said(error)}")
    if isinstance(error, ExcessError):
        return FormatError(f"{where} {error}.", hint=HINT)
    if isinstance(error, RecursionError):
        return FormatError(f"{where} calls itself without end, or nests too deeply.", hint=HINT)
    return FormatError(f"{where} fails: {_said(error)}", hint=HINT)


def _said(error: Exception) -> str:
    text = str(error)[:400] or "no reason given"
    text = text if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {text}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _line(traceback: TracebackType | None) -> int | None:
    """The innermost line of the template in a traceback, into which jinja2 has put the template's own lines."""
    found = None
    while traceback is not None:
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            found = traceback.tb_lineno
        traceback = traceback.tb_next
    return found


class _Refusal(jinja2.TemplateError):
    """What ``raise_exception`` raises."""


def _raise_exception(message: Any) -> None:
    raise _Refusal(str(message))


def _strftime_now(format: Any) -> str:
    if len(format) > _MAX_FORMAT:
        raise ExcessError(f"formats the time by a text of {len(format)} characters")
    return datetime.now().strftime(format)


def _tojson(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """The name ``dict`` in a template: not the class itself, which would be a way to others."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Values that a template may change. A name that begins with an underscore would reach into the object itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *others = args  # so that a value may be called self
        values = dict(*others, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # its values could hold itself


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name[:80]!r}: the name begins with an underscore")


class _Generation(Extension):
    """``{% generation %}``: notes where the text between it and ``{% endgeneration %}`` stands."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Macro) -> str:
        text = caller()
        allowance = _allowance.get()
        allowance.spans.append((allowance.written, allowance.written + len(text)))
        return text


class _Counting(CodeGenerator):
    """Code that passes the allowance wherever it goes on, goes round, or puts values together."""

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        outputs = [child for node in nodes_ if isinstance(node, nodes.Output) for child in node.nodes]
        characters = sum(len(child.data) for child in outputs if isinstance(child, nodes.TemplateData))
        self.writeline(f"environment.charge({characters})")
        super().blockvisit(nodes_, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        if node.test is not None:
            charge = nodes.Call(nodes.EnvironmentAttribute("charge"), [], [], None, None)
            node.test = nodes.And(charge, node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concatenate(context, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        self._kept(super().visit_Tuple, node, frame, plain=node.ctx != "load")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._kept(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._kept(super().visit_Dict, node, frame)

    def _kept(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame, *, plain: bool = False) -> None:
        self.write("" if plain else "environment.keep(")
        visit(node, frame)
        self.write("" if plain else ")")


@pass_context
def _printed(context: Context, value: Any) -> Any:
    """What is written for a value; of a context, so that nothing is printed while a template is compiled."""
    allowance = _allowance.get()
    if not isinstance(value, str):
        allowance.weigh(value)
        value = str(value)
    allowance.charge(len(value))
    return value


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose input and result are counted; it takes a context, so that it never runs while compiling."""
    passed = {"context": lambda context: context, "eval_context": lambda context: context.eval_ctx}
    passed["environment"] = lambda context: context.environment
    wanted = getattr(function, "jinja_pass_arg", None)
    before = None if wanted is None else passed[wanted.name]

    @pass_context
    def guarded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        allowance = _allowance.get()
        allowance.charge()
        if name in _TAKE_ALL and isinstance(value, Iterator):
            value = allowance.keep(list(value))
        allowance.foresee_filter(name, value, [*args, *kwargs.values()])
        result = function(*(() if before is None else (before(context),)), value, *args, **kwargs)
        return allowance.watched(result) if isinstance(result, Iterator) else allowance.keep(result)

    return guarded


_TAKE_ALL = frozenset({"join", "sum", "pprint", "xmlattr"})
"""Filters that need to know how much an iterator holds before they go through it."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """An environment in which every step is counted."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension], finalize=_printed
        )
        del self.globals["lipsum"]  # made-up text, as much as is asked for
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.globals |= {"dict": _Dict(), "namespace": _Namespace}
        self.filters = {name: _guarded(name, function) for name, function in (self.filters | {"tojson": _tojson}).items()}

    def charge(self, characters: int = 0) -> bool:
        return _allowance.get().charge(characters)

    def keep(self, value: Any) -> Any:
        return _allowance.get().keep(value)

    def concatenate(self, context: Context, parts: tuple[Any, ...]) -> str:
        allowance = _allowance.get()
        allowance.foresee(sum(map(allowance.weigh, parts)))
        join = jinja2.runtime.markup_join if context.eval_ctx.autoescape else jinja2.runtime.str_join
        return allowance.keep(join(parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _allowance.get()
        allowance.foresee_operator(operator, left, right)
        return allowance.keep(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        allowance = _allowance.get()
        allowance.charge()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            name = getattr(__obj, "__name__", "")
            if name == "join":
                args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)
            allowance.foresee_method(owner, name, [*args, *kwargs.values()])
        return allowance.keep(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _allowance.get().foresee_format(value.__self__, [*args, *kwargs.values()])
            return wrapped(*args, **kwargs)

        return checked


@lru_cache(maxsize=1)
def _environment() -> _Sandbox:
    return _Sandbox()
