"""Special and added tokens: their names, ids and flags."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import transformers

from transept.errors import InputError, TranseptWarning
from transept.preprocess.text import classes
from transept.preprocess.text.tokenizer import Tokenizer


@pytest.fixture
def bert(vocab_txt: Path) -> Tokenizer:
    return classes.BertTokenizer.from_pretrained(vocab_txt)


@pytest.mark.reference
@pytest.mark.parametrize(("name", "fixture"), [("BertTokenizer", "vocab_txt"), ("RobertaTokenizer", "bpe_files")])
def test_names_and_ids_beside_the_reference(name: str, fixture: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(fixture)
    ours, theirs = getattr(classes, name).from_pretrained(folder), getattr(transformers, name).from_pretrained(folder)
    for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{kind}_token") == getattr(theirs, f"{kind}_token")
        assert getattr(ours, f"{kind}_token_id") == getattr(theirs, f"{kind}_token_id")
    for attribute in (
        *("special_tokens_map", "all_special_tokens", "all_special_ids", "vocab_size", "model_max_length"),
        *("padding_side", "truncation_side", "model_input_names", "is_fast", "clean_up_tokenization_spaces"),
        *("extra_special_tokens", "added_tokens_encoder", "pad_token_type_id"),
    ):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab() == ours.vocab
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert ours.convert_tokens_to_ids(["the", "no such"]) == theirs.convert_tokens_to_ids(["the", "no such"])
    assert repr(ours).startswith(f"{name}(name_or_path=")


@pytest.mark.reference
def test_tokens_are_added_as_in_the_reference(vocab_txt: Path) -> None:
    ours, theirs = (kind.from_pretrained(vocab_txt) for kind in (classes.BertTokenizer, transformers.BertTokenizer))
    texts = ["a newword here", "newwords [X] y [Y]", "<img> [MASK]", "x  <strip> y"]
    counts = [
        [
            tokenizer.add_tokens(["newword", "the"]),
            tokenizer.add_tokens("newword"),
            tokenizer.add_special_tokens({"additional_special_tokens": ["[X]", "[Y]"], "bos_token": "<img>"}),
            tokenizer.add_tokens(classes.AddedToken("<strip>", lstrip=True), special_tokens=True),
        ]
        for tokenizer in (ours, theirs)
    ]
    assert counts[0] == counts[1] == [2, 0, 3, 1]
    assert [ours(text)["input_ids"] for text in texts] == [theirs(text)["input_ids"] for text in texts]
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.extra_special_tokens == ours.additional_special_tokens == ["[X]", "[Y]"]
    assert ours.additional_special_tokens_ids == ours.convert_tokens_to_ids(["[X]", "[Y]"])
    rows = ours(texts)["input_ids"]
    assert ours.batch_decode(rows, skip_special_tokens=True) == theirs.batch_decode(rows, skip_special_tokens=True)
    assert ours.add_special_tokens({"extra_special_tokens": ["[Z]"]}, replace_extra_special_tokens=False) == 1
    assert ours.extra_special_tokens == ["[X]", "[Y]", "[Z]"]


def test_what_is_added_counts_in_truncated_calls_too(bert: Tokenizer) -> None:
    text = "the newword"
    before = bert(text, truncation=True, max_length=9)["input_ids"]
    bert.add_tokens("newword")
    after = bert(text, truncation=True, max_length=9)["input_ids"]
    assert before != after == bert(text)["input_ids"]


def test_names_can_be_set(bert: Tokenizer) -> None:
    bert.pad_token = "[SEP]"
    assert bert.pad_token_id == bert.sep_token_id
    bert.pad_token_id = bert.mask_token_id
    assert bert.pad_token == "[MASK]"
    bert.pad_token = None
    assert (bert.pad_token, bert.pad_token_id) == (None, None)
    assert bert.bos_token is None
    bert.extra_special_tokens = ["[PAD]"]
    assert bert.all_special_tokens[-1] == "[PAD]"
    for wrong in (3, "", ["x"]):
        with pytest.raises(InputError, match="`eos_token` must be a token's text"):
            bert.eos_token = wrong
    with pytest.raises(InputError, match="id 99999999 is not in the vocabulary"):
        bert.eos_token_id = 99999999


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"padd_token": "x"}, "'padd_token' is not the name.*pad_token"),
        ({"pad_token": 3}, "`pad_token` must be a token's text"),
        ({"extra_special_tokens": "abc"}, "must be a list of tokens"),
        ({"extra_special_tokens": [None]}, r"`extra_special_tokens\[0\]`"),
    ],
)
def test_what_is_no_special_token(bert: Tokenizer, tokens: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bert.add_special_tokens(tokens)
    assert bert.pad_token == "[PAD]"


def test_a_models_own_special_tokens(vocab_txt: Path) -> None:
    for settings in (
        {"extra_special_tokens": {"image_token": "<image>"}},
        {"image_token": "<image>"},
        {"model_specific_special_tokens": {"image_token": "<image>"}},
    ):
        tokenizer = classes.BertTokenizer.from_pretrained(vocab_txt, **settings)
        assert tokenizer.image_token == "<image>"
        assert tokenizer.image_token_id == len(tokenizer) - 1
        assert tokenizer.special_tokens_map["image_token"] == "<image>"
        assert tokenizer.image_token_id in tokenizer.all_special_ids
    with pytest.raises(AttributeError, match="no attribute 'video_token'"):
        _ = tokenizer.video_token


def test_an_added_token_keeps_its_flags(bert: Tokenizer) -> None:
    bert.add_tokens(classes.AddedToken("zz", single_word=True, rstrip=True))
    other = copy.deepcopy(bert)
    for tokenizer in (bert, other):
        (token,) = [token for token in tokenizer.added_tokens_decoder.values() if token.content == "zz"]
        assert (token.single_word, token.rstrip, token.lstrip) == (True, True, False)
        assert tokenizer.tokenize("zz") == ["zz"]
        assert "zz" not in tokenizer.tokenize("zza")


def test_what_scripts_of_the_reference_ask_for(bert: Tokenizer) -> None:
    assert list(bert.SPECIAL_TOKENS_ATTRIBUTES) == list(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    assert type(bert.decoder).__name__ == "WordPiece"
    assert bert("the", tokenizer_kwargs={"padding": "max_length", "max_length": 6}) == bert(
        "the", padding="max_length", max_length=6
    )
    assert bert.decode([2, 3], spaces_between_special_tokens=False) == bert.decode([2, 3])
    assert bert.sanitize_special_tokens() == 0
    ids, pair = bert.encode("the cat", add_special_tokens=False), bert.encode("a dog", add_special_tokens=False)
    assert bert.prepare_for_model(ids, pair, truncation=True, max_length=5) == bert(
        "the cat", "a dog", truncation=True, max_length=5
    )
    with pytest.warns(TranseptWarning, match="register_for_auto_class saves no code of BertTokenizer"):
        bert.register_for_auto_class("AutoTokenizer")


@pytest.mark.reference
def test_the_ends_of_texts_are_set_as_in_the_reference(bpe_files: Path) -> None:
    ours, theirs = (library.GPT2Tokenizer.from_pretrained(bpe_files) for library in (classes, transformers))
    for begin, end in (False, True), (True, True), (True, False), (False, False):
        for tokenizer in (ours, theirs):
            tokenizer.add_bos_token, tokenizer.add_eos_token = begin, end
        assert (ours.add_bos_token, ours.add_eos_token) == (begin, end)
        assert ours("the cat", "dog").input_ids == theirs("the cat", "dog").input_ids
