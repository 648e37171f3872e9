"""``transept serve``: answers many people at once over HTTP."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transept.cli import arguments
from transept.environment import units
from transept.errors import FileError, InputError, MissingExtraError, refuse
from transept.storage.files import read_text

_SIZE = re.compile(r"(\d+)(k|M|G)?(i?)B?")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3}
_PORT = 8000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_TIMES = (
    ("header-timeout", 10, "for the headers of a request to come"),
    ("body-timeout", 30, "for its body to come"),
    ("write-timeout", 60, "after which a client that takes no byte is dropped"),
    ("request-timeout", 600, "after which an answer ends with an error"),
    ("watchdog", 30, "for a pass, after which its model counts as dead"),
    ("grace", 30, "for answers to end in when the server ends"),
)


def serve(parser: arguments.Parser) -> None:
    """Answer over HTTP, as clients of OpenAI's API ask.

    A model is a folder, a .gguf file or a repository, and is asked for by the last part of its name, or by the name in front
    of it. The address is the first line of standard output.

        transept serve
        transept serve PATH
        transept serve small=PATH large=OTHER.gguf --port 9000
        transept serve PATH --host 0.0.0.0 --api-key-file keys.txt
    """
    add, number = parser.add_argument, arguments.positive
    add(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a folder, a .gguf file or a repository, or NAME=MODEL (the default encoder)",
    )
    add("--host", help="the address to listen at (127.0.0.1)")
    add("--port", type=int, default=_PORT, metavar="N", help="0 is any free one (8000)")
    add("--uds", metavar="PATH", help="listen at a Unix socket, in place of an address and a port")
    add("--api-key", action="append", default=[], metavar="KEY", help="one that requests must have; may be repeated")
    add("--api-key-file", metavar="PATH", help="a file of keys, one a line")
    add("--insecure", action="store_true", help="listen to other machines without a key")
    add("--allowed-host", action="append", default=[], metavar="NAME", help="a name that the server answers to")
    add("--allowed-origin", action="append", default=[], metavar="ORIGIN", help="a site whose pages may read answers")
    add("--docs", action="store_true", help="show the routes at /docs")
    add("--no-page", action="store_true", help="show no page at /")
    add("--max-rows", type=number, default=32, metavar="N", help="answers that are written at once (32)")
    add("--max-queue", type=number, default=256, metavar="N", help="answers that wait at most (256)")
    add("--step-budget", type=number, default=512, metavar="N", help="positions of prompts in a pass (512)")
    add("--encode-budget", type=number, default=4096, metavar="N", help="positions in a batch of texts that are read (4096)")
    add("--max-texts", type=number, default=2048, metavar="N", help="inputs of a request at most (2048)")
    add("--task", help="what the model is for, where its checkpoint does not tell")
    add("--cache-memory", type=size, metavar="SIZE", help="for keys and values (a quarter of what is free)")
    add("--no-prefix-cache", action="store_true", help="keep nothing for prompts that begin alike")
    add("--exact", action="store_true", help="the same bits whether a prefix was kept or not")
    add("--max-context", type=number, metavar="N", help="tokens of a prompt and its answer at most")
    add("--max-body", type=size, default=8 * 2**20, metavar="SIZE", help="of a request (8MiB)")
    for name, default, told in _TIMES:
        add(f"--{name}", type=time, default=float(default), metavar="TIME", help=f"{told} ({default} s)")
    add("--no-exit-on-failure", action="store_true", help="go on where a model has failed, with /health at 503")
    add("--log-requests", action="store_true", help="tell of each request its id, route, sizes and time, and no text")
    _add_models(parser)
    add("--device", help="where to compute")
    add("--revision", help="a branch, tag or commit of repositories")
    add("--dtype", choices=arguments.DTYPES, help="the type of the weights")
    add("--threads", type=number, metavar="N", help="of the processor that compute")
    add("--json", action="store_true", help="tell the address as JSON")
    parser.set_defaults(main=main)


def _add_models(parser: arguments.Parser) -> None:
    """Options of what is served, and of when that is loaded."""
    add, number = parser.add_argument, arguments.positive
    add("--models-dir", metavar="DIR", help="serve each model in this folder, loaded when it is asked for")
    add("--allow-cached", action="store_true", help="serve each model in the cache of the hub, by its repository")
    add(
        "--keep-alive",
        metavar="TIME",
        help="for which an unused model stays loaded, such as 5m; -1: for ever (5m; -1 of MODELs)",
    )
    add("--max-models", type=number, metavar="N", help="that are loaded at once (4)")
    add("--model-memory", type=size, metavar="SIZE", help="for weights of models (what is free)")
    add("--chat-template", metavar="FILE", help="in the place of the models' own")
    add("--max-new-tokens", type=number, metavar="N", help="of an answer in a chat that does not say how long it may be")


def size(text: str) -> int:
    """Bytes of such as ``512MiB`` or ``2GB``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write such as 512MiB or 2GB")
    number, power, binary = found.groups()
    unit: int = (1024 if binary else 1000) ** _POWERS[power or ""]
    return int(number) * unit


