"""Work on many inputs: which they are, the model's answers to them, and where these go."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from transept.batch.answers import ENDINGS, Pairs, Ranking, Rows, Vectors, ranked, row_of
from transept.batch.encode import cleaned, encode
from transept.batch.inputs import STANDARD, Inputs, Item
from transept.batch.output_file import Note, OutputFile, of_inputs, of_model
from transept.cli.arguments import Parser
from transept.cli.pictures import Drawings
from transept.cli.terminal import Style, answer_lines, as_text, complain, explained, shorten
from transept.errors import FileError, InputError, TranseptError
from transept.tables.text import CSV, GROUP, JSON, PARQUET, TSV, kind_of

MOST_REPORTED = 20
# Inputs of files that are answered together: texts, and what takes longer, such as pictures and texts that are written.
PIECE, LONG_PIECE = 512, 32
FIRST_PIECE, PIECE_SECONDS = 16, 15.0  # those of standard input: few at first, and fewer where they take long
BAR_DELAY = 0.5  # seconds, so that quick work shows none
# From inputs to their answers, with errors in the places of those that fail.
Answers = Callable[[list[Any]], Iterator[Any]]
Ask = Callable[[], tuple[Answers, int]]  # loads the model; gives its answers, and the size of those that are vectors
# Arguments that change no answer, or that inputs and model stand for.
_SILENT = {"inputs", "files", "prompt", "model", "revision", "option", "output", "resume", "draw", "json", "debug", "words"}
_SILENT |= {
    "device",
    "batch_size",
    "shard",
    "check",
    "part_size",
    "in_parts",
    "verb",
    "name",
    "srt",
    "vtt",
    "max_seconds",
    "engine",
}


def check_files(
    args: argparse.Namespace,
    parser: Parser,
    endings: tuple[str, ...] = ENDINGS,
    *,
    resumable: bool = False,
    in_parts: bool = False,
) -> None:
    """Refuse arguments about files that do not go together, before anything slow begins."""
    if args.output is not None and not in_parts and not args.output.lower().endswith(endings):
        parser.error(f"--output must end in {', '.join(endings[:-1])} or {endings[-1]}, but is {args.output!r}")
    if args.resume and args.output is None and not resumable:
        parser.error("--resume needs --output")
    for path in args.files:
        if path != STANDARD and not os.path.exists(path):
            raise FileError("there is no such file.", path=path or "''")
    tables = {JSON, CSV, TSV, PARQUET}
    folders = any(map(os.path.isdir, args.files))
    if args.glob is not None and not folders:
        parser.error("--glob chooses files of folders, and there is no folder")
    of_tables = args.column or args.id or getattr(args, "keep", None)
    if of_tables and not (folders or args.format in tables or tables & {*map(kind_of, args.files)}):
        parser.error("--column and --id are for tables, and there is none")
    if STANDARD in args.files and sys.stdin is not None and sys.stdin.isatty():
        complain("reading from the terminal; Ctrl-D ends.", "note")


def tell_skipped(inputs: Inputs) -> None:
    """Say what of folders is no input."""
    if count := len(inputs.skipped):
        what = "1 file is no input and is" if count == 1 else f"{count} files are no inputs and are"
        complain(f"{what} skipped, such as {inputs.skipped[0]}.", "note")


def total_of(inputs: Inputs, *, needed: bool = False) -> int | None:
    """How many inputs there are, where somebody looks or it is needed, and it is known."""
    return inputs.count() if needed or sys.stderr.isatty() or sys.stdout.isatty() else None


def about(args: argparse.Namespace, inputs: Inputs, default_model: str | None = None, *, times: bool = False) -> dict[str, Any]:
    """What answers are made of, for their note; ``times`` as of :func:`of_inputs`."""
    kinds = (str, int, float, bool, list)
    options = {n: v for n, v in vars(args).items() if n not in _SILENT and isinstance(v, kinds) and v not in (False, [])}
    model = _about_model(args.model or default_model or "", dict(args.option) | {"revision": args.revision})
    options = {"command": args.verb} | options | dict(args.option)
    return {"inputs": of_inputs(inputs, times=times), "model": model, "options": options}


def _about_model(name: str, options: dict[str, Any]) -> dict[str, Any]:
    from transept.pipelines.components import EMBEDDING_MODEL, locate
    from transept.pipelines.heads import head_directory
    from transept.storage.source import take_source_options

    source = locate(name if head_directory(name) is None else EMBEDDING_MODEL, take_source_options(options))
    if source.directory is not None:
        known = os.path.basename(os.path.abspath(name)) if os.path.isdir(name) else name
        return {"model": known, "files": of_model(source.directory)}
    source.find("config.json")  # which says of what commit the cached files are
    return {"model": name, "commit": source.commit}


class Work:
    """Inputs on their way to answers, into ``--output`` or to standard output.

    Args:
        args: the command's arguments; ``name`` is what answers are called.
        inputs, groups, total: all inputs; those that are worked on; how many these are, where that is known.
        default_model: of the task.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        inputs: Inputs,
        groups: Iterable[list[Item]],
        total: int | None,
        default_model: str | None = None,
    ) -> None:
        self.args, self.groups, self.total = args, groups, total
        self.resume: bool = args.resume
        self.note = None if args.output is None else Note(args.output, about(args, inputs, default_model))

    def done(self) -> int | None:
        """The exit code where the output is whole already, which is told; else ``None``."""
        if self.note is None or not self.resume or (found := self.note.whole()) is None:
            return None
        return self.tell(*found)

    def run(self, ask: Ask, drawings: Drawings | None = None) -> int:
        """Answer all inputs; gives the exit code.

        Args:
            ask: loads the model; gives what answers a list of inputs, and the size of an answer that is a vector.
            drawings: where pictures of answers go.
        """
        shows_bar = self.args.output is not None or not sys.stdout.isatty() or self.args.name == "score"
        name = getattr(self.args, "task", None) or self.args.verb
        bar = {"total": self.total, "desc": name, "disable": not (shows_bar and sys.stderr.isatty())}
        inputs, failed = answer_into(self.args, self.args.output, ask, self._inputs(), bar, note=self.note, drawings=drawings)
        if failed and inputs > 1:
            complain(f"{failed} of {inputs} inputs could not be answered.")
        return self.tell(inputs, failed)

    def _inputs(self) -> Iterator[list[Item]]:
        found = False
        for group in self.groups:
            found = found or bool(group)
            yield group
        if not found:
            raise InputError("there are no inputs.", hint="Pass some as arguments, in files or on standard input.")

    def tell(self, inputs: int, failed: int) -> int:
        """Say what a file of answers holds now; gives the exit code."""
        if (output := self.args.output) is not None:
            missed = f", {failed} failed" if failed else ""
            counts = {"output": output, "inputs": inputs, "failed": failed}
            print(json.dumps(counts) if self.args.json else f"{output}: {inputs - failed} answered{missed}")
        return 1 if failed else 0


