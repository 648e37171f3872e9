"""Tokens and spans to classes: labels, words and places are exactly the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transept import pipeline
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.pipelines.tasks.tokens import STRATEGIES

from .text_models import CONTEXT, POSITIONS, TEXTS, SavedModel, check_close, long_text, reference

LABELS = {"id2label": dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]))}
TASK = "token-classification"
WORDS = ["Wolfgang", "lives", "in", "New", "York", ",", "unbelievably", "🙂", ""]


@pytest.fixture(scope="module")
def tag(text_model: SavedModel) -> Any:
    return pipeline("ner", text_model("BertForTokenClassification", **LABELS))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "GPT2"])
def test_answers_are_the_references(text_model: SavedModel, family: str, strategy: str) -> None:
    directory = text_model(f"{family}ForTokenClassification", **LABELS)
    texts = [text for text in TEXTS if text]
    ours = pipeline(TASK, directory, aggregation_strategy=strategy)(texts)
    check_close(ours, reference(TASK, directory)(texts, aggregation_strategy=strategy))
    kinds = {entity.get("entity", entity.get("entity_group")) for found in ours for entity in found}
    assert len(kinds) >= 2


@pytest.mark.reference
@pytest.mark.parametrize("inputs", [TEXTS[2], TEXTS[:2], TEXTS[:1], [""]])
@pytest.mark.parametrize(
    "options", [{}, {"aggregation_strategy": "simple"}, {"ignore_labels": []}, {"ignore_labels": ["O", "PER"]}]
)
def test_shapes_and_options_are_the_references(text_model: SavedModel, tag: Any, inputs: Any, options: dict[str, Any]) -> None:
    theirs = reference(TASK, text_model("BertForTokenClassification", **LABELS))
    check_close(tag(inputs, **options), theirs(inputs, **options))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize(("strategy", "stride"), [("simple", 0), ("first", 8), ("average", 16), ("max", 40)])
def test_long_texts_are_read_in_the_references_windows(text_model: SavedModel, family: str, strategy: str, stride: int) -> None:
    directory = text_model(f"{family}ForTokenClassification", **LABELS)
    texts = [long_text(150, 1), CONTEXT, "short", long_text(90, 2)]
    options = {"aggregation_strategy": strategy, "stride": stride}
    ours = pipeline(TASK, directory, **options)(texts)
    check_close(ours, reference(TASK, directory, **options)(texts))
    assert all(texts[0][entity["start"] : entity["end"]] for entity in ours[0])
    assert ours[0][-1]["end"] > 500


@pytest.mark.reference
@pytest.mark.parametrize("delimiter", [None, "_"])
def test_lists_of_words(text_model: SavedModel, tag: Any, delimiter: str | None) -> None:
    theirs = reference(TASK, text_model("BertForTokenClassification", **LABELS))
    options = {"is_split_into_words": True, "delimiter": delimiter, "aggregation_strategy": "first"}
    check_close(tag(WORDS, **options), theirs(WORDS, **options))
    check_close(tag([WORDS, WORDS[:3]], **options), theirs([WORDS, WORDS[:3]], **options))
    joined = (delimiter or " ").join(WORDS)
    assert all(joined[entity["start"] : entity["end"]] in WORDS for entity in tag(WORDS, **options)[0][:1])


@pytest.mark.reference
def test_a_text_that_is_too_long_is_cut_as_by_the_reference_but_not_in_silence(text_model: SavedModel, tag: Any) -> None:
    text = long_text(100, 4)
    with pytest.warns(TranseptWarning, match=rf"cut to the {POSITIONS} .*stride"):
        ours = tag(text)
    check_close(ours, reference(TASK, text_model("BertForTokenClassification", **LABELS))(text))


def test_words_agree_on_a_class_and_spans_join(tag: Any) -> None:
    def token(text: str, scores: list[float], start: int, goes_on: bool = False) -> dict[str, Any]:
        place = {"index": 0, "word": text, "start": start, "end": start + len(text.removeprefix("##"))}
        return place | {"scores": np.array(scores, np.float32), "goes_on": goes_on}

    read = [
        token("micro", [0.0, 0.6, 0.0, 0.4, 0.0, 0.0], 0),
        token("##soft", [0.0, 0.0, 0.0, 0.9, 0.1, 0.0], 5, goes_on=True),
        token("corp", [0.0, 0.0, 0.0, 0.2, 0.8, 0.0], 10),
    ]

    def kinds(strategy: str) -> list[tuple[str, str, float]]:
        return [(e["entity_group"], e["word"], round(e["score"], 4)) for e in tag.entities(read, strategy)]

    assert kinds("simple") == [("PER", "micro", 0.6), ("LOC", "##soft corp", 0.85)]
    assert kinds("first") == [("PER", "microsoft", 0.6), ("LOC", "corp", 0.8)]
    assert kinds("max") == [("LOC", "microsoft corp", 0.85)]
    assert kinds("average") == [("LOC", "microsoft corp", 0.725)]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"aggregation_strategy": "mean"}, "'none', 'simple', 'first', 'average', 'max'"),
        ({"stride": 4}, "aggregation_strategy"),
        ({"stride": -1, "aggregation_strategy": "simple"}, "stride"),
        ({"ignore_labels": "O"}, "list of labels"),
        ({"aggregation": "max"}, "Did you mean 'aggregation_strategy'"),
    ],
)
def test_options_are_checked(tag: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        tag("Anna", **options)


def test_a_stride_without_room_is_an_error_of_the_long_text_alone(tag: Any) -> None:
    found = tag(["short", long_text(100)], stride=POSITIONS, aggregation_strategy="simple", on_error="return")
    assert isinstance(found[0], list)
    assert "no room for windows" in str(found[1])


@pytest.mark.parametrize("item", [5, b"Anna", {"text": "Anna"}, "half \ud800"])
def test_what_is_no_text_is_refused(tag: Any, item: Any) -> None:
    found = tag(["Anna", item, "Berlin"], on_error="return")
    assert [isinstance(answer, InputError) for answer in found] == [False, True, False]


def test_what_is_no_list_of_words_is_refused(tag: Any) -> None:
    found = tag([["Anna"], "Anna", ["Anna", 5]], is_split_into_words=True, on_error="return")
    assert [isinstance(answer, InputTypeError) for answer in found] == [False, True, True]
