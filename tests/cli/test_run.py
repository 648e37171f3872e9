"""`transept run`: inputs from everywhere, answers in order, drawn or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.media_models import picture, png, save_audio_model, save_image_model, sound, wav
from transept import pipeline

from .commands import answers as said
from .commands import save_text_model

TEXTS = ["i love this film!", "", "the dog is bad.", "unknown words are fine", "a cat sleeps."]


@pytest.fixture(scope="module")
def answers(classifier):
    return pipeline("text-classification", classifier)(TEXTS)


@pytest.fixture
def texts(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def check(lines: str, answers: list) -> None:
    """Batches of other sizes round differently in the last digits."""
    found = said(lines)
    assert [answer["label"] for answer in found] == [answer["label"] for answer in answers]
    assert [answer["score"] for answer in found] == pytest.approx([answer["score"] for answer in answers], abs=1e-6)


def test_arguments(command, classifier, answers):
    done = command("run", "text-classification", "--model", classifier, *TEXTS)
    assert (done.code, done.err) == (0, "")
    check(done.out, answers)


def test_arguments_may_stand_anywhere(command, classifier, answers):
    done = command("run", "text-classification", TEXTS[0], "--model", classifier, TEXTS[1], "--json", *TEXTS[2:])
    assert (done.code, done.err) == (0, "")
    check(done.out, answers)


def test_files_of_lines_and_of_json(command, classifier, answers, texts, tmp_path):
    objects = tmp_path / "texts.jsonl"
    lines = [json.dumps(TEXTS[0]), "", *(json.dumps({"text": text}) for text in TEXTS[1:])]
    objects.write_text("\ufeff" + "\r\n".join(lines))
    done = command("run", "sentiment-analysis", "--model", classifier, "--file", texts, objects)
    assert (done.code, done.err) == (0, "")
    check(done.out, answers * 2)


@pytest.mark.parametrize("given", [[], ["-"], ["--file", "-"]], ids=str)
def test_standard_input(command, classifier, answers, given):
    stdin = "\n".join(TEXTS).encode()
    done = command("run", "text-classification", "--model", classifier, *given, stdin=stdin)
    assert (done.code, done.err) == (0, "")
    check(done.out, answers)


def test_json_on_standard_input(command, classifier):
    pairs = b'{"text": "i love", "text_pair": "this"}\n{"text": "i hate", "text_pair": "that"}\n'
    done = command("run", "text-classification", "--model", classifier, "--format", "jsonl", stdin=pairs)
    expected = pipeline("text-classification", classifier)([json.loads(line) for line in pairs.splitlines()])
    assert done.code == 0
    check(done.out, expected)


def test_a_file_of_answers(command, classifier, answers, texts, tmp_path):
    output = tmp_path / "answers.jsonl"
    output.write_text("older content")
    done = command("run", "text-classification", "--model", classifier, "--file", texts, "--output", output)
    assert (done.code, done.out, done.err) == (0, f"{output}: 5 answered\n", "")
    check(output.read_text(), answers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "answers.jsonl.note.json", "texts.txt"]
    done = command("run", "text-classification", "--model", classifier, "--file", texts, "--output", output, "--json")
    assert json.loads(done.out) == {"output": str(output), "inputs": 5, "failed": 0}


def test_the_output_may_be_the_input(command, classifier, tmp_path):
    path = tmp_path / "same.jsonl"
    path.write_text('"i love this"\n')
    assert command("run", "text-classification", "--model", classifier, "--file", path, "--output", path).code == 0
    assert said(path.read_text())[0]["label"] in ("GOOD", "BAD")


def test_options_are_json_or_text(command, classifier):
    line = command("run", "text-classification", "--model", classifier, TEXTS[0], "--option", "top_k=null").out
    assert len(said(line)[0]) == 2
    options = ("--option", "top_k=1", "--option", "function_to_apply=none", "--batch-size", 3, "--dtype", "float32")
    line = command("run", "text-classification", "--model", classifier, TEXTS[0], *options, "--device", "cpu").out
    expected = pipeline("text-classification", classifier)(TEXTS[0], top_k=1, function_to_apply="none")
    assert said(line)[0] == [{"label": each["label"], "score": pytest.approx(each["score"], abs=1e-6)} for each in expected]


def test_answers_are_drawn_on_a_terminal(command, classifier, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    line = ("run", "text-classification", "--model", classifier, "--option", "top_k=2")
    alone = command(*line, TEXTS[0], terminal=("out", "err")).out.splitlines()
    assert alone[0].split() == ["label", "score"]
    assert "█" in alone[1]
    assert len(alone) == 3
    several = command(*line, TEXTS[0], TEXTS[2], terminal=("out", "err")).out.splitlines()
    assert several[0] == TEXTS[0]
    assert several[1:4] == [f"  {line}" for line in alone]
    assert several[4] == TEXTS[2]
    assert json.loads(command(*line, TEXTS[0], "--json", terminal=("out",)).out) == json.loads(command(*line, TEXTS[0]).out)


def test_colours_are_for_terminals_that_want_them(command, classifier, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    line = ("run", "text-classification", "--model", classifier, TEXTS[0])
    assert "\x1b[" in command(*line, terminal=("out",)).out
    assert "\x1b[" not in command(*line).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in command(*line, terminal=("out",)).out
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in command(*line, terminal=("out",)).out


def test_a_bar_on_a_terminal_and_none_in_a_pipe(command, classifier, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("transept.cli.work.BAR_DELAY", 0.0)
    line = ("run", "text-classification", "--model", classifier, "--file", texts, "--output", tmp_path / "a.jsonl")
    assert "text-classification" in command(*line, terminal=("err",)).err
    assert command(*line).err == ""
    assert command(*line[:-2], terminal=("out", "err")).err == ""  # the answers themselves are shown there


def test_pictures(command, tmp_path, monkeypatch):
    model = save_image_model(tmp_path / "model")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    (folder / ".hidden").write_text("no picture")
    (tmp_path / "list.txt").write_text("\n".join([*(str(folder / f"{seed}.png") for seed in range(3)), "", ""]))
    line = ("run", "image-classification", "--model", model, "--option", "top_k=1")
    expected = [answer[0]["label"] for answer in pipeline("image-classification", model)(sorted(folder.glob("*.png")))]
    for given in (sorted(folder.glob("*.png")), ["--file", folder], ["--file", tmp_path / "list.txt"]):
        done = command(*line, *given)
        assert (done.code, done.err) == (0, "")
        assert [answer[0]["label"] for answer in said(done.out)] == expected
    done = command(*line, stdin=(tmp_path / "list.txt").read_bytes())
    assert len(done.out.splitlines()) == 3


def test_sounds(command, tmp_path):
    model = save_audio_model(tmp_path / "model")
    path = tmp_path / "sound.wav"
    path.write_bytes(wav(sound(1.0)))
    options = ("--option", "chunk_length_s=0.5", "--option", "return_timestamps=char")
    done = command("run", "automatic-speech-recognition", "--model", model, path, *options)
    assert (done.code, done.err) == (0, "")
    answer = pipeline("automatic-speech-recognition", model)(path, chunk_length_s=0.5, return_timestamps="char")
    assert said(done.out) == [json.loads(json.dumps(answer))]
    drawn = command("run", "automatic-speech-recognition", "--model", model, path, *options, terminal=("out",)).out
    assert answer["text"][:10] in drawn
    assert "0.94 - 0.96" in drawn


@pytest.mark.parametrize("count", [1, 2])
def test_every_input_has_one_answer_whatever_the_task_makes_of_lists(command, tmp_path, count):
    """Some pipelines answer a list of one input as that input; the command does not."""
    mask = save_text_model(tmp_path / "mask", "BertForMaskedLM")
    done = command("run", "fill-mask", "--model", mask, *["the [MASK] is good"] * count, "--option", "top_k=3")
    expected = pipeline("fill-mask", mask)("the [MASK] is good", top_k=3)
    for found in said(done.out):
        assert [answer["token"] for answer in found] == [answer["token"] for answer in expected]
    assert len(done.out.splitlines()) == count
    questions = save_text_model(tmp_path / "questions", "BertForQuestionAnswering")
    asked = {"question": "is the dog good", "context": "the cat sleeps. the dog is good."}
    lines = [json.dumps(asked)] * count
    done = command("run", "question-answering", "--model", questions, "--format", "jsonl", *lines)
    assert (done.code, done.err) == (0, "")
    assert [answer["answer"] for answer in said(done.out)] == [
        pipeline("question-answering", questions)(asked)["answer"]
    ] * count


def test_labels_beside_their_scores_are_drawn_as_a_table(command, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    model = save_text_model(tmp_path, id2label={0: "contradiction", 1: "neutral", 2: "entailment"})
    line = ("run", "zero-shot-classification", "--model", model, "--option", "candidate_labels=film,book", "i love this film")
    rows = [row.split() for row in command(*line, terminal=("out",)).out.splitlines()]
    assert rows[0] == ["sequence", "i", "love", "this", "film"]
    assert rows[1] == ["label", "score"]
    assert sorted(row[0] for row in rows[2:]) == ["book", "film"]


def test_arrays_are_lists(command, encoder):
    done = command("run", "text-embedding", "--model", encoder, "i love this", "a cat")
    assert [len(vector) for vector in said(done.out)] == [32, 32]
    assert command("run", "text-embedding", "--model", encoder, "a cat", terminal=("out",)).out.startswith("32: ")


def test_help_lists_the_tasks(command):
    done = command("run", "--help")
    assert done.code == 0
    assert "\n  text-classification\n" in done.out
    assert "examples:" in done.out
