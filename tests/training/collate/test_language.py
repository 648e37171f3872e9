"""Hidden tokens: the reference's draws where it draws alike, and the shares that papers name where it does not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import transformers

from tests.training.collate.texts import SYLLABLES, VOCABULARY, both, same, texts
from transept.errors import InputError, TranseptWarning
from transept.training.collate.language import (
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForWholeWordMask,
)

pytestmark = pytest.mark.reference
MASK = VOCABULARY.index("[MASK]")


def encoded(tokenizer: Any, count: int = 6, **options: Any) -> list[dict[str, Any]]:
    return [dict(tokenizer(text, **options)) for text in texts(count)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mlm_probability": 0.5, "mask_replace_prob": 0.3, "random_replace_prob": 0.6, "pad_to_multiple_of": 8},
        {"mlm_probability": 1.0, "mask_replace_prob": 1, "random_replace_prob": 0},
        {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0},
        {"mlm": False},
        {"mlm": False, "pad_to_multiple_of": 8},
    ],
    ids=str,
)
def test_the_references_draws(options: dict[str, Any], seed: int | None, side: str) -> None:
    tokenizers = both(side)
    kinds = DataCollatorForLanguageModeling, transformers.DataCollatorForLanguageModeling
    ours, theirs = (kind(tokenizer, seed=seed, **options) for kind, tokenizer in zip(kinds, tokenizers))
    for special in (False, True):
        rows = encoded(tokenizers[0], return_special_tokens_mask=special)
        for features in (rows, [row["input_ids"] for row in rows], [torch.tensor(row["input_ids"]) for row in rows]):
            found = []
            for collator in (ours, theirs):
                torch.manual_seed(3)
                found.append(dict(collator(features)))
            same(*found)
    assert {*ours(rows, return_tensors="np")} == {"input_ids", "attention_mask", "labels"}


def test_whole_words_are_the_references_draws() -> None:
    """The reference cannot pad offsets, so that rows are of one length here."""
    tokenizers = both()
    kinds = DataCollatorForLanguageModeling, transformers.DataCollatorForLanguageModeling
    options = {"whole_word_mask": True, "mlm_probability": 0.4}
    with pytest.warns(TranseptWarning, match="`mask_replace_prob` is 1"):
        ours = kinds[0](tokenizers[0], **options)
    with pytest.warns(UserWarning, match="replacement"):
        theirs = kinds[1](tokenizers[1], **options)
    rows = encoded(tokenizers[0], 40, return_offsets_mapping=True)
    length = max(len(row["input_ids"]) for row in rows)
    row = next(row for row in rows if len(row["input_ids"]) == length)
    for seed in range(5):
        found = []
        for collator in (ours, theirs):
            torch.manual_seed(seed)
            found.append(dict(collator([dict(row)] * 7)))
        same(*found)
        assert (found[0]["labels"] != -100).any()
    assert {*ours(rows)} == {"input_ids", "attention_mask", "labels"}  # ours pads them


def shares(labels: torch.Tensor, ids: torch.Tensor, original: torch.Tensor) -> tuple[float, float, float]:
    """Of hidden tokens: the shares that became a mask, another token, or stayed."""
    hidden = labels != -100
    masked, kept = (ids[hidden] == MASK).double().mean(), (ids[hidden] == original[hidden]).double().mean()
    return float(masked), float(1 - masked - kept), float(kept)


def within(share: float, expected: float, count: int) -> bool:
    return abs(share - expected) <= 5 * (expected * (1 - expected) / count) ** 0.5


def test_shares_are_those_of_the_paper() -> None:
    """15 % are hidden; of these 80 % masked, 10 % others (of the whole vocabulary), 10 % kept: each within 5 sigma."""
    tokenizer = both()[0]
    collator = DataCollatorForLanguageModeling(tokenizer, seed=0)
    ids = torch.randint(5, len(VOCABULARY), (400, 100), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, -1] = 2, 3
    found = collator([{"input_ids": row} for row in ids])
    hidden = found["labels"] != -100
    assert not hidden[:, [0, -1]].any()
    assert torch.equal(found["labels"][hidden], ids[hidden])
    assert torch.equal(found["input_ids"][~hidden], ids[~hidden])
    count = int(hidden.sum())
    assert within(count / (400 * 98), 0.15, 400 * 98)
    masked, changed, kept = shares(found["labels"], found["input_ids"], ids)
    same_by_chance = 0.1 / len(VOCABULARY)
    assert within(masked, 0.8 + same_by_chance, count)
    assert within(changed, 0.1 - 2 * same_by_chance, count)
    assert within(kept, 0.1 + same_by_chance, count)


@pytest.mark.parametrize("source", ["marks", "offsets", "word_ids"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_whole_words_until_the_share_is_reached(source: str, side: str) -> None:
    tokenizer = both(side)[0]
    collator = DataCollatorForWholeWordMask(tokenizer, mlm_probability=0.3, seed=1)
    rows = []
    for text in texts(60):
        encoding = tokenizer(text, return_offsets_mapping=source == "offsets")
        rows.append(dict(encoding) | ({"word_ids": encoding.word_ids()} if source == "word_ids" else {}))
    batch = collator([dict(row) for row in rows])
    starts = [[not VOCABULARY[i].startswith("##") for i in row["input_ids"]] for row in rows]
    length, hidden = batch["input_ids"].shape[1], 0
    for number, row in enumerate(rows):
        size = len(row["input_ids"])
        place = slice(0, size) if side == "right" else slice(length - size, length)
        chosen = (batch["labels"][number, place] != -100).tolist()
        for at in range(1, size - 1):  # a piece is hidden with its word
            assert starts[number][at] or chosen[at] == chosen[at - 1]
        most = max(1, round(0.3 * (size - 2)))
        assert sum(chosen) <= most
        hidden += sum(chosen)
    total = sum(len(row["input_ids"]) - 2 for row in rows)
    assert 0.2 < hidden / total <= 0.34  # words that would exceed a row's share are passed over


def test_labels_of_rows_are_kept_by_causal_models() -> None:
    tokenizer = both()[0]
    rows = [{"input_ids": [2, 9, 8, 3], "labels": [-100, -100, 8, 3]}, {"input_ids": [2, 3], "labels": [-100, 3]}]
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)(rows)
    assert batch["labels"].tolist() == [[-100, -100, 8, 3], [-100, 3, -100, -100]]


def test_a_seed_gives_the_same_again_and_a_copy_goes_on() -> None:
    tokenizer = both()[0]
    rows = encoded(tokenizer)
    first, again = (DataCollatorForLanguageModeling(tokenizer, seed=3) for _ in range(2))
    assert torch.equal(first(rows)["input_ids"], again(rows)["input_ids"])
    fresh = pickle.loads(pickle.dumps(DataCollatorForWholeWordMask(tokenizer, seed=3)))
    assert fresh(rows)["input_ids"].shape == first(rows)["input_ids"].shape


def test_what_cannot_be() -> None:
    tokenizer, bare = both()[0], both(mask=False)[0]
    for options, message in (
        ({"mlm_probability": 1.5}, "`mlm_probability` must be from 0 to 1, but is 1.5"),
        ({"mlm_probability": None}, "`mlm_probability` must be from 0 to 1, but is None"),
        ({"mask_replace_prob": -0.1}, "`mask_replace_prob` must be from 0 to 1"),
        ({"mask_replace_prob": 0.8, "random_replace_prob": 0.3}, "add up to 1.1, which is more than 1"),
        ({"whole_word_mask": True, "mlm": False}, "`whole_word_mask` needs `mlm=True`"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForLanguageModeling(tokenizer, **options)
    with pytest.raises(InputError, match=r"this tokenizer has no mask token\. Pass mlm=False"):
        DataCollatorForLanguageModeling(bare)
    collator = DataCollatorForLanguageModeling(tokenizer)
    for rows, message in (
        ([], "there are no rows"),
        ([[2, 3], "text"], "row 1: `input_ids` must be a list of integers, but is 'text'"),
        ([[2, 3], [2, 3.5]], "row 1: `input_ids` must be a list of integers"),
        ([{"ids": [1]}], "row 0 lacks 'input_ids'"),
    ):
        with pytest.raises(InputError, match=message):
            collator(rows)
    with pytest.raises(InputError, match="row 0 has 1 offsets for 2 tokens"):
        DataCollatorForWholeWordMask(tokenizer)([{"input_ids": [2, 3], "offset_mapping": [(0, 1)]}])


# --- permutation ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"plm_probability": 0.5, "max_span_length": 2}], ids=str)
def test_permutation_is_the_references_draws(options: dict[str, Any]) -> None:
    tokenizers = both()
    kinds = DataCollatorForPermutationLanguageModeling, transformers.DataCollatorForPermutationLanguageModeling
    ours, theirs = (kind(tokenizer, **options) for kind, tokenizer in zip(kinds, tokenizers))
    rows = encoded(tokenizers[0], 12)
    longest = max(len(row["input_ids"]) for row in rows)
    rows[0] = {"input_ids": [2, *[9] * (longest + longest % 2 - 2), 3]}  # the reference needs an even length
    for seed in range(4):
        found = []
        for collator in (ours, theirs):
            torch.manual_seed(seed)
            found.append(collator([{"input_ids": row["input_ids"]} for row in rows]))
        mask = found[0].pop("attention_mask")
        assert mask.sum(dim=1).tolist() == [len(row["input_ids"]) for row in rows]
        same(*found)


def test_odd_lengths_are_padded_and_orders_do_not_leak() -> None:
    collator = DataCollatorForPermutationLanguageModeling(both()[0])
    batch = collator([[2, *range(5, 5 + 28), 3, 6]])
    assert batch["input_ids"].shape == (1, 32)
    assert batch["attention_mask"].sum() == 31
    hidden = batch["labels"][0] != -100
    blocked = batch["perm_mask"][0].bool()
    assert not blocked[:, ~hidden].any()  # what is not hidden is seen by all
    assert blocked[hidden][:, hidden].diagonal().all()  # none sees itself
    pairs = blocked[hidden][:, hidden]
    assert torch.equal(pairs | pairs.T, torch.ones_like(pairs))  # of two, one at most sees the other
    assert torch.equal(batch["target_mapping"][0], torch.eye(32))


def test_permutation_hides_a_sixth_of_long_rows() -> None:
    collator = DataCollatorForPermutationLanguageModeling(both()[0])
    torch.manual_seed(0)
    batch = collator([torch.randint(5, 60, (500,)).tolist() for _ in range(40)])
    share = float((batch["labels"] != -100).double().mean())
    assert abs(share - 1 / 6) < 0.01  # spans of 1 to 5 in contexts of six times their length


def test_permutation_refuses() -> None:
    for options, message in (({"plm_probability": 0}, "must be above 0 and at most 1"), ({"max_span_length": 0}, "at least 1")):
        with pytest.raises(InputError, match=message):
            DataCollatorForPermutationLanguageModeling(both()[0], **options)
    with pytest.raises(InputError, match="no mask token"):
        DataCollatorForPermutationLanguageModeling(both(mask=False)[0])([[2, 3]])


def test_vocabulary_of_these_tests() -> None:
    assert len(SYLLABLES) == 60
    assert len(VOCABULARY) == 125
