"""One of many parts of the inputs, ``3/16``: whoever runs it, and however often, it writes the same file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transept.cli import streams
from transept.cli.streams import STANDARD, Groups
from transept.errors import InputError
from transept.files import make_directory


@dataclass(frozen=True)
class Part:
    """The ``number``-th of ``count`` parts, from 1."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Part:
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text!r} is not one of N parts, which are 1/N to N/N, such as 3/16")
        return cls(int(number), int(count))

    def path(self, folder: str) -> str:
        """Its file in a directory, which is made; names of all parts sort in their order."""
        return str(make_directory(folder) / f"part-{self.number:05}-of-{self.count:05}.npy")

    def of(self, args: argparse.Namespace, media: bool) -> tuple[Groups, int]:
        """Its inputs, and how many these are: parts follow one another, and differ by one input at most.

        Raises:
            InputError: there are none in all files.
        """
        total = sum(map(len, streams.from_files(args.files, args.format, media=media)))
        if not total:
            raise InputError("there are no inputs.", hint="Pass files that hold some.")
        start, stop = ((self.number - step) * total // self.count for step in (1, 0))
        return _between(streams.from_files(args.files, args.format, media=media), start, stop), stop - start

    def choose(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        """Let answers go into its file; one that an interrupted run left is gone on with where that is asked for."""
        if args.output is None:
            parser.error("--part needs --output, a directory for the files of all parts")
        if not args.files or STANDARD in args.files:
            parser.error("--part needs files: every part reads them anew, which standard input cannot be")
        args.output = self.path(args.output)
        args.resume = args.resume and os.path.isfile(f"{args.output}.partial")


def _between(groups: Groups, start: int, stop: int) -> Iterator[list[Any]]:
    at = 0
    for group in groups:
        if at >= stop:
            return
        if found := group[max(start - at, 0) : stop - at]:
            yield found
        at += len(group)


def failures(path: str, rows: int) -> int | None:
    """How many inputs failed in a file of so many vectors that is whole; ``None`` where there is no such file."""
    import numpy as np

    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    whole = found.ndim == 2 and len(found) == rows and found.dtype == np.dtype("<f4")
    return int(np.isnan(found[:, :1]).sum()) if whole else None
