"""Words on a page: their boxes and labels go where their tokens are, as in the reference."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transept.errors import InputError, TranseptError
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.classes import LayoutLMv3Tokenizer, LayoutLMv3TokenizerFast

from .conftest import sentences

QUESTIONS = ["What is the total?", "Who wrote  this letter to whom, and why?"]
CUT = {"truncation": True, "max_length": 16}
WINDOWS = {"max_length": 24, "return_overflowing_tokens": True}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padding": True, "return_special_tokens_mask": True},
    "left": {"padding": True, "padding_side": "left", "return_token_type_ids": True},
    "whole": {"padding": "max_length", "max_length": 300, "return_tensors": "pt"},
    "multiple": {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "np"},
    "cut": CUT | {"padding": True, "return_tensors": "pt", "return_length": True},
    "bare": {"add_special_tokens": False, "return_offsets_mapping": True, "return_attention_mask": False},
    "windows": WINDOWS | {"truncation": "longest_first", "stride": 5},
    "windows padded": WINDOWS | {"truncation": True, "padding": "max_length", "return_tensors": "pt", "stride": 3},
}
IN_PAIRS = CALLS | {
    "second": {"truncation": "only_second", "padding": True, "max_length": 60, "return_tensors": "pt"},
}
for name in ("windows", "windows padded"):
    IN_PAIRS[name] = IN_PAIRS[name] | {"truncation": "only_second", "max_length": 60, "return_offsets_mapping": True}


def page(seed: int, count: int) -> tuple[list[str], list[list[int]], list[int]]:
    """Words, boxes and labels."""
    some = random.Random(seed)
    words = [word for sentence in sentences() for word in sentence.split()]
    chosen = [some.choice([*words, "café", "日本", "<s>", "1,234.50"]) for _ in range(count)]
    sides = [sorted(some.choices(range(1001), k=2)) + sorted(some.choices(range(1001), k=2)) for _ in range(count)]
    return chosen, [[x0, y0, x1, y1] for x0, x1, y0, y1 in sides], some.choices(range(7), k=count)


PAGES = [page(seed, count) for seed, count in enumerate((40, 7))]
WORDS, BOXES, LABELS = (list(each) for each in zip(*PAGES, strict=True))


def pair(folder: Path, **settings: Any) -> tuple[LayoutLMv3Tokenizer, Any]:
    theirs = transformers.LayoutLMv3TokenizerFast.from_pretrained(folder, **settings)
    return LayoutLMv3Tokenizer.from_pretrained(folder, **settings), theirs


def same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        mine = ours[name]
        if isinstance(value, torch.Tensor | np.ndarray):
            assert type(mine) is type(value), name
            mine, value = mine.tolist(), value.tolist()
        assert mine == value, name
    rows = len(ours["input_ids"]) if not isinstance(ours["input_ids"][0], int) else 1
    for row in range(rows):
        assert ours.word_ids(row) == theirs.word_ids(row)
        assert ours.sequence_ids(row) == theirs.sequence_ids(row)


@pytest.mark.reference
@pytest.mark.parametrize("labels", [LABELS, None])
@pytest.mark.parametrize("call", CALLS)
def test_words_as_in_the_reference(call: str, labels: Any, bpe_files: Path) -> None:
    ours, theirs = pair(bpe_files)
    if "return_tensors" in CALLS[call] or "padding" in CALLS[call] or labels is None:
        same(*(each(WORDS, boxes=BOXES, word_labels=labels, **CALLS[call]) for each in (ours, theirs)))
    one = labels and labels[0]
    if not CALLS[call].get("return_length"):  # the reference's is no list for one page
        same(*(each(WORDS[0], boxes=BOXES[0], word_labels=one, **CALLS[call]) for each in (ours, theirs)))


@pytest.mark.reference
@pytest.mark.parametrize("call", IN_PAIRS)
def test_questions_as_in_the_reference(call: str, bpe_files: Path) -> None:
    ours, theirs = pair(bpe_files)
    options = IN_PAIRS[call]
    if "return_tensors" in options or "padding" in options:
        same(*(each(QUESTIONS, WORDS, boxes=BOXES, **options) for each in (ours, theirs)))
    if not options.get("return_length"):
        same(*(each(QUESTIONS[1], WORDS[0], boxes=BOXES[0], **options) for each in (ours, theirs)))


@pytest.mark.reference
@pytest.mark.parametrize(
    "settings",
    [
        {"only_label_first_subword": False},
        {"pad_token_label": -1, "cls_token_box": [1, 2, 3, 4], "sep_token_box": [1000] * 4, "pad_token_box": [5, 5, 6, 6]},
    ],
)
def test_settings_are_read_kept_and_saved(settings: dict[str, Any], bpe_files: Path, tmp_path: Path) -> None:
    ours, theirs = pair(bpe_files, **settings)
    given: dict[str, Any] = {"boxes": BOXES, "word_labels": LABELS, "padding": True, "return_tensors": "pt"}
    same(ours(WORDS, **given), theirs(WORDS, **given))
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    read = [transformers.AutoTokenizer.from_pretrained(tmp_path / "ours"), AutoTokenizer.from_pretrained(tmp_path / "theirs")]
    assert [type(each).__name__ for each in read][1] == "LayoutLMv3Tokenizer"
    for again in (*read, pickle.loads(pickle.dumps(ours))):
        same(ours(WORDS, **given), again(WORDS, **given))
        assert {name: getattr(again, name) for name in settings} == settings


@pytest.mark.reference
def test_encodings_are_padded_together(bpe_files: Path) -> None:
    ours, theirs = pair(bpe_files)
    rows = [ours(words, boxes=boxes, word_labels=labels) for words, boxes, labels in PAGES]
    found = ours.pad([dict(row) for row in rows], return_tensors="pt")
    same_rows = ours(WORDS, boxes=BOXES, word_labels=LABELS, padding=True, return_tensors="pt")
    assert all(torch.equal(found[name], same_rows[name]) for name in same_rows)
    classes = ours.pad(
        [{name: row[name] for name in ("input_ids", "bbox")} | {"labels": 2} for row in rows], return_tensors="pt"
    )
    assert classes["labels"].tolist() == [2, 2]
    assert ours.tokenize("Hello world") == theirs.tokenize("Hello world")


def test_a_question_has_no_labels(bpe_files: Path) -> None:
    """The reference gives the words of the question the labels of the page's first words."""
    ours = LayoutLMv3TokenizerFast.from_pretrained(bpe_files)
    words, boxes, labels = PAGES[0]
    found = ours(QUESTIONS[0], words, boxes=boxes, word_labels=labels)
    begun: set[int] = set()
    expected = []
    for text, word in zip(found.sequence_ids(), found.word_ids(), strict=True):
        shown = text == 1 and word not in begun
        expected.append(labels[word] if shown and word is not None else -100)
        begun |= {word} if text == 1 and word is not None else set()
    assert found["labels"] == expected


