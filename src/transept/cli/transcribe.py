"""``transept transcribe``: sounds to text, subtitles and JSON, piece by piece as they are written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transept.cli import arguments
from transept.cli.arguments import Parser, make_pipeline
from transept.cli.terminal import complain, explained
from transept.errors import FileError, InputTypeError, TranseptError
from transept.files import dump_json, write_file

Piece = Mapping[str, Any]


def transcribe(parser: Parser) -> None:
    """Write down what is said in sounds.

    The text is written to standard output piece by piece, as soon as it is known, and files hold it with its times. For several
    sounds, --srt, --vtt and --json name folders, in which the files have the names of the sounds. A sound that fails is told on
    standard error, the others are transcribed, and the exit code is 1.

        transept transcribe talk.mp3 --model openai/whisper-tiny
        transept transcribe talk.mp3 --model PATH --language fr --translate
        transept transcribe talk.mp3 --model PATH --word-times --srt talk.srt --json talk.json
    """
    parser.task = "automatic-speech-recognition"
    parser.add_argument("files", nargs="+", metavar="FILE", help="sounds")
    arguments.add_model(parser)
    parser.add_argument("--language", metavar="NAME", help="that is spoken, such as fr or french (found by listening)")
    parser.add_argument("--translate", action="store_true", help="write in English, whatever language is spoken")
    parser.add_argument("--word-times", action="store_true", help="give each word its times, and not each piece")
    parser.add_argument("--num-beams", type=arguments.positive, metavar="N", help="beams of the search; 1 is the fastest (5)")
    for name, told in (("srt", "subtitles (SubRip)"), ("vtt", "subtitles (WebVTT)"), ("json", "text, pieces and their times")):
        parser.add_argument(f"--{name}", metavar="PATH", help=f"write {told} there")
    parser.add_argument("--debug", action="store_true", help="show where errors come from")
    parser.set_defaults(main=lambda args: main(args, parser))


def main(args: argparse.Namespace, parser: Parser) -> int:
    targets = {form: path for form in FORMS if (path := getattr(args, form)) is not None}
    for form, path in targets.items():
        if len(args.files) > 1 and not os.path.isdir(path):
            parser.error(f"--{form} must be a folder that is there for several sounds, but is {path!r}")
    stems = [Path(path).stem for path in args.files]
    if targets and (twice := next((stem for stem in stems if stems.count(stem) > 1), None)) is not None:
        parser.error(f"two sounds have the name {twice!r}, so that the files of one would replace those of the other")
    for path in args.files:
        if not os.path.exists(path):
            raise FileError("there is no such file.", path=path or "''")
    arguments.check_model(args.model)
    settings = {"language": args.language, "task": "translate" if args.translate else None, "num_beams": args.num_beams}
    settings = {name: value for name, value in settings.items() if value is not None}
    times = "word" if args.word_times else True
    pipe = make_pipeline(parser.task or "", args, return_timestamps=times, generate_kwargs=settings)
    if not callable(getattr(pipe, "stream", None)):
        hint = "Use transept run automatic-speech-recognition."
        raise InputTypeError(f"{type(pipe.model).__name__} does not write text with times.", hint=hint)
    failed = 0
    for path in args.files:
        if len(args.files) > 1:
            print(f"{path}:", flush=True)
        try:
            _write(path, _heard(pipe, path), targets)
        except TranseptError as error:
            failed += 1
            complain(f"{path}: {explained(error)}")
    return 1 if failed else 0


def _heard(pipe: Any, path: str) -> list[Piece]:
    """The pieces of a sound, each shown as soon as it is written; how far it is, is a bar in seconds of sound."""
    from tqdm import tqdm

    pieces: list[Piece] = []
    shown = sys.stderr.isatty()
    form = "{desc}: {percentage:3.0f}% {bar} {n:.0f}/{total:.0f} s of sound, {elapsed} of work"
    with tqdm(desc=os.path.basename(path), total=0.0, bar_format=form, leave=False, disable=not shown) as bar:

        def progress(done: float, total: float) -> None:
            bar.total = total
            bar.update(done - bar.n)

        for piece in pipe.stream(path, progress):
            pieces.append(piece)
            if text := piece["text"].strip():
                bar.clear()
                print(text, flush=True)
    return pieces


def _write(path: str, pieces: Sequence[Piece], targets: Mapping[str, str]) -> None:
    for form, target in targets.items():
        place = Path(target, f"{Path(path).stem}.{form}") if os.path.isdir(target) else Path(target)
        if place.exists() and place.samefile(path):
            raise FileError("is the sound itself.", path=place, hint=f"Write --{form} elsewhere.")
        write_file(place, FORMS[form](pieces))


def entries(pieces: Sequence[Piece]) -> list[Piece]:
    """What gets a time of its own: words where they have times, else pieces; those without text are left out."""
    found = [part for piece in pieces for part in piece.get("words", [piece])]
    return [part for part in found if part["text"].strip()]


def clock(seconds: float, mark: str) -> str:
    """``00:01:02,500``, with a mark before the thousandths."""
    whole = round(max(seconds, 0) * 1000)
    return f"{whole // 3600000:02d}:{whole // 60000 % 60:02d}:{whole // 1000 % 60:02d}{mark}{whole % 1000:03d}"


def _cues(pieces: Sequence[Piece], mark: str) -> list[str]:
    spans = [(part["timestamp"], " ".join(part["text"].split())) for part in entries(pieces)]
    return [f"{clock(start, mark)} --> {clock(end, mark)}\n{text}\n" for (start, end), text in spans]


def srt(pieces: Sequence[Piece]) -> str:
    """Subtitles of SubRip."""
    return "\n".join(f"{number}\n{cue}" for number, cue in enumerate(_cues(pieces, ","), 1))


def vtt(pieces: Sequence[Piece]) -> str:
    """Subtitles of the web (W3C WebVTT)."""
    cues = [cue.replace("&", "&amp;").replace("<", "&lt;") for cue in _cues(pieces, ".")]
    return "\n".join(["WEBVTT\n", *cues])


def as_json(pieces: Sequence[Piece]) -> str:
    """The text and its pieces."""
    return dump_json({"text": "".join(piece["text"] for piece in pieces), "chunks": list(pieces)})


FORMS: dict[str, Callable[[Sequence[Piece]], str]] = {"srt": srt, "vtt": vtt, "json": as_json}
