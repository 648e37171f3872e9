"""``--draw``: pictures of answers, where they go, and that they replace no input."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.pipelines.media_models import picture, png, save_image_model
from tests.pipelines.vision_models import tiny_detr, tiny_segformer
from transept import pipeline
from transept.batch.encode import encode
from transept.batch.inputs import Item
from transept.cli.pictures import Drawings
from transept.cli.terminal import Style, answer_lines
from transept.errors import FileError, InputError
from transept.pipelines.draw import draw
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor
from transept.preprocess.media import load_image

from .commands import answers


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_image_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "pictures"
    made.mkdir()
    for seed in range(3):
        (made / f"{seed}.png").write_bytes(png(picture(seed)))
    return made


@pytest.fixture
def line(model):
    return ("run", "image-classification", "--model", model)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize("name", ["bars.png", "bars.JPG", "bars.webp"])
def test_one_input_is_drawn_into_a_file(command, line, model, folder, tmp_path, name):
    out = tmp_path / name
    done = command(*line, folder / "0.png", "--draw", out)
    assert (done.code, done.err) == (0, "")
    (answer,) = answers(done.out)  # which are told too
    expected = draw(folder / "0.png", pipeline("image-classification", model)(folder / "0.png"))
    assert [each["label"] for each in answer]
    found = pixels(out)
    assert found.shape == np.asarray(expected).shape
    if name.endswith("png"):
        assert (found == np.asarray(expected)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "pictures"])  # nothing is left beside it


def test_several_inputs_are_drawn_into_a_folder(command, line, folder, tmp_path):
    out, paths = tmp_path / "drawn", sorted(folder.iterdir())
    done = command(*line, *paths, "--draw", out)
    assert (done.code, done.err, len(done.out.splitlines())) == (0, "", 3)
    alone = tmp_path / "alone.png"
    for path in paths:
        command(*line, path, "--draw", alone)
        assert (pixels(out / path.name) == pixels(alone)).all()
    (tmp_path / "list.txt").write_text("\n".join(map(str, paths)))
    for number, given in enumerate((["--file", folder], ["--file", tmp_path / "list.txt"])):
        command(*line, *given, "--draw", tmp_path / str(number))
        assert sorted(os.listdir(tmp_path / str(number))) == ["0.png", "1.png", "2.png"]
    command(*line, "--draw", tmp_path / "in", stdin=(tmp_path / "list.txt").read_bytes())
    assert sorted(os.listdir(tmp_path / "in")) == ["0.png", "1.png", "2.png"]
    command(*line, paths[0], "--draw", tmp_path / "in")  # one input goes into a folder that is there, too
    assert len(os.listdir(tmp_path / "in")) == 3


def test_inputs_of_one_name_have_pictures_of_their_own(command, line, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name, seed in (("0.png", 7), ("0-2.png", 8)):
        (other / name).write_bytes(png(picture(seed)))
    out = tmp_path / "drawn"
    done = command(*line, folder / "0.png", other / "0.png", other / "0-2.png", "--draw", out)
    assert (done.code, sorted(os.listdir(out))) == (0, ["0-2-2.png", "0-2.png", "0.png"])
    assert (pixels(out / "0-2.png")[:40, :50] == picture(7)).all()  # bars and their labels may be wider


def test_names_are_plain(tmp_path):
    drawings = Drawings(str(tmp_path / "drawn"))
    names = [
        drawings.target(Item(value, "", {})).name for value in ("a/b c:d.png", "..", "x" * 300, "data:image/png;base64,AA", {})
    ]
    assert names == ["b_c_d.png", "picture.png", f"{'x' * 100}.png", "picture-2.png", "picture-3.png"]
    assert drawings.target(Item({"path": "A/Cat.png"}, "", {})).name == "Cat.png"
    assert drawings.target(Item("\u9f8d" * 200, "", {})).name == "\u9f8d" * 33 + ".png"
    assert drawings.target(Item("b/cat.jpg", "", {})).name == "cat-2.png"  # some systems take both names for one


def test_a_failed_input_has_no_picture_and_the_others_have(command, line, folder, tmp_path):
    (folder / "1.png").write_bytes(b"no picture")
    done = command(*line, "--file", folder, "--draw", tmp_path / "drawn")
    assert (done.code, sorted(os.listdir(tmp_path / "drawn"))) == (1, ["0.png", "2.png"])
    done = command(*line, folder / "1.png", "--draw", tmp_path / "one.png")
    assert (done.code, (tmp_path / "one.png").exists()) == (1, False)


def test_what_is_resumed_is_drawn_from_there_on(command, line, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transept.cli.work.piece_of", lambda args: 1)
    out, told = tmp_path / "drawn", tmp_path / "told.jsonl"
    assert command(*line, "--file", folder, "--output", told).code == 0
    first = told.read_text().splitlines(keepends=True)[0]
    told.unlink()
    (tmp_path / "told.jsonl.partial").write_text(first)
    done = command(*line, "--file", folder, "--output", told, "--resume", "--draw", out)
    assert (done.code, len(told.read_text().splitlines())) == (0, 3)
    assert sorted(os.listdir(out)) == ["1.png", "2.png"]


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["0.png", "1.png", "--draw", "x.png"], 2, "must be a folder for several inputs"),
        (["--file", "", "--draw", "x.png"], 2, "must be a folder for several inputs"),
        (["0.png", "--draw", "x.txt"], 2, "end in .png"),
        (["0.png", "--draw", "absent/x.png"], 1, "is not there"),
        (["0.png", "--draw", "absent/x"], 1, "is not there"),
        (["0.png", "--draw", "0.png"], 1, "is the input itself"),
        (["0.png", "1.png", "--draw", "."], 1, "holds inputs"),
        (["--file", ".", "--draw", "."], 1, "holds inputs"),
        (["--draw"], 2, "--draw"),
    ],
    ids=str,
)
def test_errors_come_before_anything_slow(command, line, folder, monkeypatch, given, code, words):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("transept.cli.run.make_pipeline", lambda *given: pytest.fail("a model was loaded"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if "" in given:
        (folder.parent / "list.txt").write_text("0.png\n1.png\n")
        given = [str(folder.parent / "list.txt") if word == "" else word for word in given]
    done = command(*line, *given)
    assert (done.code, len(done.complaints), done.out) == (code, 1, "")
    assert words in done.err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_inputs_of_a_list_are_spared_too(command, line, folder, tmp_path):
    (tmp_path / "list.txt").write_text("\n".join(str(folder / f"{seed}.png") for seed in range(2)))
    before = (folder / "0.png").read_bytes()
    done = command(*line, "--file", tmp_path / "list.txt", "--draw", folder)
    assert (done.code, "holds inputs" in done.err) == (1, True)
    assert (folder / "0.png").read_bytes() == before


def test_a_picture_that_cannot_be_written_is_an_error(command, line, folder, tmp_path):
    (tmp_path / "drawn").write_text("")
    done = command(*line, folder / "0.png", folder / "1.png", "--draw", tmp_path / "drawn")
    assert (done.code, len(done.complaints)) == (1, 1)
    assert "cannot be made" in done.err
    (tmp_path / "folder/0.png").mkdir(parents=True)
    done = command(*line, folder / "0.png", folder / "1.png", "--draw", tmp_path / "folder")
    assert (done.code, "is a directory" in done.err) == (1, True)


def test_answers_that_cannot_be_drawn_are_refused(command, classifier, tmp_path):
    done = command("run", "text-classification", "--model", classifier, "i love", "--draw", tmp_path / "x.png")
    assert (done.code, len(done.complaints)) == (2, 1)
    assert "answers of the task 'text-classification' cannot be drawn" in done.err
    assert command("embed", "--draw", tmp_path / "x.png").code == 2


def test_images_in_answers_are_urls_in_json_and_sizes_on_a_terminal(monkeypatch):
    mask = Image.fromarray(picture(0)[:, :, 0])
    answer = [{"score": None, "label": "sea", "mask": mask}]
    (found,) = json.loads(encode(answer))
    assert (np.asarray(load_image(found["mask"]))[:, :, 0] == np.asarray(mask)).all()
    shown = "\n".join(answer_lines(answer, Style(io.StringIO())))
    assert "image of 50 × 40" in shown
    depth = {"predicted_depth": np.ones((3, 4), np.float32), "depth": mask}
    assert json.loads(encode(depth))["predicted_depth"] == [[1.0] * 4] * 3
    assert "3 × 4: 1.0000" in "\n".join(answer_lines(depth, Style(io.StringIO())))


def test_errors_name_the_place(tmp_path):
    with pytest.raises(FileError, match="is not there"):
        Drawings(str(tmp_path / "absent" / "x.png"))
    with pytest.raises(InputError, match="cannot be drawn"):
        Drawings(str(tmp_path / "x.png")).draw(Item(png(picture(0)), "", {}), "text", tmp_path / "x.png")
    assert not os.listdir(tmp_path)


def test_masks_are_drawn_and_told(command, folder, tmp_path):
    tiny_segformer().save_pretrained(tmp_path / "model")
    SegformerImageProcessor(size={"height": 48, "width": 64}).save_pretrained(tmp_path / "model")
    done = command("run", "image-segmentation", "--model", tmp_path / "model", folder / "0.png", "--draw", tmp_path / "x.png")
    assert (done.code, done.err) == (0, "")
    expected = pipeline("image-segmentation", tmp_path / "model")(folder / "0.png")
    assert (pixels(tmp_path / "x.png") == np.asarray(draw(folder / "0.png", expected))).all()
    for told, found in zip(*answers(done.out), expected, strict=True):
        assert (told["label"], told["score"]) == (found["label"], None)
        assert (np.asarray(load_image(told["mask"]))[:, :, 0] == np.asarray(found["mask"])).all()
    shown = command("run", "image-segmentation", "--model", tmp_path / "model", folder / "0.png", terminal=("out",)).out
    assert "image of 50 × 40" in shown


def test_boxes_are_drawn_by_the_task_that_the_class_tells(command, folder, tmp_path):
    tiny_detr().save_pretrained(tmp_path / "model")
    DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 80}).save_pretrained(tmp_path / "model")
    line = ("run", "object-detection", "--model", tmp_path / "model", "--threshold", "0.3")
    done = command(*line, "--file", folder, "--draw", tmp_path / "drawn")
    assert (done.code, done.err) == (0, "")
    ask = pipeline(model=tmp_path / "model", threshold=0.3)
    assert ask.task == "object-detection"
    for told, path in zip(answers(done.out), sorted(folder.iterdir()), strict=True):
        assert [each["label"] for each in told] == [each["label"] for each in ask(path)] != []
        assert (pixels(tmp_path / "drawn" / path.name) == np.asarray(draw(path, told))).all()
    done = command(*line[:-1], "2", folder / "0.png")
    assert (done.code, "`threshold` must be a number from 0 to 1" in done.err) == (1, True)
