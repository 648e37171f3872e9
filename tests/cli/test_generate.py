"""`transept generate` and `transept chat`: text as it is written, and talks that survive what goes wrong."""

from __future__ import annotations

import json

import pytest

from tests.pipelines.test_text_generation import writer_at
from transept import pipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return writer_at(str(tmp_path_factory.mktemp("writer")))


def test_a_text_is_written_on(command, model):
    expected = pipeline("text-generation", model)("Hello", max_new_tokens=7)[0]["generated_text"]
    done = command("generate", "--model", model, "Hello", "--max-new-tokens", 7)
    assert (done.code, done.out.rstrip("\n"), done.err) == (0, expected.rstrip("\n"), "")
    found = json.loads(command("generate", "--model", model, "--max-new-tokens", 7, "--json", stdin=b"Hello\n").out)
    assert (found["prompt"], "Hello" + found["text"]) == ("Hello", expected)
    assert (found["new_tokens"], found["finish_reason"]) == (7, "length")


def test_a_temperature_of_0_draws_nothing(command, model):
    greedy, cold = (
        command("generate", "--model", model, "Hello", "--seed", 1, *more)
        for more in (["--option", "do_sample=false"], ["--temperature", 0])
    )
    assert (cold.code, cold.out) == (0, greedy.out)


def test_a_seed_draws_the_same_text_again(command, model):
    drawn = [command("generate", "--model", model, "Hello", "--max-new-tokens", 20, "--seed", seed).out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "1.5"], "top_p"),
        (["--option", "max_new_tokenz=3"], "max_new_tokens"),
        (["--max-new-tokens", "4000"], "positions"),
    ],
)
def test_settings_that_cannot_be_are_one_line(command, model, more, told):
    done = command("generate", "--model", model, "Hello", *more)
    assert (done.code, len(done.complaints), done.out) == (1, 1, "")
    assert told in done.err


def test_a_model_that_answers_is_named_its_task(command, tmp_path):
    import transept

    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    config = transept.T5Config(**sizes, decoder_start_token_id=0)
    transept.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    for verb in ("generate", "chat"):
        done = command(verb, "--model", tmp_path, *["Hello"][: verb == "generate"])
        assert (done.code, len(done.complaints)) == (1, 1)
        assert f"transept run text2text-generation --model {tmp_path}" in done.err


def test_other_settings_are_options(command, model):
    line = ("generate", "--model", model, "Hello", "--max-new-tokens", 7)
    options = {"repetition_penalty": 3.0, "min_new_tokens": 2, "do_sample": False}
    expected = pipeline("text-generation", model)("Hello", max_new_tokens=7, **options)[0]["generated_text"]
    done = command(*line, "--repetition-penalty", 3, "--min-new-tokens=2", "--no-do-sample")
    assert (done.code, done.out.rstrip("\n"), done.err) == (0, expected.rstrip("\n"), "")
    done = command(*line, "--repetition-penalti", 3)
    assert done.code == 2
    assert "'--repetition-penalty'" in done.err


def test_an_interruption_is_told(command, model, monkeypatch):
    from transept.generation.generate import Generates

    def stream(self, *_, **__):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Generates, "stream", stream)
    done = command("generate", "--model", model, "Hello", terminal=("err",))
    assert (done.code, done.out) == (130, "Hello\n")
    assert "stopped: no token was written." in done.err


def test_standard_input_that_is_no_text(command, model):
    done = command("generate", "--model", model, stdin=b"Hel\xfflo")
    assert done.code == 1
    assert done.complaints == ["transept: error: standard input: is not UTF-8 text (byte 3)."]


def test_mistyped(command):
    assert command("generate", "Hello").code == 2
    assert command("chat").code == 2
    assert command("generate", "--model", "x/y/z", "Hello").code == 1


def test_a_chat_keeps_its_history(command, model, tmp_path):
    path = tmp_path / "talk.json"
    lines = ["Hello", "/stats", "And you?", f"/save {path}", "/nothing", "/reset", f"/load {path}", "/load", "Again", "/exit"]
    done = command("chat", "--model", model, "--max-new-tokens", 6, "--system", "Be short.", stdin="\n".join(lines).encode())
    assert done.code == 0
    assert "6 tokens" in done.err
    assert [line.split(": ")[1] for line in done.complaints if line.startswith("transept")] == ["error", "error"]
    saved = json.loads(path.read_text())
    assert [each["role"] for each in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert saved[1]["content"] == "Hello"
    pipe = pipeline("text-generation", model, max_new_tokens=6)
    for end in (2, 4):
        assert pipe(saved[:end])[0]["generated_text"][-1]["content"] == saved[end]["content"]


def test_a_chat_that_grows_too_long_forgets_its_beginning(command, model):
    lines = ["x" * 150, "y" * 150, "z" * 150, "w" * 600]
    done = command("chat", "--model", model, "--max-new-tokens", 6, "--json", stdin="\n".join(lines).encode())
    assert done.code == 0
    assert len(done.out.splitlines()) == 3
    assert "oldest messages are forgotten" in done.complaints[0]
    assert "Shorten it" in done.complaints[-1]


def test_without_a_template_it_says_so(command, model, tmp_path):
    import shutil

    plain = tmp_path / "plain"
    shutil.copytree(model, plain, ignore=shutil.ignore_patterns("*.jinja"))
    done = command("chat", "--model", plain, "--max-new-tokens", 4, stdin=b"Hello\n")
    assert done.code == 0
    assert "no chat template" in done.complaints[0]
    expected = pipeline("text-generation", plain)("Hello", max_new_tokens=4, return_full_text=False)[0]["generated_text"]
    assert done.out.rstrip("\n") == expected.rstrip("\n")
