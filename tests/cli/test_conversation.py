"""Conversations: what is read of them and what is kept, pictures, settings, interruptions, and answers that would harm a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest
import torch
from tokenizers.decoders import Fuse

import transept
from tests.models.families import FAMILIES
from tests.pipelines.test_text_generation import TEMPLATE, writer_at
from tests.preprocess.image.test_pictures_as_tokens import WORDS, drawn, made
from transept import pipeline
from transept.cli.chat import ALIASES, COMMANDS, Chat
from transept.cli.chat.console import Block, History, joined
from transept.errors import ConfigError, FileError, InputError, TranseptError

TINY = {each.model_type: each.tiny for each in FAMILIES}
SEEING = {"llava": "Llava", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return writer_at(str(tmp_path_factory.mktemp("writer")))


def letters(pipe: Any) -> dict[str, Any]:
    """Settings that let a model of bytes write letters alone, so that its ids are those of its text."""
    ids = range(len(pipe.tokenizer))
    return {"suppress_tokens": [id for id in ids if not pipe.tokenizer.decode([id]).isalpha()], "max_new_tokens": 6}


def talk(pipe: Any, **settings: Any) -> Chat:
    pipe.tokenizer.chat_template = TEMPLATE.replace("assistant:", "assistant: ")  # as it writes answers down
    return Chat(pipe, letters(pipe) | {"tokenizer": pipe.tokenizer} | settings)


class Counted:
    """Counts the tokens that a model reads."""

    def __init__(self, pipe: Any) -> None:
        self.tokens = 0
        getattr(pipe.model.body, "language_model", pipe.model.body).register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, _: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.tokens += next(value for value in (*given, *named.values()) if isinstance(value, torch.Tensor)).shape[1]

    def since(self) -> int:
        found, self.tokens = self.tokens, 0
        return found


def test_what_was_read_is_not_read_again(model):
    """Over several turns the model reads each token once, the last one, behind which nothing was written, not at all."""
    chat = talk(pipeline("text-generation", model))
    counted = Counted(chat.pipe)
    for message in ("Hello", "And you?", "Well then."):
        chat.hear(message)
    assert counted.since() == len(chat.read) - 1
    read = list(chat.read)
    chat.hear("/undo")
    chat.hear("Well now.")
    same = next(place for place, (one, other) in enumerate(zip(read, chat.read)) if one != other)
    assert counted.since() == len(chat.read) - 1 - same
    chat.hear("/retry")
    assert counted.since() == 6  # the prompt's last token, and five of the answer
    fresh = talk(chat.pipe)
    fresh.begin(chat.messages[:-2])
    fresh.hear("Well now.")
    assert fresh.messages == chat.messages


@pytest.mark.parametrize(("kind", "again"), [("mamba", True), ("mistral", False)])
def test_caches_of_other_kinds(model, kind, again):
    """States, which sum up all of a text, cannot go back; windows can, since what they do not reach is kept."""
    settings = TINY[kind] | {"vocab_size": 257} | ({"sliding_window": 8} if kind == "mistral" else {})
    torch.manual_seed(0)
    network = transept.AutoModelForCausalLM.from_config(transept.AutoConfig.for_model(kind, **settings)).eval()
    chat = talk(pipeline("text-generation", network, tokenizer=transept.AutoTokenizer.from_pretrained(model)))
    counted = Counted(chat.pipe)
    chat.hear("Hello")
    chat.hear("And you?")
    assert counted.since() == len(chat.read) - 1
    chat.hear("/undo")
    chat.hear("And they?")
    assert (counted.since() == len(chat.read) - 1) == again
    fresh = talk(chat.pipe)
    fresh.begin(chat.messages[:2])
    fresh.hear("And they?")
    assert fresh.messages == chat.messages


class Interrupting:
    """A model whose user presses Ctrl-C so many times while its second token is written."""

    def __init__(self, model: Any, times: int) -> None:
        self.model, self.times = model, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def stream(self, **settings: Any) -> Any:
        for number, piece in enumerate(self.model.stream(**settings), 1):
            for _ in range(self.times if number == 2 else 0):
                os.kill(os.getpid(), signal.SIGINT)
            yield piece


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_keeps_the_answer_and_what_was_read(model, times, capsys):
    chat = talk(pipeline("text-generation", model))
    before, whole = signal.getsignal(signal.SIGINT), chat.pipe.model
    chat.pipe.model = Interrupting(whole, times)
    chat.hear("Hello")
    chat.pipe.model = whole
    assert signal.getsignal(signal.SIGINT) is before
    assert (len(chat.messages), chat.stats.new_tokens) == (2, 3 - times)
    assert "stopped." in capsys.readouterr().err
    assert bool(chat.read) == (times == 1)
    counted, read = Counted(chat.pipe), len(chat.read)
    chat.hear("Again")
    assert counted.since() == len(chat.read) - max(read, 1)
    fresh = talk(chat.pipe)
    fresh.begin(chat.messages[:2])
    fresh.hear("Again")
    assert fresh.messages == chat.messages


def seeing(kind: str) -> Any:
    torch.manual_seed(0)
    processor, settings = made(kind), TINY[kind]
    processor.chat_template = processor.chat_template.replace("a:{%", "a: {%")
    processor.tokenizer.backend_tokenizer.decoder = Fuse()
    if kind == "llava":
        processor.patch_size = 4
        processor.image_processor.size, processor.image_processor.crop_size = {"shortest_edge": 16}, {"height": 16, "width": 16}
        settings = settings | {"image_token_index": WORDS.index("<image>")}
    else:
        settings = settings | {"image_token_id": processor.image_token_id, "video_token_id": processor.video_token_id}
        settings |= {"vision_config": settings["vision_config"] | {"patch_size": 14, "window_size": 28}}
    settings |= {"text_config": settings["text_config"] | {"vocab_size": len(WORDS)}}
    name = f"{SEEING[kind]}ForConditionalGeneration"
    network = getattr(transept, name)(getattr(transept, f"{SEEING[kind]}Config")(**settings)).eval()
    return pipeline("image-text-to-text", network, processor=processor, max_new_tokens=4, eos_token_id=None)


@pytest.mark.parametrize("kind", SEEING)
def test_pictures(kind, tmp_path, capsys):
    """They go with the next message, are saved and loaded by their paths, and are read once."""
    pipe = seeing(kind)
    for seed, name in enumerate(("one.png", "two.png")):
        drawn(60, 40, seed).save(tmp_path / name)
    settings = {"max_new_tokens": 4, "eos_token_id": None, "tokenizer": pipe.tokenizer, "suppress_tokens": list(range(7))}
    chat, fresh = Chat(pipe, dict(settings)), Chat(pipe, dict(settings))
    counted = Counted(pipe)
    chat.hear(f"/image {tmp_path / 'one.png'}")
    assert "a picture of 60 × 40 goes with the next message" in capsys.readouterr().err
    chat.hear("ab")
    chat.hear("c")
    read = counted.since()
    assert chat.messages[0]["content"][0] == {"type": "image", "image": str(tmp_path / "one.png")}
    expected = pipe(_parts(chat.messages[:3]), suppress_tokens=settings["suppress_tokens"], return_full_text=False)
    assert chat.messages[3]["content"] == expected[0]["generated_text"]
    assert read == len(chat.read) - 1
    chat.hear(f"/save {tmp_path / 'talk.json'}")
    fresh.hear(f"/load {tmp_path / 'talk.json'}")
    for each in (chat, fresh):
        each.hear("b")
    assert fresh.messages == chat.messages
    for _ in range(3):
        chat.hear("/undo")
    assert chat.messages == []
    chat.hear(f"/image {tmp_path / 'two.png'}")  # its tokens are those of the other picture
    chat.hear("ab")
    again = Chat(pipe, dict(settings))
    again.begin(chat.messages[:-1][:0])
    again.hear(f"/image {tmp_path / 'two.png'}")
    again.hear("ab")
    assert again.messages == chat.messages
    chat.hear("/retry")
    assert again.messages == chat.messages
    with pytest.raises(FileError):
        chat.hear("/image nothing.png")


def _parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose texts are parts too."""
    texts = [each["content"] for each in messages]
    lists = [text if isinstance(text, list) else [{"type": "text", "text": text}] for text in texts]
    return [{**each, "content": content} for each, content in zip(messages, lists)]


