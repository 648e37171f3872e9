"""``transept embed``: texts to vectors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from transept.cli.arguments import Parser, add_model, add_output, check_model, make_pipeline
from transept.cli.inputs import FORMATS, STANDARD, Item, asks, check_content, check_there, count_inputs, from_files
from transept.cli.messages import complain
from transept.cli.outputs import JsonLines, encode, replacing
from transept.cli.work import answer_all
from transept.errors import TranseptError

SUFFIXES = (".npy", ".jsonl")


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "embed",
        help="turn texts into vectors",
        description=(
            "Turn texts, one a line, into vectors. A .npy file holds float32 vectors (texts, size), with NaN in the rows of "
            "texts that failed; a .jsonl file, and standard output, hold an object with the text and its embedding a line."
        ),
        examples=[
            "transept embed texts.txt --output vectors.npy",
            "transept embed texts.txt --output vectors.jsonl --model sentence-transformers/all-mpnet-base-v2",
            "echo 'A cat sleeps.' | transept embed",
        ],
    )
    lines = "texts, one a line; .jsonl holds JSON; - is standard input"
    parser.add_argument("files", nargs="*", default=[], metavar="FILE", help=lines)
    add_model(parser, "all-MiniLM-L6-v2")
    parser.add_argument("--format", choices=FORMATS, help="how lines are read (by the file's name)")
    parser.add_argument("--output", metavar="PATH", help="where to: a .npy or a .jsonl file")
    add_output(parser)
    parser.set_defaults(main=lambda args: main(args, parser))


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Embed what was asked for; the exit code."""
    files = args.files or [STANDARD]
    if args.output is not None and Path(args.output).suffix.lower() not in SUFFIXES:
        parser.error(f"--output must end in {' or '.join(SUFFIXES)}, but is {args.output!r}")
    if asks(files):
        complain("reading from the terminal, one text a line; Ctrl-D ends.", "note")
    check_model(args.model)
    check_there(files)
    check_content(files, media=False)
    total = count_inputs(files, media=False)
    groups = from_files(files, args.format, media=False)
    if args.output is None:
        pipe = make_pipeline("text-embedding", args)
        return answer_all(pipe, groups, VectorLines(), total=total, bar=not sys.stdout.isatty()).code
    with replacing(args.output) as file:
        pipe = make_pipeline("text-embedding", args)
        if not args.output.lower().endswith(".npy"):
            tally = answer_all(pipe, groups, VectorLines(file), total=total, bar=True)
        else:
            with VectorFile(file, pipe.size) as array:
                tally = answer_all(pipe, groups, array, total=total, bar=True)
    tally.report(args.output, as_json=args.json)
    return tally.code


class VectorLines(JsonLines):
    """``{"text": ..., "embedding": [...]}`` a line."""

    def write(self, pairs: Sequence[tuple[Item, Any]]) -> None:
        """One line a text."""
        self.lines(
            encode(found if isinstance(found, TranseptError) else {"text": item.value, "embedding": found})
            for item, found in pairs
        )


class VectorFile:
    """A ``.npy`` file (N, E) of float32 that grows; N is written into its header on leaving, however that comes.

    Args:
        file: to write, from its beginning.
        size: E.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.rows = file, size, 0

    def __enter__(self) -> Self:
        self._header()
        return self

    def _header(self) -> None:
        import numpy as np

        # numpy leaves room in a header for its first axis to grow.
        shape = (self.rows, self.size)
        np.lib.format.write_array_header_1_0(self.file, {"descr": "<f4", "fortran_order": False, "shape": shape})

    def write(self, pairs: Sequence[tuple[Item, Any]]) -> None:
        """One row a text."""
        import numpy as np

        rows = np.full((len(pairs), self.size), np.nan, "<f4")
        for row, (_, found) in zip(rows, pairs, strict=True):
            if not isinstance(found, TranseptError):
                row[:] = found
        self.file.write(rows.tobytes())
        self.rows += len(rows)

    def __exit__(self, *_: object) -> None:
        self.file.seek(0)
        self._header()
