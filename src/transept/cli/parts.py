"""One of many parts of the inputs, ``3/16``: whoever runs it, and however often, it writes the same file."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transept.cli import streams
from transept.cli.streams import STANDARD, Groups
from transept.errors import InputError, TranseptError
from transept.files import dump_json, load_object, make_directory, write_text


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

    def of(self, args: argparse.Namespace) -> tuple[Groups, int]:
        """Its inputs, and how many these are: parts follow one another, and differ by one input at most.

        A file that was made of other inputs or by another model is removed.

        Raises:
            InputError: there are none in all files.
        """
        read = partial(streams.from_files, args.files, args.format, media=args.media)
        total = sum(map(len, read()))
        if not total:
            raise InputError("there are no inputs.", hint="Pass files that hold some.")
        start, stop = ((self.number - step) * total // self.count for step in (1, 0))
        self._begin(args, _digest(_between(read(), start, stop), args.media))
        return _between(read(), start, stop), stop - start

    def _begin(self, args: argparse.Namespace, inputs: str) -> None:
        """Note what the file is of, beside it, and remove one that is of something else."""
        about = {name: repr(getattr(args, name)) for name in ("task", "model", "revision", "dtype", "option")}
        about["inputs"], known = inputs, None
        output, note = Path(args.output), Path(args.output).with_suffix(".json")
        unfinished = Path(f"{output}.partial")
        with suppress(TranseptError):  # there is none, or half of one
            known = load_object(note)
        if known != about:
            output.unlink(missing_ok=True)
            unfinished.unlink(missing_ok=True)
            write_text(note, dump_json(about))
        args.resume = args.resume and unfinished.is_file()

    def choose(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
        """Let answers go into its file."""
        if args.output is None:
            parser.error("--part needs --output, a directory for the files of all parts")
        if not args.files or STANDARD in args.files:
            parser.error("--part needs files: every part reads them anew, which standard input cannot be")
        args.output = self.path(args.output)


def _digest(groups: Groups, media: bool) -> str:
    """Of inputs: texts, or the names, sizes and times of files."""
    digest = hashlib.sha256()
    for item in (item for group in groups for item in group):
        found = os.stat(item.value) if media and isinstance(item.value, str) and os.path.exists(item.value) else None
        digest.update(repr((item.value, found and (found.st_size, found.st_mtime_ns))).encode(errors="backslashreplace"))
    return digest.hexdigest()


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
