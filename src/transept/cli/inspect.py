"""``transept inspect``: what a checkpoint is made of, without loading it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transept.cli.arguments import Parser, add_output
from transept.cli.draw import Style, bar, count, plain, size, table

if TYPE_CHECKING:
    from transept.cli.anatomy import Anatomy, Part

MOST_FILES = 12
NO_BREAK = "\u00a0"


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "inspect",
        help="show what a checkpoint is made of",
        description=(
            "Show a checkpoint's architecture, its parameters by part, types, memory, preprocessing, files, and what is wrong "
            "with it. No weights are loaded, and none are fetched: of a repository whose weights are not cached, only the rest "
            "is shown. The exit code is 1 where it could not be loaded."
        ),
        examples=["transept inspect PATH", "transept inspect sentence-transformers/all-MiniLM-L6-v2 --json"],
    )
    parser.add_argument("path", metavar="PATH", help="directory or hub repository")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    add_output(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Show the checkpoint; the exit code."""
    from transept.cli.anatomy import examine
    from transept.pipelines.defaults import locate

    found = examine(locate(args.path, {"revision": args.revision} if args.revision is not None else {}))
    if args.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False, indent=2))
    else:
        for line in drawn(found, Style(sys.stdout)):
            print(line)
    return 0 if found.loadable else 1


def drawn(found: Anatomy, style: Style) -> Iterator[str]:
    """The whole report as lines."""
    yield f"{style.bold(found.architecture or 'unknown')}  {style.dim(plain(found.path))}"
    facts = "  ".join(
        plain(f"{name.replace('_', ' ')}: {value}").replace(" ", "\u00a0") for name, value in found.config.items()
    )
    yield from (line.replace("\u00a0", " ") for line in textwrap.wrap(facts, style.width))
    if found.parts is not None:
        yield ""
        rows = [
            [label, count(part.parameters), *_share(part, found.parts.parameters, style)] for label, part in tree(found.parts)
        ]
        yield from table(rows, right=(1,))
    yield ""
    yield from table(_facts(found, style))
    yield ""
    colours = {"error": style.red, "warning": style.yellow, "note": style.dim}
    if not found.findings:
        yield f"{style.green('nothing to object to')}"
    for finding in found.findings:
        yield f"{colours[finding.level](finding.level)}: {plain(finding.message)}"


def _share(part: Part, whole: int, style: Style) -> list[str]:
    if not part.parameters:
        return ["", "shared" if part.shared else ""]
    share = part.parameters / max(whole, 1)
    return [f"{style.blue(bar(share, 20))}", f"{100 * share:.1f} %"]


def tree(part: Part, before: str = "", *, root: bool = True, last: bool = True) -> Iterator[tuple[str, Part]]:
    """Parts and the names of their rows, with lines from part to part."""
    yield (part.name if root else f"{before}{'└─' if last else '├─'} {part.name}"), part
    inner = before if root else f"{before}{'   ' if last else '│  '}"
    for child in part.children:
        yield from tree(child, inner, root=False, last=child is part.children[-1])


def _in_words(value: Any) -> str:
    """A size such as ``{"height": 224, "width": 224}`` in words."""
    return plain(" ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value))


def _facts(found: Anatomy, style: Style) -> Iterator[list[str]]:
    if found.memory:
        yield [style.dim("memory"), ", ".join(f"{size(value)} in {name}" for name, value in found.memory.items())]
    if found.dtypes:
        kinds = ", ".join(f"{count(number)} {plain(kind)}" for kind, number in found.dtypes.items())
        yield [style.dim("stored"), f"{kinds} ({size(found.stored_bytes)})"]
    if found.preprocessing:
        yield [style.dim("inputs"), ", ".join(f"{name} {_in_words(value)}" for name, value in found.preprocessing.items())]
    listed = sorted(found.files.items(), key=lambda entry: -entry[1])
    for index, (name, length) in enumerate(listed[:MOST_FILES]):
        yield ["" if index else style.dim("files"), f"{plain(name)} ({size(length)})"]
    if len(listed) > MOST_FILES:
        yield ["", style.dim(f"and {len(listed) - MOST_FILES} more")]
