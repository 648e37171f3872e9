"""Arguments that code for the reference passes to pipelines, and what they are answered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

import transept
from transept import pipeline
from transept.errors import InputError

from . import media_models, writers
from .text_models import TEXTS, SavedModel, check_close, long_text, reference

pytestmark = pytest.mark.reference

GREEDY = {"max_new_tokens": 5, "do_sample": False}
WRITING: dict[str, Callable[[Any, Any], Any]] = {
    "named": lambda pipe, library: pipe(text_inputs="Hello", **GREEDY),
    "prefix": lambda pipe, library: pipe("Hello", prefix="A ", **GREEDY),
    "stop_sequence": lambda pipe, library: pipe("Hello", stop_sequence=["a", "O"], max_new_tokens=20, do_sample=False),
    "generation_config": lambda pipe, library: pipe(
        "Hello", generation_config=library.GenerationConfig(eos_token_id=2, pad_token_id=1, **GREEDY)
    ),
    "skip_special_tokens": lambda pipe, library: pipe("Hello", skip_special_tokens=False, **GREEDY),
    "tokenizer_encode_kwargs": lambda pipe, library: pipe(
        "Hello", tokenizer_encode_kwargs={"add_special_tokens": False}, **GREEDY
    ),
}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writer")
    writers.model("GPT2LMHeadModel").save_pretrained(folder)
    writers.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", WRITING)
def test_arguments_of_text_generation(name: str, writer: Path) -> None:
    ours, theirs = pipeline("text-generation", writer, device="cpu"), reference("text-generation", writer)
    assert WRITING[name](ours, transept) == WRITING[name](theirs, transformers)


def test_arguments_of_classifiers(text_model: SavedModel) -> None:
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    folder = text_model("BertForSequenceClassification", id2label=labels)
    ours = pipeline("text-classification", folder, use_fast=True, trust_remote_code=False, token=None, device="cpu")
    theirs, how = reference("text-classification", folder), {"truncation": True, "max_length": 8}
    check_close(ours(long_text(200), tokenizer_kwargs=how), theirs(long_text(200), tokenizer_kwargs=how))
    zero, asked = pipeline("zero-shot-classification", folder, device="cpu"), {"candidate_labels": ["travel", "food"]}
    check_close(zero(sequences=TEXTS[0], **asked), reference("zero-shot-classification", folder)(sequences=TEXTS[0], **asked))
    with pytest.raises(InputError, match="a text was expected"):
        zero(**asked)


def test_arguments_of_pictures(tmp_path: Path) -> None:
    folder, how = media_models.save_image_model(tmp_path), {"image_processor_kwargs": {"do_normalize": False}}
    ours, picture = pipeline("image-classification", folder, device="cpu"), media_models.picture()
    assert ours(picture, timeout=3.0) == ours(picture) == ours(inputs=picture)
    assert ours(picture, **how) != ours(picture)
