"""Texts with entities, as the reference's tokenizer of LUKE encodes them."""

from __future__ import annotations

import json
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from transept.errors import FormatError, InputError, InputTypeError, TranseptWarning, UnsupportedError

ENTITIES = {"[UNK]": 1, "[PAD]": 0, "[MASK]": 2, "[MASK2]": 3, "Japan": 4, "Los Angeles": 5}
MERGES = ["t h", "th e", "Ġ t", "Ġt h", "Ġth e", "a n", "Ġ an"]
TASKS = (None, "entity_classification", "entity_pair_classification", "entity_span_classification")
COUNTS = {"entity_classification": 1, "entity_pair_classification": 2}
HOW: list[dict[str, Any]] = [
    {},
    {"padding": True},
    {"padding": "max_length", "max_length": 40},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "pt"},
    {"padding": True, "padding_side": "left", "return_length": True},
    {"truncation": True, "max_length": 9},
    {"truncation": True, "max_length": 14, "max_entity_length": 2, "padding": True},
    {"truncation": "only_first", "max_length": 24},
    {"return_token_type_ids": True, "return_special_tokens_mask": True, "padding": True},
    {"return_attention_mask": False, "add_special_tokens": False},
]


def vocabulary(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    letters = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?Ġ"]
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters, *(merge.replace(" ", "") for merge in MERGES)]
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]) + "\n", encoding="utf-8")
    (folder / "entity_vocab.json").write_text(json.dumps(ENTITIES), encoding="utf-8")
    return folder


def drawn(draw: random.Random, count: int | None) -> tuple[str, list[tuple[int, int]], list[str]]:
    """A text, its entities, as many as a task reads or up to five, and their names."""
    text = "".join(draw.choices("the  an.Zq", k=draw.randint(3, 24)))
    starts = [draw.randrange(len(text)) for _ in range(count or draw.randint(1, 5))]
    spans = [(start, draw.randint(start + 1, len(text))) for start in starts]
    return text, spans, draw.choices([*ENTITIES, "unknown"], k=len(spans))


def plain(found: Any) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in found.items()}


def check(ours: Any, theirs: Any, how: dict[str, Any], *texts: Any, **entities: Any) -> None:
    # What the reference's call before this one truncated and padded by, it would do to parts of these texts.
    theirs._tokenizer.no_padding()
    theirs._tokenizer.no_truncation()
    try:
        found = plain(ours(*texts, **entities, **how))
    except InputError as error:
        assert re.search(r"cannot be cut|equal lengths|too short", str(error)), (how, texts)
        return
    assert found == plain(theirs(*texts, **entities, **how)), (how, texts, entities)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:.*entities are left out:transept.errors.TranseptWarning")
@pytest.mark.parametrize("task", TASKS)
def test_entities_are_encoded_as_in_the_reference(task: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers
    from transformers.tokenization_python import PreTrainedTokenizer

    kind: Any = transformers.LukeTokenizer  # which calls a method that is another class's
    monkeypatch.setattr(kind, "truncate_sequences", PreTrainedTokenizer.truncate_sequences, raising=False)
    options: dict[str, Any] = {"task": task, "max_mention_length": 5, "max_entity_length": 4}
    folder, draw, count = vocabulary(tmp_path), random.Random(0), COUNTS.get(task or "")
    ours, theirs = (kind.from_pretrained(folder, **options) for kind in (transept.LukeTokenizer, kind))
    assert ours.max_entity_length == theirs.max_entity_length
    assert (ours.entity_1_token_id, ours.entity_2_token_id) == (theirs.entity_1_token_id, theirs.entity_2_token_id)
    assert (ours.entity_pad_token_id, ours.entity_mask2_token_id) == (theirs.entity_pad_token_id, theirs.entity_mask2_token_id)
    for _ in range(15):
        first, second = ([drawn(draw, count) for _ in range(3)] for _ in range(2))
        texts, spans, names = map(list, zip(*first, strict=True))
        pairs, more, others = map(list, zip(*second, strict=True))
        for how in HOW:
            check(ours, theirs, how, texts[0], entity_spans=spans[0])
            check(ours, theirs, how, texts, entity_spans=spans)
            if task is None:
                both = {"entity_spans": spans, "entity_spans_pair": more}
                check(ours, theirs, how, texts, entity_spans=spans, entities=names)
                check(ours, theirs, how, texts[0], pairs[0], **{name: value[0] for name, value in both.items()})
                check(ours, theirs, how, texts, pairs, **both, entities=names, entities_pair=others)
                check(ours, theirs, how, list(zip(texts, pairs, strict=True)), entity_spans=list(zip(spans, more, strict=True)))
                plainly = {name: value for name, value in how.items() if name != "max_entity_length"}
                check(ours, theirs, plainly, texts, pairs)


@pytest.mark.reference
def test_files_of_both_are_read_by_both(tmp_path: Path) -> None:
    import transformers

    text, call = "the an <mask> the", {"entity_spans": [(0, 3), (4, 6)], "entities": ["Japan", "Osaka"]}
    folder = vocabulary(tmp_path / "files")
    (folder / "config.json").write_text('{"model_type": "luke"}')
    ours: Any = transept.AutoTokenizer.from_pretrained(folder)
    theirs: Any = transformers.LukeTokenizer.from_pretrained(folder)
    assert type(ours) is transept.LukeTokenizer
    # The reference takes names of entities for tokens of texts, beyond the model's vocabulary.
    theirs_alone = {f"[{name}]" for name in ("UNK", "PAD", "MASK", "MASK2")}
    assert ours.get_vocab() == {token: index for token, index in theirs.get_vocab().items() if token not in theirs_alone}
    assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    assert ours.tokenize(text) == theirs.tokenize(text)
    expected = dict(theirs(text, **call))
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for saved in ("ours", "theirs"):
        for library in (transept, transformers):
            again = library.AutoTokenizer.from_pretrained(tmp_path / saved)
            assert type(again).__name__ == "LukeTokenizer"
            assert dict(again(text, **call)) == expected
            assert again.entity_vocab == ENTITIES
    made = transept.LukeTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), entity_vocab=ENTITIES)
    assert dict(made(text, **call)) == expected
    assert made.train_new_from_iterator(["the an"], 300).entity_vocab == ENTITIES
    assert dict(pickle.loads(pickle.dumps(made))(text, **call)) == expected
    older = transept.LukeTokenizer.from_pretrained(folder, entity_token_1="<ent>", task="entity_classification")
    older.save_pretrained(tmp_path / "older")
    again = transept.AutoTokenizer.from_pretrained(tmp_path / "older")
    assert dict(again("an", entity_spans=[(0, 2)])) == dict(older("an", entity_spans=[(0, 2)]))


