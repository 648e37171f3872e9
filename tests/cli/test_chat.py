"""`transept chat` at a terminal: editing, history, pasted texts, interruptions; and conversations in files."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.test_text_generation import writer_at
from tests.thorough import in_turn
from transept import pipeline
from transept.cli.chat import Chat
from transept.cli.chat.console import History
from transept.errors import FormatError, GenerationError, TranseptError

pty = pytest.importorskip("pty", reason="needs terminals of Unix")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

UP, LEFT, CTRL_C, CTRL_D, ALT_ENTER = "\x1b[A", "\x1b[D", "\x03", "\x04", "\x1b\r"
PASTE = "\x1b[200~{}\x1b[201~"
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])")
HIDE = "import sys; sys.modules['prompt_toolkit'] = None; from importlib import util; found = util.find_spec; "
HIDE += "util.find_spec = lambda name, *more: None if name == 'prompt_toolkit' else found(name, *more); "
MAIN = "import sys; from transept.cli.main import main; sys.exit(main())"


class Terminal:
    """A command that runs in a terminal; what it shows is in ``shown``, and ``editor`` is what lines are edited by."""

    editor = ""

    def __init__(self, *arguments: object, code: str = MAIN, state: Path, out: Any = None) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        line = [sys.executable, "-c", code, *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "NO_COLOR": "1"}
        environment["XDG_STATE_HOME"] = str(state)
        self.child = subprocess.Popen(
            line,
            stdin=theirs,
            stdout=out or theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=controlling,
        )
        os.close(theirs)
        self.handle, self.shown, self.seen = ours, "", 0

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def wait_for(self, pattern: str, seconds: float = 90) -> str:
        """Wait until something is shown that has not been waited for."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown[self.seen :])) is None:
            assert time.monotonic() < deadline, f"{pattern!r} is not in {self.shown[self.seen :]!r}"
            if select.select([self.handle], [], [], 0.2)[0]:
                data = os.read(self.handle, 65536).decode(errors="replace")
                if "\x1b[6n" in data:  # it asks where the cursor is
                    self.type("\x1b[1;1R")
                self.shown += ESCAPES.sub("", data)
        self.seen += found.end()
        return found[0]

    def end(self) -> int:
        self.type(CTRL_D)
        return self.child.wait(90)


def controlling() -> None:
    """The terminal is the child's own, so that Ctrl-C reaches it as a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return writer_at(str(tmp_path_factory.mktemp("writer")))


@pytest.fixture(params=in_turn(["prompt_toolkit", "readline"], 1))
def start(request, model, tmp_path) -> Iterator[object]:
    opened: list[Terminal] = []

    def start(*more: object) -> Terminal:
        code = MAIN if request.param == "prompt_toolkit" else HIDE + MAIN
        line = ("chat", model, "--max-new-tokens", 4, "--json", *more)
        opened.append(Terminal(*line, code=code, state=tmp_path))
        opened[-1].editor = request.param
        opened[-1].wait_for("Ctrl-D leaves")
        opened[-1].wait_for(">")
        return opened[-1]

    yield start
    for terminal in opened:
        if terminal.child.poll() is None:
            terminal.child.send_signal(signal.SIGKILL)
            terminal.child.wait()
        os.close(terminal.handle)


def said(terminal: Terminal, path: Path) -> list[str]:
    """What the user has said so far."""
    terminal.type(f"/save {path}\r")
    terminal.wait_for("messages are saved")
    terminal.wait_for(">")  # what is typed before the prompt may be lost
    return [each["content"] for each in json.loads(path.read_text()) if each["role"] == "user"]


def test_at_a_terminal(start, tmp_path):
    """Lines are edited and remembered, Ctrl-C drops one, and a pasted text or one between quotes is one message."""
    terminal, pasted = start(), "/first line\nsecond line\n\nfourth"
    for typed in (f"Helo{LEFT}l\r", UP + " again\r", PASTE.format(pasted) + "\r"):
        terminal.type(typed)
        terminal.wait_for('"assistant"')
        terminal.wait_for(">")
    terminal.type("never sai")
    terminal.wait_for("never sai")
    time.sleep(0.3)  # a signal that comes while readline still draws a key is noticed with the next one only
    terminal.type(CTRL_C)
    terminal.wait_for("Ctrl-D or /quit leaves")
    terminal.wait_for(">")
    terminal.type("/stats\r")
    terminal.wait_for("6 messages")
    terminal.wait_for(">")
    terminal.type('"""\r')
    terminal.wait_for(r"\.\.\.")
    terminal.type('in two"""\r')
    terminal.wait_for('"assistant"')
    terminal.wait_for(">")
    wanted = ["Hello", "Hello again", pasted, "in two"]
    if terminal.editor == "prompt_toolkit":
        terminal.type(f"with{ALT_ENTER}Alt\r")
        terminal.wait_for('"assistant"')
        terminal.wait_for(">")
        wanted.append("with\nAlt")
    assert said(terminal, tmp_path / "talk.json") == wanted
    assert terminal.end() == 0
    lines = History(tmp_path / "transept" / "chat_history").lines()
    assert [line for line in lines if not line.startswith(("/s", '"""', "in"))] == [*wanted[:3], *wanted[4:]]


def test_lines_of_earlier_conversations_come_back(start, tmp_path):
    history = History(tmp_path / "transept" / "chat_history")
    history.add("of yesterday")
    terminal = start()
    terminal.type(UP + "\r")
    terminal.wait_for('"assistant"')
    terminal.wait_for(">")
    assert said(terminal, tmp_path / "talk.json") == ["of yesterday"]
    terminal.type("/bye\r")
    assert terminal.child.wait(90) == 0
    silent = start("--no-history")
    silent.type("secret\r")
    silent.wait_for('"assistant"')
    silent.wait_for(">")
    assert silent.end() == 0
    assert [line for line in history.lines() if not line.startswith("/")] == ["of yesterday"]


