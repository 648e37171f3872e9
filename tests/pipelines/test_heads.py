"""The classifiers that come with the library: they load without a network, and answer as their layer on the mean state does."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import transept
from transept.layers import pool
from transept.pipelines import components, heads

NO_PACKAGE = components.package_directory() is None
pytestmark = pytest.mark.skipif(NO_PACKAGE, reason=f"{components.PACKAGE_NAME} is not installed")


def test_sentiment_is_the_default() -> None:
    with warnings.catch_warnings(action="error"):  # the head is filled, so that no warning says that it is new
        classify = transept.pipeline("sentiment-analysis")
    assert [classify(text)[0]["label"] for text in ("I love this", "I hate this")] == ["POSITIVE", "NEGATIVE"]
    assert "SST-2" in (heads.summary(heads.SENTIMENT_MODEL) or "")


def test_a_head_is_its_layer_on_the_mean_state_and_is_saved_whole(tmp_path: Path) -> None:
    text = "My card has not come yet."
    classify = transept.pipeline("text-classification", heads.INTENTS_MODEL, packed=False)
    embed = transept.pipeline("text-embedding", packed=False)
    directory = heads.head_directory(heads.INTENTS_MODEL)
    assert directory is not None
    weights = load_file(directory / "model.safetensors")
    inputs = embed.tokenizer([text], return_tensors="pt")
    with torch.inference_mode():
        states = pool.mean(embed.model(**inputs).last_hidden_state, inputs["attention_mask"])
        expected = states @ weights["classifier.weight"].T + weights["classifier.bias"]
        torch.testing.assert_close(classify.model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    assert classify(text)[0]["label"] == "card_arrival"
    classify.model.save_pretrained(tmp_path)
    again = transept.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(again(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def test_other_names_are_no_heads(tmp_path: Path) -> None:
    assert heads.head_directory("someone/else") is None
    assert heads.summary(str(tmp_path)) is None