def test_texts_that_are_cut_on_the_left_keep_the_entities_at_their_end(tmp_path: Path) -> None:
    tokenizer = transept.LukeTokenizer.from_pretrained(vocabulary(tmp_path), truncation_side="left", max_mention_length=2)
    text, spans = "an a the an", [(0, 2), (9, 11)]
    with pytest.warns(TranseptWarning, match="1 entities are left out"):
        found = tokenizer(text, entity_spans=spans, truncation=True, max_length=5)
    whole = tokenizer(text, entity_spans=spans)
    assert found["input_ids"] == [0, *whole["input_ids"][-4:]]
    assert [found["input_ids"][place] for place in found["entity_position_ids"][0] if place >= 0] == tokenizer(" an")[
        "input_ids"
    ][1:-1]


def test_encodings_are_padded_later(tmp_path: Path) -> None:
    tokenizer = transept.LukeTokenizer.from_pretrained(vocabulary(tmp_path), max_mention_length=3, max_entity_length=4)
    texts, spans = ["the an", "a the an"], [[(0, 3)], [(0, 1), (2, 5)]]
    rows = [tokenizer(text, entity_spans=each) for text, each in zip(texts, spans, strict=True)]
    expected = tokenizer(texts, entity_spans=spans, padding=True, return_tensors="pt")
    collated = transept.DataCollatorWithPadding(tokenizer)([dict(row) for row in rows])
    assert plain(collated) == plain(expected)
    single = tokenizer.pad(tokenizer(texts[0], entity_spans=[], return_tensors="np"), padding="max_length", max_length=9)
    assert single["entity_ids"].tolist() == [[0, 0, 0, 0]]
    assert single["entity_position_ids"].shape == (1, 4, 3)
    assert tokenizer([], entity_spans=[])["input_ids"] == []
    with_pair = tokenizer("an", "the an", entity_spans_pair=[(4, 6)], entities_pair=["Japan"])
    assert with_pair["entity_ids"] == [4]
    assert with_pair["entity_position_ids"] == [[5, -1, -1]]


HEADS = {
    "entity_classification": (transept.LukeForEntityClassification, {"labels": torch.tensor([1, 0])}),
    "entity_pair_classification": (transept.LukeForEntityPairClassification, {"labels": torch.tensor([1, 0])}),
    "entity_span_classification": (transept.LukeForEntitySpanClassification, {"labels": torch.tensor([[1, 0], [0, -100]])}),
    None: (transept.LukeForMaskedLM, {"entity_labels": torch.tensor([[4, -100], [5, -100]])}),
}


