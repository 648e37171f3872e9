"""``transept inspect``: what a checkpoint is made of, without loading it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transept.cli.arguments import Parser, add_output, given_revision
from transept.cli.terminal import KINDS, Style, bar, count, plain, size, table

if TYPE_CHECKING:
    from transept.cli.anatomy import Anatomy, Part

MOST_FILES, MOST_LABELS = 12, 8
NO_BREAK = "\u00a0"


def inspect(parser: Parser) -> None:
    """Show what a checkpoint is made of.

    Its architecture, its parameters by part, types, memory, preprocessing, files, and what is wrong with it. No weights are
    loaded, and none are fetched: of a repository whose weights are not cached, only the rest is shown. The exit code is 1 where
    it could not be loaded.

        transept inspect PATH
        transept inspect sentence-transformers/all-MiniLM-L6-v2 --json
    """
    parser.add_argument("path", metavar="PATH", help="directory or hub repository")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    add_output(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Show the checkpoint; the exit code."""
    from transept.cli.anatomy import examine
    from transept.pipelines.defaults import locate

    found = examine(locate(args.path, given_revision(args)))
    if args.json:
        print(json.dumps(asdict(found), ensure_ascii=False, indent=2))
    else:
        print("\n".join(drawn(found, Style(sys.stdout))))
    return 0 if found.loadable else 1


def drawn(found: Anatomy, style: Style) -> Iterator[str]:
    """The whole report as lines."""
    yield f"{style(found.architecture or 'unknown', 'bold')}  {style(plain(found.path), 'dim')}"
    config = (f"{name.replace('_', ' ')}: {_in_words(value)}".replace(" ", NO_BREAK) for name, value in found.config.items())
    yield from (line.replace(NO_BREAK, " ") for line in textwrap.wrap("  ".join(config), style.width))
    if found.parts is not None:
        whole = max(found.parts.parameters, 1)
        rows = ([label, count(part.parameters), *_share(part, whole, style)] for label, part in tree(found.parts))
        yield from ["", *table(rows, right=(1,))]
    yield from ["", *table([style(name, "dim"), value] for name, value in _facts(found)), ""]
    if not found.findings:
        yield style("nothing to object to", "green")
    for finding in found.findings:
        yield f"{style(finding['level'], KINDS[finding['level']])}: {finding['message']}"


def _share(part: Part, whole: int, style: Style) -> list[str]:
    if not part.parameters:
        return ["", "shared" if part.shared else ""]
    share = part.parameters / whole
    return [style(bar(share), "blue"), f"{100 * share:.1f} %"]


def tree(part: Part, first: str = "", below: str = "") -> Iterator[tuple[str, Part]]:
    """Parts and the names of their rows, with lines from part to part."""
    yield f"{first}{part.name}", part
    for child in part.children:
        last = child is part.children[-1]
        yield from tree(child, f"{below}{'└─' if last else '├─'} ", f"{below}{'   ' if last else '│  '}")


def _in_words(value: Any) -> str:
    """A size such as ``{"height": 224, "width": 224}`` or a list of labels in words."""
    if isinstance(value, dict):
        value = " ".join(f"{name} {part}" for name, part in value.items())
    elif isinstance(value, list):
        value = ", ".join([*map(str, value[:MOST_LABELS]), *["…"][: len(value) > MOST_LABELS]])
    return plain(str(value))


def _facts(found: Anatomy) -> Iterator[tuple[str, str]]:
    if found.memory:
        yield "memory", ", ".join(f"{size(value)} in {name}" for name, value in found.memory.items())
    if found.dtypes:
        kinds = ", ".join(f"{count(number)} {plain(kind)}" for kind, number in found.dtypes.items())
        yield "stored", f"{kinds} ({size(found.stored_bytes)})"
    if found.preprocessing:
        yield "inputs", ", ".join(f"{name} {_in_words(value)}" for name, value in found.preprocessing.items())
    listed = sorted(found.files.items(), key=lambda entry: -entry[1])
    names = [f"{plain(name)} ({size(length)})" for name, length in listed[:MOST_FILES]]
    if len(listed) > MOST_FILES:
        names.append(f"and {len(listed) - MOST_FILES} more")
    yield from zip(["files", *[""] * len(names)], names)
