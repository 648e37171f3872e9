"""`transept run` with questions about pictures: the parts of an input are options."""

from __future__ import annotations

import json

import pytest

from tests.pipelines import document_models
from tests.pipelines import test_table as table_models
from tests.pipelines.media_models import picture, png
from tests.pipelines.test_describe import saved
from transept import pipeline

from .commands import answers

pytestmark = pytest.mark.reference
TASK = "visual-question-answering"


def test_a_question_goes_with_each_picture(command, tmp_path):
    """As the pipeline answers; without a picture the question is what each input is."""
    model = saved(tmp_path / "model", "BlipForQuestionAnswering")
    paths = [tmp_path / f"{seed}.png" for seed in range(2)]
    for seed, path in enumerate(paths):
        path.write_bytes(png(picture(seed)))
    expected = pipeline(TASK, model)([{"image": str(path), "question": "who"} for path in paths])
    done = command("run", "vqa", "--model", model, *paths, "--question", "who")
    assert (done.code, done.err) == (0, "")
    assert answers(done.out) == expected
    done = command("run", TASK, "--model", model, "--image", paths[0], "--question", "who")
    assert (done.code, answers(done.out)) == (0, expected[:1])


def test_a_question_goes_with_each_page(command, tmp_path):
    """Pages are files; those whose words are known are JSON."""
    document_models.save(tmp_path / "model")
    page = tmp_path / "page.png"
    page.write_bytes(png(picture()))
    line = ("run", "document-question-answering", "--model", tmp_path / "model")
    done = command(*line, page, "--question", "what?")
    assert len(done.complaints) == (done.code != 0)  # and no word that the page is taken as a text
    assert done.code == 0 or "tesseract" in done.err
    known = {
        "image": str(page),
        "question": "what?",
        "word_boxes": [["29.50", [300, 200, 380, 240]], ["EUR", [500, 200, 560, 240]]],
    }
    done = command(*line, json.dumps(known), "--format", "jsonl", "--draw", tmp_path / "answer.png")
    assert (done.code, done.err) == (0, "")
    assert answers(done.out)[0][0]["answer"]
    assert (tmp_path / "answer.png").exists()


def test_a_query_goes_with_each_table(command, tmp_path):
    """Tables are files of rows; others are JSON."""
    model, path = table_models.saved(tmp_path / "model"), tmp_path / "movies.csv"
    path.write_text("Actor,Age\nBrad Pitt,56\nGeorge Clooney,45\n", encoding="utf-8")
    table = {"Actor": ["Brad Pitt", "George Clooney"], "Age": ["56", "45"]}
    expected = json.loads(json.dumps([pipeline("table-question-answering", str(model))(table, "how many")]))
    line = ("run", "table-question-answering", "--model", model)
    done = command(*line, path, "--query", "how many")
    assert (done.code, done.err, answers(done.out)) == (0, "", expected)
    done = command(*line, json.dumps({"table": table, "query": "how many"}), "--format", "jsonl")
    assert (done.code, done.err, answers(done.out)) == (0, "", expected)


def test_pictures_that_cannot_be_leave_the_others(command, tmp_path):
    """Each error names its input, what is wrong and what to do."""
    model = saved(tmp_path / "model", "BlipForQuestionAnswering")
    contents = {
        "good": png(picture()),
        "dot": png(picture(0, 1, 1)),
        "line": png(picture(0, 4000, 1)),
        "cut": png(picture())[:60],
    }
    paths = [tmp_path / f"{name}.png" for name in (*contents, "none")]
    for path, content in zip(paths, contents.values(), strict=False):
        path.write_bytes(content)
    done = command("run", "vqa", "--model", model, *paths, "--question", "who", "--max-new-tokens", "2")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, len(rows)) == (1, 5)
    assert ["error" in row for row in rows] == [False, False, False, True, True]
    assert "truncated or corrupt" in rows[3]["error"]["message"]
    assert "no such image file" in rows[4]["error"]["message"]
    assert all(name in done.err for name in ("cut.png: is truncated", "none.png: there is no such image file"))


@pytest.mark.parametrize(
    ("task", "other"), [(TASK, "image"), ("document-question-answering", "image"), ("question-answering", "context")]
)
def test_an_input_without_a_question(command, task, other):
    """It is refused before a model is looked for."""
    done = command("run", task, "--model", "nowhere", "picture.png")
    assert done.code == 2
    assert f"the task {task!r} needs a question with each {other}: pass --question TEXT" in done.err
