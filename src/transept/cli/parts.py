"""Work on files in parts, into a directory: which parts are this process's, and their answers."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from transept.batch.answers import ENDINGS, TYPES, fits, flat, row_of, type_of
from transept.batch.inputs import STANDARD, Inputs, Item
from transept.batch.on_ray import run_on_ray
from transept.batch.parts import PART_BYTES, Claim, Job, Part, plan
from transept.cli.arguments import Parser
from transept.cli.terminal import complain, explained
from transept.cli.work import Ask, about, answer_into
from transept.errors import InputError, TranseptError
from transept.storage.files import make_directory
from transept.tables.parquet import parquet_examples

_SIZE = re.compile(r"([1-9]\d*)([kMG]?)B?")


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``count`` shares of the parts, from 1."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text!r} is not one of N shards, which are 1/N to N/N, such as 3/16")
        return cls(int(number), int(count))


def _size(text: str) -> int:
    if (found := _SIZE.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 64MB")
    return int(found[1]) * {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}[found[2]]


def add_parts(parser: Parser) -> None:
    """What a directory as ``--output`` asks for."""
    told = "of a table the columns that stay with the answers (all), such as id:int64,title; the types are for --output DIR"
    parser.add_argument("--keep", type=lambda text: text.split(","), metavar="NAMES", help=told)
    told = "with a directory as --output: only the K-th of N shares of the parts of the inputs"
    parser.add_argument("--shard", type=Shard.read, metavar="K/N", help=told)
    told = "with a directory as --output: how much of a file of lines is a part (64MB); row groups of Parquet files are parts"
    parser.add_argument("--part-size", type=_size, metavar="SIZE", help=told)
    told = "with a directory as --output: answer nothing, but say which parts lack or are not whole"
    parser.add_argument("--check", action="store_true", help=told)
    told = "with a directory as --output: each part is a task of Ray, on this machine or the cluster that RAY_ADDRESS names"
    parser.add_argument("--engine", choices=("ray",), help=told)


def _declared(args: argparse.Namespace) -> dict[str, str]:
    """The columns of ``--keep``, and the types that are given to them, else an empty text."""
    found = [(name, *name.rpartition(":")) for name in args.keep or ()]
    return dict((before, kind) if kind in TYPES and before else (name, "") for name, before, _, kind in found)


def kept(args: argparse.Namespace) -> tuple[str, ...] | None:
    """The columns that stay with the answers; ``None`` where all do."""
    return None if args.keep is None else tuple(_declared(args))


def is_in_parts(args: argparse.Namespace, parser: Parser, endings: tuple[str, ...] = ENDINGS) -> bool:
    """Whether answers go into a directory; arguments that do not go together are refused.

    A name with one of the ``endings`` is that of a file, even where a directory has it.
    """
    path, option = args.output, next((name for name in ("shard", "part_size", "check", "engine") if getattr(args, name)), None)
    is_named = path is not None and (os.path.isdir(path) or not os.path.splitext(path)[1])
    if path is None or not (path.endswith(os.sep) or (is_named and not path.lower().endswith(endings))):
        if option is not None:
            parser.error(f"--{option.replace('_', '-')} needs --output, a directory for the files of all parts")
        return False
    if not args.files or STANDARD in args.files:
        parser.error("a directory as --output needs files: parts are read anew, which standard input cannot be")
    for name in ("draw", "top_k"):
        if getattr(args, name, None) is not None and (name == "draw" or args.name == "score"):
            parser.error(f"--{name.replace('_', '-')} is for one file of answers, but --output is a directory")
    return True


class Once:
    """What a function gives, which is called when it is needed first in a process; pickled as the function alone."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask = ask

    @cached_property
    def found(self) -> Any:
        return self.ask()

    def __reduce__(self) -> tuple[Any, ...]:
        return Once, (self.ask,)


