"""Tokenizers that put the token of a language around texts."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers

from transept.errors import InputError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer

from .conftest import SentencePieces

TEXTS = ["the hello", "world and the Paris", "a (of) that's", "don't hello <mask>"]
NAMES = ["MBartTokenizer", "MBart50Tokenizer"]


@pytest.fixture
def place(sentence_pieces: SentencePieces, tmp_path: Path) -> Path:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentence_pieces().read_bytes())
    return tmp_path


@pytest.mark.reference
@pytest.mark.parametrize("name", NAMES)
def test_languages_beside_the_reference(name: str, place: Path) -> None:
    options = {"src_lang": "en_XX", "tgt_lang": "ro_RO"}
    ours: Any = getattr(classes, name).from_pretrained(place, **options)
    theirs = getattr(transformers, name).from_pretrained(place, **options)
    assert len(ours) == len(theirs)
    assert ours.lang_code_to_id == theirs.lang_code_to_id
    assert ours.special_tokens_map == {key: theirs.special_tokens_map[key] for key in ours.special_tokens_map}
    for source, target in (("en_XX", "ro_RO"), ("de_DE", "fr_XX"), ("zh_CN", "zh_CN")):
        for tokenizer in (ours, theirs):
            tokenizer.src_lang, tokenizer.tgt_lang = source, target
        assert dict(ours(TEXTS, text_target=TEXTS[::-1], padding=True)) == dict(
            theirs(TEXTS, text_target=TEXTS[::-1], padding=True)
        )
        assert dict(ours(TEXTS, TEXTS[::-1])) == dict(theirs(TEXTS, TEXTS[::-1]))
        assert ours(text_target=TEXTS)["input_ids"] == theirs(text_target=TEXTS)["input_ids"]
        with ours.as_target_tokenizer():
            assert ours(TEXTS)["input_ids"] == theirs(text_target=TEXTS)["input_ids"]
        assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
        assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]  # targets leave nothing behind


@pytest.mark.parametrize("name", NAMES)
def test_languages_are_kept(name: str, place: Path) -> None:
    tokenizer: Any = getattr(classes, name)(place / "sentencepiece.bpe.model")
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en_XX", None)
    tokenizer.src_lang = "de_DE"
    expected = tokenizer(TEXTS, text_target=TEXTS)
    assert expected["input_ids"] == expected["labels"]  # without a language of their own
    assert tokenizer.decode(expected["input_ids"][0], skip_special_tokens=True) == TEXTS[0]
    tokenizer.save_pretrained(place / "saved")
    for twin in (
        AutoTokenizer.from_pretrained(place / "saved"),
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
    ):
        assert type(twin) is type(tokenizer)
        assert twin.src_lang == "de_DE"
        assert dict(twin(TEXTS, text_target=TEXTS)) == dict(expected)
    other = AutoTokenizer.from_pretrained(place / "saved", src_lang="fr_XX")
    assert other(TEXTS[0])["input_ids"] != expected["input_ids"][0]
    with pytest.raises(InputError, match="'de_XX' is no language"):
        tokenizer.src_lang = "de_XX"
    assert tokenizer.src_lang == "de_DE"
    tokenizer.tgt_lang = "german"
    with pytest.raises(InputError, match="'german' is no language"):
        tokenizer(TEXTS, text_target=TEXTS)
