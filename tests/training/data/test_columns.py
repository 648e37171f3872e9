"""Columns by name and by kind, labels, and what is warned of."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from transept.errors import InputError, TranseptWarning
from transept.tables.dataset import TableDataset
from transept.training.data.checks import (
    warn_of_equal_rows,
    warn_of_tokenizer,
    warn_of_truncation,
    warn_of_unlearned_end,
)
from transept.training.data.columns import LABEL, TEXT, describe_guesses, find_columns, find_pair
from transept.training.data.labels import MULTI, REGRESSION, SINGLE, find_labels, token_labels

WANTED = (TEXT, LABEL)


def table(**columns) -> TableDataset:
    return TableDataset([dict(zip(columns, values)) for values in zip(*columns.values())], list(columns))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, ("text", "label")),
        ({"id": [1, 2], "Sentence": ["a", "b"], "Category": ["x", "y"]}, ("Sentence", "Category")),
        ({"words": ["a b", "b c"], "stars": [1, 5]}, ("words", "stars")),  # by kind
        ({"column1": [f"text {i}" for i in range(9)], "column2": ["x", "y", "z"] * 3}, ("column1", "column2")),
    ],
)
def test_guessed_columns(columns, expected):
    found = find_columns(table(**columns), WANTED, {})
    assert (found["text"], found["label"]) == expected
    assert "guessed; --text --label chooses" in (describe_guesses(found, {}) or "")
    assert describe_guesses(found, found) is None


def test_doubts_list_the_columns():
    two = table(text=["a"], content=["b"], label=[1])
    with pytest.raises(
        InputError, match=r"several columns may be the text: text, content. .*--text.* Columns: text, content, label"
    ):
        find_columns(two, WANTED, {})
    assert find_columns(two, WANTED, {"text": "content"})["text"] == "content"
    with pytest.raises(InputError, match=r"the text is not clear: no column looks like it. .* Columns: a, b"):
        find_columns(table(a=[1], b=[2]), WANTED, {})
    with pytest.raises(InputError, match=r"no column 'txt' for `text`. Did you mean 'text'"):
        find_columns(two, WANTED, {"text": "txt"})
    with pytest.raises(InputError, match="reads no column as 'answer'"):
        find_columns(two, WANTED, {"answer": "text"})


def test_values_that_are_missing_or_of_another_kind():
    with pytest.raises(InputError, match=r"data, row 2: the label \(column 'label'\) is missing"):
        find_columns(table(text=["a", "b"], label=[1, None]), WANTED, {})
    with pytest.raises(InputError, match=r"data, row 1: the text \(column 'label'\) is int"):
        find_columns(table(text=["a", "b"], label=[1, 2]), WANTED, {"text": "label", "label": "text"})


def test_pairs():
    assert find_pair(table(premise=["a"], hypothesis=["b"], label=[0]), {}) == {"text": "premise", "text_pair": "hypothesis"}
    assert find_pair(table(text=["a"], label=[0]), {}) == {}
    assert find_pair(table(premise=["a"], hypothesis=["b"]), {"text": "premise"}) == {}
    with pytest.raises(InputError, match="sentence1/sentence2 and premise/hypothesis"):
        find_pair(table(premise=["a"], hypothesis=["b"], sentence1=["c"], sentence2=["d"]), {})


def test_labels():
    found = find_labels(table(label=["b", "a", "b"]), "label")
    assert (found.id2label, found.problem) == ({0: "a", 1: "b"}, SINGLE)
    assert found.encode("b", "here") == 1
    assert find_labels(table(label=[10, 9, 10]), "label").id2label == {0: "9", 1: "10"}
    assert find_labels(table(label=["b", "a"]), "label", known=["b", "a", "c"]).names == ("b", "a", "c")
    named = TableDataset([{"label": 1}, {"label": 0}], class_names={"label": ["no", "yes", "maybe"]})
    assert find_labels(named, "label").names == ("no", "yes", "maybe")
    several = find_labels(table(label=[["x", "y"], [], ["z"]]), "label")
    assert several.problem == MULTI
    assert several.encode(["z", "x"], "here") == [1.0, 0.0, 1.0]
    number = find_labels(table(label=[1.5, 2.0]), "label")
    assert (number.problem, number.encode(2, "here")) == (REGRESSION, 2.0)
    mixed = find_labels(table(label=[1, 0.5, 0, 1, 2]), "label")
    assert (mixed.problem, mixed.encode(1, "here")) == (REGRESSION, 1.0)
    assert find_labels(table(label=[1, 2.0, 1.0]), "label").names == ("1", "2")
    assert find_labels(table(label=[True, False]), "label").names == ("False", "True")
    assert find_labels(table(label=["1", "0.5"]), "label").names == ("0.5", "1")
    assert token_labels(table(tags=[["B-X", "O"], ["A", "O"]]), "tags").names == ("O", "A", "B-X")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "a"], "one class only: 'a'"),
        (["a", 1], "labels of different kinds"),
        ([True, 0, 2], "labels of different kinds"),
        ([1, None], "labels of different kinds: None is neither"),
        ([[0.5, 1], [2]], "lists of numbers with fractions"),
        ([1.5, float("nan")], "data, row 2: the label nan is no finite number"),
        ([f"text {i}" for i in range(200)], "holds 200 classes in 200 rows"),
    ],
)
def test_wrong_labels(values, message):
    with pytest.raises(InputError, match=message):
        find_labels(table(label=values), "label")
    with pytest.raises(InputError, match=r"here: the label 'c' is none of the 2 classes \(a, b\)"):
        find_labels(table(label=["a", "b"]), "label").encode("c", "here")


def test_labels_of_other_rows_that_are_of_another_kind():
    for trained, wrong in (([0.5, 1], "good"), ([0.5, 1], None), ([["a"], ["b"]], "a"), (["a", "b"], ["a"]), ([1, 2], {})):
        with pytest.raises(InputError, match="here: the label"):
            find_labels(table(label=trained), "label").encode(wrong, "here")


def test_silent_mistakes_are_warned_of():
    train, held_out = table(text=["a", "b", "c"]), table(text=["d", "b"])
    with pytest.warns(
        TranseptWarning, match="1 of 2 rows of the evaluation are also among those trained on .the first: data, row 2"
    ):
        assert warn_of_equal_rows(train, held_out) == 1
    with pytest.warns(TranseptWarning, match=r"12 of 100 rows \(12 %\) are longer than 64 tokens"):
        assert warn_of_truncation(12, 100, 64)
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=100))
    for size in (101, 50):
        with pytest.warns(TranseptWarning, match=f"the tokenizer has {size} tokens, but the model 100"):
            assert warn_of_tokenizer("x" * size, model)
    with pytest.warns(TranseptWarning, match="will not learn to stop"):
        assert warn_of_unlearned_end([[1, 2]], 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not warn_of_equal_rows(train, table(text=["d"]))
        assert not warn_of_truncation(10, 100, 64)
        assert not warn_of_tokenizer("x" * 95, model)
        assert not warn_of_unlearned_end([[1, 3]], 3)
        assert not warn_of_unlearned_end([[1, 2]], None)