@pytest.mark.parametrize("task", HEADS, ids=str)
def test_models_read_what_their_tokenizer_gives(task: str | None, tmp_path: Path) -> None:
    tokenizer = transept.LukeTokenizer.from_pretrained(vocabulary(tmp_path), task=task)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "entity_emb_size": 8}
    sizes |= {"vocab_size": len(tokenizer), "entity_vocab_size": len(ENTITIES), "max_position_embeddings": 64, "num_labels": 2}
    torch.manual_seed(0)
    cls, labels = HEADS[task]
    model: Any = cls(transept.LukeConfig(**sizes)).eval()
    count = COUNTS.get(task or "", 2)
    texts, spans = ["the an a the", "an the"], [[(0, 3), (4, 6)], [(0, 2), (3, 6)]]
    spans = [each[: count if row == 0 or task in COUNTS else 1] for row, each in enumerate(spans)]
    inputs = tokenizer(texts, entity_spans=spans, padding=True, return_tensors="pt")
    with torch.no_grad():
        together = model(**inputs, **labels)
        assert torch.isfinite(together.loss)
        name = "entity_logits" if task is None else "logits"
        for row, text in enumerate(texts):
            alone = model(**tokenizer(text, entity_spans=spans[row], return_tensors="pt"))[name][0]
            torch.testing.assert_close(together[name][row][: len(alone)], alone, atol=1e-5, rtol=1e-5)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"entity_spans": 3}, InputTypeError, "`entity_spans` of text 0 is 3"),
    ({"entity_spans": [(0, 9)]}, InputError, r"entity 0 of text 0 is \(0, 9\), but must be .* within its 6"),
    ({"entity_spans": [(3, 1)]}, InputError, "entity 0 of text 0"),
    ({"entity_spans": [(0, True)]}, InputError, "entity 0 of text 0"),
    ({"entity_spans": [(0, 1)], "entities": ["a", "b"]}, InputError, "2 `entities`, but 1 `entity_spans`"),
    ({"entities": ["a"]}, InputError, "1 `entities`, but 0 `entity_spans`"),
    ({"entity_spans": [(0, 1)], "entities": [None]}, InputTypeError, "entity 0 of text 0"),
    ({"entity_spans": [(0, 1)], "entity_spans_pair": [(0, 1)]}, InputError, "no second text, but entities"),
    ({"entity_spans": [(0, 1)], "return_offsets_mapping": True}, UnsupportedError, "`return_offsets_mapping` is not for"),
    ({"entity_spans": [(0, 1)], "text_target": "a"}, UnsupportedError, "`text_target` is not for"),
    ({"entity_spans": [(0, 1)], "truncation": "only_second", "max_length": 3}, InputError, "is for pairs"),
    ({"text": ["a", "b"], "entity_spans": [[(0, 1)]]}, InputError, "there are 2 texts, but `entity_spans` is for 1"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_wrong_entities_are_named(call: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    tokenizer = transept.LukeTokenizer.from_pretrained(vocabulary(tmp_path))
    with pytest.raises(kind, match=message):
        tokenizer(**{"text": "the an", **call})


def test_what_a_task_cannot_read(tmp_path: Path) -> None:
    folder = vocabulary(tmp_path)
    one = transept.LukeTokenizer.from_pretrained(folder, task="entity_classification")
    for spans in (None, [], [(0, 1), (2, 3)]):
        with pytest.raises(InputError, match="the task 'entity_classification' reads 1"):
            one("the an", entity_spans=spans)
    with pytest.raises(InputError, match="has no second text"):
        one("the", "an", entity_spans=[(0, 1)])
    with pytest.raises(InputError, match="has no names of entities"):
        one("the", entity_spans=[(0, 1)], entities=["Japan"])
    with pytest.raises(InputError, match=r"task is 'nonsense'"):
        transept.LukeTokenizer.from_pretrained(folder, task="nonsense")
    with pytest.raises(InputError, match="`max_mention_length` is 0"):
        transept.LukeTokenizer.from_pretrained(folder, max_mention_length=0)


HOSTILE = {
    "not json": "is no JSON|not valid JSON|JSON",
    "[1, 2]": "must hold a JSON object",
    '{"[UNK]": 0, "[PAD]": 1, "[MASK]": 2}': r"has no '\[MASK2\]'",
    '{"[UNK]": 0, "[PAD]": 1, "[MASK]": 2, "[MASK2]": -1}': "has the id -1",
    '{"[UNK]": 0, "[PAD]": 1, "[MASK]": 2, "[MASK2]": 1.5}': "has the id 1.5",
    '{"[UNK]": 0, "[PAD]": 1, "[MASK]": true, "[MASK2]": 3}': "has the id True",
    '{"[UNK]": 0, "[PAD]": 1, "[MASK]": 2, "[MASK2]": 99999999999999999999}': "has the id 9",
    '{"[UNK]": 0, "[UNK]": 1}': "duplicate|twice",
    '{"a": ' * 100 + "1" + "}" * 100: "levels|deep",
}


@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_vocabularies_of_entities(content: str, tmp_path: Path) -> None:
    folder = vocabulary(tmp_path)
    (folder / "entity_vocab.json").write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=HOSTILE[content]) as found:
        transept.LukeTokenizer.from_pretrained(folder)
    assert "entity_vocab.json" in str(found.value)
    with pytest.raises(InputTypeError, match="`entity_vocab` is 3"):
        transept.LukeTokenizer.from_pretrained(folder, entity_vocab=3)
