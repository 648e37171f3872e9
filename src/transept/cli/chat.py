"""``transept generate`` and ``transept chat``: a model writes on from a text, or talks, as you watch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from transept.cli import arguments
from transept.cli.streams import STANDARD, read_all, read_lines
from transept.cli.terminal import Style, complain, explained
from transept.errors import FormatError, InputError, InputTypeError, TranseptError
from transept.files import dump_json, load_json, write_text

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
HELP = """/system TEXT   set what the model is told first, and begin anew
/reset         forget the conversation
/save PATH     write the conversation as JSON
/load PATH     go on with a written one
/stats         how fast the last answer was, and how much is remembered
/help          this list
/exit          leave (or Ctrl-D); Ctrl-C stops an answer and keeps the conversation"""


def generate(parser: arguments.Parser) -> None:
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
    parser.set_defaults(main=write_on)


def add_settings(parser: arguments.Parser) -> None:
    parser.task = "text-generation"
    arguments.add_model(parser)
    parser.add_argument("--max-new-tokens", type=arguments.positive, metavar="N", help="tokens to write at most (256)")
    parser.add_argument("--temperature", type=float, metavar="X", help="draw tokens, flatter above 1 and sharper below")
    parser.add_argument("--top-k", type=arguments.positive, metavar="N", help="draw among the N most likely tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw among the tokens that make up this share")
    parser.add_argument("--min-p", type=float, metavar="X", help="draw among tokens at least this share as likely as the first")
    parser.add_argument("--seed", type=int, metavar="N", help="draw tokens, the same ones each time")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop behind this text; may be repeated")
    arguments.add_output(parser)


def load_writer(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    arguments.check_model(args.model)
    if arguments.load_config(args).is_encoder_decoder:
        hint = f"Use it so: transept run text2text-generation --model {args.model} TEXT."
        raise InputTypeError("this model is an encoder–decoder, which answers a text and does not go on from it.", hint=hint)
    pipe = arguments.make_pipeline("text-generation", args)
    from transept.pipelines.tasks.generation import DEFAULT_NEW_TOKENS

    given = {name: value for name in SAMPLING if (value := getattr(args, name, None)) is not None}
    chosen: dict[str, Any] = dict(pipe.options.generation) | given
    if args.seed is not None or any(name in chosen for name in SAMPLING):
        chosen.setdefault("do_sample", True)
    if args.stop:
        chosen["stop_strings"] = args.stop
    length = args.max_new_tokens or chosen.get("max_new_tokens") or pipe.model.generation_config.max_new_tokens
    return pipe, chosen | {"max_new_tokens": length or DEFAULT_NEW_TOKENS, "seed": args.seed, "tokenizer": pipe.tokenizer}


def write(
    pipe: Any, ids: list[int], settings: dict[str, Any], show: Callable[[str], Any] | None
) -> tuple[str, list[int], Any, Any]:
    """Write on from ids, and show each piece of text as it comes, until the end or Ctrl-C.

    Gives the text, its ids, how fast it went, and why it ended: ``None`` by Ctrl-C.
    """
    from transept.generation.outputs import Stats

    pieces, first, start = list[Any](), 0.0, time.perf_counter()
    with suppress(KeyboardInterrupt):
        for piece in pipe.model.stream(pipe.tensor(ids), **settings):
            first = first or time.perf_counter() - start
            pieces.append(piece)
            if show is not None:
                show(piece.text)
    new = [token for piece in pieces for token in piece.ids]
    stats = Stats(len(ids), len(new), first, time.perf_counter() - start)
    return "".join(piece.text for piece in pieces), new, stats, pieces[-1].finish_reason if pieces else None


def told(stats: Any) -> str:
    """How fast it went, in words."""
    if not stats.new_tokens:
        return "no token was written."
    more = f", then {stats.tokens_per_second:.1f} a second" if stats.new_tokens > 1 else ""
    return f"{stats.new_tokens} token{'s' if more else ''}, the first after {stats.seconds_to_first_token:.2f} s{more}."


def write_on(args: argparse.Namespace) -> int:
    prompt = read_all().rstrip("\n") if args.prompt is None else args.prompt
    pipe, settings = load_writer(args)
    lead = iter([Style(sys.stdout)(prompt, "dim")])  # stands before the first piece, and before no error
    show = None if args.json else lambda text: print(next(lead, "") + text, end="", flush=True)
    text, _, stats, reason = write(pipe, pipe.row(prompt).inputs["input_ids"], settings, show)
    if args.json:
        answer = {"prompt": prompt, "text": text, "finish_reason": reason, "new_tokens": stats.new_tokens}
        answer["tokens_per_second"] = round(stats.tokens_per_second, 2)
        answer["seconds_to_first_token"] = round(stats.seconds_to_first_token, 4)
        print(json.dumps(answer, ensure_ascii=False))
    else:
        print(next(lead, ""))
        if sys.stderr.isatty():
            complain(f"{'stopped: ' if reason is None else ''}{told(stats)}", "note")
    return 130 if reason is None else 0


def chat(parser: arguments.Parser) -> None:
    r"""Talk with a model.

    The model's chat template makes the prompt; a model without one goes on with the plain text of the conversation. What has
    been read stays cached from turn to turn. Lines are edited as in a shell, and a pasted text is one message. Other settings
    of generation are those of `transept run text-generation --help`.

        transept chat --model PATH
        transept chat --model PATH --system "Answer in one sentence." --temperature 0.7
        printf "Hello\n/stats\n" | transept chat --model PATH
    """
    add_settings(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.set_defaults(main=talk_on)


def talk_on(args: argparse.Namespace) -> int:
    talk = Chat(*load_writer(args), args.system, as_json=args.json)
    if not talk.pipe.tokenizer.chat_template:
        complain("this model has no chat template; it goes on with the plain text of the conversation.", "note")
    for line in _typed() if sys.stdin is not None and sys.stdin.isatty() else _piped():
        if line.strip() == "/exit":
            break
        try:
            talk.hear(line)
        except TranseptError as error:
            complain(explained(error))
        except KeyboardInterrupt:
            complain("stopped.", "note")
    return 0


def _typed() -> Iterator[str]:
    """What is typed, message by message, with editing and history: prompt_toolkit's where it is installed, else readline's."""
    complain("/help lists commands; Ctrl-D leaves.", "note")
    ask: Callable[[str], str] = input
    try:
        from prompt_toolkit import PromptSession

        ask = PromptSession[str]().prompt if sys.stdout.isatty() else input
    except ImportError:
        with suppress(ImportError):
            import readline  # noqa: F401 (`input` uses it from then on)
    while True:
        try:
            yield ask("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()


def _piped() -> Iterator[str]:
    for item in chain.from_iterable(read_lines(STANDARD)):
        if isinstance(item.value, TranseptError):
            complain(f"{item.where}: {explained(item.value)}")
        else:
            yield item.value


class Chat:
    """One conversation by a ``text-generation`` pipeline; ``as_json`` writes answers as JSON, and all else on stderr."""

    def __init__(self, pipe: Any, settings: dict[str, Any], system: str | None = None, *, as_json: bool = False) -> None:
        self.pipe, self.settings, self.system, self.as_json = pipe, settings, system, as_json
        self.stats: Any = None
        self.begin()

    def begin(self, messages: list[dict[str, Any]] | None = None) -> None:
        """Go on from some messages, or begin anew with the system's text alone."""
        anew = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.messages = anew if messages is None else messages
        self.cache: Any = None
        self.read: list[int] = []

    def hear(self, line: str) -> None:
        """Do what a line says: a command, or something to answer; after an error the conversation is as it was."""
        command, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        path = Path(rest).expanduser()
        match command:
            case "":
                return
            case "/help":
                self._tell(HELP)
            case "/system":
                self.system = rest or None
                self.begin()
                self._tell(f"begun anew; the model is told {'nothing' if self.system is None else 'this'} first.")
            case "/reset":
                self.begin()
                self._tell("the conversation is forgotten.")
            case "/save" | "/load" if not rest:
                raise InputError("the command needs a path.", hint="For example: /save talk.json")
            case "/save":
                write_text(path, dump_json(self.messages))
                self._tell(f"{len(self.messages)} messages are saved in {path}.")
            case "/load":
                self.begin(self._loaded(path))
                self._tell(f"{len(self.messages)} messages are loaded from {path}.")
            case "/stats":
                said = "nothing has been said yet." if self.stats is None else told(self.stats)
                self._tell(f"{said} {len(self.messages)} messages, {len(self.read)} tokens read.")
            case _ if command.startswith("/") and "\n" not in line:
                raise InputError(f"there is no command {command!r}.", hint="/help lists them.")
            case _:
                self._answer(line)

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def _loaded(self, path: Path) -> list[dict[str, Any]]:
        """The messages in a file, which the model's template takes."""
        from transept.pipelines.tasks.generation import is_chat

        found: Any = load_json(path)
        texts = [each.get(name) for each in found for name in ("role", "content")] if is_chat(found) else [None]
        if not all(isinstance(text, str) for text in texts):
            what = "the file holds no conversation: a list of messages with `role` and `content`, both texts."
            raise FormatError(what, path=path)
        try:
            self._ids([*found, {"role": "user", "content": "Go on."}])
        except TranseptError as error:
            raise FormatError(f"the conversation cannot be gone on with: {error}", path=path) from error
        return list(found)

    def _answer(self, text: str) -> None:
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            message = {"role": "assistant", "content": self._written(self._fitting())}
        except BaseException:  # the conversation is as it was; of the cache nobody knows
            self.begin(before)
            raise
        self.messages.append(message)
        print(json.dumps(message, ensure_ascii=False) if self.as_json else "", flush=True)
        if self.cache is None:
            complain("stopped.", "note")

    def _fitting(self) -> list[int]:
        """The prompt's ids; where they leave no room, the oldest exchanges are dropped, and that is said."""
        new, messages = self.settings["max_new_tokens"], self.messages
        room, before = self.pipe.max_length - new, len(messages)
        first = int(messages[0]["role"] == "system")
        while len(ids := self._ids(messages)) > room:
            if len(messages) - first < 2:
                what = f"the message has {len(ids)} tokens, but {new} new ones leave room for {room}."
                raise InputError(what, hint="Shorten it, or lower --max-new-tokens.")
            del messages[first : first + 2]
        if dropped := before - len(messages):
            complain(f"the conversation is too long for the model: its {dropped} oldest messages are forgotten.", "warning")
        return ids

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        said = messages if self.pipe.tokenizer.chat_template else "\n".join(message["content"] for message in messages)
        return list(self.pipe.row(said).inputs["input_ids"])

    def _written(self, ids: list[int]) -> str:
        """Write an answer, shown as it comes; an interruption ends it early, and the cache is begun anew."""
        from transept.layers.cache import DynamicCache
        from transept.pipelines.tasks.generation import common_prefix

        self.cache = DynamicCache() if self.cache is None else self.cache
        self.cache.crop(min(common_prefix(self.read, ids), len(ids) - 1))
        show = None if self.as_json else lambda text: print(text, end="", flush=True)
        text, new, self.stats, reason = write(self.pipe, ids, self.settings | {"past_key_values": self.cache}, show)
        self.read = ids + new
        if reason is None:  # in the middle of a step, so that some layers may have read more than others
            self.cache, self.read = None, []
        return text