def time(text: str) -> float:
    """Seconds of such as ``30``, ``500ms`` or ``5m``."""
    try:
        found = units.seconds(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write such as 30, 500ms or 5m") from error
    if math.isinf(found):
        raise argparse.ArgumentTypeError(f"{text!r} is less than nothing")
    return found


def main(args: argparse.Namespace) -> int:
    """Load the models, tell where they are served, and answer until a signal."""
    try:
        from transept.serving.app import make_app
        from transept.serving.engine.ranks import is_first
        from transept.serving.models import WritingModel
        from transept.serving.server import Server
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve", "serving") from error
    options = _options(args)
    models = _load(args)
    if not all(is_first(model.engine) for model in models if isinstance(model, WritingModel)):
        return 0  # the first process has ended
    listener, url = _listen(args)
    if args.log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
        logging.getLogger("transept.requests").setLevel(logging.INFO)
    names = [model.name for model in models]
    told = {"url": url, "models": names, "pid": os.getpid()}
    line = json.dumps(told) if args.json else f"{url} serves {', '.join(names) or 'models when they are asked for'}"
    server = Server(make_app(models, options), lambda: print(line, flush=True))
    server.run(sockets=[listener])
    if args.uds is not None:
        os.unlink(args.uds)
    sys.stderr.flush()
    os._exit(server.code or 0)  # whatever threads still compute


def _options(args: argparse.Namespace) -> Any:
    from transept.serving.doors import LOOPBACK, Options

    both = args.uds is not None and (args.host, args.port) != (None, _PORT)
    refuse(both, "--uds is for a socket that is a file, which has no --host and no --port.")
    args.host = args.host or "127.0.0.1"
    keys, local = _keys(args), args.host in _LOOPBACK
    what = f"--host {args.host} is open to other machines, and there is no key."
    refuse(not local and not keys and not args.insecure, what, "Pass --api-key-file, or --insecure.")
    refuse(not 0 <= args.port < 2**16, f"--port is {args.port}, but must be from 0 to 65535.")
    times = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name, _, _ in _TIMES}
    for name, value in times.items():
        refuse(not value and name != "grace", f"--{name.replace('_', '-')} is 0, but must be longer.")
    hosts = {*LOOPBACK, args.host, *args.allowed_host} if local or not keys or args.allowed_host else None
    how = {
        "exits_on_failure": not args.no_exit_on_failure,
        "docs": args.docs,
        "max_texts": args.max_texts,
        "page": not args.no_page,
    }
    return Options(hosts, keys, args.allowed_origin, args.max_body, **times, **how)


def _load(args: argparse.Namespace) -> Any:
    from transept.parallel.processes import world_size
    from transept.pipelines.components import EMBEDDING_MODEL
    from transept.serving.models import Loader
    from transept.serving.sources import in_cache, in_directory, named
    from transept.serving.store import Finder, Models

    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    loading = {name: value for name in ("device", "dtype", "revision") if (value := getattr(args, name)) is not None}
    engine = {"max_rows": args.max_rows, "max_waiting": args.max_queue, "budget": args.step_budget, "context": args.max_context}
    engine |= {"cache_bytes": args.cache_memory, "keeps_prefixes": not args.no_prefix_cache, "exact": args.exact}
    reading = {"budget": args.encode_budget, "max_waiting": args.max_queue}
    template = None if args.chat_template is None else read_text(args.chat_template)
    writing = {"chat_template": template, "max_new_tokens": args.max_new_tokens}
    refuse(args.task is not None and len(args.models) > 1, "--task is for one model.", "Serve the others by themselves.")
    missing = args.models_dir is not None and not os.path.isdir(args.models_dir)
    refuse(missing, f"--models-dir is {args.models_dir!r}, but there is no such folder.")
    finders: list[Finder] = [] if args.models_dir is None else [partial(in_directory, Path(args.models_dir))]
    finders += [in_cache] if args.allow_cached else []
    keep_alive = "5m" if args.keep_alive is None else args.keep_alive
    most = args.max_models or max(4, len(args.models))
    loader = Loader(loading, engine, reading, writing)
    models = Models(loader, keep_alive=keep_alive, max_models=most, memory=args.model_memory, finders=finders)
    if world_size() > 1:
        refuse(len(args.models) != 1 or finders, f"{world_size()} processes serve one model together.", "Name one MODEL.")
        models.add(_part_of_model(args, loader))
        return models
    for given in args.models or ([] if finders else [EMBEDDING_MODEL]):
        models.offer(*named(given), args.task, keep_alive=-1 if args.keep_alive is None else args.keep_alive)
    return models


def _part_of_model(args: argparse.Namespace, loader: Any) -> Any:
    """The part that this process has of the one model that all of them serve."""
    from transept.serving.engine.ranks import meet
    from transept.serving.sources import named
    from transept.serving.tasks import WRITES

    name, source = named(args.models[0])
    task = args.task or loader.task(source, fetch=True)
    what = f"several processes serve a model that writes texts, but {name!r} does {task}."
    refuse(task != WRITES, what, "Start one process.")
    return replace(loader, loading={**loader.loading, **meet()}).load(name, source, WRITES, fetch=True)


def _keys(args: argparse.Namespace) -> list[str]:
    found = [*args.api_key, os.environ.get("TRANSEPT_API_KEY", "")]
    if args.api_key_file is not None:
        found += [line.strip() for line in read_text(args.api_key_file).splitlines()]
    return [key for key in found if key]


def _listen(args: argparse.Namespace) -> tuple[socket.socket, str]:
    """A socket, and its address as clients write it."""
    host, port, path = args.host, args.port, args.uds
    family = socket.AF_UNIX if path is not None else socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if path is not None:
            _remove_left(path)
            listener.bind(path)
            return listener, f"unix:{path}"
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        where, hint = (path, "Pass another --uds.") if path is not None else (f"{host}, port {port}", "Pass another --port.")
        raise FileError(f"cannot listen at {where}: {error}.", hint=hint) from error
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _remove_left(path: str) -> None:
    """Remove the socket of a server that has ended without doing so itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial, suppress(FileNotFoundError):
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
