"""Tokenizers that put the token of a language around texts."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from transept.errors import InputError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer

from .conftest import SentencePieces

TEXTS = ["the hello", "world and the Paris", "a (of) that's", "don't hello <mask>"]
NAMES = ["MBartTokenizer", "MBart50Tokenizer"]
NLLB = [("eng_Latn", "fra_Latn"), ("zho_Hans", "deu_Latn")]
M2M = [("en", "fr"), ("zh", "ro")]


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


def _agree(ours: Any, theirs: Any, pairs: list[tuple[str, str]], texts: list[str]) -> None:
    """Ids of texts and of targets, in several languages."""
    for source, target in pairs:
        for tokenizer in (ours, theirs):
            tokenizer.src_lang, tokenizer.tgt_lang = source, target
        given = {"text_target": texts[::-1], "padding": True}
        assert dict(ours(texts, **given)) == dict(theirs(texts, **given))
        assert dict(ours(texts, texts[::-1])) == dict(theirs(texts, texts[::-1]))
        with ours.as_target_tokenizer():
            assert ours(texts)["input_ids"] == theirs(text_target=texts)["input_ids"]
        assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]


@pytest.mark.reference
@pytest.mark.parametrize("legacy", [False, True])
def test_nllb_beside_the_reference(legacy: bool, sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(sentence_pieces(model_type="bpe", vocab_size=640).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "nllb-moe"}')
    ours: Any = AutoTokenizer.from_pretrained(tmp_path, src_lang="eng_Latn", legacy_behaviour=legacy)
    assert type(ours) is classes.NllbTokenizer
    ours.save_pretrained(tmp_path / "file")  # the reference finds languages in a tokenizer.json alone, as checkpoints have one
    theirs = transformers.NllbTokenizer.from_pretrained(tmp_path / "file", src_lang="eng_Latn", legacy_behaviour=legacy)
    assert len(ours) == len(theirs)
    assert ours.lang_code_to_id == {code: theirs.convert_tokens_to_ids(code) for code in ours.languages}
    _agree(ours, theirs, NLLB, TEXTS[:3])
    ours.save_pretrained(tmp_path / "saved")
    again: Any = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (again.src_lang, again(TEXTS)["input_ids"]) == ("zho_Hans", ours(TEXTS)["input_ids"])


@pytest.mark.reference
@pytest.mark.parametrize("codes", ["m2m100", "wmt21"])
def test_m2m_100_beside_the_reference(codes: str, sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(sentence_pieces().read_bytes())
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [model.id_to_piece(number) for number in range(3, len(model) - 5)]
    vocab = {piece: place for place, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces, "madeupword0000"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "config.json").write_text('{"model_type": "m2m_100"}')
    ours: Any = AutoTokenizer.from_pretrained(tmp_path, language_codes=codes)
    assert type(ours) is classes.M2M100Tokenizer
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path, language_codes=codes)
    assert ours.lang_code_to_id == theirs.lang_code_to_id
    assert (ours.get_lang_id("de"), ours.get_lang_token("de")) == (theirs.get_lang_id("de"), "__de__")
    texts = [*TEXTS[:3], "the of 日本", ""]
    _agree(ours, theirs, M2M if codes == "m2m100" else [("en", "de")], texts)
    row = ours(texts[0])["input_ids"]
    assert ours.decode(row) == theirs.decode(row)
    assert ours.decode(row, skip_special_tokens=True) == texts[0]
    ours.save_pretrained(tmp_path / "saved")
    for twin in (AutoTokenizer.from_pretrained(tmp_path / "saved"), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(twin) is type(ours)
        assert dict(twin(texts, text_target=texts)) == dict(ours(texts, text_target=texts))
    with pytest.raises(InputError, match="'en_XX' is no language"):
        ours.src_lang = "en_XX"


@pytest.mark.reference
@pytest.mark.parametrize("codes", ["base", "multi"])
def test_plbart_beside_the_reference(codes: str, sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentence_pieces().read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "plbart"}')
    ours: Any = AutoTokenizer.from_pretrained(tmp_path, language_codes=codes)
    assert type(ours) is classes.PLBartTokenizer
    theirs = transformers.PLBartTokenizer.from_pretrained(tmp_path, language_codes=codes)
    assert ours.lang_code_to_id == theirs.lang_code_to_id
    assert ours.src_lang == theirs.src_lang
    if codes == "base":
        assert len(ours) == len(theirs)
        assert ours.mask_token_id == theirs.mask_token_id
    texts = [*TEXTS[:3], "the of 日本", ""]
    assert dict(ours(texts, padding=True)) == dict(theirs(texts, padding=True))  # no language, or English
    pairs = [("python", "en_XX"), ("__java__", "python")] + [("ruby", "__go__")] * (codes == "multi")
    _agree(ours, theirs, pairs, texts)
    assert ours.src_lang == theirs.src_lang
    row = ours(texts[2])["input_ids"]
    assert ours.decode(row) == theirs.decode(row)
    assert ours.decode(row, skip_special_tokens=True) == theirs.decode(row, skip_special_tokens=True)
    ours.save_pretrained(tmp_path / "saved")
    for twin in (AutoTokenizer.from_pretrained(tmp_path / "saved"), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(twin) is type(ours)
        assert dict(twin(texts, text_target=texts)) == dict(ours(texts, text_target=texts))
    with pytest.raises(InputError, match="is no language"):
        ours.src_lang = "perl"
