"""``transept chat``: a conversation with a model, in this process."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from transept.cli.arguments import Parser
from transept.cli.generate import add_settings, load_writer, told, write
from transept.cli.inputs import STANDARD, read_lines
from transept.cli.terminal import complain, explained
from transept.errors import FormatError, InputError, TranseptError
from transept.files import dump_json, load_json, write_text

HELP = """/system TEXT   set what the model is told first, and begin anew
/reset         forget the conversation
/save PATH     write the conversation as JSON
/load PATH     go on with a written one
/stats         how fast the last answer was, and how much is remembered
/help          this list
/exit          leave (or Ctrl-D); Ctrl-C stops an answer and keeps the conversation"""


def chat(parser: Parser) -> None:
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
    parser.set_defaults(main=lambda args: main(args, parser))


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Talk until the end of the input; the exit code."""
    talk = Chat(*load_writer(args, parser), args.system, as_json=args.json)
    if not talk.pipe.tokenizer.chat_template:
        complain("this model has no chat template; it goes on with the plain text of the conversation.", "note")
    terminal = sys.stdin is not None and sys.stdin.isatty()
    for line in _typed() if terminal else _piped():
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
    """What is typed, message by message: a pasted text of several lines is one."""
    complain("/help lists commands; Ctrl-D leaves.", "note")
    ask = _asker()
    while True:
        try:
            yield ask("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()


def _asker() -> Callable[[str], str]:
    """What reads a line with editing and history: prompt_toolkit where it is installed, else readline, else neither."""
    if sys.stdout.isatty() and importlib.util.find_spec("prompt_toolkit") is not None:
        from prompt_toolkit import PromptSession

        session: PromptSession[str] = PromptSession()
        return session.prompt
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it from then on)
    return input


def _piped() -> Iterator[str]:
    for group in read_lines(STANDARD):
        for item in group:
            if isinstance(item.value, TranseptError):
                complain(f"{item.where}: {explained(item.value)}")
            else:
                yield item.value


class Chat:
    """One conversation.

    Args:
        pipe: a ``text-generation`` pipeline.
        settings: of generation.
        system: what the model is told first.
        as_json: write each answer as one JSON object, and all else on stderr.
    """

    def __init__(self, pipe: Any, settings: dict[str, Any], system: str | None = None, *, as_json: bool = False) -> None:
        self.pipe, self.settings, self.system, self.as_json = pipe, settings, system, as_json
        self.stats: Any = None
        self.begin()

    def begin(self, messages: list[dict[str, Any]] | None = None) -> None:
        """Go on from some messages, or begin anew with the system's text alone."""
        anew = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.messages: list[dict[str, Any]] = anew if messages is None else messages
        self.cache: Any = None
        self.read: list[int] = []

    def hear(self, line: str) -> None:
        """Do what a line says: a command, or something to answer.

        Raises:
            TranseptError: it cannot be done; the conversation is as it was.
        """
        command, _, rest = line.strip().partition(" ")
        match command:
            case "":
                return
            case "/help":
                self._tell(HELP)
            case "/system":
                self.system = rest.strip() or None
                self.begin()
                self._tell(f"begun anew; the model is told {'nothing' if self.system is None else 'this'} first.")
            case "/reset":
                self.begin()
                self._tell("the conversation is forgotten.")
            case "/save":
                write_text(path := _path(rest), dump_json(self.messages))
                self._tell(f"{len(self.messages)} messages are saved in {path}.")
            case "/load":
                self.begin(self._loaded(path := _path(rest)))
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
        found = load_json(path)
        if not isinstance(found, list) or not all(
            isinstance(each, dict) and all(isinstance(each.get(name), str) for name in ("role", "content")) for each in found
        ):
            what = "the file holds no conversation: a list of messages with `role` and `content`, both texts."
            raise FormatError(what, path=path)
        try:
            self._ids([*found, {"role": "user", "content": "Go on."}])
        except TranseptError as error:
            raise FormatError(f"the conversation cannot be gone on with: {error}", path=path) from error
        return found

    def _answer(self, text: str) -> None:
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            said = self._written(self._fitting())
        except BaseException:  # the conversation is as it was; of the cache nobody knows
            self.begin(before)
            raise
        self.messages.append({"role": "assistant", "content": said})

    def _fitting(self) -> list[int]:
        """The prompt's ids; where they leave no room, the oldest exchanges are dropped, and that is said."""
        new, messages = self.settings["max_new_tokens"], self.messages
        room, before = self.pipe.max_length - new, len(messages)
        first = int(messages[0]["role"] == "system")
        while len(ids := self._ids(messages)) > room:
            if len(messages) - first < 2:
                raise InputError(
                    f"the message has {len(ids)} tokens, but {new} new ones leave room for {room}.",
                    hint="Shorten it, or lower --max-new-tokens.",
                )
            del messages[first : first + 2]
        if dropped := before - len(messages):
            complain(f"the conversation is too long for the model: its {dropped} oldest messages are forgotten.", "warning")
        return ids

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        said = messages if self.pipe.tokenizer.chat_template else "\n".join(message["content"] for message in messages)
        ids: list[int] = self.pipe.row(said).inputs["input_ids"]
        return ids

    def _written(self, ids: list[int]) -> str:
        """Write an answer, shown as it comes; an interruption ends it early, and the cache is begun anew."""
        from transept.layers.cache import DynamicCache

        self.cache = DynamicCache() if self.cache is None else self.cache
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.read, ids)))
        self.cache.crop(min(same, len(ids) - 1))
        show = (lambda text: None) if self.as_json else (lambda text: print(text, end="", flush=True))
        found = write(self.pipe, ids, self.settings | {"past_key_values": self.cache}, show)
        self.read, self.stats = ids + found.ids, found.stats
        print(json.dumps({"role": "assistant", "content": found.text}, ensure_ascii=False) if self.as_json else "", flush=True)
        if found.stopped:  # in the middle of a step, so that some layers may have read more than others
            self.cache, self.read = None, []
            complain("stopped.", "note")
        return found.text


def _path(text: str) -> Path:
    if not text.strip():
        raise InputError("the command needs a path.", hint="For example: /save talk.json")
    return Path(text.strip()).expanduser()
