"""``transept inspect`` and ``transept doctor``: what a checkpoint is made of, and what this machine and installation can do."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from transept.batch.encode import cleaned, plain
from transept.cli.arguments import Parser, add_output
from transept.cli.installation import MISSING, OK, OPTIONAL, checks
from transept.cli.terminal import KINDS, Style, bar, complain, table
from transept.environment.units import count, size

Report = dict[str, Any]
MOST_FILES, MOST_LABELS = 12, 8
NO_BREAK = "\u00a0"
MARKS = {OK: ("✓", "green"), MISSING: ("✗", "red"), OPTIONAL: ("·", "dim")}


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
    parser.set_defaults(main=lambda args: show(examined(args), "loadable", anatomy_lines, as_json=args.json))


def show(found: Report, good: str, lines: Callable[[Report, Style], Iterator[str]], *, as_json: bool) -> int:
    """Show a report as JSON or as lines; gives the exit code, by the key that says whether all is well."""
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else "\n".join(lines(found, Style(sys.stdout))))
    return 0 if found[good] else 1


def examined(args: argparse.Namespace) -> Report:
    from transept.cli.inspection import examine
    from transept.pipelines.components import EMBEDDING_MODEL, locate
    from transept.pipelines.heads import summary

    if told := summary(args.path):
        complain(f"{args.path} is a small head on {EMBEDDING_MODEL}, which is shown here: {told}", "note")
    return examine(locate(EMBEDDING_MODEL if told else args.path, {"revision": args.revision}))


def anatomy_lines(found: Report, style: Style) -> Iterator[str]:
    yield f"{style(found['architecture'] or 'unknown', 'bold')}  {style(plain(found['path']), 'dim')}"
    config = (f"{name.replace('_', ' ')}: {_in_words(value)}".replace(" ", NO_BREAK) for name, value in found["config"].items())
    yield from (line.replace(NO_BREAK, " ") for line in textwrap.wrap("  ".join(config), style.width))
    if found["parts"] is not None:
        yield from ["", *table(_tree(found["parts"], max(found["parts"]["parameters"], 1), style), right=(1,))]
    yield from ["", *table([style(name, "dim"), value] for name, value in _facts(found)), ""]
    if not found["findings"]:
        yield style("nothing to object to", "green")
    for finding in found["findings"]:
        yield f"{style(finding['level'], KINDS[finding['level']])}: {cleaned(finding['message'])}"


def _tree(part: Report, whole: int, style: Style, first: str = "", below: str = "") -> Iterator[list[str]]:
    """Rows of parts with their parameters and shares of the whole; ``first`` and ``below`` are the lines before names."""
    numbers, share = part["parameters"], part["parameters"] / whole
    shown = [style(bar(share), "blue"), f"{100 * share:.1f} %"] if numbers else ["", "shared" if part["shared"] else ""]
    yield [f"{first}{part['name']}", count(numbers), *shown]
    for child in part["children"]:
        corner, line = ("└─ ", "   ") if child is part["children"][-1] else ("├─ ", "│  ")
        yield from _tree(child, whole, style, below + corner, below + line)


def _in_words(value: Any) -> str:
    """A size such as ``{"height": 224, "width": 224}`` or a list of labels in words."""
    if isinstance(value, dict):
        value = " ".join(f"{name} {part}" for name, part in value.items())
    elif isinstance(value, list):
        value = ", ".join([*map(str, value[:MOST_LABELS]), *["…"][: len(value) > MOST_LABELS]])
    return plain(str(value))


def _facts(found: Report) -> Iterator[tuple[str, str]]:
    memory = ", ".join(f"{size(value)} in {name}" for name, value in found["memory"].items())
    kinds = ", ".join(f"{count(number)} {plain(kind)}" for kind, number in found["dtypes"].items())
    inputs = ", ".join(f"{name} {_in_words(value)}" for name, value in found["preprocessing"].items())
    stored = kinds and f"{kinds} ({size(found['stored_bytes'])})"
    yield from ((name, told) for name, told in (("memory", memory), ("stored", stored), ("inputs", inputs)) if told)
    listed = sorted(found["files"].items(), key=lambda entry: -entry[1])
    names = [f"{plain(name)} ({size(length)})" for name, length in listed[:MOST_FILES]]
    names += [f"and {len(listed) - MOST_FILES} more"] * (len(listed) > MOST_FILES)
    yield from zip(["files", *[""] * len(names)], names)


def doctor(parser: Parser) -> None:
    """Tell what works here and what to install.

    Versions, devices, threads, caches and extras: what works here, and what to install for the rest.

        transept doctor
        transept doctor --json
        transept doctor --parallel
    """
    told = "also start two processes, or one for each GPU, and try what they can do together"
    parser.add_argument("--parallel", action="store_true", help=told)
    add_output(parser)
    parser.set_defaults(main=lambda args: show(checked(args.parallel), "ok", checks_lines, as_json=args.json))


def checked(parallel: bool = False) -> Report:
    found = list(checks(parallel))
    return {"ok": all(check["state"] != MISSING for check in found), "checks": found}


def checks_lines(report: Report, style: Style) -> Iterator[str]:
    """The checks, group by group, and what to do."""
    found = report["checks"]
    groups = ["", *(check["group"] for check in found)]
    yield from table(
        [style(one["group"], "bold") if one["group"] != before else "", style(*MARKS[one["state"]]), one["name"], one["value"]]
        for before, one in zip(groups, found)
    )
    remedies = [f"{style('to do', 'yellow')}: {check['name']}: {check['remedy']}" for check in found if check["remedy"]]
    yield from ["", *remedies] if remedies else []
