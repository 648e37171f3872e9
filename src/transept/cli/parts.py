"""Work on files in parts, into a directory: which parts are this process's, and their answers."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from transept.batch.answers import ENDINGS, PIECE, Rows, Vectors
from transept.batch.inputs import STANDARD, Inputs, Item
from transept.batch.output_file import OutputFile
from transept.batch.parts import PART_BYTES, Claim, Job, Part, plan
from transept.cli.arguments import Parser
from transept.cli.terminal import complain, explained
from transept.cli.work import Answers, about, answer_all
from transept.errors import InputError, TranseptError
from transept.storage.files import make_directory

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
    told = "of a table the columns that stay with the answers, such as id,title (all)"
    parser.add_argument("--keep", type=lambda text: text.split(","), metavar="NAMES", help=told)
    told = "with a directory as --output: only the K-th of N shares of the parts of the inputs"
    parser.add_argument("--shard", type=Shard.read, metavar="K/N", help=told)
    told = "with a directory as --output: how much of a file of lines is a part (64MB); row groups of Parquet files are parts"
    parser.add_argument("--part-size", type=_size, metavar="SIZE", help=told)
    told = "with a directory as --output: answer nothing, but say which parts lack or are not whole"
    parser.add_argument("--check", action="store_true", help=told)


def is_in_parts(args: argparse.Namespace, parser: Parser, endings: tuple[str, ...] = ENDINGS) -> bool:
    """Whether answers go into a directory; arguments that do not go together are refused.

    A name with one of the ``endings`` is that of a file, even where a directory has it.
    """
    path, option = args.output, next((name for name in ("shard", "part_size", "check") if getattr(args, name)), None)
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
        made_of = about(args, inputs, default_model)
        made_of["options"] |= {"part_size": self.size, "ending": ending}
        self.job = Job(Path(args.output) if args.check else make_directory(args.output), made_of, self.parts, ending)

    def run(self, ask: Callable[[], tuple[Answers, int]]) -> int:
        """Answer all inputs of the shard; gives the exit code."""
        shard, errors = self.args.shard or Shard(1, 1), list(self.errors)
        mine = self.parts[shard.number - 1 :: shard.count]
        if self.args.check:
            self.job.note.check()
            errors += self.job.check(mine, self.inputs)
        else:
            self.job.begin()
            errors += self.job.run(mine, partial(self._answer, cache(ask)))
        for error in errors:
            complain(explained(error))
        rows = failed = done = 0
        for part in mine:
            with suppress(TranseptError):  # which is told already
                of_part = self.job.tally(part)
                rows, failed, done = rows + of_part[0], failed + of_part[1], done + 1
        self._tell({"inputs": rows, "failed": failed, "parts": done, "missing": len(mine) - done + len(self.errors)})
        return 1 if failed or errors else 0

    def _tell(self, counts: dict[str, int]) -> None:
        if self.args.json:
            print(json.dumps({"output": self.args.output} | counts))
            return
        missed = f", {counts['failed']} failed" if counts["failed"] else ""
        missing = f", {counts['missing']} parts are missing" if counts["missing"] else ""
        answered = counts["inputs"] - counts["failed"]
        print(f"{self.args.output}: {answered} answered{missed}, in {counts['parts']} parts{missing}")

    def _answer(self, ask: Callable[[], tuple[Answers, int]], part: Part, path: str, claim: Claim) -> None:
        answers, size = ask()

        def checked(values: list[Any]) -> Iterator[Any]:
            found = list(answers(values))
            claim.check()  # before these are written
            return iter(found)

        with ExitStack() as stack:
            paths = [path]
            if self.args.name == "embedding" and path.endswith(".parquet"):
                paths.append(f"{os.path.splitext(path)[0]}.index.jsonl")
            resume = all(os.path.isfile(f"{each}.partial") for each in paths)
            files = [stack.enter_context(OutputFile(each, resume=resume)) for each in paths]
            sink: Any = Rows(files[0], self.args.name, piece=PIECE)
            if len(files) == 2:
                sink = Vectors(files[0], files[1], size, piece=PIECE)
            groups = ([self.paired(item) for item in group] for group in self._groups(part))
            bar = {"desc": part.name, "disable": not sys.stderr.isatty()}
            answer_all(checked, pieces(groups), sink, bar, None)
            sink.end()
            claim.check()

    def _groups(self, part: Part) -> Iterator[list[Item]]:
        return self.inputs.part(part.path, part.span, part.media)


def pieces(groups: Iterable[list[Item]]) -> Iterator[list[Item]]:
    """Groups of always as many inputs, so that who goes on with a part answers the same ones together."""
    gathered = list[Item]()
    for group in groups:
        gathered += group
        while len(gathered) >= PIECE:
            yield gathered[:PIECE]
            gathered = gathered[PIECE:]
    if gathered:
        yield gathered