def answer_into(
    args: argparse.Namespace,
    path: str | None,
    ask: Ask,
    groups: Iterable[list[Item]],
    bar: dict[str, Any],
    *,
    note: Note | None = None,
    check: Callable[[], object] = bool,
    drawings: Drawings | None = None,
    **rows: Any,
) -> tuple[int, int]:
    """Answer inputs into a file, or to standard output; gives how many there are, and how many of them failed.

    Args:
        args: the command's arguments; ``name`` is what answers are called.
        ask, drawings: as of :meth:`Work.run`.
        note: of a file of all inputs. That of a part has none, and goes on from what there is.
        check: called before anything is written, and raises where that may not be.
        rows: options of :class:`Rows`.
    """
    with ExitStack() as stack:
        files = [] if path is None else [stack.enter_context(file) for file in _files(args, path, note)]
        answers, size = ask()
        rows["piece"] = piece = 0 if path is None or STANDARD in args.files else piece_of(args)
        if not files:
            sink: Any = shown(args, alone=bar["total"] == 1)
        elif len(files) == 2:
            sink = Vectors(files[0], files[1], size, store=args.store, **rows)
        else:
            is_ranked = args.name == "score" and note is not None
            sink = Ranking(files[0], args.top_k, **rows) if is_ranked else Rows(files[0], args.name, **rows)

        def checked(values: list[Any]) -> Iterator[Any]:
            found = list(answers(values))
            check()
            return iter(found)

        inputs = answer_all(checked, pieces(groups, piece) if piece else in_time(groups), sink, bar, drawings)
        sink.end()
        check()
    return inputs, sink.failed


def _files(args: argparse.Namespace, path: str, note: Note | None) -> Iterator[OutputFile]:
    """The file of the answers, and that of an array's index, which takes its place first."""
    paths = [path]
    if args.name == "embedding" and path.lower().endswith((".npy", ".parquet")):
        paths.append(index := f"{os.path.splitext(path)[0]}.index.jsonl")
        if note is not None and args.resume and os.path.isfile(index) and not os.path.exists(f"{index}.partial"):
            os.replace(index, f"{index}.partial")  # the process was killed between the two
    resume = args.resume if note is not None else all(os.path.isfile(f"{each}.partial") for each in paths)
    yield OutputFile(path, note=note, resume=resume, told=str if note is None else partial(complain, kind="note"))
    for each in paths[1:]:
        yield OutputFile(each, resume=resume)


def piece_of(args: argparse.Namespace) -> int:
    """How many inputs of files are answered together: always as many, so that who goes on gives the same answers."""
    from transept.pipelines import task_class
    from transept.pipelines.tasks.generation import WritingPipeline
    from transept.pipelines.text import TextPipeline

    kind = task_class(getattr(args, "task", "text-generation"))
    return PIECE if issubclass(kind, TextPipeline) and not issubclass(kind, WritingPipeline) else LONG_PIECE


