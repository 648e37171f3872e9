"""``transept rerank``: passages sorted by how well they answer a query."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from transept.cli.arguments import Parser, add_model, add_output, check_model, make_pipeline, positive
from transept.cli.draw import Style, bar, shorten, table
from transept.cli.inputs import FORMATS, STANDARD, Item, asks, check_content, check_there, count_inputs, from_files
from transept.cli.messages import complain
from transept.cli.outputs import JsonLines, encode, replacing
from transept.cli.work import Tally, report_failure, shown
from transept.errors import InputError, TranseptError

Scorer = Callable[[list[str]], Sequence[float]]
# What checkpoints call the prompt for what is searched.
PASSAGE_PROMPTS = ("document", "passage", "corpus")


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "rerank",
        help="sort passages by how well they answer a query",
        description=(
            "Sort passages, one a line, by how well they answer a query. A cross-encoder (a sequence classifier) reads query "
            "and passage together; any other model gives vectors, which are compared by their cosine."
        ),
        examples=[
            'transept rerank --query "capital of France" passages.txt',
            'transept rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 --query "..." --top-k 5 passages.txt',
            'cat passages.txt | transept rerank --query "..." --json',
        ],
    )
    lines = "passages, one a line; .jsonl holds JSON; - is standard input"
    parser.add_argument("files", nargs="*", default=[], metavar="FILE", help=lines)
    parser.add_argument("--query", required=True, metavar="TEXT", help="what the passages should answer")
    parser.add_argument("--top-k", type=positive, metavar="N", help="how many passages to show (all)")
    add_model(parser, "all-MiniLM-L6-v2")
    parser.add_argument("--format", choices=FORMATS, help="how lines are read (by the file's name)")
    parser.add_argument("--output", metavar="PATH", help="write the passages there, one JSON object a line")
    add_output(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Rank what was asked for; the exit code."""
    files = args.files or [STANDARD]
    if asks(files):
        complain("reading from the terminal, one passage a line; Ctrl-D ends.", "note")
    check_model(args.model)
    check_there(files)
    check_content(files, media=False)
    total = count_inputs(files, media=False)
    if args.output is None:
        tally, found = ranked(args, files, total)
        _show(found, drawn=sys.stdout.isatty() and not args.json)
        return tally.code
    with replacing(args.output) as file:
        tally, found = ranked(args, files, total)
        JsonLines(file).lines(map(encode, found))
    tally.report(args.output, as_json=args.json)
    return tally.code


def ranked(args: argparse.Namespace, files: list[str], total: int | None) -> tuple[Tally, list[dict[str, Any]]]:
    """The best passages as ``{"rank", "score", "index", "text"}``; ``index`` counts the passages as they came, from 0."""
    score, found, failed, count = scorer(args), [], 0, 0
    for group in shown(from_files(files, args.format, media=False), "rerank", total, bar=True):
        texts = []
        for index, item in enumerate(group, count):
            if (error := _problem(item)) is None:
                texts.append((index, item.value))
            else:
                failed += 1
                report_failure(item, error, failed)
        scores = score([text for _, text in texts]) if texts else []
        found += [{"score": float(s), "index": index, "text": text} for s, (index, text) in zip(scores, texts, strict=True)]
        count += len(group)
    if not count:
        raise InputError("there are no passages.", hint="Pass files that hold some, one a line.")
    found.sort(key=lambda passage: -passage["score"])
    return Tally(count, failed), [{"rank": rank, **passage} for rank, passage in enumerate(found[: args.top_k], 1)]


def _problem(item: Item) -> TranseptError | None:
    if isinstance(item.value, str | TranseptError):
        return item.value if isinstance(item.value, TranseptError) else None
    return InputError(f"a passage must be text, but is {encode(item.value)[:60]}.")


def scorer(args: argparse.Namespace) -> Scorer:
    """What scores passages: a model that reads them together with the query, or the cosine of vectors."""
    if args.model is not None and is_cross_encoder(args):
        ranker = make_pipeline("text-ranking", args, sort=False)
        return lambda texts: [each["score"] for each in ranker({"query": args.query, "passages": texts})]
    embedder = make_pipeline("text-embedding", args, normalize=True)
    prompts = embedder.head.prompts
    name = next((name for name in PASSAGE_PROMPTS if name in prompts), None)
    query = embedder(args.query, **({"prompt_name": "query"} if "query" in prompts else {}))
    asked = {} if name is None else {"prompt_name": name}
    return lambda texts: (embedder(texts, progress=False, **asked) @ query).tolist()


def is_cross_encoder(args: argparse.Namespace) -> bool:
    """Whether the checkpoint was saved from a sequence classifier."""
    from transept.core.auto import AutoConfig

    given = {"revision": args.revision} if args.revision is not None else {}
    architectures = AutoConfig.from_pretrained(args.model, **given).architectures or []
    return any(name.endswith("ForSequenceClassification") for name in architectures)


def _show(found: list[dict[str, Any]], *, drawn: bool) -> None:
    if not drawn:
        JsonLines().lines(map(encode, found))
        return
    style = Style(sys.stdout)
    fractions = all(0 <= passage["score"] <= 1 for passage in found)
    width = max(20, style.width - (34 if fractions else 16))
    for line in table(
        (
            [
                style.dim(str(passage["rank"])),
                f"{passage['score']:.4f}",
                *([style.blue(bar(passage["score"], 16))] if fractions else []),
                shorten(passage["text"], width),
            ]
            for passage in found
        ),
        right=(0, 1),
    ):
        print(line)
