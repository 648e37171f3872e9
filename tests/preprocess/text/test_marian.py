"""Marian's tokenizer beside the reference's, over SentencePiece models that are trained here."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

import transept
from transept.errors import FileError, FormatError, InputError, InputTypeError, UnsupportedError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer

from .agreement import Case, compare, normalized_alike
from .conftest import SentencePieces
from .corpus import awkward, with_specials

FRA, DEU = ">>fra<<", ">>deu_Latn<<"
ENDS = ["</s>", "<unk>", "<pad>"]
TEXTS = [
    "the hello",
    f"{FRA} world and the Paris",
    "a </s> (of) that's 日本",
    "",
    f"{DEU}don't",
    ">>xyz<< the",
    f"the {FRA} of",
]
# The reference recommends a package of which it makes no use.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def write(place: Path, models: tuple[Path, Path], *, separate: bool = False) -> Path:
    """Marian's files: tables that lack pieces of the models, have others and are in an order of their own."""
    pick = random.Random(0)
    place.mkdir()
    names = ("source", "target")
    lists: list[list[str]] = []
    for name, model in zip(names, models, strict=True):
        (place / f"{name}.spm").write_bytes(model.read_bytes())
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces = [processor.id_to_piece(index) for index in range(3, processor.get_piece_size())]
        lists.append(pick.sample(pieces, len(pieces) - 9))
    codes = [] if separate else [FRA, DEU]
    extra = ["日本", "▁日本", "😀", *codes, "<pad>"]  # pieces that neither model has, but that unknown characters can give
    tables = [lists[0], lists[1]] if separate else [list(dict.fromkeys(lists[0] + lists[1]))]
    for name, table in zip(("vocab.json", "target_vocab.json"), tables, strict=False):
        tokens = ["</s>", "<unk>", *(token for token in table if token not in extra), *extra]
        (place / name).write_text(json.dumps({token: index for index, token in enumerate(tokens)}), encoding="utf-8")
    config = {"source_lang": "eng", "target_lang": "mul", "separate_vocabs": separate, "tokenizer_class": "MarianTokenizer"}
    (place / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return place


@pytest.fixture(scope="session")
def models(sentence_pieces: SentencePieces) -> tuple[Path, Path]:
    """Models of two languages: the second knows fewer characters."""
    return sentence_pieces(), sentence_pieces(vocab_size=300, character_coverage=0.98)


@pytest.fixture(scope="session")
def shared(models: tuple[Path, Path], folder: Path) -> Path:
    """A folder with one table."""
    return write(folder / "marian", models)


@pytest.fixture(scope="session")
def separate(models: tuple[Path, Path], folder: Path) -> Path:
    """A folder with a table a language."""
    return write(folder / "marian-separate", models, separate=True)


def both(place: Path) -> tuple[Any, Any]:
    """Our tokenizer and the reference's."""
    return classes.MarianTokenizer.from_pretrained(place), transformers.MarianTokenizer.from_pretrained(place)


def many() -> list[str]:
    """Awkward strings, some after a language and some with special tokens inside."""
    return [*awkward(1600, seed=3), *(f"{FRA} {text}" for text in awkward(500, seed=4)), *with_specials([*ENDS, FRA], 500)]


def encoding(tokenizer: Any, name: str) -> Callable[[list[str]], list[list[int]]]:
    return lambda texts: tokenizer(**{name: texts}, verbose=False)["input_ids"]


@pytest.mark.reference
@pytest.mark.parametrize("name", ["text", "text_target"])
@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_ids_and_texts_beside_the_reference(
    kind: str, name: str, models: tuple[Path, Path], request: pytest.FixtureRequest
) -> None:
    ours, theirs = both(request.getfixturevalue(kind))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(models[name == "text_target"]))
    alike = normalized_alike(models[name == "text_target"], many())
    table = ours._target_vocab if name == "text_target" else ours.get_vocab()
    scores = {
        table[piece]: processor.get_score(place)
        for place in range(3, processor.get_piece_size())
        if (piece := processor.id_to_piece(place)) in table
    }
    count = compare(Case(encoding(ours, name), encoding(theirs, name), scores=scores), alike)
    assert count.strings > 1800
    assert count.different == []
    assert count.ties <= 0.02 * count.strings
    pick, known = random.Random(1), sorted(theirs.decoder)
    rows = theirs(text_target=many())["input_ids"]
    rows += [[pick.choice(known) for _ in range(pick.randrange(12))] for _ in range(2600)]
    for skip in (False, True):
        assert ours.batch_decode(rows, skip_special_tokens=skip) == theirs.batch_decode(rows, skip_special_tokens=skip)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_calls_beside_the_reference(kind: str, request: pytest.FixtureRequest) -> None:
    ours, theirs = both(request.getfixturevalue(kind))
    for options in (
        {"text_target": TEXTS[::-1], "padding": True},
        {"padding": "max_length", "max_length": 9, "truncation": True, "return_tensors": "np"},
        {"text_pair": TEXTS[::-1], "padding": True},
        {"add_special_tokens": False},
        {"split_special_tokens": True},
    ):
        found, wanted = ours(TEXTS, **options), theirs(TEXTS, **options)
        assert found.keys() == wanted.keys()
        assert all(list(map(list, found[key])) == list(map(list, wanted[key])) for key in wanted), options
    plain = [text for text in TEXTS if "</s>" not in text]  # only those that are put around a text count as special here
    assert ours(plain, return_special_tokens_mask=True) == theirs(plain, return_special_tokens_mask=True)
    words = [text.split() for text in TEXTS if text]
    assert dict(ours(words, is_split_into_words=True)) == dict(theirs(words, is_split_into_words=True))
    assert [ours.tokenize(text) for text in TEXTS] == [theirs.tokenize(text) for text in TEXTS]
    assert ours(TEXTS[0])["input_ids"] == theirs(TEXTS[0])["input_ids"]  # targets leave nothing behind
    for name in ("special_tokens_map", "all_special_ids", "model_max_length", "vocab_size", "supported_language_codes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (len(ours), ours.get_vocab(), ours.is_fast) == (len(theirs), theirs.get_vocab(), theirs.is_fast)
    assert (ours.source_lang, ours.target_lang, ours.num_special_tokens_to_add()) == ("eng", "mul", 1)
    for tokenizer in (ours, theirs):
        assert tokenizer.add_tokens(["quux", "日本語"]) == 2
        tokenizer.add_special_tokens({"extra_special_tokens": ["<x>"]})
    texts = [*TEXTS, "the quux日本語 <x>of", "<x>"]
    rows = theirs(text_target=texts)["input_ids"]
    assert dict(ours(texts, text_target=texts)) == dict(theirs(texts, text_target=texts))
    for skip in (False, True):
        assert ours.batch_decode(rows, skip_special_tokens=skip) == theirs.batch_decode(rows, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_saved_files_are_read_by_the_reference_and_here(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(request.getfixturevalue(kind))
    assert type(tokenizer) is classes.MarianTokenizer
    tokenizer.add_tokens(["quux"])
    expected = dict(tokenizer(TEXTS, text_target=["quux", *TEXTS[1:]]))
    tokenizer.save_pretrained(tmp_path)
    for twin in (
        AutoTokenizer.from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
    ):
        assert dict(twin(TEXTS, text_target=["quux", *TEXTS[1:]])) == expected
        assert twin.decode(expected["labels"][0]) == tokenizer.decode(expected["labels"][0]) == "quux</s>"
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is classes.MarianTokenizer


@pytest.mark.parametrize("options", [{"model_type": "bpe"}, {"byte_fallback": True, "vocab_size": 640}])
def test_other_models(options: dict[str, Any], sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    ours, theirs = both(write(tmp_path / "other", (sentence_pieces(**options), sentence_pieces())))
    texts = ["the hello of Paris", "don't 3.14", f"{FRA} a (b)", "ﬁne ½"]
    rows = theirs(texts)["input_ids"]
    assert ours(texts)["input_ids"] == rows
    assert ours.batch_decode(rows) == theirs.batch_decode(rows)


def test_what_is_refused(shared: Path, separate: Path, tmp_path: Path) -> None:
    tokenizer = classes.MarianTokenizer.from_pretrained(shared)
    with pytest.raises(UnsupportedError, match="characters of a token"):
        tokenizer("the", return_offsets_mapping=True)
    with pytest.raises(ValueError, match="no map to words"):
        tokenizer("the").word_ids()
    with pytest.raises(UnsupportedError, match="cannot be trained"):
        tokenizer.train_new_from_iterator(["a"], 10)
    with pytest.raises(InputTypeError, match="text 1 is 5"):
        tokenizer(["the", 5])
    with pytest.raises(InputError, match="text 1 has half of a surrogate pair"):
        tokenizer(["the", "\ud800"])
    with pytest.raises(InputError, match="-100"):
        tokenizer.decode([-100])
    assert tokenizer.decode([10**6]) == ""
    with pytest.raises(UnsupportedError, match="sp_model_kwargs"):
        classes.MarianTokenizer.from_pretrained(shared, sp_model_kwargs={"enable_sampling": True})
    with pytest.raises(InputError, match="target_vocab_file"):
        classes.MarianTokenizer.from_pretrained(shared, separate_vocabs=True)
    for name, content, problem in (
        ("source.spm", b"\x0a\xff", "not a valid protobuf"),
        ("source.spm", b"", "no pieces"),
        ("vocab.json", b"[]", "JSON object"),
        ("vocab.json", b'{"</s>": 0}', "lacks '<unk>'"),
        ("vocab.json", b'{"<unk>": -1}', "from 0 on"),
        ("target_vocab.json", b'{"</s>": 0}', "lacks '<unk>'"),
    ):
        place = tmp_path / f"{name}{problem[:4]}"
        place.mkdir()
        for path in separate.iterdir():
            (place / path.name).write_bytes(content if path.name == name else path.read_bytes())
        with pytest.raises(FormatError, match=problem) as error:
            AutoTokenizer.from_pretrained(place)
        assert name in str(error.value)
        (place / name).unlink()
        if name != "target_vocab.json":
            with pytest.raises(FileError, match=name):
                AutoTokenizer.from_pretrained(place)


@pytest.mark.reference
def test_a_translation_equals_the_reference(shared: Path, tmp_path: Path) -> None:
    tokenizer = transformers.MarianTokenizer.from_pretrained(shared)
    size, pad = len(tokenizer), tokenizer.pad_token_id
    settings = transformers.MarianConfig(
        vocab_size=size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        max_position_embeddings=64,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        forced_eos_token_id=0,
        init_std=1.0,
    )
    transformers.set_seed(0)
    model = transformers.MarianMTModel(settings).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [text for text in TEXTS if text]
    rows = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), max_new_tokens=12, num_beams=2)
    wanted = tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert len(set(wanted)) > 1
    translate = transept.pipeline("translation", model=tmp_path)
    assert type(translate.tokenizer) is classes.MarianTokenizer
    found = translate(texts, max_new_tokens=12, num_beams=2)
    assert [row[0]["translation_text"] for row in found] == wanted