def pieces(groups: Iterable[list[Item]], size: int) -> Iterator[list[Item]]:
    """Groups of always as many inputs."""
    gathered = list[Item]()
    for group in groups:
        gathered += group
        while len(gathered) >= size:
            yield gathered[:size]
            gathered = gathered[size:]
    if gathered:
        yield gathered


class Shown:
    """Answers on standard output: rows of JSON, or lines for a ``style``, below their inputs unless there is one ``alone``."""

    def __init__(self, name: str, style: Style | None, *, alone: bool) -> None:
        self.name, self.style, self.alone = name, style, alone
        self.failed = 0

    def begin(self) -> int:
        return 0

    def write(self, pairs: Pairs) -> None:
        self.failed += sum(isinstance(answer, TranseptError) for _, answer in pairs)
        print("".join(self.text(item, answer) for item, answer in pairs), end="", flush=True)

    def text(self, item: Item, answer: Any) -> str:
        if self.style is None:
            return f"{encode(row_of(item, self.name, answer))}\n"
        if isinstance(answer, TranseptError):  # which stands on standard error
            return ""
        lines = answer_lines(answer, self.style)
        if not self.alone:
            lines = [self.style(shorten(as_text(item.value), self.style.width), "bold"), *(f"  {line}" for line in lines)]
        return "".join(f"{line}\n" for line in lines)

    def end(self) -> None:
        pass


class ShownRanking(Shown):
    """Passages by their scores, the best first, when all are scored: as rows, or in a table for a ``style``."""

    def __init__(self, top_k: int | None, style: Style | None) -> None:
        super().__init__("score", style, alone=False)
        self.top_k = top_k
        self.rows: list[Mapping[str, Any]] = []

    def write(self, pairs: Pairs) -> None:
        self.failed += sum(isinstance(answer, TranseptError) for _, answer in pairs)
        self.rows += [row_of(item, self.name, answer) for item, answer in pairs]

    def end(self) -> None:
        scored = [(row["score"], index) for index, row in enumerate(self.rows) if "score" in row]
        best = sorted(scored, key=lambda passage: -passage[0])[: self.top_k]
        rows = [ranked(rank, index, self.rows[index]) for rank, (_, index) in enumerate(best, 1)]
        print("\n".join(map(encode, rows) if self.style is None else answer_lines(rows, self.style)), flush=True)


def shown(args: argparse.Namespace, *, alone: bool) -> Shown:
    """Where answers go that are shown: in rows of JSON, or for people."""
    style = Style(sys.stdout) if sys.stdout.isatty() and not args.json else None
    return ShownRanking(args.top_k, style) if args.name == "score" else Shown(args.name, style, alone=alone)


def answer_all(
    answers: Answers, groups: Iterable[list[Item]], sink: Any, bar: dict[str, Any], drawings: Drawings | None
) -> int:
    """Answer every input that is not answered already, in order; gives how many there are."""
    from tqdm import tqdm

    skipped = sink.begin()
    inputs = shown = 0
    with tqdm(initial=skipped, leave=False, delay=BAR_DELAY, **bar) as progress:
        for group in groups:
            done, rest = group[:skipped], group[skipped:]
            inputs += len(group)
            if done:
                sink.check(done)
                skipped -= len(done)
                if drawings is not None:
                    drawings.skip(done)
            if not rest:
                continue
            found = answers([item.value for item in rest if not isinstance(item.value, TranseptError)])
            pairs = [(item, item.value if isinstance(item.value, TranseptError) else next(found)) for item in rest]
            sink.write(pairs)
            if drawings is not None:
                drawings.write(pairs)
            wrong = [(item, answer) for item, answer in pairs if isinstance(answer, TranseptError)]
            for item, error in wrong[: max(MOST_REPORTED - shown, 0)]:
                complain_of(item.where, error)
            if shown <= MOST_REPORTED < shown + len(wrong):
                complain("more inputs fail, which the answers tell of.")
            shown += len(wrong)
            progress.update(len(pairs))
    if skipped:
        what = f"there are {inputs} inputs, but {inputs + skipped} are answered already."
        raise InputError(what, hint="Leave out --resume to begin anew.")
    return inputs


def in_time(groups: Iterable[list[Item]]) -> Iterator[list[Item]]:
    """Groups in pieces of which each is worked on for some seconds: what is answered is shown behind each of them."""
    size = FIRST_PIECE
    for group in groups:
        while group:
            start = time.monotonic()
            yield group[:size]
            group, slow = group[size:], time.monotonic() - start > PIECE_SECONDS
            size = max(size // 2, 1) if slow else min(2 * size, GROUP)


def complain_of(where: str, error: TranseptError) -> None:
    """Say what is wrong with an input, and where that is, once."""
    message = explained(error)
    complain(message if message.startswith(cleaned(where)) else f"{where}: {message}")
