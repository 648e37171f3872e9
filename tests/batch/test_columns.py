"""Tasks as functions of columns."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.pipelines.test_text_generation import writer_at
from transept import pipeline
from transept.batch import Classify, Embed, Generate
from transept.errors import InputError

TEXTS = ["i love this", "bad cat"]


def test_texts_become_vectors(encoder: str) -> None:
    embed = Embed(encoder, column="body", normalize=True)
    found = embed({"body": np.array([*TEXTS, 7], object), "id": [1, 2, 3]})
    np.testing.assert_allclose(found["embedding"][:2], pipeline("text-embedding", encoder, normalize=True)(TEXTS), atol=1e-6)
    assert np.isnan(found["embedding"][2]).all()
    assert found["id"] == [1, 2, 3]
    assert [error is None for error in found["error"]] == [True, True, False]
    again = pickle.loads(pickle.dumps(embed))
    assert again._pipe is None
    np.testing.assert_array_equal(again({"body": TEXTS})["embedding"], embed({"body": TEXTS})["embedding"])
    with pytest.raises(InputError, match="there is no column 'body'"):
        embed({"text": TEXTS})


def test_texts_become_classes(classifier: str) -> None:
    found = Classify(classifier)({"text": [*TEXTS, 7]})
    expected = pipeline("text-classification", classifier)(TEXTS)
    assert found["label"] == [*(answer["label"] for answer in expected), None]
    assert found["score"][:2] == pytest.approx([answer["score"] for answer in expected])


def test_prompts_are_written_on_from(tmp_path) -> None:
    model = writer_at(str(tmp_path))
    found = Generate(model, max_new_tokens=4)({"text": ["Hello", "Hello you"]})
    writer = pipeline("text-generation", model, max_new_tokens=4, return_full_text=False)
    assert found["generated_text"][0] == writer("Hello")[0]["generated_text"]
    assert found["error"] == [None, None]


def test_rows_of_datasets(encoder: str) -> None:
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"text": TEXTS * 3}).map(Embed(encoder), batched=True, batch_size=4)
    alone = Embed(encoder)({"text": TEXTS * 3})
    np.testing.assert_allclose(np.asarray(found["embedding"]), alone["embedding"], atol=1e-6)
    assert found["error"] == alone["error"] == [None] * 6
