"""Messages that are typed: lines with editing and a history, and blocks of several lines between triple quotes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transept.errors import TranseptError
from transept.storage.files import parse_json, read_text

QUOTES = '"""'
PROMPT, MORE = "> ", "... "
MOST_LINES = 1000  # that a history keeps


class Block:
    """Joins lines between triple quotes to one message; any other line is one by itself."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.open = False

    def add(self, line: str) -> str | None:
        """The message that a line completes, if it does."""
        if not self.open:
            if not line.lstrip().startswith(QUOTES):
                return line
            line, self.open = line.lstrip().removeprefix(QUOTES), True
        text, quotes, _ = line.partition(QUOTES)
        self.lines.append(text)
        if not quotes:
            return None
        message = "\n".join(self.lines).strip("\n")
        self.drop()
        return message

    def drop(self) -> None:
        self.lines, self.open = [], False


def joined(lines: Iterable[str]) -> Iterator[str]:
    """The messages in lines; a block that is not closed ends with them."""
    block = Block()
    for line in lines:
        if (message := block.add(line)) is not None:
            yield message
    if block.open:
        yield "\n".join(block.lines).strip("\n")


class History:
    """The lines that were typed in earlier conversations, in a file that only its user may read.

    Where the file cannot be read or written, there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.last = path, ""

    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        if self.path is None:
            return []
        with suppress(TranseptError):
            kept = [parse_json(line) for line in read_text(self.path).splitlines()[-MOST_LINES:]]
            lines = [line for line in kept if isinstance(line, str)]
            self.last = lines[-1] if lines else ""
            return lines
        return []

    def add(self, line: str) -> None:
        """Keep a line, unless it is the one before it again."""
        if self.path is None or not line.strip() or line == self.last:
            return
        self.last = line
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(handle, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def shorten(self) -> None:
        """Forget old lines where there are more than twice as many as are kept."""
        with suppress(OSError, TranseptError):
            if self.path is not None and len(lines := read_text(self.path).splitlines()) > 2 * MOST_LINES:
                self.path.write_text("\n".join(lines[-MOST_LINES:]) + "\n", encoding="utf-8")


def history_path() -> Path:
    """The history of chats, in the folder where the system keeps the state of programs."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "transept" / "chat_history"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "transept" / "chat_history"


def typed(history: History, commands: Sequence[str], tell: Callable[[str], Any]) -> Iterator[str]:
    """What is typed, message by message, until the end of input; prompt_toolkit edits lines where it is, else readline.

    ``tell`` gets what a user should know who presses Ctrl-C where there is nothing to stop.
    """
    history.shorten()
    ask, block = _editor(history, commands), Block()
    while True:
        try:
            line = ask(MORE if block.open else PROMPT)
        except EOFError:
            return
        except KeyboardInterrupt:
            block.drop()
            print(file=sys.stderr)
            tell("Ctrl-D or /quit leaves.")
            continue
        if (message := block.add(line)) is not None:
            yield message


def _editor(history: History, commands: Sequence[str]) -> Callable[[str], str]:
    """What asks for a line; the prompt never goes into standard output where that is no terminal."""
    if not sys.stdout.isatty():
        return lambda prompt: _kept(history, _plain(prompt))
    try:
        return _toolkit(history, commands)
    except ImportError:
        pass
    with suppress(ImportError):
        import readline

        for line in history.lines():
            readline.add_history(line.replace("\n", " "))
    return lambda prompt: _kept(history, input(prompt))


def _plain(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _kept(history: History, line: str) -> str:
    history.add(line)
    return line


def _toolkit(history: History, commands: Sequence[str]) -> Callable[[str], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import History as Base
    from prompt_toolkit.key_binding import KeyBindings

    class Lines(Base):
        def load_history_strings(self) -> Iterable[str]:
            return reversed(history.lines())

        def store_string(self, string: str) -> None:
            history.add(string)

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    words = WordCompleter(list(commands), sentence=True)
    session = PromptSession[str](
        history=Lines(), key_bindings=keys, completer=words, complete_while_typing=False, prompt_continuation=MORE
    )
    return lambda prompt: session.prompt(prompt)
