"""``transept chat``: a conversation with a model, as you watch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from transept.batch.inputs import STANDARD, Inputs, Reading
from transept.cli import arguments
from transept.cli.generate import add_settings, describe_speed, load_writer, write
from transept.cli.terminal import complain, explained
from transept.errors import FormatError, InputError, TranseptError
from transept.storage.files import dump_json, load_json, write_text

HELP = """/system TEXT   set what the model is told first, and begin anew
/reset         forget the conversation
/save PATH     write the conversation as JSON
/load PATH     go on with a written one
/stats         how fast the last answer was, and how much is remembered
/help          this list
/exit          leave (or Ctrl-D); Ctrl-C stops an answer and keeps the conversation"""


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
    for item in chain.from_iterable(Inputs([STANDARD], Reading()).groups()):
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
                said = "nothing has been said yet." if self.stats is None else describe_speed(self.stats)
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