def test_a_file_gets_the_answers_alone(model, tmp_path):
    """What is asked and told stays on the terminal."""
    with open(tmp_path / "out.txt", "wb") as out:
        terminal = Terminal("chat", model, "--max-new-tokens", 4, "--seed", 0, state=tmp_path, out=out)
    terminal.wait_for("> ")
    terminal.type("Hello\r")
    terminal.wait_for(r"4 tokens · \d+\.\d tokens/s · \d+ of 512 left")
    terminal.wait_for("> ")
    terminal.type("/stats\r")
    terminal.wait_for("2 messages")
    assert terminal.end() == 0
    os.close(terminal.handle)
    answers = (tmp_path / "out.txt").read_bytes()
    chat = talk(model)
    chat.settings |= {"max_new_tokens": 4, "seed": 0, "do_sample": True}
    chat.hear("Hello")
    assert answers.decode() == chat.messages[-1]["content"] + "\n"


class Interrupted:
    """A model whose stream is interrupted after two tokens, when one layer has read more than the other."""

    def __init__(self, model: object) -> None:
        self.model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def stream(self, *, past_key_values, **settings):
        pieces = self.model.stream(past_key_values=past_key_values, **settings)
        yield next(pieces)
        yield next(pieces)
        layer = past_key_values.layers[0]
        layer.append(layer.keys[:, :, :1], layer.values[:, :, :1])
        raise KeyboardInterrupt


def talk(model: str) -> Chat:
    pipe = pipeline("text-generation", model)
    return Chat(pipe, {"max_new_tokens": 6, "tokenizer": pipe.tokenizer})


def test_an_interrupted_answer_is_kept_and_leaves_a_right_cache(model, capsys):
    first, second = talk(model), talk(model)
    first.hear("Hello")
    whole, model_of = first.stats, first.pipe.model
    first.pipe.model = Interrupted(model_of)
    first.hear("And you?")
    first.pipe.model = model_of
    assert [each["role"] for each in first.messages] == ["user", "assistant"] * 2
    assert first.stats.new_tokens == 2 < whole.new_tokens == 6
    assert 0 < first.stats.seconds_to_first_token <= first.stats.seconds
    capsys.readouterr()
    first.hear("/stats")
    assert capsys.readouterr().err.startswith("2 tokens, the first after ")
    second.begin([dict(message) for message in first.messages])
    for each in (first, second):
        each.hear("Again")
    assert first.messages == second.messages


def test_what_fails_in_the_middle_leaves_the_conversation(model, capsys, monkeypatch):
    chat = talk(model)
    chat.hear("Hello")
    before = list(chat.messages)

    def fail(*_: object, **__: object) -> None:
        raise GenerationError("scores that are no numbers.")

    with monkeypatch.context() as patch, pytest.raises(GenerationError):
        patch.setattr(type(chat.pipe.model), "stream", fail)
        chat.hear("And you?")
    assert chat.messages == before
    chat.hear("And you?")
    assert len(chat.messages) == 4


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", "[1]", '[{"role": "user"}]', '[{"role": "user", "content": 5}]', '[{"role": 1, "content": "x"}]'],
)
def test_a_bad_file_is_refused_at_once(model, tmp_path, content):
    chat, path = talk(model), tmp_path / "bad.json"
    chat.hear("Hello")
    before, read = list(chat.messages), list(chat.read)
    path.write_text(content)
    for bad in (path, tmp_path / "absent.json", tmp_path):
        with pytest.raises(TranseptError):
            chat.hear(f"/load {bad}")
    assert (chat.messages, chat.read) == (before, read)


def test_a_conversation_that_the_template_refuses_is_no_conversation(model, tmp_path):
    chat, path = talk(model), tmp_path / "talk.json"
    chat.pipe.tokenizer.chat_template = "{% if messages[0].role != 'user' %}{{ raise_exception('users begin') }}{% endif %}x"
    path.write_text(json.dumps([{"role": "assistant", "content": "I begin."}]))
    with pytest.raises(FormatError, match="users begin"):
        chat.hear(f"/load {path}")


def test_commands_confirm_in_a_line(model, tmp_path, capsys):
    chat, path = talk(model), tmp_path / "talk.json"
    chat.hear("Hello")
    capsys.readouterr()
    for line, told in (
        (f"/save {path}", f"2 messages are saved in {path}."),
        ("/reset", "the conversation is forgotten."),
        (f"/load {path}", f"2 messages are loaded from {path}."),
        ("/system Be short.", "begun anew; the model is told this first."),
    ):
        chat.hear(line)
        assert capsys.readouterr() == ("", f"{told}\n")
    assert chat.messages == [{"role": "system", "content": "Be short."}]


def test_standard_output_holds_json_alone(command, model, tmp_path):
    lines = ["Hello", "/stats", "/help", f"/save {tmp_path / 'talk.json'}", "/reset"]
    done = command("chat", "--model", model, "--max-new-tokens", 3, "--json", stdin="\n".join(lines).encode())
    assert json.loads(done.out)["role"] == "assistant"
    assert "2 messages are saved" in done.err


def test_lines_that_are_no_text_are_told(command, model):
    done = command("chat", "--model", model, "--max-new-tokens", 3, "--json", stdin=b"Hel\xfflo\nHello\n")
    assert done.code == 0
    assert "standard input:1: is not UTF-8 text" in done.complaints[0]
    assert len(done.out.splitlines()) == 1
