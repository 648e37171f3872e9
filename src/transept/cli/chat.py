"""``transept chat``: a conversation with a model, in this process."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transept.cli.arguments import Parser, add_output, check_model, make_pipeline
from transept.cli.generate import add_settings, settings, told
from transept.cli.messages import complain, explained
from transept.errors import FormatError, InputError, TranseptError
from transept.files import dump_json, load_json, write_text

HELP = """/system TEXT   set what the model is told first, and begin anew
/reset         forget the conversation
/save PATH     write the conversation as JSON
/load PATH     go on with a written one
/stats         how fast the last answer was, and how much is remembered
/help          this list
/exit          leave (or Ctrl-D); Ctrl-C stops an answer and keeps the conversation"""


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "chat",
        help="talk with a model",
        description=(
            "Talk with a model in the terminal. Its chat template makes the prompt; a model without one goes on with the plain "
            "text of the conversation. What has been read stays cached from turn to turn."
        ),
        examples=[
            "transept chat --model PATH",
            'transept chat --model PATH --system "Answer in one sentence." --temperature 0.7',
            'printf "Hello\\n/stats\\n" | transept chat --model PATH',
        ],
    )
    add_settings(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    add_output(parser)
    parser.set_defaults(main=lambda args: main(args, parser))


def main(args: argparse.Namespace, parser: Parser) -> int:
    """Talk until the end of the input; the exit code."""
    if args.model is None:
        parser.error("pass --model PATH")
    check_model(args.model)
    pipe = make_pipeline("text-generation", args)
    chat = Chat(pipe, settings(args, pipe), args.system, as_json=args.json)
    if not chat.templated:
        complain("this model has no chat template; it goes on with the plain text of the conversation.", "note")
    terminal = sys.stdin.isatty()
    if terminal:
        complain("/help lists commands; Ctrl-D leaves.", "note")
    while True:
        try:
            line = input("> " if terminal else "")
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line.strip() == "/exit":
            return 0
        try:
            chat.hear(line)
        except TranseptError as error:
            complain(explained(error))


@dataclass
class Chat:
    """One conversation.

    Args:
        pipe: a ``text-generation`` pipeline.
        settings: of generation.
        system: what the model is told first.
        as_json: write each answer as one JSON object.
    """

    pipe: Any
    settings: dict[str, Any]
    system: str | None = None
    as_json: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    cache: Any = None
    read: list[int] = field(default_factory=list)
    stats: Any = None

    def __post_init__(self) -> None:
        self.reset()

    @property
    def templated(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.pipe.tokenizer.chat_template)

    def reset(self) -> None:
        """Forget all but the system's text."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.cache, self.read = None, []

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
                print(HELP)
            case "/system":
                self.system = rest.strip() or None
                self.reset()
            case "/reset":
                self.reset()
            case "/save":
                write_text(_path(rest), dump_json(self.messages))
            case "/load":
                self._load(_path(rest))
            case "/stats":
                said = "nothing has been said yet." if self.stats is None else told(self.stats)
                print(f"{said} {len(self.messages)} messages, {len(self.read)} tokens read.")
            case _ if command.startswith("/"):
                raise InputError(f"there is no command {command!r}.", hint="/help lists them.")
            case _:
                self._answer(line)

    def _load(self, path: Path) -> None:
        found = load_json(path)
        if not isinstance(found, list) or not all(isinstance(each, dict) and "role" in each for each in found):
            raise FormatError("the file holds no conversation: a list of messages with `role` and `content`.", path=path)
        self.messages, self.cache, self.read = found, None, []

    def _answer(self, text: str) -> None:
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            ids = self._fitting()
        except TranseptError:
            self.messages = before
            raise
        said = self._written(ids)
        self.messages.append({"role": "assistant", "content": said})

    def _fitting(self) -> list[int]:
        """The prompt's ids; where they leave no room, the oldest exchanges are dropped, and that is said."""
        room = self.pipe.max_length - self.settings["max_new_tokens"]
        ids, dropped = self._ids(), 0
        while len(ids) > room:
            first = 1 if self.messages[0]["role"] == "system" else 0
            if len(self.messages) - first < 2:
                raise InputError(
                    f"the message has {len(ids)} tokens, but {self.settings['max_new_tokens']} new ones leave room for {room}.",
                    hint="Shorten it, or lower --max-new-tokens.",
                )
            del self.messages[first : first + 2]
            ids, dropped = self._ids(), dropped + 2
        if dropped:
            complain(f"the conversation is too long for the model: its {dropped} oldest messages are forgotten.", "warning")
        return ids

    def _ids(self) -> list[int]:
        said = self.messages if self.templated else "\n".join(message["content"] for message in self.messages)
        ids: list[int] = self.pipe.row(said).inputs["input_ids"]
        return ids

    def _written(self, ids: list[int]) -> str:
        """Write an answer, shown as it comes; an interruption ends it early."""
        from transept.layers.cache import DynamicCache

        same = next(
            (i for i, (old, new) in enumerate(zip(self.read, ids, strict=False)) if old != new), min(len(self.read), len(ids))
        )
        if self.cache is None:
            self.cache = DynamicCache()
        self.cache.crop(min(same, len(ids) - 1))
        self.read, said = list(ids), []
        pieces = self.pipe.model.stream(self.pipe.tensor(ids), past_key_values=self.cache, **self.settings)
        try:
            for piece in pieces:
                self.read += piece.ids
                said.append(piece.text)
                self.stats = piece.stats or self.stats
                if not self.as_json:
                    print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            pieces.close()
            complain("stopped.", "note")
        if self.as_json:
            print(json.dumps({"role": "assistant", "content": "".join(said)}, ensure_ascii=False), flush=True)
        else:
            print(flush=True)
        return "".join(said)


def _path(text: str) -> Path:
    if not text.strip():
        raise InputError("the command needs a path.", hint="For example: /save talk.json")
    return Path(text.strip())