class PartWork:
    """Inputs of files on their way to files of answers in the directory ``--output``.

    Args:
        paired: completes the inputs.
        default_model: of the task.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        inputs: Inputs,
        default_model: str | None = None,
        paired: Callable[[Item], Item] = lambda item: item,
    ) -> None:
        self.args, self.inputs, self.paired = args, inputs, paired
        self.size = args.part_size or PART_BYTES
        ending = ".jsonl" if importlib.util.find_spec("pyarrow") is None else ".parquet"
        self.parts, self.errors = plan(inputs, self.size)
        if not self.parts and not self.errors:
            raise InputError("there are no inputs.", hint="Pass files that hold some.")
        made_of = about(args, inputs, default_model, times=True)
        made_of["options"] |= {"part_size": self.size, "ending": ending}
        self.job = Job(Path(args.output) if args.check else make_directory(args.output), made_of, self.parts, ending)
        self.types = self._types() if ending == ".parquet" and not args.check else {}

    def run(self, ask: Ask) -> int:
        """Answer all inputs of the shard; gives the exit code."""
        shard, errors = self.args.shard or Shard(1, 1), list(self.errors)
        mine = self.parts[shard.number - 1 :: shard.count]
        if self.args.check:
            self.job.note.check()
            errors += self.job.check(mine, self.inputs)
        else:
            self.job.begin()
            do = partial(self._answer, Once(ask))
            gpus = int(str(self.args.device).startswith("cuda"))
            errors += run_on_ray(self.job, mine, do, gpus=gpus) if self.args.engine else self.job.run(mine, do)
        for error in errors:
            complain(explained(error))
        rows = failed = done = 0
        for part in mine:
            with suppress(TranseptError):  # which is told already
                of_part = self.job.tally(part)
                rows, failed, done = rows + of_part[0], failed + of_part[1], done + 1
        self._tell({"inputs": rows, "failed": failed, "parts": done, "missing": len(mine) - done + len(self.errors)})
        return 1 if failed or errors else 0

    def _types(self) -> dict[str, str]:
        """The types of columns: given ones, and those of plain values in Parquet files or in the first rows of others."""
        values: dict[str, list[Any]] = {}
        first = {part.path: part for part in reversed(self.parts)}  # of each file
        for part in reversed(first.values()):
            with suppress(TranseptError):  # which is told when the part is answered
                rows = [self._about(item) for item in next(self._groups(part), [])]
                examples = parquet_examples(part.path) if part.span is not None and part.span.group is not None else {}
                for row in (*rows, {name: value for name, value in examples.items() if rows and name in rows[0]}):
                    for name, value in row.items():
                        values.setdefault(name, []).append(value)
        types = {name: kind for name in values if (kind := _declared(self.args).get(name) or type_of(values[name]))}
        return types | {"error": "string"} | ({"score": "double"} if self.args.name == "score" else {})

    def _about(self, item: Item) -> dict[str, Any]:
        """The columns of an input as they stand in a file of answers."""
        return {name: value for name, value in flat(row_of(item, self.args.name, None)).items() if name != self.args.name}

    def _fitting(self, item: Item) -> Item:
        """An input, or an error in its place where one of its columns is not of the column's type."""
        for name, value in self._about(item).items():
            if not isinstance(item.value, TranseptError) and not fits(value, self.types.get(name, "string")):
                what = f"the column {name!r} holds {str(value)[:40]!r}, but its type is {self.types[name]}."
                return replace(item, value=InputError(what, hint=f"Pass --keep {name}:string,... to another directory."))
        return item

    def _tell(self, counts: dict[str, int]) -> None:
        if self.args.json:
            print(json.dumps({"output": self.args.output} | counts))
            return
        missed = f", {counts['failed']} failed" if counts["failed"] else ""
        missing = f", {counts['missing']} parts are missing" if counts["missing"] else ""
        answered = counts["inputs"] - counts["failed"]
        print(f"{self.args.output}: {answered} answered{missed}, in {counts['parts']} parts{missing}")

    def _answer(self, ask: Once, part: Part, path: str, claim: Claim) -> None:
        groups = ([self._fitting(self.paired(item)) for item in group] for group in self._groups(part))
        bar = {"total": None, "desc": part.name, "disable": not sys.stderr.isatty()}
        answer_into(self.args, path, lambda: ask.found, groups, bar, types=self.types, check=claim.check)

    def _groups(self, part: Part) -> Iterator[list[Item]]:
        return self.inputs.part(part.path, part.span, part.media)
