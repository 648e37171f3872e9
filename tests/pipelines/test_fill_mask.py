"""Masks to tokens: those of the reference, with its shapes of answers."""

from __future__ import annotations

from typing import Any

import pytest

from transept import pipeline
from transept.errors import InputError, TranseptWarning

from .text_models import SavedModel, check_close, long_text, reference

MASKED = [
    "Paris is the [MASK] of the world.",
    "[MASK]",
    "The quick brown [MASK] jumps over the [MASK] dog.",
    "Wolfgang [MASK] in Berlin, unbelievably!",
]


@pytest.fixture(scope="module")
def fill(text_model: SavedModel) -> Any:
    return pipeline("fill-mask", text_model("BertForMaskedLM"))


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 12}, {"targets": ["berlin", "fox"]}, {"targets": "dog"}])
@pytest.mark.parametrize("inputs", [MASKED, *([text] for text in MASKED[:3]), *MASKED])
def test_answers_are_the_references(text_model: SavedModel, fill: Any, inputs: Any, options: dict[str, Any]) -> None:
    check_close(fill(inputs, **options), reference("fill-mask", text_model("BertForMaskedLM"))(inputs, **options))


@pytest.mark.reference
@pytest.mark.parametrize("family", ["Roberta", "DistilBert"])
def test_other_families(text_model: SavedModel, family: str) -> None:
    directory = text_model(f"{family}ForMaskedLM")
    ours, theirs = pipeline("fill-mask", directory), reference("fill-mask", directory)
    texts = [text.replace("[MASK]", ours.tokenizer.mask_token) for text in MASKED]
    check_close(ours(texts), theirs(texts))


def test_scores_of_targets_are_those_among_all_tokens(fill: Any) -> None:
    whole = {answer["token_str"]: answer["score"] for answer in fill(MASKED[0], top_k=10**6)}
    assert sum(whole.values()) == pytest.approx(1, abs=1e-5)
    some = {answer["token_str"]: answer["score"] for answer in fill(MASKED[0], targets=["berlin", "fox", "berlin"])}
    assert some == pytest.approx({name: whole[name] for name in ("berlin", "fox")}, abs=1e-6)


@pytest.mark.reference
@pytest.mark.filterwarnings("default")
def test_a_target_that_is_no_token_stands_for_its_first_one(text_model: SavedModel, fill: Any) -> None:
    with pytest.warns(TranseptWarning, match="'foxable' is no token.*'fox' stands for it"):
        ours = fill(MASKED[0], targets=["foxable", "dog"])
    check_close(ours, reference("fill-mask", text_model("BertForMaskedLM"))(MASKED[0], targets=["foxable", "dog"]))
    with pytest.warns(TranseptWarning), pytest.raises(InputError, match="none of the targets"):
        fill(MASKED[0], targets=" ")


@pytest.mark.parametrize("targets", [[], [1], 7])
def test_targets_are_checked(fill: Any, targets: Any) -> None:
    with pytest.raises(InputError, match="targets"):
        fill(MASKED[0], targets=targets)


def test_a_text_without_a_mask_is_an_error_that_names_the_mask(fill: Any) -> None:
    with pytest.raises(InputError, match=r"no mask, which is written '\[MASK\]'"):
        fill("Paris is far away.")
    found = fill([MASKED[0], "none", MASKED[1]], on_error="return")
    assert [isinstance(answer, InputError) for answer in found] == [False, True, False]


def test_a_mask_that_was_cut_off_is_missed(fill: Any) -> None:
    text = long_text(100) + " [MASK]"
    with pytest.raises(InputError, match="truncation"):
        fill(text)
    with pytest.raises(InputError, match="no mask"):
        fill(text, tokenizer_kwargs={"truncation": True})
    assert len(fill("[MASK] " + text, tokenizer_kwargs={"truncation": True})) == 5


def test_a_tokenizer_without_a_mask_is_refused(text_model: SavedModel) -> None:
    with pytest.raises(InputError, match="no mask token"):
        pipeline("fill-mask", text_model("BertForMaskedLM"), tokenizer=str(text_model("GPT2Model")))
