"""``transept generate``: a model writes on from a text, as you watch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transept.cli.arguments import Parser, add_model, add_output, check_model, load_config, make_pipeline, positive
from transept.cli.inputs import read_all
from transept.cli.tasks import widen_by
from transept.cli.terminal import Style, complain
from transept.errors import InputTypeError

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def generate(parser: Parser) -> None:
    """Write on from a text.

    The text is shown as it is written. The most likely token is taken at each step, or one is drawn where a setting of the
    drawing or a seed is given. Other settings of generation, such as --num-beams 4, are those of
    `transept run text-generation --help`.

        transept generate --model PATH "Once upon a time"
        transept generate --model PATH "Once upon a time" --max-new-tokens 200 --temperature 0.8 --seed 1
        echo "Once upon a time" | transept generate --model PATH --json
    """
    parser.add_argument("prompt", nargs="?", metavar="TEXT", help="what to go on from (standard input)")
    add_settings(parser)
    parser.set_defaults(main=lambda args: main(args, parser))


def add_settings(parser: Parser) -> None:
    """Which model, how long, and how tokens are chosen."""
    parser.widen = widen_by("text-generation")
    add_model(parser, "none")
    parser.add_argument("--max-new-tokens", type=positive, metavar="N", help="tokens to write at most (256)")
    parser.add_argument("--temperature", type=float, metavar="X", help="draw tokens, flatter above 1 and sharper below")
    parser.add_argument("--top-k", type=positive, metavar="N", help="draw among the N most likely tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw among the tokens that make up this share")
    parser.add_argument("--min-p", type=float, metavar="X", help="draw among tokens at least this share as likely as the first")
    parser.add_argument("--seed", type=int, metavar="N", help="draw tokens, the same ones each time")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop behind this text; may be repeated")
    add_output(parser)


def load_writer(args: argparse.Namespace, parser: Parser) -> tuple[Any, dict[str, Any]]:
    """The pipeline that writes, and its settings of generation.

    Raises:
        InputTypeError: the model makes texts of other texts, and does not go on from them.
    """
    if args.model is None:
        parser.error("pass --model PATH")
    check_model(args.model)
    if load_config(args).is_encoder_decoder:
        hint = f"Use it so: transept run text2text-generation --model {args.model} TEXT."
        raise InputTypeError("this model is an encoder–decoder, which answers a text and does not go on from it.", hint=hint)
    pipe = make_pipeline("text-generation", args)
    from transept.pipelines.generation import DEFAULT_NEW_TOKENS

    chosen: dict[str, Any] = dict(pipe.options.generation)
    chosen |= {name: value for name in SAMPLING if (value := getattr(args, name, None)) is not None}
    if args.seed is not None or any(name in chosen for name in SAMPLING):
        chosen.setdefault("do_sample", True)
    if args.stop:
        chosen["stop_strings"] = args.stop
    length = args.max_new_tokens or chosen.get("max_new_tokens") or pipe.model.generation_config.max_new_tokens
    return pipe, chosen | {"max_new_tokens": length or DEFAULT_NEW_TOKENS, "seed": args.seed, "tokenizer": pipe.tokenizer}


@dataclass
class Written:
    """What a model has written: ``stopped`` by Ctrl-C, or to the end, whose reason is told then."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    stats: Any = None
    finish_reason: str | None = None
    stopped: bool = False


def write(pipe: Any, ids: list[int], settings: dict[str, Any], show: Callable[[str], Any]) -> Written:
    """Write on from ids, and show each piece of text as it comes, until the end or Ctrl-C."""
    from transept.generation.outputs import Stats

    written, start = Written(), time.perf_counter()
    first = 0.0
    try:
        for piece in pipe.model.stream(pipe.tensor(ids), **settings):
            first = first or time.perf_counter() - start
            written.ids += piece.ids
            written.text += piece.text
            written.stats, written.finish_reason = piece.stats, piece.finish_reason
            show(piece.text)
    except KeyboardInterrupt:
        written.stopped = True
        written.stats = Stats(len(ids), len(written.ids), first, time.perf_counter() - start)
    return written


def told(stats: Any) -> str:
    """How fast it went, in words."""
    first = f"the first after {stats.seconds_to_first_token:.2f} s"
    match stats.new_tokens:
        case 0:
            return "no token was written."
        case 1:
            return f"1 token, {first}."
        case number:
            return f"{number} tokens, {first}, then {stats.tokens_per_second:.1f} a second."


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Write; the exit code."""
    if args.prompt is None and sys.stdin is not None and sys.stdin.isatty() and args.model is not None:
        complain("reading the text from the terminal; Ctrl-D ends.", "note")
    prompt = args.prompt if args.prompt is not None or args.model is None else read_all().rstrip("\n")
    pipe, settings = load_writer(args, parser)
    ids = pipe.row(prompt).inputs["input_ids"]
    if args.json:
        found = write(pipe, ids, settings, lambda text: None)
        answer = {"prompt": prompt, "text": found.text, "finish_reason": found.finish_reason}
        speed = {"new_tokens": found.stats.new_tokens, "tokens_per_second": round(found.stats.tokens_per_second, 2)}
        speed |= {"seconds_to_first_token": round(found.stats.seconds_to_first_token, 4)}
        print(json.dumps(answer | speed, ensure_ascii=False))
    else:
        lead = iter([Style(sys.stdout)(prompt, "dim")])  # stands before the first piece, and before no error
        found = write(pipe, ids, settings, lambda text: print(next(lead, "") + text, end="", flush=True))
        print(next(lead, ""))
        if sys.stderr.isatty():
            complain(f"{'stopped: ' if found.stopped else ''}{told(found.stats)}", "note")
    return 130 if found.stopped else 0