def test_a_model_of_texts_reads_no_pictures(model, tmp_path):
    chat = talk(pipeline("text-generation", model))
    with pytest.raises(InputError, match="reads no pictures"):
        chat.hear("/image x.png")
    (tmp_path / "talk.json").write_text(json.dumps([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]))
    with pytest.raises(TranseptError, match="no conversation"):
        chat.hear(f"/load {tmp_path / 'talk.json'}")


def test_settings_are_changed_and_checked(model, capsys):
    chat = talk(pipeline("text-generation", model))
    chat.hear("/set temperature 0.7")
    assert (chat.settings["temperature"], chat.settings["do_sample"]) == (0.7, True)
    chat.hear("/set seed 3")
    chat.hear("/set parameter max-new-tokens 2")
    chat.hear("Hello")
    assert chat.stats.new_tokens == 2
    for line in (
        "/set temperatur 1",  # codespell:ignore
        "/set temperature -1",
        "/set max_new_tokens many",
        "/set temperature",
    ):
        before = dict(chat.settings)
        with pytest.raises((ConfigError, InputError)):
            chat.hear(line)
        assert chat.settings == before
    chat.hear("/set temperature 0")
    assert chat.settings["do_sample"] is False
    capsys.readouterr()
    chat.hear("/set")
    assert "seed 3\n" in capsys.readouterr().err
    chat.hear("/set system Be short.")
    assert chat.messages == [{"role": "system", "content": "Be short."}]


