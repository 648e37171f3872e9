"""sentence-transformers reads and wraps our models, and we read what it saves: the vectors and scores are equal.

1e-5 allows for float32 sums over 32 numbers in another order; vectors and scores are of size one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transept
from transept import pipeline

from .text_models import TEXTS, SavedModel

WRITTEN = [text for text in TEXTS if text]


@pytest.fixture(scope="module")
def modules() -> Any:
    from sentence_transformers.sentence_transformer import modules

    return modules


@pytest.fixture
def saved_by_us(text_model: SavedModel, tmp_path: Path) -> Path:
    source, target = text_model("BertModel"), tmp_path / "ours"
    transept.BertModel.from_pretrained(source).save_pretrained(target)
    transept.AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target


def test_it_loads_what_we_save(modules: Any, saved_by_us: Path) -> None:
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(saved_by_us), device="cpu").encode(WRITTEN)
    assert np.abs(pipeline("text-embedding", saved_by_us)(WRITTEN) - vectors).max() < 1e-5


def test_we_load_what_it_saves(modules: Any, saved_by_us: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    parts = [modules.Transformer(str(saved_by_us)), modules.Pooling(32, pooling_mode=["mean", "max"])]
    parts += [modules.Dense(64, 16), modules.Normalize()]
    theirs = SentenceTransformer(modules=parts, prompts={"query": "quick: "}, default_prompt_name="query", device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = pipeline("text-embedding", tmp_path / "theirs")
    assert np.abs(ours(WRITTEN) - theirs.encode(WRITTEN)).max() < 1e-5


def test_it_wraps_our_model(modules: Any, saved_by_us: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    transformer = modules.Transformer(str(saved_by_us))
    expected = SentenceTransformer(modules=[transformer, modules.Pooling(32)], device="cpu").encode(WRITTEN)
    transformer.model = transept.BertModel.from_pretrained(saved_by_us)
    wrapped = SentenceTransformer(modules=[transformer, modules.Pooling(32)], device="cpu")
    assert np.abs(wrapped.encode(WRITTEN) - expected).max() < 1e-5
    wrapped.save_pretrained(str(tmp_path / "wrapped"))
    again = SentenceTransformer(str(tmp_path / "wrapped"), device="cpu").encode(WRITTEN)
    assert np.abs(again - expected).max() < 1e-5


def test_its_cross_encoder_loads_what_we_save(modules: Any, text_model: SavedModel, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    source = text_model("BertForSequenceClassification", num_labels=1)
    transept.BertForSequenceClassification.from_pretrained(source).save_pretrained(tmp_path / "ranker")
    transept.AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "ranker")
    expected = CrossEncoder(str(tmp_path / "ranker"), device="cpu").predict([(WRITTEN[0], text) for text in WRITTEN])
    answers = pipeline("text-ranking", tmp_path / "ranker")(WRITTEN[0], WRITTEN)
    assert len(answers) == len(WRITTEN)
    assert all(abs(answer["score"] - expected[answer["index"]]) < 1e-5 for answer in answers)
