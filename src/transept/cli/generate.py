"""``transept generate``: a model writes on from a text as you watch, or from many."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from transept.batch.inputs import Inputs, Reading, read_all
from transept.cli import arguments
from transept.cli.parts import PartWork, add_parts, is_in_parts, kept
from transept.cli.terminal import Style, complain, harmless
from transept.cli.work import Answers, Work, check_files, tell_skipped, total_of
from transept.errors import InputTypeError, TranseptError

Show = Callable[[Any], Any]  # what gets each piece of a text
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def generate(parser: arguments.Parser) -> None:
    """Write on from a text.

    The text is shown as it is written. The most likely token is taken at each step, or one is drawn where a setting of the
    drawing or a seed is given. Other settings of generation, such as --num-beams 4, are those of
    `transept run text-generation --help`. The prompts of --file are texts, one a line, or the column `prompt`, `text` or
    `messages` of a table; what is written after each of them goes into a row.

        transept generate --model PATH "Once upon a time"
        transept generate --model PATH "Once upon a time" --max-new-tokens 200 --temperature 0.8 --seed 1
        transept generate --model PATH --file prompts.csv --column question --output answers.csv
        echo "Once upon a time" | transept generate --model PATH --json
    """
    parser.add_argument("prompt", nargs="?", metavar="TEXT", help="what to go on from (standard input)")
    told = "prompts: files of texts, one a line, tables, or folders; - is standard input"
    parser.add_argument("--file", dest="files", action="extend", default=[], nargs="+", metavar="PATH", help=told)
    add_settings(parser)
    arguments.add_inputs(parser)
    parser.add_argument("--output", metavar="PATH", help="write the answers there: .jsonl, .csv or .parquet; or a directory")
    add_parts(parser)
    parser.set_defaults(main=lambda args: main(args, parser), verb="generate", name="answer")


def add_settings(parser: arguments.Parser, length: str = "256") -> None:
    parser.task = "text-generation"
    arguments.add_model(parser)
    parser.add_argument("--max-new-tokens", type=arguments.positive, metavar="N", help=f"tokens to write at most ({length})")
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="draw tokens, flatter above 1 and sharper below; 0 draws none"
    )
    parser.add_argument("--top-k", type=arguments.positive, metavar="N", help="draw among the N most likely tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw among the tokens that make up this share")
    parser.add_argument("--min-p", type=float, metavar="X", help="draw among tokens at least this share as likely as the first")
    parser.add_argument("--seed", type=int, metavar="N", help="draw tokens, the same ones each time")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop behind this text; may be repeated")
    arguments.add_output(parser)


def load_writer(args: argparse.Namespace, task: str = "text-generation", most: int | None = None) -> tuple[Any, dict[str, Any]]:
    """The pipeline that the arguments ask for, and settings of generation; ``most`` new tokens where nothing says how many."""
    arguments.check_model(args.model)
    if arguments.load_config(args).is_encoder_decoder:
        hint = f"Use it so: transept run text2text-generation --model {args.model} TEXT."
        raise InputTypeError("this model is an encoder–decoder, which answers a text and does not go on from it.", hint=hint)
    pipe = arguments.make_pipeline(task, args)
    from transept.pipelines.tasks.generation import DEFAULT_NEW_TOKENS

    given = {name: value for name in SAMPLING if (value := getattr(args, name, None)) is not None}
    chosen: dict[str, Any] = dict(pipe.options.generation) | given
    if chosen.get("temperature") == 0:  # as elsewhere
        del chosen["temperature"]
        chosen["do_sample"] = False
    elif args.seed is not None or any(name in chosen for name in SAMPLING):
        chosen.setdefault("do_sample", True)
    if args.stop:
        chosen["stop_strings"] = args.stop
    length = args.max_new_tokens or chosen.get("max_new_tokens") or pipe.model.generation_config.max_new_tokens
    length = length or most or DEFAULT_NEW_TOKENS
    return pipe, chosen | {"max_new_tokens": length, "seed": args.seed, "tokenizer": pipe.tokenizer}


@dataclass(frozen=True)
class Written:
    """What was written and how fast it went.

    ``reason`` says why it ended: ``"stop"``, ``"length"``, or by Ctrl-C ``None``, which leaves it not ``whole`` where it broke
    a step off.
    """

    text: str
    ids: list[int]
    stats: Any
    reason: str | None
    whole: bool


def visible(piece: Any) -> str:
    """The text of a piece for standard output: on a terminal a character that was cut is left out, and all is harmless."""
    if not sys.stdout.isatty():
        return str(piece.text)
    return harmless(piece.text.rstrip("\N{REPLACEMENT CHARACTER}") if piece.finish_reason == "length" else piece.text)


def write(pipe: Any, batch: dict[str, Any], settings: dict[str, Any], show: Show | None) -> Written:
    """Write on from a batch of one, and show each piece as it comes, until the end or Ctrl-C.

    The first Ctrl-C behind the first token lets the step end, so that a cache can be used again; another one breaks it off.
    """
    from transept.generation.outputs import Stats

    pieces, asked, whole = list[Any](), list[int](), False
    first, start = 0.0, time.perf_counter()

    def ask(number: int, frame: Any) -> None:
        if asked or not pieces:
            signal.default_int_handler(number, frame)
        asked.append(number)

    with suppress(KeyboardInterrupt), _interrupts(ask):
        stream = pipe.model.stream(**batch, **settings)
        for piece in stream:
            first = first or time.perf_counter() - start
            pieces.append(piece)
            if show is not None:
                show(piece)
            if asked:
                stream.close()
                break
        whole = True
    new = [token for piece in pieces for token in piece.ids]
    stats = Stats(int(batch["input_ids"].shape[1]), len(new), first, time.perf_counter() - start)
    reason = pieces[-1].finish_reason if pieces else None
    return Written("".join(piece.text for piece in pieces), new, stats, reason, whole)


@contextmanager
def _interrupts(ask: Callable[[int, Any], Any]) -> Iterator[None]:
    """Meanwhile Ctrl-C calls ``ask``; only the main thread hears of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def describe_speed(stats: Any) -> str:
    """How fast it went, in words."""
    if not stats.new_tokens:
        return "no token was written."
    more = f", then {stats.tokens_per_second:.1f} a second" if stats.new_tokens > 1 else ""
    return f"{stats.new_tokens} token{'s' if more else ''}, the first after {stats.seconds_to_first_token:.2f} s{more}."


