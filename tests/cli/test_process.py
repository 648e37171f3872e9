"""The command as a process: streams that come and go, signals, and what it costs to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.pace import PATIENCE
from tests.thorough import in_turn

from .commands import process

RUN = ("run", "text-classification", "--model")


def started(*arguments: object, **settings: object) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "transept.cli", *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, **(pipes | settings))


def test_answers_come_line_by_line(classifier):
    """Each is there before the next text is written, as when following a log."""
    with started(*RUN, classifier) as child:
        for text in (b"i love this\n", b"bad cat\n", b"the dog\n"):
            child.stdin.write(text)
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["answer"]["label"] in ("GOOD", "BAD")
        child.stdin.close()
        assert child.wait(PATIENCE) == 0
        assert child.stderr.read() == b""


def interrupted(*arguments: object, beside: Path, by: signal.Signals = signal.SIGINT) -> str:
    """What a command says that is interrupted after it has written something into a directory."""
    with started(*arguments, stdin=subprocess.DEVNULL) as child:
        while not any(path.stat().st_size > 10_000 for path in beside.glob("*.partial")):
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(by)
        assert child.wait(PATIENCE) == (130 if by is signal.SIGINT else -by)
        return child.stderr.read().decode()


COUNT, WORDS = 8000, ["i love this", "bad cat", "the dog is good", "a book"]


@pytest.mark.parametrize("suffix", in_turn([".npy", ".jsonl"], 1))
def test_an_interrupted_run_keeps_what_there_is_and_says_how_to_go_on(encoder, tmp_path, suffix):
    """The first note is the only line; the same command with --resume gives what one whole run gives."""
    texts, outputs = tmp_path / "texts.txt", tmp_path / "outputs"
    outputs.mkdir()
    texts.write_text("\n".join(WORDS[number % 4] for number in range(COUNT)))
    output = outputs / f"vectors{suffix}"
    output.write_bytes(b"older")
    partial = Path(f"{output}.partial")
    line = ("embed", "--model", encoder, texts, "--output", output)
    note = interrupted(*line, beside=outputs)
    kept = int(note.split()[2])
    assert note == f"transept: note: {kept} answers are kept in {partial}; the same command with --resume goes on from there.\n"
    assert 0 < kept < COUNT
    assert output.read_bytes() == b"older"
    assert read_vectors(partial).shape == (kept, 32)
    done = process(*line, "--resume")
    assert (done.code, done.out, done.err) == (0, f"{output}: {COUNT} answered\n", "")
    check_vectors(outputs, output)


def check_vectors(outputs: Path, output: Path) -> None:
    """All rows are there, once and in order, and beside them only what tells what they are of."""
    found = read_vectors(output)
    assert len(found) == COUNT
    np.testing.assert_allclose(found, found[[number % 4 for number in range(COUNT)]], atol=1e-5)
    index = outputs / "vectors.index.jsonl"
    rows = [json.loads(line) for line in (index if output.suffix == ".npy" else output).read_text().splitlines()]
    assert [(row["number"], row["text"]) for row in rows] == [(n + 1, WORDS[n % 4]) for n in range(COUNT)]
    beside = {output.name, f"{output.name}.note.json"} | ({index.name} if output.suffix == ".npy" else set())
    assert {*os.listdir(outputs)} == beside


@pytest.mark.skipif(os.name == "nt", reason="needs signals of Unix")
@pytest.mark.parametrize("suffix", in_turn([".jsonl", ".npy"], 1))
def test_what_a_killed_run_leaves_is_gone_on_from(encoder, tmp_path, suffix):
    texts, outputs = tmp_path / "texts.txt", tmp_path / "outputs"
    outputs.mkdir()
    texts.write_text("\n".join(WORDS[number % 4] for number in range(COUNT)))
    output = outputs / f"vectors{suffix}"
    line = ("embed", "--model", encoder, texts, "--output", output)
    assert interrupted(*line, beside=outputs, by=signal.SIGKILL) == ""
    assert not output.exists()
    partial = Path(f"{output}.partial")
    if suffix == ".jsonl":  # of an array, the header tells how many rows are whole
        partial.write_bytes(partial.read_bytes()[:-7])
    assert process(*line, "--resume").out == f"{output}: {COUNT} answered\n"
    check_vectors(outputs, output)


def read_vectors(path: Path) -> np.ndarray:
    if ".npy" in path.suffixes:
        return np.load(path)
    return np.array([json.loads(line)["embedding"] for line in path.read_text().splitlines()])


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise on Windows")
def test_a_closed_pipe_is_no_error(classifier, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("i love this film\n" * 20000)
    with started(*RUN, classifier, "--file", texts, stdin=subprocess.DEVNULL) as child:
        json.loads(child.stdout.readline())
        child.stdout.close()
        assert child.wait(PATIENCE) == 0
        assert child.stderr.read() == b""


def test_no_colours_and_no_bar_in_a_pipe(classifier, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("i love this film\n" * 1000)
    done = process(*RUN, classifier, "--file", texts)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) == 1000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_read_once(classifier, tmp_path):
    pipe = tmp_path / "texts"
    os.mkfifo(pipe)
    with started(*RUN, classifier, "--file", pipe, stdin=subprocess.DEVNULL) as child:
        pipe.write_text("i love this\nbad cat\n")
        assert len(child.stdout.read().splitlines()) == 2
        assert child.wait(PATIENCE) == 0


def test_help_imports_nothing_heavy():
    code = "import sys; from transept.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    for line in (["--help"], ["embed", "--help"], ["run", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, timeout=PATIENCE, check=True)
        loaded = set(done.stderr.split())
        assert "transept.cli.run" in loaded
        assert not loaded & {"torch", "numpy", "tokenizers", "huggingface_hub", "safetensors", "transformers", "PIL", "tqdm"}


def test_a_task_imports_only_what_it_needs(classifier):
    code = "import sys; from transept.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    line = [sys.executable, "-c", code, *RUN, str(classifier), "i love this"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=True)
    loaded = set(done.stderr.split())
    assert "transept.models.bert" in loaded
    foreign = {name for name in loaded if name.startswith("transept.models.")} - {"transept.models.bert"}
    assert foreign == set()
    assert not loaded & {"PIL", "soundfile", "soxr", "transformers", "torch._dynamo", "torch._inductor", "jinja2"}


def test_mistakes_are_told_before_anything_is_loaded(tmp_path):
    code = "import sys; from transept.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    absent = str(tmp_path / "absent")
    for line in (
        ["embed", absent],
        ["run", "text-classification", "--model", absent, "x"],
        ["run", "fill-mask", "--file", absent, "--model", str(tmp_path)],
        ["rerank", "--query", "q", absent],
    ):
        done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, timeout=PATIENCE, check=True)
        error, modules = done.stderr.splitlines()
        assert "there is no such" in error
        assert "torch" not in modules.split()
