"""``transept list``, ``pull`` and ``rm``: models in the cache of the hub. ``ps`` and ``stop``: those of a server."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transept.cli import arguments
from transept.cli.arguments import Parser
from transept.cli.terminal import Style, complain, shorten, table
from transept.environment.units import size
from transept.errors import FileError, InputError, TranseptError, refuse
from transept.storage import cache
from transept.storage.files import parse_json
from transept.storage.source import GGUF_ENDING, Source, newest

URL = "http://127.0.0.1:8000"
_PATIENCE = 60.0  # seconds for a server to answer in
_MOST = 2**24  # bytes of its answer
_WIDTH = 60  # columns of a name


def ps(parser: Parser) -> None:
    """Show the models that a server has loaded.

    With --json each is an object on a line of its own, as `GET /v1/models` of the server tells it.

        transept ps
        transept ps --url http://127.0.0.1:9000
    """
    _add_server(parser)
    parser.set_defaults(main=ps_main)


def stop(parser: Parser) -> None:
    """Let a server take a model away, once its answers are out.

    The server loads it again when it is asked for.

        transept stop small
    """
    parser.add_argument("model", metavar="NAME", help="as `transept ps` shows it")
    _add_server(parser)
    parser.set_defaults(main=stop_main)


def list(parser: Parser) -> None:
    """Show the models in the cache of the hub.

    Each with its task, its size, when it was used last, and whether it can be run here. With --json each is an object on a line
    of its own.

        transept list
        transept list --json
    """
    arguments.add_output(parser)
    parser.set_defaults(main=list_main)


def pull(parser: Parser) -> None:
    """Fetch a model into the cache of the hub.

    What was fetched before is not fetched again, and a download that was broken off goes on where it was. Weights are fetched
    once, as safetensors where there are such.

        transept pull HuggingFaceTB/SmolLM2-135M-Instruct
        transept pull OWNER/NAME-GGUF --file NAME-Q4_K_M.gguf
    """
    parser.add_argument("model", metavar="REPOSITORY", help="such as HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--file", action="append", default=[], metavar="NAME", help="fetch this file alone; may be repeated")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit")
    arguments.add_output(parser)
    parser.set_defaults(main=pull_main)


def rm(parser: Parser) -> None:
    """Remove a model from the cache of the hub.

    All its files go, of all revisions; the hub keeps its own. It asks first.

        transept rm HuggingFaceTB/SmolLM2-135M-Instruct
        transept rm HuggingFaceTB/SmolLM2-135M-Instruct --yes
    """
    parser.add_argument("model", metavar="REPOSITORY", help="as `transept list` shows it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    arguments.add_output(parser)
    parser.set_defaults(main=rm_main)


def _add_server(parser: Parser) -> None:
    parser.add_argument("--url", default=URL, metavar="URL", help=f"where the server is ({URL})")
    parser.add_argument("--api-key", metavar="KEY", help="where it wants one (TRANSEPT_API_KEY)")
    arguments.add_output(parser)


def ps_main(args: argparse.Namespace) -> int:
    models = [each for each in _ask(args, "/v1/models")["data"] if each["loaded"]]
    if not args.json and not models:
        complain("no model is loaded.", "note")
    rows = ((m["id"], m["task"], _size(m["bytes"]), _or_dash(m["context"]), _until(m["expires_at"])) for m in models)
    return _show(args, models, ("NAME", "TASK", "SIZE", "CONTEXT", "UNTIL"), rows, right=(2, 3))


def stop_main(args: argparse.Namespace) -> int:
    model = _ask(args, "/v1/models/unload", {"model": args.model})
    if args.json:
        print(json.dumps(model, ensure_ascii=False))
    else:
        complain("it goes when its answers are out." if model["loaded"] else "it is not loaded any more.", "note")
    return 0


def _ask(args: argparse.Namespace, path: str, body: Any = None) -> Any:
    """The answer of a server (``InputError`` where there is none, or where it refuses)."""
    where = urlsplit(args.url)
    refuse(where.scheme not in ("http", "https") or not where.hostname, f"--url is {args.url!r}, which is no address.")
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    key = args.api_key or os.environ.get("TRANSEPT_API_KEY")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with closing(kind(where.hostname or "", where.port, timeout=_PATIENCE)) as connection:
            connection.request("POST" if body else "GET", where.path.rstrip("/") + path, body and json.dumps(body), headers)
            answer = connection.getresponse()
            told = parse_json(answer.read(_MOST).decode())
    except (OSError, ValueError, http.client.HTTPException) as error:
        what = f"no server answers at {args.url} ({type(error).__name__})."
        raise InputError(what, hint="Start one with `transept serve`, or pass its --url.") from error
    if answer.status != http.client.OK:
        raise InputError(f"the server says: {told.get('error', {}).get('message', answer.reason)}")
    return told


def list_main(args: argparse.Namespace) -> int:
    models = [_described(name, folder) for name, folder in cache.repositories()]
    if not args.json and not models:
        complain(f"the cache {str(cache.cache_folder())!r} has no models; `transept pull` fetches one.", "note")
    rows = (
        (m["repository"], m["task"], _size(m["bytes"]), time.strftime("%Y-%m-%d", time.localtime(m["last_used"])), m["runs"])
        for m in models
    )
    return _show(args, models, ("REPOSITORY", "TASK", "SIZE", "LAST USED", "RUNS"), rows, right=(2,))


def _described(name: str, folder: Path) -> dict[str, Any]:
    used = cache.usage(name)
    told = {"repository": name, "bytes": used.bytes, "last_used": int(used.last_used)}
    return told | dict(zip(("task", "runs", "why"), _abilities(folder), strict=True))


def _abilities(folder: Path) -> tuple[str | None, bool, str | None]:
    """The task of a model, whether it can be run here, and why not."""
    from transept.checkpoint.store import open_store
    from transept.core.auto import AutoConfig, saved_class

    files = sorted(folder.glob(f"*{GGUF_ENDING}"))
    path = str(files[0]) if files and not (folder / "config.json").exists() else str(folder)
    try:
        config = AutoConfig.from_pretrained(path)
        open_store(Source(path))
        task = task_of(path)
    except TranseptError as error:
        return None, False, error.message
    kind = None if task is not None or saved_class(config) is not None else ", ".join(config.architectures or ["no class"])
    return task, kind is None, kind and f"its config names {kind}, which is not here."


def task_of(path: str) -> str | None:
    """What the model at a path or in a repository is for; ``None`` where its class does not tell."""
    from transept.pipelines import task_names
    from transept.pipelines.components import Components

    if path.endswith(GGUF_ENDING):
        return "text-generation"
    try:
        return Components(path).task(task_names())
    except InputError:
        return None


def pull_main(args: argparse.Namespace) -> int:
    source = Source(args.model, revision=args.revision)
    refuse(source.directory, f"{args.model!r} is a folder here, and no repository.", kind=FileError)
    sizes = cache.listed(source)
    names = args.file or cache.needed(sizes)
    if not names or (missing := next((name for name in names if name not in sizes), None)):
        raise FileError(f"the repository has no file {missing!r}." if names else "holds no model.", path=args.model)
    total = sum(sizes[name] for name in names)
    if not args.json:
        complain(f"{len(names)} files, {size(total)}.", "note")
    for name in names:
        if newest(source, name) is None:
            raise FileError(f"the hub has lost {name!r}.", path=args.model, hint="Try again.")
    told = {"repository": args.model, "files": len(names), "bytes": total}
    print(json.dumps(told, ensure_ascii=False) if args.json else f"{args.model} is in the cache: {size(total)}")
    return 0


def rm_main(args: argparse.Namespace) -> int:
    used = cache.usage(args.model)
    if not args.yes:
        refuse(not sys.stdin.isatty(), f"nobody can be asked whether {args.model!r} may go.", "Pass --yes.")
        print(f"Remove {args.model} ({size(used.bytes)})? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            complain("it stays.", "note")
            return 1
    cache.remove(args.model)
    told = {"repository": args.model, "bytes": used.bytes}
    print(json.dumps(told, ensure_ascii=False) if args.json else f"{args.model} is removed: {size(used.bytes)}")
    return 0


def _show(
    args: argparse.Namespace, models: Iterable[Any], titles: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int]
) -> int:
    """A table for people, or an object a line."""
    if args.json:
        lines = [json.dumps(model, ensure_ascii=False) for model in models]
    else:
        style = Style(sys.stdout)
        cells = [[shorten(_or_dash(value), _WIDTH) for value in row] for row in rows]
        lines = table([[style(title, "dim") for title in titles], *cells], right) if cells else []
    for line in lines:
        print(line)
    return 0


def _or_dash(value: Any) -> str:
    return "-" if value is None else ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _size(number: int | None) -> str | None:
    return None if number is None else size(number)


def _until(ends: int | None) -> str:
    return "for ever" if ends is None else time.strftime("%H:%M:%S", time.localtime(ends))
