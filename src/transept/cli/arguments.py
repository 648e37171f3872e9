"""What the verbs' arguments have in common, and a parser whose errors are one line."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from transept.errors import InputError

HELP_WIDTH = 100
_ARGUMENTS = ("model", "revision", "device", "dtype", "batch_size")
HELP_WIDTH = 100
_ARGUMENTS = ("model", "revision", "device", "dtype", "batch_size")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


class Parser(argparse.ArgumentParser):
    """argparse's, with examples in its help and errors of one line.

    Args:
        examples: command lines that help shows.
        listing: makes more lines, when help is asked for.
        settings: argparse's own.
    """

    def __init__(self, *, examples: Sequence[str] = (), listing: Callable[[], str] | None = None, **settings: Any) -> None:
        self.listing, self.nested = listing, False
        lines = "\n".join(f"  {example}" for example in examples)
        settings.setdefault("epilog", f"examples:\n{lines}" if examples else None)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        settings["description"] = textwrap.fill(settings.get("description") or "", HELP_WIDTH)
        settings["description"] = textwrap.fill(settings.get("description") or "", HELP_WIDTH)
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but what may stand anywhere may: inputs also come after options."""
        several = any(action.nargs == "*" for action in self._get_positional_actions())
        if not several or self.nested:
            return super().parse_known_args(args, namespace)
        self.nested = True  # argparse's own way to do it comes back here
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.nested = False

    def format_help(self) -> str:
        """Argparse's text, and the listing below it."""
        return super().format_help() + (f"\n{self.listing()}\n" if self.listing else "")

    def error(self, message: str) -> NoReturn:
        """Say what was mistyped and where help is, and exit with 2."""
        self.exit(2, f"{self.prog}: error: {message[:1].lower()}{message[1:]} (see `{self.prog} --help`)\n")


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
    parser.add_argument(
        "--option",
        action="append",
        type=option,
        default=[],
        metavar="NAME=VALUE",
        help="an option of the task, such as top_k=3; may be repeated",
    )


def make_pipeline(task: str, args: argparse.Namespace, **options: Any) -> Any:
    """The pipeline that the arguments of :func:`add_model` ask for."""
    from transept.pipelines import pipeline

    for name, _ in args.option:
        if name in _ARGUMENTS:
            raise InputError(f"`{name}` is no option of the task.", hint=f"Pass --{name.replace('_', '-')}.")
    device = int(args.device) if args.device is not None and args.device.isdecimal() else args.device
    given = {"revision": args.revision} if args.revision is not None else {}
    options = {**dict(args.option), **options}
    return pipeline(task, model=args.model, device=device, dtype=args.dtype, batch_size=args.batch_size, **given, **options)


def check_model(name: str | None) -> None:
    """Require a directory or what may be a repository, before anything slow begins.

    Raises:
        FileError: it is a file, or a path without a directory.
    """
    if name is not None and not os.path.isdir(name):
        from transept.hub import check_id

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
        return name, json.loads(value)
    except ValueError:
        return name, value
