"""The command's entry. Errors are one line on stderr; ``--debug`` shows where they come from.

Exit codes: 0 all went well, 1 something could not be done, 2 the command was mistyped, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from transept.cli.arguments import Parser
from transept.cli.chat import chat
from transept.cli.convert import convert
from transept.cli.generate import generate
from transept.cli.models import list, ps, pull, rm, stop
from transept.cli.reports import doctor, inspect
from transept.cli.run import as_model, embed, rerank, run
from transept.cli.serve import serve
from transept.cli.terminal import complain, explained
from transept.cli.train import eval, resume, train
from transept.cli.transcribe import transcribe
from transept.errors import TranseptWarning
from transept.tables.text import ENDINGS, IMAGES, SOUNDS

VERBS = (
    *(run, transcribe, embed, rerank, generate, chat),
    *(serve, ps, stop, list, pull, rm),
    *(train, resume, eval, convert, inspect, doctor),
)
TOLD = """Transformer models from the command line.

Each verb has a help of its own: `transept VERB --help`. What to begin with depends on what you have.

    a new installation           transept doctor
    a text                       transept run sentiment-analysis "I love this"
    texts, one a line            transept embed texts.txt --output vectors.npy
    a CSV file                   transept run sentiment-analysis --file reviews.csv --column review --output answers.csv
    a CSV file with labels       transept train text-classification --data reviews.csv --text review --label stars
    a folder of photographs      transept run image-classification --file photos --model PATH --output classes.csv
    one photograph               transept run object-detection photo.jpg --model PATH --draw boxes.png
    recordings                   transept transcribe talk.mp3 --model PATH --srt talk.srt
    a model's folder             transept inspect PATH; transept chat PATH
    a .gguf file                 transept chat FILE.gguf
    a model that is too large    transept convert PATH model.gguf --to gguf:q4_k_m
    clients of a server          transept serve PATH
    a model of the hub           transept pull REPOSITORY; transept run REPOSITORY "A text"
    models that were fetched     transept list
    no model yet                 transept chat
"""
# What can be done with a file that was given in the place of a verb, by its ending.
_TABLES = "`transept run TASK --file {0} --column NAME` answers its rows, and `transept train TASK --data {0}` learns from them"
_PICTURES = "`transept run TASK {0} --model PATH --draw found.png` shows what a model sees in it"
_SOUNDS = "`transept transcribe {0} --model PATH` writes down what is said in it"
_TEXTS = "`transept embed {0} --output vectors.npy` turns its lines into vectors"
_GGUF = "`transept chat {0}` talks with the model, and `transept inspect {0}` examines it"
_FOLDER = "`transept run TASK --file {0} --model PATH` answers the files in it, and `transept inspect {0}` examines a model"
ADVICE = ((".gguf", _GGUF), *((ending, _TABLES) for ending in ENDINGS if ending != ".txt"), (".txt", _TEXTS))
ADVICE += (*((ending, _PICTURES) for ending in IMAGES), *((ending, _SOUNDS) for ending in SOUNDS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own; gives the exit code."""
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    _prepare_streams(debug)
    try:
        code = _run(arguments, debug)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # whoever reads has seen enough
        code = 0
    except Exception as error:
        if debug:
            from traceback import print_exc

            print_exc()
        _settle()
        complain(explained(error))
        code = 1
    _settle()
    return code


def _run(arguments: Sequence[str] | None, debug: bool) -> int:
    try:
        words = as_model([*(sys.argv[1:] if arguments is None else arguments)])
        command = parser()
        if words and os.path.exists(words[0]) and words[0] not in (verb.__name__ for verb in VERBS):
            command.error(_advice(words[0]))
        args = command.parse_args(words)
        args.words = words
        with warnings.catch_warnings():
            warnings.simplefilter("default" if debug else "ignore")  # those of others are for programmers
            warnings.simplefilter("always", TranseptWarning)
            warnings.showwarning = lambda message, *more, **others: complain(str(message), "warning")
            return int(args.main(args))
    except SystemExit as stop:  # argparse, after help or a mistyped command
        return stop.code if isinstance(stop.code, int) else 2


def _advice(path: str) -> str:
    """What can be done with a file or a folder that stands where a verb should."""
    if os.path.isdir(path):
        return f"{path!r} is a folder and no verb: {_FOLDER.format(path)}"
    known = (advice for ending, advice in ADVICE if path.lower().endswith(ending))
    return f"{path!r} is a file and no verb: {next(known, _TEXTS).format(path)}"


def _prepare_streams(debug: bool) -> None:
    """Closed streams lead nowhere; what is no terminal gets UTF-8, as JSON is, and nothing from other libraries."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open to the end)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=False)  # under PYTHONUNBUFFERED argparse drops errors of writing, a flush does not
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not debug:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its own account of what we tell in one line


def parser() -> Parser:
    """The command's arguments, verb by verb."""
    from transept import __version__

    command = Parser(prog="transept", told=TOLD)
    command.add_argument("--version", action="version", version=f"transept {__version__}")
    command.set_defaults(main=lambda args: command.exit(2, command.format_help()))
    verbs = command.add_subparsers(metavar="VERB", title="verbs")
    for add in VERBS:
        told = add.__doc__ or ""
        add(verbs.add_parser(add.__name__, told=told, help=told.partition(".")[0].lower()))
    return command


def _settle() -> None:
    """Write what standard output still holds, or drop it where that cannot be, as on a full disk."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # no real file, so that there is nothing to flush at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
