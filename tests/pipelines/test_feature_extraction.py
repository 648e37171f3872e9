"""Texts to states: those of the reference, without padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from transept import pipeline
from transept.errors import InputError, InputTypeError

from .text_models import POSITIONS, TEXTS, SavedModel, long_text, reference


@pytest.fixture(scope="module")
def extract(text_model: SavedModel) -> Any:
    return pipeline("feature-extraction", text_model("BertModel"))


@pytest.mark.reference
@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "GPT2Model", "BertForMaskedLM"])
def test_states_are_the_references(text_model: SavedModel, name: str) -> None:
    directory = text_model(name)
    texts = [text for text in TEXTS if text]
    ours, theirs = pipeline("feature-extraction", directory)(texts), reference("feature-extraction", directory)(texts)
    for one, other in zip(ours, theirs, strict=True):
        assert np.shape(one) == np.shape(other)
        assert np.abs(np.array(one) - np.array(other)).max() < 1e-5


def test_a_tensor_is_an_ordinary_one(extract: Any) -> None:
    states = extract(["x y z", "x"], return_tensors=True)
    assert [tuple(state.shape) for state in states] == [(1, 5, 32), (1, 3, 32)]
    assert not states[0].is_inference()
    torch.nn.Linear(32, 2)(states[0]).sum().backward()
    assert np.allclose(extract("x"), states[1], atol=1e-5)


def test_a_batch_does_not_hold_the_others_memory(extract: Any) -> None:
    states = extract(["x y z", "x"], return_tensors=True)
    assert [state.untyped_storage().nbytes() for state in states] == [5 * 32 * 4, 3 * 32 * 4]


def test_long_texts_are_cut_when_asked(extract: Any) -> None:
    text = long_text(100)
    with pytest.raises(InputError, match="truncation=True"):
        extract(text)
    assert np.shape(extract(text, truncation=True)) == (1, POSITIONS, 32)
    assert np.shape(extract(text, tokenize_kwargs={"truncation": True, "max_length": 9})) == (1, 9, 32)
    assert np.shape(extract(text, tokenize_kwargs={"truncation": True}, max_length=7)) == (1, 7, 32)


def test_kwargs_for_the_tokenizer_are_checked(extract: Any) -> None:
    with pytest.raises(InputTypeError, match="tokenize_kwargs"):
        extract("x", tokenize_kwargs=True)
    with pytest.raises(InputError, match="Did you mean 'truncation'"):
        extract("x", tokenize_kwargs={"truncate": True})
