"""Collators in which nothing is random are the reference's, for rows of every kind."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import transept
from tests.training.collate.texts import both, same
from transept.errors import InputError, InputTypeError
from transept.training.collate import padding

pytestmark = pytest.mark.reference
KINDS = {"list": list, "array": np.array, "tensor": torch.tensor}
RAGGED = [[2, 9, 8, 3], [2, 9, 3], [2, 3, 3, 3, 3, 3, 3]]


def rows(kind: str, **more: Any) -> list[dict[str, Any]]:
    made = [{"input_ids": KINDS[kind](ids), "attention_mask": KINDS[kind]([1] * len(ids))} for ids in RAGGED]
    return [row | {name: values[number] for name, values in more.items()} for number, row in enumerate(made)]


def pairs(name: str, options: dict[str, Any], side: str = "right") -> tuple[Any, Any]:
    ours, theirs = both(side)
    return getattr(padding, name)(ours, **options), getattr(transformers, name)(theirs, **options)


@pytest.mark.parametrize("tensors", ["pt", "np"])
@pytest.mark.parametrize(
    "features",
    [
        [{"a": 1, "b": [1.0, 2.0], "label": 1}, {"a": 2, "b": [3.0, 4.0], "label": 0}],
        [{"a": 1, "label": 0.5}, {"a": 2, "label": 1.0}],
        [{"label_ids": [1, 2], "text": "left out", "none": None}, {"label_ids": [3, 4], "text": "too", "none": None}],
        [{"label_ids": [1.0, 2.0]}, {"label_ids": [3.0, 4.5]}],
        [{"labels": [1, 2], "a": [True, False]}, {"labels": [3, 4], "a": [False, False]}],
    ],
)
def test_the_default(features: list[dict[str, Any]], tensors: str) -> None:
    theirs = transformers.default_data_collator([dict(row) for row in features], return_tensors=tensors)
    for ours in (
        padding.default_data_collator(features, return_tensors=tensors),
        padding.DefaultDataCollator(return_tensors=tensors)(features),
        padding.DefaultDataCollator()(features, return_tensors=tensors),
    ):
        if tensors == "pt":
            same(ours, theirs)
        else:  # NumPy makes float64 of numbers, the reference's models are float32 all the same
            same(
                ours, {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in theirs.items()}
            )


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_the_default_of_arrays_and_tensors(kind: str) -> None:
    make = KINDS[kind]
    features = [{"pixel_values": make(np.full((3, 2, 2), n, np.float32).tolist()), "label": n} for n in range(3)]
    theirs = transformers.default_data_collator(features)
    same(padding.default_data_collator(features), theirs)


def test_objects_with_attributes() -> None:
    class Row:
        def __init__(self, number: int) -> None:
            self.input_ids, self.label = [number, 2], number

    same(padding.default_data_collator([Row(1), Row(2)]), transformers.default_data_collator([Row(1), Row(2)]))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["list", "array"])
@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 4}, {"padding": "max_length", "max_length": 9}], ids=str)
def test_padding(options: dict[str, Any], kind: str, side: str) -> None:
    for label in ({}, {"label": [1, 0, 1]}, {"label_ids": [0.5, 1.0, 2.0]}, {"labels": [[1, 0], [0, 1], [1, 1]]}):
        for tensors in ("pt", "np"):
            ours, theirs = pairs("DataCollatorWithPadding", options | {"return_tensors": tensors}, side)
            expected = dict(theirs(rows(kind, **label)))
            if tensors == "np" and "label_ids" in label:
                expected["labels"] = expected["labels"].astype(np.float32)
            same(dict(ours(rows(kind, **label))), expected)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "options", [{}, {"pad_to_multiple_of": 4, "label_pad_token_id": -1}, {"padding": "max_length", "max_length": 9}], ids=str
)
def test_labels_of_tokens(options: dict[str, Any], side: str) -> None:
    labels = [list(range(len(ids))) for ids in RAGGED]
    for tensors in ("pt", "np"):
        ours, theirs = pairs("DataCollatorForTokenClassification", options | {"return_tensors": tensors}, side)
        same(dict(ours(rows("list", labels=labels))), theirs(rows("list", labels=labels)))
        same(dict(ours(rows("list"))), theirs(rows("list")))
        expected = dict(theirs(rows("list", label=labels)))  # the reference keeps the name, which no model takes
        same(dict(ours(rows("list", label=labels))), expected | {"labels": expected.pop("label")})
    ours, theirs = pairs("DataCollatorForTokenClassification", options, side)
    same(dict(ours(rows("tensor", labels=[torch.tensor(each) for each in labels]))), theirs(rows("list", labels=labels)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "options", [{}, {"pad_to_multiple_of": 4, "label_pad_token_id": -1}, {"padding": "max_length", "max_length": 9}], ids=str
)
def test_texts_to_texts(options: dict[str, Any], side: str) -> None:
    labels = [[5, 6], [7], [8, 9, 10, 11, 12]]
    for tensors in ("pt", "np"):
        ours, theirs = pairs("DataCollatorForSeq2Seq", options | {"return_tensors": tensors}, side)
        for given in (labels, [np.array(each) for each in labels], None, [None] * 3):
            more = {} if given is None else {"labels": given}
            plain = {} if given is None else {"labels": labels if given[0] is not None else given}  # theirs warns of arrays
            same(dict(ours(rows("list", **more))), theirs(rows("list", **plain)))
    ours, theirs = pairs("DataCollatorForSeq2Seq", {"padding": False}, side)
    equal = [{"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [3, 4, 5]}] * 2
    same(dict(ours(equal)), theirs(equal))


def test_decoder_inputs_are_the_models() -> None:
    from transept.models.t5 import T5Config, T5ForConditionalGeneration

    settings = {
        "vocab_size": 40,
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 8,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    model = T5ForConditionalGeneration(T5Config(**settings))
    batch = padding.DataCollatorForSeq2Seq(both()[0], model=model)(rows("list", labels=[[5, 6], [7], [8, 9, 10]]))
    assert batch["decoder_input_ids"].tolist() == [[0, 5, 6], [0, 7, 0], [0, 8, 9]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_choices(side: str) -> None:
    features = [
        {"input_ids": [[2, 9, 3], [2, 3]], "attention_mask": [[1, 1, 1], [1, 1]], "label": 1},
        {"input_ids": [[2, 3], [2, 9, 9, 9, 3]], "attention_mask": [[1, 1], [1] * 5], "label": 0},
    ]
    for options in ({}, {"pad_to_multiple_of": 4}):
        ours, theirs = pairs("DataCollatorForMultipleChoice", options, side)
        same(ours(features), theirs(features))
        renamed = [{"labels" if name == "label" else name: value for name, value in row.items()} for row in features]
        same(ours(renamed), theirs(renamed))


@pytest.mark.parametrize("tensors", ["pt", "np"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_seq_idx": False, "return_flash_attn_kwargs": True},
        {"separator_id": -1, "position_ids_start": 2},
        {"return_position_ids": False},
    ],
    ids=str,
)
def test_flattening(options: dict[str, Any], tensors: str) -> None:
    plain = [{"input_ids": ids} for ids in RAGGED]
    labelled = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids) + 1} for ids in RAGGED]
    ours, theirs = (
        padding.DataCollatorWithFlattening(**options),
        transformers.DataCollatorWithFlattening(**{"return_seq_idx": True} | options),
    )
    for features in (plain, labelled):
        found, expected = ours(features, return_tensors=tensors), theirs(features, return_tensors=tensors)
        for name in ("max_length_q", "max_length_k"):
            assert found.pop(name, None) == expected.pop(name, None)
        same(found, expected)
    other = ours(plain, separator_id=-7)["labels"], theirs(plain, separator_id=-7)["labels"]
    assert torch.equal(*other)


# --- rows that cannot be ----------------------------------------------------------------------------------------------------


GOOD = {"input_ids": [2, 9, 3], "attention_mask": [1, 1, 1]}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "there are no rows"),
        ("abc", "takes a list of rows, but got str"),
        ({"input_ids": [1]}, "takes a list of rows, but got dict"),
        ([GOOD, "text"], "row 1 is no mapping, but str: 'text'"),
        ([GOOD, GOOD, {"input_ids": [1]}], "row 2 lacks 'attention_mask'"),
        ([GOOD, GOOD | {"extra": 1}], "row 1 has 'extra', which row 0 lacks"),
        ([GOOD, GOOD | {"attention_mask": [1]}], "row 1: `attention_mask` has the length 1, but `input_ids` has 3"),
        ([GOOD | {"a": [1]}, GOOD | {"a": [1, 2]}], "row 1: `a` has the shape (2,), but that of row 0 has (1,)"),
        ([GOOD | {"a": 1}, GOOD | {"a": "one"}], "row 1: `a` holds no numbers of one shape: 'one'"),
        ([GOOD | {"a": 1}, GOOD | {"a": None}], "row 1: `a` holds no numbers"),
        ([GOOD | {"a": 2**70}], "`a`"),
        ([{"label": 1}, {"label": 2}], "row 0 lacks 'input_ids'. It has: label"),
    ],
)
def test_rows_that_cannot_be_padded(features: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        padding.DataCollatorWithPadding(both()[0])(features)
    assert message in str(caught.value)


def test_labels_that_cannot_be() -> None:
    ours = both()[0]
    tokens, writes, choices = (
        kind(ours)
        for kind in (
            padding.DataCollatorForTokenClassification,
            padding.DataCollatorForSeq2Seq,
            padding.DataCollatorForMultipleChoice,
        )
    )
    cases: list[tuple[Any, list[Any], str]] = [
        (tokens, [GOOD | {"labels": [1, 2, 3]}, GOOD | {"labels": [1, 2]}], "row 1 has 2 labels for 3 tokens"),
        (tokens, [GOOD | {"labels": [1, 2, 3]}, GOOD | {"labels": 1}], "row 1 has the label 1 for 3 tokens"),
        (
            tokens,
            [GOOD | {"labels": [1, 2, 3]}, GOOD | {"labels": None}],
            "row 1: `labels` is None, but other rows have labels",
        ),
        (tokens, [GOOD | {"labels": [1, 2, 3]}, GOOD | {"labels": [1, "b", 3]}], "row 1: `labels` holds no numbers"),
        (writes, [GOOD | {"labels": [1]}, GOOD | {"labels": 5}], "row 1: `labels` must be a list"),
        (choices, [{"input_ids": [[1], [2]]}, {"input_ids": [[1]]}], "row 1: `input_ids` has 1 choices, but row 0 has 2"),
        (padding.DataCollatorWithFlattening(), [{"input_ids": [1]}, {"input_ids": []}], "row 1 has 0 tokens"),
        (padding.DataCollatorWithFlattening(), [{"input_ids": [1, 2], "labels": [1]}], "row 0 has 2 tokens and 1 labels"),
        (padding.DataCollatorWithFlattening(), [{"input_ids": ["a"]}], "row 0: `input_ids` must be a list of integers"),
    ]
    for collator, features, message in cases:
        with pytest.raises(InputError) as caught:
            collator(features)
        assert message in str(caught.value)
    writes = padding.DataCollatorForSeq2Seq(ours, padding="max_length", max_length=4)
    with pytest.raises(InputError, match="row 1: `labels` has 5 places, but there are 4"):
        writes([GOOD | {"labels": [1]}, GOOD | {"labels": [1] * 5}])
    with pytest.raises(InputTypeError, match="row 1: `a` is list, but that of row 0 is a tensor"):
        padding.default_data_collator([{"a": torch.ones(2)}, {"a": [1, 2]}])
    with pytest.raises(InputError, match="`return_tensors` is 'tf'"):
        padding.DefaultDataCollator()([{"a": 1}], return_tensors="tf")


@pytest.mark.parametrize("name", ["WithPadding", "ForTokenClassification", "ForSeq2Seq", "ForMultipleChoice"])
def test_arguments_have_the_order_of_the_reference(name: str) -> None:
    ours, theirs = (getattr(library, f"DataCollator{name}") for library in (transept, transformers))
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
