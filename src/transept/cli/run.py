"""``transept run``, and ``embed`` and ``rerank``, which are it with other defaults: inputs through a model to answers."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from transept.batch.answers import ENDINGS
from transept.batch.inputs import STANDARD, Inputs, Item, Reading
from transept.cli import arguments
from transept.cli.arguments import IMAGE_COLUMNS, SOUND_COLUMNS, Parser, make_pipeline
from transept.cli.parts import PartWork, add_parts, is_in_parts, kept
from transept.cli.pictures import Drawings, fault
from transept.cli.terminal import complain
from transept.cli.work import Answers, Work, check_files, tell_skipped, total_of
from transept.errors import InputError, TranseptError, refuse
from transept.tables.text import IMAGES, JSON, SOUNDS

# What checkpoints call the prompt for what is searched.
PASSAGE_PROMPTS = ("document", "passage", "corpus")
# The endings of files that are embedded whole, by the task that does it; and what is read of the rows of tables.
MEDIA = {"image-embedding": IMAGES, "audio-embedding": SOUNDS}
NOUNS = {"image": (IMAGES, IMAGE_COLUMNS), "sound": (SOUNDS, SOUND_COLUMNS)}
VECTORS = (".npy", *ENDINGS)
HALF_LIMIT = 65504.0  # the largest number of float16


def as_model(words: list[str]) -> list[str]:
    """``run MODEL`` as what it stands for: a chat, or ``run`` with the task that the model is for; other words as they are.

    Raises:
        InputError: what the model is for cannot be told.
        FileError, FormatError: there is no such model, or its config cannot be read.
    """
    if words[:1] != ["run"] or words[1:2] in ([], ["-"]) or words[1].startswith("--") or words[1] in arguments.tasks():
        return words
    from transept.cli.chat.models import find
    from transept.cli.models import task_of

    name, rest = words[1], words[2:]
    if (path := find(name)) == name and not os.path.exists(name) and "/" not in name:
        return words  # a task that is mistyped
    task = task_of(path)
    refuse(task is None, f"what the model {name!r} is for cannot be told.", "Name a task: transept run TASK --model MODEL.")
    if task == "image-text-to-text" or (task == "text-generation" and not {"--file", "--output"} & {*rest}):
        return ["chat", path, *rest]
    return ["generate", "--model", path, *rest] if task == "text-generation" else ["run", str(task), "--model", path, *rest]


def run(parser: Parser) -> None:
    """Answer texts, pictures or sounds by a task, or by a model.

    A model in the place of the task does what it is for: one that writes chats, or answers the text behind it.

    Answers come in the order of the inputs: drawn on a terminal, elsewhere in rows of JSON that hold the input and its answer.
    An input that fails leaves an error in its place, and the exit code is 1. Files of inputs are .txt, a text a line; .jsonl,
    .csv, .tsv and .parquet, whose other columns stay with the answers; pictures and sounds; and folders of them.

        transept run text-classification --model PATH "I love this"
        transept run text-classification --model PATH --file reviews.csv --column review --output answers.csv
        cat texts.txt | transept run token-classification --model PATH --aggregation-strategy simple
        transept run image-classification --model PATH cat.jpg dog.jpg --top-k 1
        transept run image-classification --model PATH --file photos --glob "**/*.jpg" --output answers.parquet
        transept run object-detection --model PATH cat.jpg --draw boxes.png
        transept run automatic-speech-recognition --model PATH talk.flac --chunk-length-s 20
        transept run question-answering --model PATH --question "Who came?" "Ada came."
        transept run PATH "A text"
    """
    parser.task = ""
    parser.add_argument("task", type=arguments.known_task, metavar="TASK", help="its name, such as text-classification")
    parser.add_argument("inputs", nargs="*", default=[], metavar="INPUT", help="texts, or paths of pictures and sounds")
    told = "files of texts, one a line, tables, media files, or folders; - is standard input"
    parser.add_argument("--file", dest="files", action="extend", default=[], nargs="+", metavar="PATH", help=told)
    drawn = "draw the answers over their images: into a file for one input, else into a folder"
    parser.add_argument("--draw", metavar="PATH", help=drawn)
    _add_rest(parser, "write the answers there: .jsonl, .csv or .parquet", ENDINGS, name="answer")


def embed(parser: Parser) -> None:
    """Turn texts, pictures or sounds into vectors.

    Texts stand one a line, or in a column of a table (.jsonl, .csv, .tsv, .parquet); files with the ending of a picture or of a
    sound, and directories of such, are one input each. A .npy file holds float32 vectors (inputs, size), with NaN in the rows
    of inputs that failed, and an index beside it what they belong to; other files, and standard output, hold both in a row.
    Options of the task are those of `transept run text-embedding --help`, or of image-embedding and audio-embedding.

        transept embed texts.txt --output vectors.npy
        transept embed articles.csv --column body --output vectors.parquet
        transept embed texts.txt --output vectors.jsonl --model sentence-transformers/all-mpnet-base-v2
        transept embed photos/*.jpg --model CLIP --output vectors.npy
        transept embed big/*.parquet --column body --keep id,title --shard 3/16 --output vectors/
        echo 'A cat sleeps.' | transept embed
    """
    parser.task = "text-embedding"
    told = "the type of the numbers in .npy and .parquet files and in directories (float32)"
    parser.add_argument("--store", choices=("float32", "float16"), help=told)
    _add_rest(parser, "where to: .npy, .jsonl, .csv or .parquet", VECTORS, "texts", name="embedding", task=parser.task)
    parser.set_defaults(choose=_choose_embedding)


def _choose_embedding(args: argparse.Namespace, parser: Parser) -> None:
    """Let the files tell which task embeds them; those of two kinds are refused."""
    found = {task: path for path in args.files for task in (_media_task(path),)}
    if len(found) > 1:
        parser.error(f"files are of one kind at a time, but there are {' and '.join(map(repr, found.values()))}")
    if (task := next(iter(found), None)) is not None:
        args.task = task


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

    Passages stand one a line, or in a column of a table (.jsonl, .csv, .tsv, .parquet). A cross-encoder (a sequence classifier)
    reads query and passage together; any other model gives vectors, which are compared by their cosine.

        transept rerank --query "capital of France" passages.txt
        transept rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 --query "..." --top-k 5 passages.txt
        transept rerank --query "..." articles.csv --column body --output ranked.csv
        cat passages.txt | transept rerank --query "..." --json
    """
    parser.add_argument("--query", required=True, metavar="TEXT", help="what the passages should answer")
    parser.add_argument("--top-k", type=arguments.positive, metavar="N", help="how many passages to show (all)")
    told = "write the passages there: .jsonl, .csv or .parquet"
    _add_rest(parser, told, ENDINGS, "passages", name="score", task="text-ranking")


def _add_rest(parser: Parser, output: str, endings: tuple[str, ...], noun: str | None = None, **defaults: Any) -> None:
    """Files of inputs of one kind, if only these are read; which model; and the file for answers, with one of the endings."""
    if noun is not None:
        told = f"{noun}, one a line; tables; folders; - is standard input"
        parser.add_argument("files", nargs="*", default=[], metavar="FILE", help=told)
        parser.set_defaults(inputs=[])
    arguments.add_model(parser, "the task's own, where it has one" if noun is None else "all-MiniLM-L6-v2")
    arguments.add_inputs(parser)
    parser.add_argument("--output", metavar="PATH", help=f"{output}; or a directory, for answers in parts")
    add_parts(parser)
    arguments.add_output(parser)
    verb = parser.prog.split()[-1]
    parser.set_defaults(main=lambda args: main(args, parser, endings), verb=verb, **defaults)


def _check(args: argparse.Namespace, parser: Parser, endings: tuple[str, ...]) -> None:
    """Complete the arguments, and refuse those that do not go together before anything slow begins."""
    if "choose" in args:
        args.choose(args, parser)
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
    args.in_parts = is_in_parts(args, parser, endings)
    check_files(args, parser, endings, in_parts=args.in_parts)
    if getattr(args, "store", None) and not args.in_parts and not str(args.output).lower().endswith((".npy", ".parquet")):
        parser.error("--store needs --output, a .npy or .parquet file or a directory")


def main(args: argparse.Namespace, parser: Parser, endings: tuple[str, ...]) -> int:
    _check(args, parser, endings)
    kind, reading, other = _reading(args, parser)
    inputs = Inputs(args.files, reading, args.inputs, lenient=args.in_parts)
    tell_skipped(inputs)
    paired = (lambda item: item) if other is None else partial(_paired, name=other, fields=args.fields)
    if args.in_parts:
        parts = PartWork(args, inputs, kind.default_model, paired)
        _introduce(args, kind.default_model)
        return parts.run(partial(_ask, args))
    draw = getattr(args, "draw", None)
    groups = ([paired(item) for item in group] for group in inputs.groups())
    total = total_of(inputs, needed=draw is not None)
    work = Work(args, inputs, groups, total, kind.default_model)
    if (code := work.done()) is not None:
        return code
    drawings = _drawings(args, parser, total) if draw is not None else None
    _introduce(args, kind.default_model)
    return work.run(partial(_ask, args), drawings)


def _ask(args: argparse.Namespace) -> tuple[Answers, int]:
    """Load the model; gives what answers inputs, and the size of a vector."""
    if args.name == "score":
        return passage_scores(args), 0
    pipe = make_pipeline(args.task, args)
    # The pipeline's call would unwrap the answer to a list of one for some tasks.
    answers = partial(pipe.answers, options=pipe.options)
    return partial(_halves, answers) if getattr(args, "store", None) == "float16" else answers, getattr(pipe, "size", 0)


def _halves(answers: Answers, values: list[Any]) -> Iterator[Any]:
    """Vectors, or errors of those with numbers that float16 has not."""
    for answer in answers(values):
        is_large = not isinstance(answer, TranseptError) and float(abs(answer).max()) > HALF_LIMIT
        yield (
            InputError("its vector has a number that is too large for float16.", hint="Leave --store out.")
            if is_large
            else answer
        )


def _introduce(args: argparse.Namespace, default_model: str | None) -> None:
    """Say what the default model of a task has learned from, where it is one of the library's own."""
    from transept.pipelines.heads import summary

    if args.model is None and (told := summary(default_model or "")):
        complain(f"{default_model}: {told}", "note")


def _reading(args: argparse.Namespace, parser: Parser) -> tuple[Any, Reading, str | None]:
    """The task's class, how its inputs are read, and the part of them that is each input where the other is an option."""
    from transept.pipelines import task_class
    from transept.pipelines.media import MediaPipeline

    kind = task_class("text-embedding" if args.name == "score" else args.task)
    other = next((name for name in arguments.FIELDS.get(args.task, ()) if name not in args.fields), None)
    other = other if args.fields else None
    noun: str | None = getattr(kind, "noun", None) if issubclass(kind, MediaPipeline) else None
    noun = noun if other is None else "image" if other == "image" else None
    if args.model is None and kind.default_model is None:
        parser.error(f"the task {args.task!r} has no default model: pass --model PATH")
    for value in () if other == "table" else filter(os.path.isdir if noun else os.path.isfile, args.inputs):
        told = f"{value!r} is taken as one {'file' if noun else 'text'}; --file {value} reads what is in it."
        complain(told, "warning")
    endings, columns = NOUNS.get(noun or "", (None, ("text",)))
    if other is not None:
        columns = (other, *(columns if noun else ()))
    elif args.name != "score":
        columns = arguments.COLUMNS.get(args.task, columns)
    return kind, Reading(args.format, columns, args.column, args.id, args.glob, endings, kept(args)), other


def _paired(item: Item, name: str, fields: dict[str, str]) -> Item:
    value = item.value if isinstance(item.value, dict) else {name: item.value}
    return item if isinstance(item.value, TranseptError) else replace(item, value=fields | value)


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
