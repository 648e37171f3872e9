"""``transept chat``: a conversation with a model, as you watch."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from transept.batch.encode import cleaned
from transept.batch.inputs import STANDARD, Inputs, Reading
from transept.cli import arguments
from transept.cli.chat import models
from transept.cli.chat.console import History, history_path, joined, typed
from transept.cli.chat.conversation import Conversation
from transept.cli.generate import SAMPLING, Show, Written, add_settings, describe_speed, load_writer, visible
from transept.cli.terminal import Style, complain, explained
from transept.environment.units import count, size
from transept.errors import InputError, TranseptError
from transept.storage.files import dump_json, write_text

# New tokens of an answer, where nothing says how many.
MOST = 2048
COMMANDS = {
    "/clear": "forget the conversation",
    "/system TEXT": "what the model is told first; begins anew",
    "/image PATH": "a picture that goes with the next message",
    "/set NAME VALUE": "a setting of generation, such as temperature 0.7; alone it lists them",
    "/retry": "answer the last message again",
    "/undo": "forget the last message and its answer",
    "/save PATH": "write the conversation as JSON",
    "/load PATH": "go on with a written one",
    "/stats": "how fast the last answer was, and how much is remembered",
    "/help": "this list",
    "/quit": "leave, as Ctrl-D does",
}
# What the same commands are called elsewhere.
ALIASES = {"/?": "/help", "/bye": "/quit", "/exit": "/quit", "/reset": "/clear", "/regen": "/retry"}
HINTS = 'A message of several lines stands between """ and """. Ctrl-C stops an answer and keeps what was written.'


def chat(parser: arguments.Parser) -> None:
    r"""Talk with a model.

    NAME is a folder, a .gguf file, or a repository of the hub, which is fetched where it is not in the cache; of one in the
    cache its last part is enough. Without a NAME, models to begin with are listed. The model's chat template makes the prompt;
    a model without one goes on with the plain text of the conversation. What has been read stays cached from turn to turn.
    Lines are edited as in a shell, and a pasted text is one message. Other settings of generation are those of `transept run
    text-generation --help`.

        transept chat
        transept chat HuggingFaceTB/SmolLM2-360M-Instruct
        transept chat model.gguf --system "Answer in one sentence." --temperature 0.7
        transept chat model.gguf "Why is the sky blue?"
        printf "Hello\n/stats\n" | transept chat PATH
    """
    parser.add_argument("name", nargs="?", metavar="NAME", help="the model: a folder, a .gguf file or a hub repository")
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="answer this, and leave")
    add_settings(parser, f"{MOST}, or what the context has room for")
    for action in parser._actions:
        if action.dest == "model":
            action.required, action.help = False, "the same as NAME"
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--no-history", action="store_true", help="neither read nor write the history of typed lines")
    parser.set_defaults(main=lambda args: talk_on(args, parser))


def talk_on(args: argparse.Namespace, parser: arguments.Parser) -> int:
    if args.name is not None and args.model is not None:
        parser.error("pass a model as NAME or as --model, not both")
    if (name := args.name or args.model) is None:
        return list_models(args)
    args.model = models.find(name)
    talk = Chat(*_load(args, name), args.system, as_json=args.json)
    if args.message is None and sys.stderr.isatty():
        talk.introduce(name, args.dtype)
    if talk.sees is None and not talk.pipe.tokenizer.chat_template:
        complain("this model has no chat template; it goes on with the plain text of the conversation.", "note")
    if args.message is not None:
        talk.say(args.message)
        return 0
    for line in _typed(args) if sys.stdin is not None and sys.stdin.isatty() else joined(_piped()):
        try:
            if not talk.hear(line):
                break
        except TranseptError as error:
            complain(explained(error))
        except KeyboardInterrupt:
            complain("stopped.", "note")
    return 0


def list_models(args: argparse.Namespace) -> int:
    """Name models to talk with, since none was named."""
    import torch

    from transept.environment.memory import memory_left

    left = memory_left(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if args.json:
        print(json.dumps(models.as_json(left), ensure_ascii=False))
    else:
        width = Style(sys.stdout).width
        for line in models.overview(left):
            indent = line[: len(line) - len(line.lstrip())]
            is_command = len(indent) > 2
            print("\n".join([line] if is_command else textwrap.wrap(line, width, subsequent_indent=f"{indent}  ") or [""]))
    return 2


def _load(args: argparse.Namespace, name: str) -> tuple[Any, dict[str, Any]]:
    """The pipeline and its settings; meanwhile a terminal shows that it is loaded, and then what was."""
    style = Style(sys.stderr)
    if style.on:
        print(style(f"loading {cleaned(name)} …", "dim"), end="\r", file=sys.stderr, flush=True)
    try:
        arguments.check_model(args.model)
        task = "image-text-to-text" if _has_sight(arguments.load_config(args)) else "text-generation"
        pipe, settings = load_writer(args, task, MOST)
    finally:
        if style.on:
            print("\x1b[K", end="", file=sys.stderr, flush=True)
    return pipe, settings


def _has_sight(config: Any) -> bool:
    from transept.core.auto import AutoModelForImageTextToText

    try:
        return hasattr(config, "vision_config") and bool(AutoModelForImageTextToText.model_class(config))
    except TranseptError:
        return False


def _dim(facts: list[str]) -> None:
    """Facts in a dim line on stderr, wrapped where the terminal is narrow."""
    style = Style(sys.stderr)
    for line in textwrap.wrap(" · ".join(facts), style.width, break_long_words=False):
        print(style(line, "dim"), file=sys.stderr, flush=True)


def _typed(args: argparse.Namespace) -> Iterator[str]:
    history = History(None if args.no_history else history_path())
    commands = sorted(usage.partition(" ")[0] for usage in COMMANDS)
    return typed(history, commands, lambda told: _dim([told]))


def _piped() -> Iterator[str]:
    for item in chain.from_iterable(Inputs([STANDARD], Reading()).groups()):
        if isinstance(item.value, TranseptError):
            complain(f"{item.where}: {explained(item.value)}")
        else:
            yield item.value


class Chat(Conversation):
    """A conversation that reads commands too; ``as_json`` writes answers as JSON. All but answers is told on stderr."""

    def __init__(self, pipe: Any, settings: dict[str, Any], system: str | None = None, *, as_json: bool = False) -> None:
        self.as_json = as_json
        super().__init__(pipe, settings, system)

    def introduce(self, name: str, dtype: str | None) -> None:
        """Say what the model is, and how to go on."""
        model, label = self.pipe.model, os.path.basename(os.path.abspath(name)) if os.path.exists(name) else name
        kind = dtype if dtype in ("int8", "int4") else str(model.dtype).removeprefix("torch.")
        many, much = f"{count(model.num_parameters())} parameters", size(model.get_memory_footprint())
        about = [cleaned(label), many, f"{kind}, {much}", str(model.device)]
        about += [] if self.context is None else [f"{self.context:,} tokens of context"]
        _dim([*about, *["reads pictures"] * (self.sees is not None)])
        _dim(["/help lists commands; Ctrl-D leaves."])

    def hear(self, line: str) -> bool:
        """Do what a line says: a command, or something to answer; after an error the conversation is as it was.

        Gives ``False`` where it says to leave.
        """
        command, _, rest = line.strip().partition(" ")
        command, rest = ALIASES.get(command, command), rest.strip()
        known = {usage.partition(" ")[0]: usage for usage in COMMANDS}
        if command in known:
            if "PATH" in known[command] and not rest:
                raise InputError(f"{command} needs a path.", hint=f"For example: {command} talk.json")
            acts: Callable[[str], Any] = getattr(self, f"_{command[1:]}", lambda _: None)
            acts(rest)
        elif command.startswith("/") and "\n" not in line:
            raise InputError(f"there is no command {command!r}.", hint="/help lists them.")
        elif command:
            self.say(line)
        return command != "/quit"

    def say(self, message: str) -> None:
        """Answer a message."""
        self._show(lambda show: self.answer(message, show))

    def _tell(self, text: str) -> None:
        sys.stdout.flush()
        print(text, file=sys.stderr, flush=True)

    def _help(self, _: str) -> None:
        style = Style(sys.stderr)
        lines, room = [], max(map(len, COMMANDS)) + 2
        for usage, told in COMMANDS.items():
            if style.width < 70:
                lines += [usage, *textwrap.wrap(told, style.width, initial_indent="  ", subsequent_indent="  ")]
            else:
                lines += textwrap.wrap(told, style.width, initial_indent=usage.ljust(room), subsequent_indent=" " * room)
        self._tell("\n".join([*lines, *textwrap.wrap(HINTS, style.width)]))

    def _system(self, text: str) -> None:
        self.system = text or None
        self.begin()
        self._tell(f"begun anew; the model is told {'nothing' if self.system is None else 'this'} first.")

    def _clear(self, _: str) -> None:
        self.begin()
        self._tell("the conversation is forgotten.")

    def _image(self, rest: str) -> None:
        if self.sees is None:
            raise InputError("this model reads no pictures.")
        from transept.preprocess.media import load_image

        path = str(Path(rest).expanduser().absolute())
        width, height = load_image(path).size
        self.images.append(path)
        self._tell(f"a picture of {width} × {height} goes with the next message.")

    def _set(self, rest: str) -> None:
        name, _, value = rest.removeprefix("parameter ").strip().partition(" ")
        if name == "system":
            self._system(value.strip())
        elif not name:
            known = {name: found for name, found in self.settings.items() if name != "tokenizer" and found is not None}
            self._tell("\n".join(" ".join(map(str, each)) for each in known.items()))
        elif not value.strip():
            raise InputError("/set needs a name and a value.", hint="For example: /set temperature 0.7")
        else:
            self.settings = self._changed(name.replace("-", "_"), arguments.option(f"_={value.strip()}")[1])
            self._tell(f"{name} is {value.strip()}.")

    def _changed(self, name: str, value: Any) -> dict[str, Any]:
        """The settings with another one, which must be right."""
        new: dict[str, Any] = {name: value}
        if name == "temperature" and value == 0:  # as elsewhere
            new = {"do_sample": False}
        elif name in SAMPLING:
            new["do_sample"] = True
        config = self.pipe.resolved(self.pipe.options)
        if name != "seed":
            config.need_known(name)
            config.update(**new)
        return self.settings | new

    def _retry(self, _: str) -> None:
        self._show(self.again)

    def _undo(self, _: str) -> None:
        self.messages = self.until_user()[:-1]
        self._tell(f"forgotten; {len(self.messages)} messages are left.")

    def _save(self, rest: str) -> None:
        path = Path(rest).expanduser()
        write_text(path, dump_json(self.messages))
        self._tell(f"{len(self.messages)} messages are saved in {path}.")

    def _load(self, rest: str) -> None:
        path = Path(rest).expanduser()
        self.load(path)
        self._tell(f"{len(self.messages)} messages are loaded from {path}.")

    def _stats(self, _: str) -> None:
        said = "nothing has been said yet." if self.stats is None else describe_speed(self.stats)
        self._tell(f"{said} {len(self.messages)} messages, {len(self.read)} tokens read.")

    def _show(self, act: Callable[[Show | None], Written]) -> None:
        """Show an answer as it comes; what is no terminal gets its text as it is."""
        made = act(None if self.as_json else lambda piece: print(visible(piece), end="", flush=True))
        print(json.dumps(self.messages[-1], ensure_ascii=False) if self.as_json else "", flush=True)
        if made.reason is None:
            complain("stopped.", "note")
        if sys.stderr.isatty():
            _dim(self._facts(made))
            print(file=sys.stderr)

    def _facts(self, made: Any) -> list[str]:
        """How fast an answer was written, and how much of the context is left."""
        new, room = made.stats.new_tokens, self.context
        facts = [f"{new} token{'s' if new != 1 else ''}"]
        facts += [f"{made.stats.tokens_per_second:.1f} tokens/s"] if new > 1 else []
        facts += [f"{max(room - len(self.read), 0):,} of {room:,} left"] if room is not None else []
        full = room is not None and len(self.read) >= room
        return facts + ["the context is full" if full else "cut by max_new_tokens"] * (made.reason == "length")
