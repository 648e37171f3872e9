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
FIRST_PIECE, PIECE_SECONDS = 16, 15.0  # inputs that are answered together: few at first, and fewer where they take long
BAR_DELAY = 0.5  # seconds, so that quick work shows none
# From inputs to their answers, with errors in the places of those that fail.
Answers = Callable[[list[Any]], Iterator[Any]]
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

    def run(self, ask: Callable[[], tuple[Answers, int]], drawings: Drawings | None = None) -> int:
        """Answer all inputs; gives the exit code.

        Args:
            ask: loads the model; gives what answers a list of inputs, and the size of an answer that is a vector.
            drawings: where pictures of answers go.
        """
        shows_bar = self.args.output is not None or not sys.stdout.isatty() or self.args.name == "score"
        with ExitStack() as stack:
            files = [stack.enter_context(file) for file in self._files()]
            answers, size = ask()
            name = getattr(self.args, "task", None) or self.args.verb
            bar = {"total": self.total, "desc": name, "disable": not (shows_bar and sys.stderr.isatty())}
            sink = self._sink(files, size)
            inputs = answer_all(answers, in_time(self.groups), sink, bar, drawings)
            if not inputs:
                raise InputError("there are no inputs.", hint="Pass some as arguments, in files or on standard input.")
            sink.end()
        if sink.failed and inputs > 1:
            complain(f"{sink.failed} of {inputs} inputs could not be answered.")
        return self.tell(inputs, sink.failed)

    def _files(self) -> Iterator[OutputFile]:
        """The file of the answers, and that of an array's index, which takes its place first."""
        output = self.args.output
        if output is None:
            return
        yield OutputFile(output, note=self.note, resume=self.resume, told=partial(complain, kind="note"))
        if self.args.name == "embedding" and output.lower().endswith((".npy", ".parquet")):
            index = f"{os.path.splitext(output)[0]}.index.jsonl"
            if self.resume and os.path.isfile(index) and not os.path.exists(f"{index}.partial"):
                os.replace(index, f"{index}.partial")  # the process was killed between the two
            yield OutputFile(index, resume=self.resume)

    def _sink(self, files: list[OutputFile], size: int) -> Any:
        name, top_k = self.args.name, getattr(self.args, "top_k", None)
        style = Style(sys.stdout) if not files and sys.stdout.isatty() and not self.args.json else None
        if name == "score":
            return Ranking(files[0], top_k) if files else ShownRanking(top_k, style)
        if len(files) == 2:
            return Vectors(files[0], files[1], size, store=self.args.store)
        return Rows(files[0], name) if files else Shown(name, style, alone=self.total == 1)

    def tell(self, inputs: int, failed: int) -> int:
        """Say what a file of answers holds now; gives the exit code."""
        if (output := self.args.output) is not None:
            missed = f", {failed} failed" if failed else ""
            counts = {"output": output, "inputs": inputs, "failed": failed}
            print(json.dumps(counts) if self.args.json else f"{output}: {inputs - failed} answered{missed}")
        return 1 if failed else 0


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
    """Groups in pieces of which each is worked on for some seconds: what is answered is written behind each of them."""
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