def test_commands_by_their_other_names(model, capsys):
    chat = talk(pipeline("text-generation", model))
    chat.hear("Hello")
    assert chat.hear("/?")
    assert all(usage in capsys.readouterr().err for usage in list(COMMANDS)[:1])
    assert chat.hear("/reset")
    assert chat.messages == []
    assert not any(chat.hear(each) for each in ("/quit", *(name for name, of in ALIASES.items() if of == "/quit")))
    for line in ("/undo", "/retry"):
        with pytest.raises(InputError, match="nothing has been said"):
            chat.hear(line)


def test_a_short_context_is_used_to_its_end(model, tmp_path, command):
    """Without a number of new tokens an answer ends where the context does, and the next message makes room."""
    chat = talk(pipeline("text-generation", model), max_new_tokens=2048)
    chat.hear("x" * 355)
    assert len(chat.read) == 512
    chat.hear("y")
    assert [each["content"][0] for each in chat.messages[::2]] == ["y"]
    with pytest.raises(InputError, match="128 for the answer leave room for 384"):
        chat.hear("z" * 400)
    assert len(chat.messages) == 2


def hostile(tokenizer: Any, text: str) -> str:
    """An option that lets a model of bytes write the characters of a text alone."""
    wanted = tokenizer(text)["input_ids"]
    return f"suppress_tokens={json.dumps([id for id in range(len(tokenizer)) if id not in wanted])}"


def test_escape_sequences_do_nothing_on_a_terminal(model, command):
    """Elsewhere a text is as the model wrote it."""
    option = hostile(transept.AutoTokenizer.from_pretrained(model), "\x1b\x07")
    line = ("chat", model, "--max-new-tokens", 5, "--option", option)
    done = command(*line, stdin=b"Hello\n", terminal=("out",))
    assert "\\x1b" in done.out or "\\x07" in done.out
    assert not {"\x1b", "\x07"} & {*done.out}
    plain = command(*line, stdin=b"Hello\n")
    assert len(plain.out) == 6
    assert {*plain.out} <= {"\x1b", "\x07", "\n"}
    written = command("generate", "--model", model, "Hi", *line[2:], terminal=("out",), stdin=b"").out
    assert not {"\x1b", "\x07"} & {*written.replace("\x1b[2m", "").replace("\x1b[0m", "")}


def test_a_cut_character_is_not_shown(model, command):
    option = hostile(transept.AutoTokenizer.from_pretrained(model), "€")
    line = ("chat", model, "--max-new-tokens", 2, "--option", option)
    assert "\N{REPLACEMENT CHARACTER}" not in command(*line, stdin=b"Hello\n", terminal=("out",)).out


def test_facts_are_told_on_a_terminal_alone(model, command, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    line = ("chat", model, "--max-new-tokens", 6)
    quiet = command(*line, stdin=b"Hello\n")
    told = command(*line, stdin=b"Hello\n/help\n", terminal=("err",))
    assert (quiet.err, told.out) == ("", quiet.out)
    assert re.search(r" k parameters · float32, \d+ kB · cpu · 512 tokens of context\n", told.err)
    assert "6 tokens · " in told.err
    assert f" tokens/s · {512 - len('user: Hello assistant:') - 6} of 512 left · cut by max_new_tokens" in told.err
    assert "\x1b" not in told.err
    monkeypatch.setenv("COLUMNS", "40")
    narrow = command(*line, stdin=b"Hello\n/help\n", terminal=("err",)).err
    assert max(map(len, narrow.splitlines())) <= 40
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[2m6 tokens" in command(*line, stdin=b"Hello\n", terminal=("err",)).err


def test_blocks_are_one_message():
    lines = ["one", '"""', "two", "", "three", '"""', '"""four"""', '"""five', 'six"""', '"""', "open"]
    assert list(joined(lines)) == ["one", "two\n\nthree", "four", "five\nsix", "open"]
    block = Block()
    assert block.add('"""x') is None
    block.drop()
    assert block.add("y") == "y"


def test_blocks_in_a_pipe(model, command):
    done = command("chat", model, "--max-new-tokens", 3, "--json", stdin=b'"""\nfirst\nsecond\n"""\n/stats\n/quit\nno\n')
    assert len(done.out.splitlines()) == 1


def test_histories(tmp_path):
    path = tmp_path / "state" / "chat_history"
    history = History(path)
    assert history.lines() == []
    for line in ("one", "two\nlines", "", "ünï", "ünï"):
        history.add(line)
    assert History(path).lines() == ["one", "two\nlines", "ünï"]
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("".join(f'"{number}"\n' for number in range(2500)))
    history.shorten()
    assert len(path.read_text().splitlines()) == 1000
    assert history.lines()[-1] == "2499"
    path.write_bytes(b"\xff{")
    assert history.lines() == []
    blocked = History(tmp_path / "state" / "chat_history" / "below")
    blocked.add("x")
    assert blocked.lines() == History(None).lines() == []
