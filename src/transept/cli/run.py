"""``transept run``, and ``embed`` and ``rerank``, which are it with other defaults: inputs through a model to answers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from transept.cli import arguments, streams
from transept.cli.arguments import Parser, make_pipeline
from transept.cli.parts import Part, failures
from transept.cli.pictures import Drawings, fault
from transept.cli.streams import JSON, STANDARD, Groups, Item, Lines, json_line
from transept.cli.terminal import Style, complain, explained
from transept.errors import FileError, InputError, TranseptError
from transept.output_file import OutputFile

MOST_REPORTED = 20
BAR_DELAY = 0.5  # seconds, so that quick work shows none
# From inputs to their answers, with errors in the places of those that fail.
Answers = Callable[[list[Any]], Iterator[Any]]
# What checkpoints call the prompt for what is searched.
PASSAGE_PROMPTS = ("document", "passage", "corpus")


def run(parser: Parser) -> None:
    """Answer texts, pictures or sounds by a task.

    Answers come in the order of the inputs: drawn on a terminal, one JSON value a line elsewhere. An input that fails leaves an
    error in its place, and the exit code is 1.

        transept run text-classification --model PATH "I love this"
        transept run text-classification --model PATH --file texts.jsonl --output answers.jsonl
        cat texts.txt | transept run token-classification --model PATH --aggregation-strategy simple
        transept run image-classification --model PATH cat.jpg dog.jpg --top-k 1
        transept run object-detection --model PATH cat.jpg --draw boxes.png
        transept run automatic-speech-recognition --model PATH talk.flac --chunk-length-s 20
        transept run question-answering --model PATH --question "Who came?" "Ada came."
    """
    parser.task = ""
    parser.add_argument("task", type=arguments.known_task, metavar="TASK", help="its name, such as text-classification")
    parser.add_argument("inputs", nargs="*", default=[], metavar="INPUT", help="texts, or paths of pictures and sounds")
    texts = "texts, one a line (.jsonl holds JSON); or media files"
    parser.add_argument("--file", dest="files", action="extend", default=[], nargs="+", metavar="PATH", help=texts)
    drawn = "draw the answers over their images: into a file for one input, else into a folder"
    parser.add_argument("--draw", metavar="PATH", help=drawn)
    _add_rest(parser, "write the answers there, one JSON value a line", (".jsonl", ".ndjson"))


# The endings of files that are embedded whole, by the task that does it.
MEDIA = {
    "image-embedding": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio-embedding": (".wav", ".flac", ".mp3", ".ogg"),
}


def embed(parser: Parser) -> None:
    """Turn texts, pictures or sounds into vectors.

    Texts stand one a line; files with the ending of a picture or of a sound, and directories of such, are one input each. A
    .npy file holds float32 vectors (inputs, size), with NaN in the rows of inputs that failed; a .jsonl file, and standard
    output, hold an object with the text, or the file's name, and its embedding a line. Options of the task are those of
    `transept run text-embedding --help`, or of image-embedding and audio-embedding.

        transept embed texts.txt --output vectors.npy
        transept embed texts.txt --output vectors.jsonl --model sentence-transformers/all-mpnet-base-v2
        transept embed photos/*.jpg --model CLIP --output vectors.npy
        transept embed big/*.txt --part 3/16 --output vectors/
        echo 'A cat sleeps.' | transept embed
    """
    parser.task = "text-embedding"
    as_line, noun = partial(embedding_line, "text"), "texts"
    told = "only the K-th of N parts of the inputs, into a file of its own in the directory --output; one that is whole is kept"
    parser.add_argument("--part", type=Part.read, metavar="K/N", help=told)
    _add_rest(parser, "where to: a .npy or a .jsonl file", (".npy", ".jsonl"), noun, as_line=as_line, task=parser.task)
    parser.set_defaults(choose=_choose_embedding)


def embedding_line(name: str, item: Item, found: Any) -> str:
    return json_line(item, found if isinstance(found, TranseptError) else {name: item.value, "embedding": found})


def _choose_embedding(args: argparse.Namespace, parser: Parser) -> None:
    """Let the files tell which task embeds them; those of two kinds are refused."""
    found = {task: path for path in args.files for task in (_media_task(path),)}
    if len(found) > 1:
        parser.error(f"files are of one kind at a time, but there are {' and '.join(map(repr, found.values()))}")
    task = next(iter(found), None)
    if task is not None:
        if args.model is None:
            parser.error(f"the task {task!r} has no default model: pass --model PATH")
        args.task, args.media, args.as_line = task, True, partial(embedding_line, "file")
    if args.part is not None:
        args.part.choose(args, parser)


def _media_task(path: str) -> str | None:
    """The task for a file, or for the first of a directory's files that tells one; ``None`` for texts."""
    names = [path]
    if path != STANDARD and os.path.isdir(path):
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries)
    told = (task for name in names for task, endings in MEDIA.items() if name.lower().endswith(endings))
    return next(told, None)


def rerank(parser: Parser) -> None:
    """Sort passages by how well they answer a query.

    Passages stand one a line. A cross-encoder (a sequence classifier) reads query and passage together; any other model gives
    vectors, which are compared by their cosine.

        transept rerank --query "capital of France" passages.txt
        transept rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 --query "..." --top-k 5 passages.txt
        cat passages.txt | transept rerank --query "..." --json
    """
    parser.add_argument("--query", required=True, metavar="TEXT", help="what the passages should answer")
    parser.add_argument("--top-k", type=arguments.positive, metavar="N", help="how many passages to show (all)")
    _add_rest(parser, "write the passages there, one JSON object a line", (), "passages", task="text-ranking")


def _add_rest(parser: Parser, output: str, suffixes: tuple[str, ...], noun: str | None = None, **defaults: Any) -> None:
    """Files of lines of one kind, if only these are read; which model; and the file for answers, with one of the endings."""
    if noun is not None:
        lines = f"{noun}, one a line; .jsonl holds JSON; - is standard input"
        parser.add_argument("files", nargs="*", default=[], metavar="FILE", help=lines)
        parser.set_defaults(inputs=[], media=False)
    arguments.add_model(parser, "the task's own, where it has one" if noun is None else "all-MiniLM-L6-v2")
    parser.add_argument("--format", choices=streams.FORMATS, help="how lines and arguments are read (by the file's name)")
    parser.add_argument("--output", metavar="PATH", help=output)
    if suffixes:  # a ranking cannot be gone on with
        parser.add_argument("--resume", action="store_true", help="go on from what an interrupted run left beside --output")
    arguments.add_output(parser)
    parser.set_defaults(main=lambda args: main(args, parser, suffixes), resume=False, **defaults)


def _check(args: argparse.Namespace, parser: Parser, suffixes: tuple[str, ...]) -> None:
    """Complete the arguments, and refuse those that do not go together before anything slow begins."""
    if "choose" in args:
        args.choose(args, parser)
    if args.output is not None and not args.output.lower().endswith(suffixes or ""):
        parser.error(f"--output must end in {' or '.join(suffixes)}, but is {args.output!r}")
    if args.resume and args.output is None:
        parser.error("--resume needs --output")
    if args.inputs and args.files:
        parser.error("pass inputs as arguments or in files, not both")
    args.inputs = [] if args.inputs == [STANDARD] else args.inputs
    names = arguments.FIELDS.get(args.task, ())
    args.fields = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    if len(args.fields) == 2:  # a whole input
        if args.inputs or args.files:
            parser.error(f"{' and '.join(map(repr, args.fields))} are both given, so that no other input is read")
        args.inputs, args.format = [json.dumps(args.fields)], JSON
    if "question" in names and not args.fields and not all(each.lstrip().startswith("{") for each in args.inputs):
        other = next(name for name in names if name != "question")
        parser.error(f"the task {args.task!r} needs a question with each {other}: pass --question TEXT")
    if not args.inputs and not args.files:
        args.files = [STANDARD]
    arguments.check_model(args.model)
    for path in args.files:
        if path != STANDARD and not os.path.exists(path):
            raise FileError("there is no such file.", path=path or "''")


def main(args: argparse.Namespace, parser: Parser, suffixes: tuple[str, ...]) -> int:
    _check(args, parser, suffixes)
    part: Part | None = getattr(args, "part", None)
    groups, total = _inputs(args, parser) if part is None else part.of(args)
    if part is not None and total is not None and (failed := failures(args.output, total)) is not None:  # an earlier run's
        return _tell(args, total, failed)
    drawings = _drawings(args, parser, total) if getattr(args, "draw", None) is not None else None
    bar = args.output is not None or not sys.stdout.isatty() or "query" in args  # else the answers are progress enough
    with _output(args) as file:
        pipe = None if "query" in args else make_pipeline(args.task, args)
        _introduce(args)
        # The pipeline's call would unwrap the answer to a list of one for some tasks.
        answers = passage_scores(args) if pipe is None else partial(pipe.answers, options=pipe.options)
        shown = {"total": total, "desc": args.task, "disable": not (bar and sys.stderr.isatty())}
        inputs, failed = _answer_all(answers, groups, _sink(args, pipe, file, total), shown, drawings, part is not None)
    return _tell(args, inputs, failed)


def _tell(args: argparse.Namespace, inputs: int, failed: int) -> int:
    """Say what a file of answers holds now; gives the exit code."""
    if args.output is not None:
        missed = f", {failed} failed" if failed else ""
        told = {"output": args.output, "inputs": inputs, "failed": failed}
        print(json.dumps(told) if args.json else f"{args.output}: {inputs - failed} answered{missed}")
    return 1 if failed else 0


def _introduce(args: argparse.Namespace) -> None:
    """Say on a terminal what the default model of a task has learned from, where it is one of the library's own."""
    if args.model is None and sys.stderr.isatty():
        from transept.pipelines import task_class
        from transept.pipelines.heads import summary

        name = task_class(args.task).default_model
        if told := summary(name or ""):
            complain(f"{name}: {told}", "note")


def _output(args: argparse.Namespace) -> AbstractContextManager[OutputFile | None]:
    told = partial(complain, kind="note")
    return nullcontext() if args.output is None else OutputFile(args.output, resume=args.resume, told=told)


def _inputs(args: argparse.Namespace, parser: Parser) -> tuple[Groups, int | None]:
    """The inputs as they come, and how many there are, where that is known."""
    one = len(args.fields) == 1  # and the other one is each input
    rest = next(name for name in arguments.FIELDS[args.task] if name not in args.fields) if one else None
    if (media := getattr(args, "media", None)) is None:
        from transept.pipelines import task_class
        from transept.pipelines.media import MediaPipeline

        kind = task_class(args.task)
        media = issubclass(kind, MediaPipeline) if rest is None else rest == "image"
        if args.model is None and kind.default_model is None:
            parser.error(f"the task {args.task!r} has no default model: pass --model PATH")
    for value in filter(os.path.isdir if media else os.path.isfile, args.inputs):
        told = f"{value!r} is taken as one {'file' if media else 'text'}; --file {value} reads what is in it."
        complain(told, "warning")
    groups: Groups = [streams.from_arguments(args.inputs, args.format)]
    total: int | None = len(args.inputs)
    if not args.inputs:
        groups = streams.from_files(args.files, args.format, media=media)
        total = streams.count_inputs(args.files, media=media)
    if rest is not None:
        groups = ([_paired(item, rest, args.fields) for item in group] for group in groups)
    return groups, total


def _paired(item: Item, name: str, fields: dict[str, str]) -> Item:
    value = item.value if isinstance(item.value, dict) else {name: item.value}
    return item if isinstance(item.value, TranseptError) else Item(fields | value, item.where)


def _drawings(args: argparse.Namespace, parser: Parser, total: int | None) -> Drawings:
    """Where pictures of answers go, if the task's can be drawn and no picture could replace an input."""
    from transept.pipelines import task_class

    wrong = fault(args.draw, total)
    if not task_class(args.task).drawable:
        wrong = f"answers of the task {args.task!r} cannot be drawn"
    if wrong is not None:
        parser.error(wrong)
    drawings = Drawings(args.draw)
    drawings.spare([*args.inputs, *args.files])
    return drawings


def _sink(args: argparse.Namespace, pipe: Any, file: OutputFile | None, total: int | None) -> Lines:
    style = Style(sys.stdout) if file is None and sys.stdout.isatty() and not args.json else None
    if "query" in args:
        return streams.Ranking(file, args.top_k, style)
    if file is not None and file.path.lower().endswith(".npy"):
        return streams.Vectors(file, pipe.size)
    return Lines(file, getattr(args, "as_line", json_line if style is None else partial(streams.draw, style, total != 1)))


def _answer_all(
    answers: Answers,
    groups: Groups,
    sink: Lines,
    bar: dict[str, Any],
    drawings: Drawings | None = None,
    may_be_none: bool = False,
) -> tuple[int, int]:
    """Answer every input that is not answered already, in order: how many there were, and how many of them failed."""
    from tqdm import tqdm

    inputs = skipped = sink.begin()
    failed = 0
    with tqdm(initial=inputs, leave=False, delay=BAR_DELAY, **bar) as progress:
        for group in groups:
            done, rest, skipped = group[:skipped], group[skipped:], max(skipped - len(group), 0)
            found = answers([item.value for item in rest if not isinstance(item.value, TranseptError)])
            pairs = [(item, item.value if isinstance(item.value, TranseptError) else next(found)) for item in rest]
            sink.write(pairs)
            if drawings is not None:
                drawings.write(done, pairs)
            wrong = [(item, answer) for item, answer in pairs if isinstance(answer, TranseptError)]
            for item, error in wrong[: max(MOST_REPORTED - failed, 0)]:
                complain(f"{'' if error.path == item.where else f'{item.where}: '}{explained(error)}")
            if failed <= MOST_REPORTED < failed + len(wrong):
                complain("more inputs fail, which the answers tell of.")
            failed += len(wrong)
            inputs += len(pairs)
            progress.update(len(pairs))
    if not inputs and not may_be_none:
        raise InputError("there are no inputs.", hint="Pass some as arguments, in files or on standard input.")
    sink.end()
    if failed and inputs > 1:
        complain(f"{failed} of {inputs} inputs could not be answered.")
    return inputs, failed


def passage_scores(args: argparse.Namespace) -> Answers:
    """What scores passages by the arguments of ``rerank``: a model that reads them with the query, or the cosine of vectors."""
    kinds = [] if args.model is None else arguments.load_config(args).architectures or []
    ask: Callable[[Any], Any]
    score: Callable[[Any], float]
    if any(name.endswith("ForSequenceClassification") for name in kinds):
        pipe = make_pipeline("text-ranking", args)
        ask, score = (lambda text: {"query": args.query, "passages": [text]}), (lambda found: found[0]["score"])
    else:
        pipe = make_pipeline("text-embedding", args, normalize=True)
        prompts = pipe.head.prompts
        query = pipe(args.query, **({"prompt_name": "query"} if "query" in prompts else {}))
        if (name := next((name for name in PASSAGE_PROMPTS if name in prompts), None)) is not None:
            pipe.options = pipe.with_options({"prompt_name": name})
        ask, score = (lambda text: text), (lambda vector: float(vector @ query))
    return lambda texts: (
        found if isinstance(found, TranseptError) else score(found)
        for found in pipe.answers([ask(text) for text in texts], pipe.options)
    )
