"""How alike texts are: cosines of the vectors of text-embedding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from transept import pipeline
from transept.errors import InputError
from transept.pipelines import components

from .test_text_embedding import NO_PACKAGE
from .text_models import TEXTS, SavedModel


@pytest.fixture(scope="module")
def compare(text_model: SavedModel) -> Any:
    return pipeline("text-similarity", text_model("BertModel"))


def test_cosines_are_those_of_the_vectors(text_model: SavedModel, compare: Any) -> None:
    vectors = pipeline("text-embedding", text_model("BertModel"))(TEXTS, normalize=True)
    expected = vectors @ vectors.T
    assert compare(TEXTS[0], TEXTS[1]) == pytest.approx(expected[0, 1], abs=1e-6)
    assert isinstance(compare(TEXTS[0], TEXTS[1]), float)
    assert np.abs(compare(TEXTS[0], TEXTS[1:]) - expected[0, 1:]).max() < 1e-6
    pairs = list(itertools.pairwise(TEXTS))
    assert np.abs(compare(pairs) - expected.diagonal(1)).max() < 1e-6
    assert compare(TEXTS[2], TEXTS[2]) == pytest.approx(1, abs=1e-6)


def test_inputs_as_mappings_and_lists(compare: Any) -> None:
    one, other = compare("a fox", "a dog"), compare("a fox", ["a dog", "a week"])
    assert compare({"text": "a fox", "text_pair": "a dog"}) == pytest.approx(one, abs=1e-6)
    assert np.abs(compare({"source_sentence": "a fox", "sentences": ["a dog", "a week"]}) - other).max() < 1e-6
    mixed = compare([("a fox", "a dog"), ("a fox", ["a dog", "a week"]), ["a fox", "a dog"]])
    assert mixed[0] == pytest.approx(one, abs=1e-6)
    assert mixed[1].shape == (2,)
    assert list(compare(iter([("a fox", "a dog")]))) == pytest.approx([one], abs=1e-6)
    assert compare("a fox", []).shape == (0,)


@pytest.mark.parametrize("item", ["one text", ("one",), ("one", 5), (5, "one"), {"text": "one"}, ("one", ["two", None])])
def test_bad_inputs_are_refused(compare: Any, item: Any) -> None:
    found = compare([("a", "b"), item, ("c", "d")], on_error="return")
    assert [isinstance(answer, InputError) for answer in found] == [False, True, False]


@pytest.mark.skipif(components.package_directory() is None, reason=NO_PACKAGE)
def test_the_default_model_knows_what_is_alike() -> None:
    near, far = pipeline("text-similarity")("A cat sits outside.", ["A feline is sitting outdoors.", "Stocks fell on Monday."])
    assert near > 0.6 > 0.2 > far
