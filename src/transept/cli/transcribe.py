"""``transept transcribe``: sounds to text, subtitles and JSON, piece by piece as they are written."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from transept.batch.answers import Rows
from transept.batch.encode import encode, plain
from transept.batch.inputs import Inputs, Item, Reading
from transept.batch.output_file import Note, OutputFile, of_files
from transept.cli import arguments
from transept.cli.arguments import SOUND_COLUMNS, Parser, make_pipeline
from transept.cli.pictures import source_of
from transept.cli.terminal import complain
from transept.cli.work import about, check_files, complain_of, tell_skipped
from transept.errors import FileError, InputError, InputTypeError, TranseptError
from transept.storage.files import dump_json, parse_json, write_file
from transept.tables.text import SOUNDS

Piece = Mapping[str, Any]
DONE = object()
TEN_HOURS = 36000
_SOUND = ".sound"  # behind the name of a table: the sound at hand, which may last long


def transcribe(parser: Parser) -> None:
    """Write down what is said in sounds.

    The text is written to standard output piece by piece, as soon as it is known, and files hold it with its times. For several
    sounds, --srt, --vtt and --json name folders, in which the files have the names of the sounds; --output is one table of all.
    Sounds are files, folders of them, and tables or lists (.txt) of their paths. A sound that fails is told on standard error,
    the others are transcribed, and the exit code is 1.

        transept transcribe talk.mp3 --model openai/whisper-tiny
        transept transcribe talk.mp3 --model PATH --language fr --translate
        transept transcribe talk.mp3 --model PATH --word-times --srt talk.srt --json talk.json
        transept transcribe meetings --glob "**/*.flac" --model PATH --srt subtitles --resume
        transept transcribe calls.csv --column recording --model PATH --output transcripts.jsonl
    """
    parser.task = "automatic-speech-recognition"
    parser.add_argument("files", nargs="+", metavar="FILE", help="sounds, folders, tables or lists")
    arguments.add_model(parser)
    parser.add_argument("--language", metavar="NAME", help="that is spoken, such as fr or french (found by listening)")
    parser.add_argument("--translate", action="store_true", help="write in English, whatever language is spoken")
    parser.add_argument("--word-times", action="store_true", help="give each word its times, and not each piece")
    parser.add_argument("--num-beams", type=arguments.positive, metavar="N", help="beams of the search; 1 is the fastest (5)")
    told = f"refuse sounds that last longer ({TEN_HOURS}, ten hours)"
    parser.add_argument("--max-seconds", type=arguments.positive, default=TEN_HOURS, metavar="N", help=told)
    for name, told in (("srt", "subtitles (SubRip)"), ("vtt", "subtitles (WebVTT)"), ("json", "text, pieces and their times")):
        parser.add_argument(f"--{name}", metavar="PATH", help=f"write {told} there")
    arguments.add_inputs(parser)
    parser.add_argument("--output", metavar="PATH", help="write the transcripts there: .jsonl, .csv or .parquet")
    parser.add_argument("--debug", action="store_true", help="show where errors come from")
    parser.set_defaults(main=lambda args: main(args, parser), verb="transcribe", name="answer")


def main(args: argparse.Namespace, parser: Parser) -> int:
    targets = {form: path for form in FORMS if (path := getattr(args, form)) is not None}
    if args.resume and not targets and args.output is None:
        parser.error("--resume needs a file to go on with: --output, --srt, --vtt or --json")
    check_files(args, parser, resumable=True)
    arguments.check_model(args.model)
    inputs = Inputs(args.files, Reading(args.format, SOUND_COLUMNS, args.column, args.id, args.glob, SOUNDS))
    tell_skipped(inputs)
    items = [item for group in inputs.groups() for item in group]
    if not items:
        raise InputError("there are no sounds.", hint="Pass files or folders that hold some.")
    places = _places(items, targets, parser)
    return Transcripts(args, about(args, inputs), list(zip(items, places, strict=True))).run()


def _places(items: Sequence[Item], targets: Mapping[str, str], parser: Parser) -> list[dict[str, Path]]:
    """Where the transcripts of each sound go, by their forms; no two go to one place."""
    for form, path in targets.items():
        if len(items) > 1 and not os.path.isdir(path):
            parser.error(f"--{form} must be a folder that is there for several sounds, but is {path!r}")
        if not os.path.isdir(folder := os.path.dirname(path) or os.curdir):
            raise FileError(f"the directory {folder!r} is not there.", path=path, hint="Make it first.")
    stems = [Path(source_of(item) or f"sound-{number}").stem for number, item in enumerate(items, 1)]
    if targets and (twice := next((stem for stem, count in Counter(stems).items() if count > 1), None)) is not None:
        parser.error(f"two sounds have the name {twice!r}, so that the files of one would replace those of the other")
    return [
        {form: Path(path, f"{stem}.{form}") if os.path.isdir(path) else Path(path) for form, path in targets.items()}
        for stem in stems
    ]


class Transcripts:
    """Sounds on their way to transcripts.

    Args:
        args: the command's arguments.
        made_of: what the transcripts are made of, for their notes.
        sounds: each with the places of its transcript, by their forms.
    """

    def __init__(
        self, args: argparse.Namespace, made_of: dict[str, Any], sounds: Sequence[tuple[Item, dict[str, Path]]]
    ) -> None:
        self.args, self.made_of, self.sounds = args, made_of, sounds
        self.told = partial(complain, kind="note")
        self.pipe: Any = None

    def run(self) -> int:
        """Transcribe all sounds; gives the exit code."""
        output, resume = self.args.output, self.args.resume
        note = None if output is None else Note(output, self.made_of)
        if note is not None and resume and (whole := note.whole()) is not None:
            return self._tell(*whole)
        if os.path.isfile(f"{output}{_SOUND}.partial") and not os.path.isfile(f"{output}.partial"):
            resume = False  # the first sound was interrupted, which has a note of its own
        with nullcontext() if note is None else OutputFile(output, note=note, resume=resume, told=self.told) as file:
            table = None if file is None else Rows(file)
            answered = 0 if table is None else table.begin()
            if table is not None:
                table.check([item for item, _ in self.sounds[:answered]])
            failed = (0 if table is None else table.failed) + self._transcribe(self.sounds[answered:], table)
            if table is not None:
                table.end()
        return self._tell(len(self.sounds), failed)

    def _tell(self, sounds: int, failed: int) -> int:
        if self.args.output is not None:
            self.told(f"{self.args.output}: {sounds - failed} answered{f', {failed} failed' if failed else ''}")
        return 1 if failed else 0

    def _transcribe(self, sounds: Sequence[tuple[Item, dict[str, Path]]], table: Rows | None) -> int:
        """Transcribe sounds, and give how many failed; those that are done already cost nothing."""
        known = [self._known(item, places) for item, places in sounds]
        if done := sum(answer is DONE for answer in known):
            self.told(f"{done} of {len(sounds)} sounds are done already and are left as they are.")
        if None in known:
            self.pipe = load(self.args)
        failed = 0
        for (item, places), answer in zip(sounds, known):
            if answer is None:
                answer = self._transcript(item, places)
            if isinstance(answer, TranseptError):
                failed += 1
                complain_of(source_of(item) or item.where, answer)
            if table is not None:
                table.write([(item, answer)])
        return failed

    def _note(self, item: Item, places: Mapping[str, Path]) -> Note | None:
        """The note of one sound: beside the first file of its transcript, or beside the table while the sound is worked on."""
        output = next((str(place) for place in places.values()), self.args.output and f"{self.args.output}{_SOUND}")
        return None if output is None else Note(output, self.made_of | {"inputs": of_sound(item)})

    def _known(self, item: Item, places: Mapping[str, Path]) -> Any:
        """What is known of a sound before it is heard: that it is ``DONE``, or what is wrong with it; else ``None``."""
        source, note = source_of(item), self._note(item, places)
        try:
            if isinstance(item.value, TranseptError):
                raise item.value
            for form, place in places.items():
                if source is not None and place.exists() and os.path.exists(source) and place.samefile(source):
                    raise FileError("is the sound itself.", path=place, hint=f"Write --{form} elsewhere.")
            if note is not None and self.args.resume and places and (os.path.exists(note.output) or note.path.exists()):
                note.check()
                if self.args.output is None and note.is_whole() and all(place.exists() for place in places.values()):
                    return DONE
        except TranseptError as error:
            return error
        return None

    def _transcript(self, item: Item, places: Mapping[str, Path]) -> Any:
        """The transcript of a sound, which is written to its places, or the error."""
        if len(self.sounds) > 1:
            print(f"{plain(source_of(item) or item.where)}:", flush=True)
        try:
            if (note := self._note(item, places)) is None:
                return transcript(self._heard(item, None))
            resume = self.args.resume and os.path.isfile(f"{note.output}.partial")
            with OutputFile(note.output, note=note, resume=resume, told=self.told, noun="pieces") as file:
                pieces = self._heard(item, file)
                for form, place in list(places.items())[1:]:
                    write_file(place, FORMS[form](pieces))
                file.kept = bool(places)
                if places:
                    with file.rewritten() as whole:
                        whole.write(FORMS[next(iter(places))](pieces).encode())
            return transcript(pieces)
        except TranseptError as error:
            return error

    def _heard(self, item: Item, log: OutputFile | None) -> list[Piece]:
        """The pieces of a sound, each shown as soon as it is written; how far it is, is a bar in seconds of sound."""
        from tqdm import tqdm

        pieces, start = ([], 0.0) if log is None else _kept(log)
        name = os.path.basename(source_of(item) or item.where)
        form = "{desc}: {percentage:3.0f}% {bar} {n:.0f}/{total:.0f} s of sound, {elapsed} of work"
        with tqdm(desc=name, total=0.0, bar_format=form, leave=False, disable=not sys.stderr.isatty()) as bar:

            def progress(done: float, total: float) -> None:
                if done < start:  # it had to begin anew
                    pieces.clear()
                if log is not None:
                    if done < start:
                        log.keep(0, 0)
                    log.write(f"{encode({'done': done})}\n".encode())
                bar.total = total
                bar.update(done - bar.n)

            for piece in self.pipe.stream(item.value, progress, start=start, **self._options()):
                pieces.append(piece)
                if log is not None:
                    log.write(f"{encode({'piece': piece})}\n".encode(), 1)
                if text := piece["text"].strip():
                    bar.clear()
                    print(text, flush=True)
        return pieces

    def _options(self) -> dict[str, Any]:
        args = self.args
        settings = {"language": args.language, "task": "translate" if args.translate else None, "num_beams": args.num_beams}
        settings = {name: value for name, value in settings.items() if value is not None}
        known = self.pipe.options.generate_kwargs
        times = "word" if args.word_times else True
        return {"return_timestamps": times, "generate_kwargs": {**known, **settings}, "max_seconds": args.max_seconds}


def load(args: argparse.Namespace) -> Any:
    pipe = make_pipeline("automatic-speech-recognition", args)
    if not getattr(pipe, "in_windows", False):
        hint = "Use transept run automatic-speech-recognition."
        raise InputTypeError(f"{type(pipe.model).__name__} does not write text with times.", hint=hint)
    return pipe


def _kept(log: OutputFile) -> tuple[list[Piece], float]:
    """The pieces of an interrupted transcript that are of whole windows, and the seconds of sound that these are."""
    pieces, some, done, size = list[Piece](), list[Piece](), 0.0, 0
    log.file.seek(0)
    while (line := log.file.readline()).endswith(b"\n"):
        found = parse_json(line.decode("utf-8"), path=log.partial)
        if "piece" in found:
            some.append(found["piece"])
        else:
            pieces, done, size = pieces + some, found["done"], log.file.tell()
            some = []
    log.keep(len(pieces), size)
    return pieces, done


def of_sound(item: Item) -> list[dict[str, Any]]:
    """What a sound is, for the note of its transcript."""
    source = source_of(item)
    if source is None or not os.path.isfile(source):
        return [{"name": item.where}]
    return [{"name": os.path.basename(source), "sha256": of_files([(os.path.basename(source), source)])}]


def transcript(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The text and its pieces."""
    return {"text": "".join(piece["text"] for piece in pieces), "chunks": list(pieces)}


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
    return dump_json(transcript(pieces))


FORMS: dict[str, Callable[[Sequence[Piece]], str]] = {"srt": srt, "vtt": vtt, "json": as_json}
