"""``transept run``: any task over arguments, files or standard input."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from transept.cli.arguments import Parser, add_model, add_output, check_model, make_pipeline
from transept.cli.inputs import (
    FORMATS,
    LINES,
    STANDARD,
    Groups,
    asks,
    check_content,
    check_there,
    count_inputs,
    from_arguments,
    from_files,
)
from transept.cli.messages import complain
from transept.cli.outputs import Drawn, JsonLines, Sink, replacing
from transept.cli.work import answer_all

SUFFIXES = (".jsonl", ".ndjson")


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "run",
        help="answer texts, pictures or sounds by a task",
        listing=_tasks,
        description=(
            "Answer texts, pictures or sounds by a task. Answers come in the order of the inputs: drawn on a terminal, one "
            "JSON value a line elsewhere. An input that fails leaves an error in its place, and the exit code is 1."
        ),
        examples=[
            'transept run text-classification --model PATH "I love this"',
            "transept run text-classification --model PATH --file texts.jsonl --output answers.jsonl",
            "cat texts.txt | transept run token-classification --model PATH --option aggregation_strategy=simple",
            "transept run image-classification --model PATH cat.jpg dog.jpg --option top_k=1",
            "transept run automatic-speech-recognition --model PATH talk.flac --option chunk_length_s=20",
            'transept run question-answering --model PATH --format jsonl \'{"question": "...", "context": "..."}\'',
        ],
    )
    parser.add_argument("task", type=_task, metavar="TASK", help="its name, such as text-classification")
    parser.add_argument("inputs", nargs="*", default=[], metavar="INPUT", help="texts, or paths of pictures and sounds")
    add_model(parser, "the task's own, where it has one")
    texts = "texts, one a line (.jsonl holds JSON); or media files"
    parser.add_argument("--file", action="append", default=[], nargs="+", metavar="PATH", help=texts)
    parser.add_argument("--format", choices=FORMATS, help="how lines and arguments are read (by the file's name)")
    parser.add_argument("--output", metavar="PATH", help="write the answers there, one JSON value a line")
    add_output(parser)
    parser.set_defaults(main=lambda args: main(args, parser))


def _tasks() -> str:
    from transept.pipelines import ALIASES, tasks

    lines = [f"  {name}" for name in tasks()] + [f"  {name} (the same as {other})" for name, other in ALIASES.items()]
    return "\n".join(["tasks:", *lines])


def _task(name: str) -> str:
    from transept.errors import UnsupportedError, nearest
    from transept.pipelines import ALIASES, tasks

    known = [*tasks(), *ALIASES]
    if name not in known:
        raise argparse.ArgumentTypeError(f"{UnsupportedError(f'there is no task {name!r}.', hint=nearest(name, known))}")
    return name


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Answer what was asked for; the exit code."""
    files = [path for group in args.file for path in group]
    if args.output is not None and Path(args.output).suffix.lower() not in SUFFIXES:
        parser.error(f"--output must end in {' or '.join(SUFFIXES)}, but is {args.output!r}")
    if args.inputs and files:
        parser.error("pass inputs as arguments or in files, not both")
    if args.inputs == [STANDARD]:
        args.inputs = []
    if not args.inputs and not files:
        files = [STANDARD]
    check_model(args.model)
    check_there(files)
    if asks(files):
        complain("reading from the terminal, one input a line; Ctrl-D ends.", "note")
    from transept.pipelines import task_class
    from transept.pipelines.media import MediaPipeline

    kind = task_class(args.task)
    if args.model is None and kind.default_model is None:
        parser.error(f"the task {args.task!r} has no default model: pass --model PATH")
    media = issubclass(kind, MediaPipeline)
    check_content(files, media=media)
    groups: Groups = from_files(files, args.format, media=media)
    total = count_inputs(files, media=media)
    if args.inputs:
        _check_arguments(args.inputs, media)
        groups, total = [from_arguments(args.inputs, args.format or LINES)], len(args.inputs)
    if args.output is None:
        drawn = sys.stdout.isatty() and not args.json
        sink: Sink = Drawn(named=total != 1) if drawn else JsonLines()
        pipe = make_pipeline(args.task, args)
        return answer_all(pipe, groups, sink, total=total, bar=not sys.stdout.isatty()).code  # answers are progress enough
    with replacing(args.output) as file:
        tally = answer_all(make_pipeline(args.task, args), groups, JsonLines(file), total=total, bar=True)
    tally.report(args.output, as_json=args.json)
    return tally.code


def _check_arguments(inputs: list[str], media: bool) -> None:
    for value in inputs:
        if not media and os.path.isfile(value):
            complain(f"{value!r} is taken as a text. To read the file, pass --file {value}.", "warning")
