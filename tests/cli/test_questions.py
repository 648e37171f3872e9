"""`transept run` with questions about pictures: the parts of an input are options."""

from __future__ import annotations

import json

import pytest

from tests.pipelines.media_models import picture, png
from tests.pipelines.test_describe import saved
from transept import pipeline

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
    assert [json.loads(line) for line in done.out.splitlines()] == expected
    done = command("run", TASK, "--model", model, "--image", paths[0], "--question", "who")
    assert (done.code, json.loads(done.out)) == (0, expected[0])