def main(args: argparse.Namespace, parser: arguments.Parser) -> int:
    if args.prompt is not None and args.files:
        parser.error("pass a prompt as an argument or prompts in files, not both")
    args.in_parts = is_in_parts(args, parser)
    check_files(args, parser, in_parts=args.in_parts)
    arguments.check_model(args.model)
    return write_many(args) if args.files or args.output is not None else write_on(args)


def write_many(args: argparse.Namespace) -> int:
    """Write on from the prompts of files, many side by side."""
    prompts = [] if args.files else [_prompt(args)]
    columns = arguments.COLUMNS["text-generation"]
    reading = Reading(args.format, columns, args.column, args.id, args.glob, keep=kept(args))
    inputs = Inputs(args.files, reading, prompts, lenient=args.in_parts)
    tell_skipped(inputs)
    if args.in_parts:
        return PartWork(args, inputs).run(lambda: (_writer(args), 0))
    work = Work(args, inputs, inputs.groups(), total_of(inputs))
    return work.run(lambda: (_writer(args), 0)) if (code := work.done()) is None else code


def _writer(args: argparse.Namespace) -> Answers:
    """What goes on from prompts: the text alone, or a list of such for several."""
    pipe, settings = load_writer(args)
    options = pipe.with_options({n: v for n, v in settings.items() if n != "tokenizer"} | {"return_full_text": False})

    def answers(prompts: list[Any]) -> Iterator[Any]:
        for found in pipe.answers(prompts, options):
            texts = [] if isinstance(found, TranseptError) else [{"text": each["generated_text"]} for each in found]
            yield texts[0] if len(texts) == 1 else texts or found

    return answers


def _prompt(args: argparse.Namespace) -> str:
    return read_all().rstrip("\n") if args.prompt is None else str(args.prompt)


def write_on(args: argparse.Namespace) -> int:
    prompt = _prompt(args)
    pipe, settings = load_writer(args)
    lead = iter([Style(sys.stdout)(prompt, "dim")])  # stands before the first piece, and before no error
    show = None if args.json else lambda piece: print(next(lead, "") + visible(piece), end="", flush=True)
    made = write(pipe, {"input_ids": pipe.tensor(pipe.row(prompt).inputs["input_ids"])}, settings, show)
    stats = made.stats
    if args.json:
        answer = {"prompt": prompt, "text": made.text, "finish_reason": made.reason, "new_tokens": stats.new_tokens}
        answer["tokens_per_second"] = round(stats.tokens_per_second, 2)
        answer["seconds_to_first_token"] = round(stats.seconds_to_first_token, 4)
        print(json.dumps(answer, ensure_ascii=False))
    else:
        print(next(lead, ""))
        if sys.stderr.isatty():
            complain(f"{'stopped: ' if made.reason is None else ''}{describe_speed(stats)}", "note")
    return 130 if made.reason is None else 0
