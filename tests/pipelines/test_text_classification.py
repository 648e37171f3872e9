"""Texts to classes: answers and their shapes are the reference's, alone and in batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError
from transept.pipelines.base import InputsError

from .text_models import POSITIONS, TEXTS, SavedModel, check_close, long_text, reference

MODELS = ["Bert", "Roberta", "DistilBert", "GPT2"]
PAIR = {"text": "Anna lives in Berlin.", "text_pair": "She works in Paris."}
CLASSES = {"id2label": {0: "bad", 1: "good", 2: "odd"}}


@pytest.fixture(scope="module")
def classify(text_model: SavedModel) -> Any:
    return pipeline("text-classification", text_model("BertForSequenceClassification", **CLASSES))


@pytest.mark.reference
@pytest.mark.parametrize("family", MODELS)
def test_answers_are_the_references(text_model: SavedModel, family: str) -> None:
    directory = text_model(f"{family}ForSequenceClassification", **CLASSES)
    texts = TEXTS if family != "GPT2" else [text for text in TEXTS if text]
    ours, theirs = pipeline("sentiment-analysis", directory), reference("text-classification", directory)
    check_close(ours(texts), theirs(texts))
    assert len({answer["label"] for answer in ours(texts)}) > 1


@pytest.mark.reference
@pytest.mark.parametrize("inputs", [TEXTS[0], TEXTS[:2], TEXTS[:1], PAIR, [PAIR], [PAIR, {"text": "one alone"}]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 1},
        {"top_k": 2},
        {"top_k": 9},
        {"top_k": None},
        {"function_to_apply": "none"},
        {"function_to_apply": "sigmoid"},
    ],
)
def test_shapes_of_answers_are_the_references(
    text_model: SavedModel, classify: Any, inputs: Any, options: dict[str, Any]
) -> None:
    theirs = reference("text-classification", text_model("BertForSequenceClassification", **CLASSES))
    check_close(classify(inputs, **options), theirs(inputs, **options))


@pytest.mark.reference
@pytest.mark.parametrize("options", [{"top_k": None}, {"top_k": 2}, {"function_to_apply": "softmax"}])
def test_options_of_the_pipeline_are_the_references(text_model: SavedModel, options: dict[str, Any]) -> None:
    directory = text_model("BertForSequenceClassification", **CLASSES)
    ours = pipeline("text-classification", directory, **options)
    check_close(ours(TEXTS[0]), reference("text-classification", directory, **options)(TEXTS[0]))


@pytest.mark.reference
@pytest.mark.parametrize(
    "settings", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}, {"problem_type": "regression"}]
)
def test_scores_follow_the_problem(text_model: SavedModel, settings: dict[str, Any]) -> None:
    directory = text_model("BertForSequenceClassification", **settings)
    ours = pipeline("text-classification", directory, top_k=None)(TEXTS)
    check_close(ours, reference("text-classification", directory, top_k=None)(TEXTS))


@pytest.mark.reference
def test_truncation_is_the_references(text_model: SavedModel, classify: Any) -> None:
    theirs = reference("text-classification", text_model("BertForSequenceClassification", **CLASSES))
    long = [long_text(100, 1), {"text": long_text(40, 2), "text_pair": long_text(90, 3)}]
    for options in ({"truncation": True}, {"truncation": True, "max_length": 16, "padding": True}):
        check_close(classify(long, **options), theirs(long, **options))
    for side in ("only_first", "only_second"):
        pair = {"text": long_text(60, 2), "text_pair": "Anna"}
        pair = pair if side == "only_first" else {"text": pair["text_pair"], "text_pair": pair["text"]}
        check_close(classify(pair, truncation=side), theirs(pair, truncation=side))


def test_a_text_that_is_too_long_is_an_error_that_says_what_to_do(classify: Any) -> None:
    with pytest.raises(InputError, match=rf"has \d+ tokens, but the model takes {POSITIONS}.*truncation=True"):
        classify(long_text(100))
    with pytest.raises(InputsError) as caught:
        classify(["one", long_text(100), "two"])
    assert caught.value.positions == [1]
    check_close(caught.value.answers[0], classify("one")[0])
    check_close(caught.value.answers[2], classify("two")[0])


def test_a_half_that_cannot_be_cut_is_an_error_of_its_input(classify: Any) -> None:
    pairs = [{"text": "a b c", "text_pair": long_text(100)}, {"text": long_text(100), "text_pair": "a"}]
    found = classify(pairs, truncation="only_first", on_error="return")
    assert isinstance(found[0], InputError)
    assert "no room" in str(found[0])
    assert set(found[1]) == {"label", "score"}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": "3"}, "top_k"),
        ({"function_to_apply": "softmaxx"}, "function_to_apply"),
        ({"truncation": "only_third"}, "only_third"),
        ({"max_length": 0}, "max_length"),
        ({"truncation": True, "max_length": 2}, "no room for text beside 2 special tokens"),
        ({"topk": 1}, "Did you mean 'top_k'"),
    ],
)
def test_options_are_checked(classify: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        classify("one", **options)


@pytest.mark.parametrize("item", [["one", "two"], {"text_pair": "two"}, {"text": "one", "other": "two"}, {"text": 1}, 7, None])
def test_what_is_no_text_and_no_pair_is_refused(classify: Any, item: Any) -> None:
    with pytest.raises(InputError):
        classify([item] if isinstance(item, list) else item)


def test_a_loaded_model_is_used_as_it_is(text_model: SavedModel, classify: Any) -> None:
    directory = text_model("BertForSequenceClassification", **CLASSES)
    model = transept.BertForSequenceClassification.from_pretrained(directory)
    tokenizer = transept.AutoTokenizer.from_pretrained(directory)
    ours = pipeline("text-classification", model, tokenizer=tokenizer)
    assert ours.model is model
    check_close(ours(TEXTS), classify(TEXTS))
    with pytest.raises(InputTypeError, match="`tokenizer` must be passed"):
        pipeline("text-classification", model)
    with pytest.raises(InputTypeError, match=r"is a BertForSequenceClassification.*ForTokenClassification"):
        pipeline("ner", model, tokenizer=tokenizer)


def test_a_config_that_asks_for_tuples_and_attentions_changes_nothing(text_model: SavedModel, classify: Any) -> None:
    odd = text_model(
        "BertForSequenceClassification", **CLASSES, return_dict=False, output_attentions=True, output_hidden_states=True
    )
    check_close(pipeline("text-classification", odd)(TEXTS), classify(TEXTS))


def test_without_a_padding_id_batches_are_still_batches(text_model: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    classify = pipeline("text-classification", text_model("GPT2ForSequenceClassification", pad_token_id=None))
    assert classify.model.config.pad_token_id is None
    alone, sizes, whole = [classify(text)[0] for text in ("a b", "c d", "a fox is here")], [], classify.forward
    monkeypatch.setattr(classify, "forward", lambda rows, options: sizes.append(len(rows)) or whole(rows, options))
    check_close(classify(["a b", "c d"]), alone[:2])
    check_close(classify(["a b", "c d", "a fox is here"]), alone)
    assert sizes == [2, 3]


def test_bfloat16_gives_nearly_the_same_scores(text_model: SavedModel, classify: Any) -> None:
    half = pipeline(
        "text-classification", text_model("BertForSequenceClassification", **CLASSES), dtype=torch.bfloat16, top_k=None
    )
    assert half.model.dtype == torch.bfloat16
    for one, other in zip(half(TEXTS), classify(TEXTS, top_k=None), strict=True):
        scores = {answer["label"]: answer["score"] for answer in other}
        assert {answer["label"]: answer["score"] for answer in one} == pytest.approx(scores, abs=0.08)


def test_all_scores_are_returned_where_asked(text_model: SavedModel) -> None:
    """An older option of the reference: lists of all classes, and for a lone text a list of one such list."""
    directory = text_model("BertForSequenceClassification")
    classify = pipeline("text-classification", directory, return_all_scores=True)
    plain = pipeline("text-classification", directory)
    every = plain(TEXTS[:2], top_k=None)
    assert classify(TEXTS[:2]) == plain(TEXTS[:2], return_all_scores=True) == every
    assert classify(TEXTS[0]) == [plain(TEXTS[0], top_k=None)]
    assert classify(TEXTS[:2], return_all_scores=False) == plain(TEXTS[:2])
    with pytest.raises(InputError, match="`return_all_scores` is 'yes'"):
        plain("x", return_all_scores="yes")
