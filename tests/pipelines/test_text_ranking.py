"""Passages sorted by a cross-encoder, with the activation that its checkpoint names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError, UnsupportedError

from .text_models import SavedModel, check_close, long_text

QUERY = "Where does Anna live?"
PASSAGES = ["Anna lives in Berlin.", "The lazy dog.", "", "Peter went to Rio de Janeiro later.", long_text(150)]
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module")
def rank(text_model: SavedModel) -> Any:
    return pipeline("text-ranking", text_model("BertForSequenceClassification", num_labels=1))


def logits(directory: Path) -> np.ndarray:
    """The reference's, pair by pair."""
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with torch.inference_mode():
        rows = [tokenizer([QUERY], [passage], truncation=True, return_tensors="pt") for passage in PASSAGES]
        return np.array([model(**row).logits[0].tolist() for row in rows])


@pytest.mark.reference
def test_scores_are_the_references_logits(text_model: SavedModel, rank: Any) -> None:
    raw = logits(text_model("BertForSequenceClassification", num_labels=1))[:, 0]
    found = rank(QUERY, PASSAGES, function_to_apply="none", sort=False)
    assert [answer["score"] for answer in found] == pytest.approx(raw.tolist(), abs=1e-5)
    assert [(answer["index"], answer["text"]) for answer in found] == list(enumerate(PASSAGES))
    ranked = rank(QUERY, PASSAGES)
    assert [answer["index"] for answer in ranked] == np.argsort(-raw, kind="stable").tolist()
    assert [answer["score"] for answer in ranked] == pytest.approx(sorted(1 / (1 + np.exp(-raw)), reverse=True), abs=1e-5)
    assert rank(QUERY, PASSAGES, top_k=2) == ranked[:2]


def test_ways_to_call(rank: Any) -> None:
    item = {"query": QUERY, "passages": PASSAGES}
    expected = rank(item)
    check_close(rank(query=QUERY, passages=PASSAGES), expected)
    check_close(rank([item, {"query": "x", "passages": []}]), [expected, []])
    check_close(list(rank(iter([item]))), [expected])
    check_close(rank(QUERY, tuple(PASSAGES)), expected)


def with_activation(directory: Path, target: Path, place: str, name: str) -> Path:
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text())
    match place:
        case "today":
            (target / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": name}))
        case "nested":
            config["sentence_transformers"] = {"activation_fn": name, "version": "4.0"}
        case "old":
            config["sbert_ce_default_activation_function"] = name
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("place", ["today", "nested", "old"])
def test_the_checkpoint_names_its_activation(text_model: SavedModel, rank: Any, tmp_path: Path, place: str) -> None:
    directory = text_model("BertForSequenceClassification", num_labels=1)
    plain = pipeline("text-ranking", with_activation(directory, tmp_path / "plain", place, IDENTITY))
    check_close(plain(QUERY, PASSAGES), rank(QUERY, PASSAGES, function_to_apply="none"))
    bent = pipeline("text-ranking", with_activation(directory, tmp_path / "bent", place, SIGMOID))
    check_close(bent(QUERY, PASSAGES), rank(QUERY, PASSAGES))
    for name in ("os.system", "torch.nn.Sigmoidd", "my_model.Sigmoid"):
        path = with_activation(directory, tmp_path / name, place, name)
        with pytest.raises(UnsupportedError, match=f"names the activation '{name}'"):
            pipeline("text-ranking", path)


@pytest.mark.reference
def test_of_several_classes_one_must_be_named(text_model: SavedModel) -> None:
    directory = text_model("BertForSequenceClassification", id2label={0: "off", 1: "relevant"})
    with pytest.raises(InputError, match="2 classes.*`label`"):
        pipeline("text-ranking", directory)
    rank = pipeline("text-ranking", directory, label="relevant")
    raw = logits(directory)
    assert [answer["score"] for answer in rank(QUERY, PASSAGES, sort=False)] == pytest.approx(raw[:, 1].tolist(), abs=1e-5)
    off = rank(QUERY, PASSAGES, sort=False, label=0)
    assert [answer["score"] for answer in off] == pytest.approx(raw[:, 0].tolist(), abs=1e-5)
    with pytest.raises(InputError, match="Did you mean 'relevant'"):
        rank(QUERY, PASSAGES, label="relevent")
    with pytest.raises(InputError, match="names none of them: 2"):
        rank(QUERY, PASSAGES, label=2)


def test_bad_inputs_are_refused(rank: Any) -> None:
    good = {"query": "a", "passages": ["b"]}
    bad = [
        {"query": "a"},
        {"query": "a", "passages": "b"},
        {"query": 1, "passages": ["b"]},
        {"query": "a", "passages": ["b", None]},
        "a",
    ]
    found = rank([good, *bad, good], on_error="return")
    assert [isinstance(answer, InputTypeError) for answer in found] == [False, *[True] * 5, False]
    with pytest.raises(InputError, match="needs passages"):
        rank(query="a")
    with pytest.raises(InputError, match="top_k"):
        rank(QUERY, PASSAGES, top_k=0)
    with pytest.raises(InputError, match="function_to_apply"):
        rank(QUERY, PASSAGES, function_to_apply="softmax")


def test_a_loaded_model_ranks(text_model: SavedModel, rank: Any) -> None:
    directory = text_model("BertForSequenceClassification", num_labels=1)
    model = transept.BertForSequenceClassification.from_pretrained(directory)
    check_close(pipeline("text-ranking", model, tokenizer=str(directory))(QUERY, PASSAGES), rank(QUERY, PASSAGES))