def test_empty_pages_and_arrays(bpe_files: Path) -> None:
    ours = LayoutLMv3Tokenizer.from_pretrained(bpe_files)
    assert ours([], boxes=[])["bbox"] == [[0] * 4] * 2
    assert ours("What?", [], boxes=[])["input_ids"][-1] == ours.sep_token_id
    assert ours([[], ["one"]], boxes=[[], [[1, 2, 3, 4]]], padding=True)["bbox"][1][1] == [1, 2, 3, 4]
    listed = ours(WORDS[0], boxes=BOXES[0], word_labels=LABELS[0])
    for make in (np.array, torch.tensor):
        assert dict(ours(WORDS[0], boxes=make(BOXES[0]), word_labels=make(LABELS[0]))) == dict(listed)


WORD = ["one", "two"]
GOOD = [[0, 0, 10, 10], [10, 0, 1000, 1000]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((WORD,), "without their `boxes`"),
        ((WORD, None, GOOD[:1]), "page 0 has 2 words, but `boxes` has 1"),
        (([WORD, WORD], None, [GOOD]), "2 pages of words, but `boxes` has 1"),
        (([WORD, WORD], None, [GOOD, GOOD[:1]]), "page 1 has 2 words"),
        ((WORD, None, [GOOD[0], [0, 0, 1001, 5]]), "word 1 of page 0"),
        ((WORD, None, [GOOD[0], [-1, 0, 10, 5]]), "not within the page"),
        ((WORD, None, [GOOD[0], [10, 0, 5, 5]]), "negative width"),
        (([WORD], None, [[GOOD[0], [10, 9, 15, 5]]]), "negative height"),
        ((WORD, None, [GOOD[0], [1, 2, 3]]), "four whole numbers"),
        ((WORD, None, [GOOD[0], [1.5, 2, 3, 4]]), "four whole numbers"),
        ((WORD, None, [GOOD[0], None]), "four whole numbers"),
        ((WORD, None, 5), "`boxes`"),
        ((WORD, None, GOOD, [1]), "`word_labels` has 1"),
        (("one two", None, GOOD), "a list of words"),
        ((["one", 2], None, GOOD), "word 1"),
        (("What?", "one two", GOOD), "a list of words"),
        ((["What?"], [WORD, WORD], [GOOD, GOOD]), "1 texts"),
    ],
)
def test_wrong_input_is_named(given: Any, told: str, bpe_files: Path) -> None:
    ours = LayoutLMv3Tokenizer.from_pretrained(bpe_files)
    with pytest.raises(InputError, match=told):
        ours(*given)


@pytest.mark.parametrize("wrong", [{"cls_token_box": "abc"}, {"pad_token_box": [0, 0, 0, 2000]}, {"pad_token_label": "x"}])
def test_wrong_settings_are_named(wrong: dict[str, Any], bpe_files: Path) -> None:
    with pytest.raises(TranseptError, match=next(iter(wrong))):
        LayoutLMv3Tokenizer.from_pretrained(bpe_files, **wrong)
