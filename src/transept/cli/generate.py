"""``transept generate``: a model writes on from a text, as you watch."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from transept.cli.arguments import Parser, add_model, add_output, check_model, make_pipeline, positive
from transept.cli.draw import Style
from transept.cli.inputs import asks
from transept.cli.messages import complain

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "generate",
        help="write on from a text",
        description=(
            "Write on from a text, shown as it is written. The most likely token is taken at each step, or one is drawn where "
            "a setting of the drawing or a seed is given."
        ),
        examples=[
            'transept generate --model PATH "Once upon a time"',
            'transept generate --model PATH "Once upon a time" --max-new-tokens 200 --temperature 0.8 --seed 1',
            'echo "Once upon a time" | transept generate --model PATH --json',
        ],
    )
    parser.add_argument("prompt", nargs="?", metavar="TEXT", help="what to go on from (standard input)")
    add_settings(parser)
    add_output(parser)
    parser.set_defaults(main=lambda args: main(args, parser))


def add_settings(parser: Parser) -> None:
    """Which model, how long, and how tokens are chosen."""
    add_model(parser, "none")
    parser.add_argument("--max-new-tokens", type=positive, metavar="N", help="tokens to write at most (256)")
    parser.add_argument("--temperature", type=float, metavar="X", help="draw tokens, flatter above 1 and sharper below")
    parser.add_argument("--top-k", type=positive, metavar="N", help="draw among the N most likely tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw among the tokens that make up this share")
    parser.add_argument("--min-p", type=float, metavar="X", help="draw among tokens at least this share as likely as the first")
    parser.add_argument("--seed", type=int, metavar="N", help="draw tokens, the same ones each time")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop behind this text; may be repeated")


def settings(args: argparse.Namespace, pipe: Any) -> dict[str, Any]:
    """The arguments as settings of generation."""
    from transept.pipelines.generation import DEFAULT_NEW_TOKENS

    chosen: dict[str, Any] = dict(pipe.options.generation)
    chosen |= {name: value for name in SAMPLING if (value := getattr(args, name, None)) is not None}
    if args.seed is not None or any(name in chosen for name in SAMPLING):
        chosen.setdefault("do_sample", True)
    if args.stop:
        chosen["stop_strings"] = args.stop
    length = args.max_new_tokens or chosen.get("max_new_tokens") or pipe.model.generation_config.max_new_tokens
    return chosen | {"max_new_tokens": length or DEFAULT_NEW_TOKENS, "seed": args.seed, "tokenizer": pipe.tokenizer}


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Write; the exit code."""
    if args.model is None:
        parser.error("pass --model PATH")
    check_model(args.model)
    if args.prompt is None and asks(["-"]):
        complain("reading the text from the terminal; Ctrl-D ends.", "note")
    prompt = sys.stdin.read().rstrip("\n") if args.prompt is None else args.prompt
    pipe = make_pipeline("text-generation", args)
    sample = pipe.row(prompt)
    chosen = settings(args, pipe)
    pieces = pipe.model.stream(pipe.tensor(sample.inputs["input_ids"]), **chosen)
    if args.json:
        found = list(pieces)
        stats = found[-1].stats
        answer = {"prompt": prompt, "text": "".join(piece.text for piece in found), "finish_reason": found[-1].finish_reason}
        speed = {"new_tokens": stats.new_tokens, "tokens_per_second": round(stats.tokens_per_second, 2)}
        print(
            json.dumps(answer | speed | {"seconds_to_first_token": round(stats.seconds_to_first_token, 4)}, ensure_ascii=False)
        )
        return 0
    style = Style(sys.stdout)
    print(style.dim(prompt), end="", flush=True)
    stats = None
    for piece in pieces:
        print(piece.text, end="", flush=True)
        stats = piece.stats
    print()
    if stats is not None and sys.stderr.isatty():
        complain(told(stats), "note")
    return 0


def told(stats: Any) -> str:
    """How fast it went, in words."""
    first = f"the first after {stats.seconds_to_first_token:.2f} s"
    return f"{stats.new_tokens} tokens, {first}, then {stats.tokens_per_second:.1f} a second."
