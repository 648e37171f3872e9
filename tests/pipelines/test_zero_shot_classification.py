"""Texts to classes named when asking: by entailment as the reference does, and by vectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transept import pipeline
from transept.errors import InputError, TranseptWarning
from transept.pipelines.tasks.classification import ZeroShotByEmbeddingPipeline, ZeroShotClassificationPipeline

from .text_models import TEXTS, SavedModel, check_close, long_text, reference

TASK = "zero-shot-classification"
LABELS = ["sports", "politics", "old maps"]
ENTAILMENT = {"id2label": {0: "CONTRADICTION", 1: "neutral", 2: "Entailment"}}


@pytest.fixture(scope="module")
def judge(text_model: SavedModel) -> Any:
    return pipeline(TASK, text_model("BertForSequenceClassification", **ENTAILMENT))


@pytest.fixture(scope="module")
def compare(text_model: SavedModel) -> Any:
    return pipeline(TASK, text_model("BertModel"))


@pytest.mark.reference
@pytest.mark.parametrize("inputs", [TEXTS[0], TEXTS[:1], TEXTS[4:]])
@pytest.mark.parametrize(
    "options",
    [
        {"candidate_labels": LABELS},
        {"candidate_labels": "sports,  politics , old maps"},
        {"candidate_labels": LABELS[:1]},
        {"candidate_labels": LABELS, "multi_label": True},
        {"candidate_labels": LABELS, "hypothesis_template": "I like {} the most."},
    ],
)
def test_entailment_is_the_references(text_model: SavedModel, judge: Any, inputs: Any, options: dict[str, Any]) -> None:
    assert isinstance(judge, ZeroShotClassificationPipeline)
    theirs = reference(TASK, text_model("BertForSequenceClassification", **ENTAILMENT))
    check_close(judge(inputs, **options), theirs(inputs, **options))


@pytest.mark.reference
@pytest.mark.parametrize("labels", [{0: "entailment", 1: "contradiction"}, {0: "entailed", 1: "neutral", 2: "contradiction"}])
def test_entailment_may_be_the_first_class(text_model: SavedModel, labels: dict[int, str]) -> None:
    ids = {label: index for index, label in labels.items()}
    directory = text_model("RobertaForSequenceClassification", id2label=labels, label2id=ids)
    ours, theirs = pipeline(TASK, directory), reference(TASK, directory)
    for options in ({}, {"multi_label": True}):
        check_close(ours(TEXTS[2], LABELS, **options), theirs(TEXTS[2], LABELS, **options))


@pytest.mark.reference
def test_only_the_text_is_cut(text_model: SavedModel, judge: Any) -> None:
    theirs = reference(TASK, text_model("BertForSequenceClassification", **ENTAILMENT))
    long = long_text(150)
    check_close(judge([long, "short"], LABELS), theirs([long, "short"], candidate_labels=LABELS))
    with pytest.raises(InputError, match="no room"):
        judge(long, [long_text(80)])


def test_a_model_without_entailment_is_taken_with_a_warning(text_model: SavedModel) -> None:
    with pytest.warns(TranseptWarning, match=r"none of the model's classes \(LABEL_0, LABEL_1\)"):
        asked = pipeline(TASK, text_model("BertForSequenceClassification"))
    assert asked.entailment == 1


def test_entailment_is_told_by_labels_where_no_class_is_named(text_model: SavedModel, tmp_path: Path) -> None:
    shutil.copytree(text_model("BertForSequenceClassification", **ENTAILMENT), tmp_path / "x")
    config = json.loads((tmp_path / "x/config.json").read_text())
    del config["architectures"]
    (tmp_path / "x/config.json").write_text(json.dumps(config))
    assert isinstance(pipeline(TASK, tmp_path / "x"), ZeroShotClassificationPipeline)


def test_vectors_are_compared_by_scaled_cosines(text_model: SavedModel, compare: Any) -> None:
    assert isinstance(compare, ZeroShotByEmbeddingPipeline)
    embed = pipeline("text-embedding", text_model("BertModel"))
    vectors = embed([f"This example is {label}." for label in LABELS], normalize=True)
    for text, answer in zip(TEXTS, compare(TEXTS, LABELS), strict=True):
        cosines = vectors @ embed(text, normalize=True)
        scores = np.exp(20 * cosines) / np.exp(20 * cosines).sum()
        expected = {label: float(score) for label, score in zip(LABELS, scores, strict=True)}
        assert answer["sequence"] == text
        assert dict(zip(answer["labels"], answer["scores"], strict=True)) == pytest.approx(expected, abs=1e-5)
        assert answer["scores"] == sorted(answer["scores"], reverse=True)
        each = compare(text, LABELS, multi_label=True)
        plain = {label: max(float(cosine), 0.0) for label, cosine in zip(LABELS, cosines, strict=True)}
        assert dict(zip(each["labels"], each["scores"], strict=True)) == pytest.approx(plain, abs=1e-5)
    assert sum(compare(TEXTS[0], LABELS, scale=1.0)["scores"]) == pytest.approx(1)


def test_vectors_of_labels_are_made_once(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    whole = compare.embed.encode
    monkeypatch.setattr(
        compare.embed, "encode", lambda texts, options: asked.append([t for t, _ in texts]) or whole(texts, options)
    )
    compare(["one", "two"], ["x", "y"])
    list(compare((text for text in ["three"] * 200), ["x", "y"]))
    assert sum("This example is x." in texts for texts in asked) == 1


@pytest.mark.parametrize("name", ["judge", "compare"])
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "candidate_labels"),
        ({"candidate_labels": []}, "candidate_labels"),
        ({"candidate_labels": " , "}, "candidate_labels"),
        ({"candidate_labels": [1]}, "candidate_labels"),
        ({"candidate_labels": "a", "hypothesis_template": "This example."}, r"no \{\}"),
        ({"candidate_labels": "a", "hypothesis_template": "{x} {1}"}, "cannot be filled"),
        ({"candidate_labels": "a", "hypothesis": "{}"}, "Did you mean 'hypothesis_template'"),
    ],
)
def test_options_are_checked(request: pytest.FixtureRequest, name: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        request.getfixturevalue(name)("one", **options)


@pytest.mark.parametrize("name", ["judge", "compare"])
def test_what_is_no_text_keeps_the_others_answers(request: pytest.FixtureRequest, name: str) -> None:
    found = request.getfixturevalue(name)(["one", 5, "two"], LABELS, on_error="return")
    assert [isinstance(answer, InputError) for answer in found] == [False, True, False]
