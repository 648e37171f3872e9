"""The CTC tokenizer gives the reference's ids and texts, and reads and writes its files."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
import transformers

from transept.errors import ConfigError, FileError, FormatError, InputError, TranseptError
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

Reference = transformers.Wav2Vec2CTCTokenizer
LETTERS = "ETAONIHSRDLUMWCFGYPBVK'XJQZ"
CAPITALS = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS])}
SMALL = {token: index for index, token in enumerate([*"abcdefghijklmnop", "|", "[UNK]", "[PAD]"])}
DIGRAPHS = {**CAPITALS, "TH": 32, "<extra>": 33, "TT": 34, "THE": 35}
FRENCH = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"éabcdt"])}
NAMES = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
CASES = {
    "capitals": (CAPITALS, {}),
    "lower": (CAPITALS, {"do_lower_case": True}),
    "small": (SMALL, NAMES),
    "extra_tokens": (SMALL, NAMES | {"extra_special_tokens": ["<x>", "b"]}),
    "digraphs": (DIGRAPHS, {}),
    "languages": ({"eng": CAPITALS, "fra": FRENCH}, {"target_lang": "fra"}),
    "delimiter": (CAPITALS, {"word_delimiter_token": "X", "replace_word_delimiter_char": "_"}),
    "no_bos": (SMALL, NAMES | {"bos_token": None, "eos_token": None}),
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    vocab, settings = CASES[request.param]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(vocab))
    return Wav2Vec2CTCTokenizer(path, **settings), Reference(str(path), **settings)


def paths(tokenizer, count=200, seed=0):
    """Paths with many blanks, repeats and delimiters, and ids beyond the vocabulary."""
    chance = random.Random(seed)
    ids = [tokenizer.pad_token_id, tokenizer.word_delimiter_token_id, *range(5, 9)]
    for _ in range(count):
        yield [chance.choice([*ids, chance.randrange(len(tokenizer) + 2)]) for _ in range(chance.randrange(1, 40))]


def test_vocabularies_match_the_reference(pair):
    ours, reference = pair
    assert ours.get_vocab() == reference.get_vocab()
    assert len(ours) == len(reference)
    assert ours.vocab_size == reference.vocab_size
    assert ours.all_special_tokens == reference.all_special_tokens
    assert ours.all_special_ids == reference.all_special_ids
    for name in ("pad_token_id", "unk_token_id", "bos_token_id", "word_delimiter_token_id", "word_delimiter_token"):
        assert getattr(ours, name) == getattr(reference, name)
    assert ours.convert_ids_to_tokens(list(range(40))) == reference.convert_ids_to_tokens(list(range(40)))
    assert ours.convert_tokens_to_ids("T") == reference.convert_tokens_to_ids("T")


def test_ids_match_the_reference(pair):
    ours, reference = pair
    chance = random.Random(0)
    pieces = ["<s>", "<pad>", "TH", "TT", "<x>", "[PAD]", "<unk>", "|", "  ", *" ABETXaé'?_", "HELLO WORLD", "ß", "\n", "🙂"]
    texts = ["", " ", "A", *("".join(chance.choices(pieces, k=chance.randrange(1, 15))) for _ in range(400))]
    for text in texts:
        assert ours.tokenize(text) == reference.tokenize(text), text
        assert ours(text).input_ids == reference(text).input_ids, text
        assert ours.encode(text) == ours(text).input_ids


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_tokens": False},
        {"spaces_between_special_tokens": True},
        {"clean_up_tokenization_spaces": True},
        {"output_char_offsets": True},
        {"output_word_offsets": True},
        {"output_char_offsets": True, "output_word_offsets": True, "group_tokens": False},
    ],
)
def test_texts_match_the_reference(pair, options):
    ours, reference = pair
    offsets = "output_char_offsets" in options or "output_word_offsets" in options
    for path in paths(ours):
        found, expected = ours.decode(path, **options), reference.decode(path, **options)
        if offsets:
            assert found["text"] == found.text == expected.text
            assert found.char_offsets == expected.char_offsets
            assert found.word_offsets == expected.word_offsets
            assert dict(found) == dict(expected)
            assert found.to_tuple() == expected.to_tuple()
            assert found[0] == found.text
        else:
            assert found == expected


def test_special_tokens_are_skipped_after_repeats_are_merged(pair):
    # The reference drops blanks before it merges repeats, so that "HEL_LO" loses an L; this is its decoding of the
    # path that CTC defines: repeats merged first.
    ours, reference = pair
    dropped = set(reference.all_special_ids) - {reference.word_delimiter_token_id}
    for path in paths(ours):
        tokens = [token for token, _ in itertools.groupby(ours.convert_ids_to_tokens(path))]
        merged = [index for index in reference.convert_tokens_to_ids(tokens) if index not in dropped]
        assert ours.decode(path, skip_special_tokens=True) == reference.decode(merged, group_tokens=False)


def test_hello_with_two_l():
    ours = Wav2Vec2CTCTokenizer(CAPITALS)
    tokens = ["<s>", *"HHE", "<pad>", *"LL", "<pad>", *"LO||T", "<pad>", "T", "</s>"]
    path = [CAPITALS[token] for token in tokens]
    assert ours.decode(path) == "<s>HELLO TT</s>"
    assert ours.decode(path, skip_special_tokens=True) == "HELLO TT"
    found = ours.decode(path, skip_special_tokens=True, output_word_offsets=True, output_char_offsets=True)
    assert found.word_offsets == [
        {"word": "HELLO", "start_offset": 1, "end_offset": 10},
        {"word": "TT", "start_offset": 12, "end_offset": 15},
    ]
    assert found.char_offsets[3] == {"char": "L", "start_offset": 8, "end_offset": 9}
    with pytest.raises(KeyError):
        _ = found["logits"]


def test_batches_of_paths(pair):
    ours, reference = pair
    batch = [path for path in paths(ours, 400) if len(path) >= 10]
    batch = [path[:10] for path in batch]
    expected = reference.batch_decode(batch)
    for sequences in (batch, np.array(batch), torch.tensor(batch), [torch.tensor(path) for path in batch]):
        assert ours.batch_decode(sequences) == expected
    found = ours.batch_decode(batch, output_char_offsets=True, output_word_offsets=True)
    other = reference.batch_decode(batch, output_char_offsets=True, output_word_offsets=True)
    assert (found.text, found.char_offsets, found.word_offsets) == (other.text, other.char_offsets, other.word_offsets)
    assert ours.batch_decode([]) == []


def test_ids_of_all_kinds():
    ours = Wav2Vec2CTCTokenizer(CAPITALS)
    for ids in ([5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6])):
        assert ours.decode(ids) == "ET"
    assert ours.decode(5) == ours.decode(np.int64(5)) == ours.decode(torch.tensor(5)) == "E"
    assert ours.decode([]) == ""
    assert ours.decode([], output_word_offsets=True).word_offsets == []
    assert ours.decode([-100, 10**6]) == "<unk>"
    for ids in ([[5], [6]], [1.5], "ET"):
        with pytest.raises(InputError, match="integers"):
            ours.decode(ids)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("tensors", [None, "np", "pt"])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": True},
        {"padding": "max_length", "max_length": 9},
        {"padding": True, "pad_to_multiple_of": 8},
        {"padding": True, "truncation": True, "max_length": 3},
    ],
)
def test_batches_of_texts_match_the_reference(tmp_path, options, tensors, side):
    (tmp_path / "vocab.json").write_text(json.dumps(CAPITALS))
    ours = Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", padding_side=side)
    reference = Reference(str(tmp_path / "vocab.json"), padding_side=side)
    texts = ["HELLO", "", "A B"]
    found, expected = (one(texts, return_tensors=tensors, **options) for one in (ours, reference))
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(np.asarray(found[name]), np.asarray(expected[name]))
        assert type(found[name]) is type(expected[name])
    if "truncation" not in options:
        columns = {"input_ids": [ours.encode(text) for text in texts]}
        for encoded in (columns, [{"input_ids": ids} for ids in columns["input_ids"]]):
            padded = ours.pad(copy.deepcopy(encoded), return_tensors="np", **options)
            other = reference.pad(copy.deepcopy(encoded), return_tensors="np", **options)
            assert np.array_equal(padded.input_ids, other.input_ids)
            assert np.array_equal(padded.attention_mask, other.attention_mask)


def test_one_text():
    ours = Wav2Vec2CTCTokenizer(CAPITALS)
    assert ours("AB").input_ids == [7, 24]
    assert ours("AB", return_tensors="pt", add_special_tokens=False).input_ids.tolist() == [[7, 24]]
    assert list(ours("AB", return_attention_mask=False)) == ["input_ids"]
    assert ours("AB", truncation=True).input_ids == [7, 24]
    assert Wav2Vec2CTCTokenizer(CAPITALS, model_max_length=1)("AB", truncation=True).input_ids == [7]


@pytest.mark.parametrize("text", [5, None, b"A", [5], ["A", None], {"a": 1}, [["A"]]])
def test_texts_that_are_none(text):
    with pytest.raises(InputError, match="text"):
        Wav2Vec2CTCTokenizer(CAPITALS)(text)


def test_what_needs_a_token_that_is_missing():
    vocab = {"a": 0, "b": 1}
    bare = dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token", "word_delimiter_token"))
    ours = Wav2Vec2CTCTokenizer(vocab, **bare)
    assert ours("ab").input_ids == [0, 1]
    assert ours.decode([0, 0, 1]) == "ab"
    assert ours.pad_token_id is None
    with pytest.raises(InputError, match="' ' is not in the vocabulary, which has no unknown token"):
        ours("a b")
    with pytest.raises(InputError, match="the id 7 is not in the vocabulary"):
        ours.decode([7])
    with pytest.raises(InputError, match="has no pad_token"):
        ours(["a", "ab"], padding=True)
    with pytest.raises(InputError, match="different lengths"):
        ours(["a", "ab"], return_tensors="np")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ours.nonsense


def test_long_texts_take_linear_time():
    ours = Wav2Vec2CTCTokenizer({**CAPITALS, "<" * 50: 40})
    text = "<" * 100_001
    assert len(ours.encode(text)) == 2000 + 1


def test_languages():
    ours = Wav2Vec2CTCTokenizer({"eng": CAPITALS, "fra": FRENCH}, target_lang="eng")
    assert ours("ET").input_ids == [5, 6]
    ours.set_target_lang("fra")
    assert ours("éa").input_ids == [5, 6]
    assert ours.target_lang == "fra"
    for language in ("deu", None):
        with pytest.raises(InputError, match=rf"target_lang is {language!r}\. Known: eng, fra"):
            Wav2Vec2CTCTokenizer({"eng": CAPITALS, "fra": FRENCH}, target_lang=language)
    with pytest.raises(InputError, match="target_lang is 'eng', but the vocabulary is of one language"):
        Wav2Vec2CTCTokenizer(CAPITALS, target_lang="eng")


def test_pickle_and_copy():
    ours = Wav2Vec2CTCTokenizer(DIGRAPHS, extra_special_tokens=["<x>"])
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied("THE <x>TT").input_ids == ours("THE <x>TT").input_ids
        assert copied.get_vocab() == ours.get_vocab()


# Files


@pytest.mark.parametrize("case", CASES)
def test_ours_to_the_reference_and_back(tmp_path, case):
    vocab, settings = CASES[case]
    ours = Wav2Vec2CTCTokenizer(vocab, **settings)
    ours.save_pretrained(tmp_path / "ours")
    theirs = Reference.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    back = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs/vocab.json").read_text()) == vocab
    if case == "delimiter":  # which the reference writes, but does not read
        theirs._word_delimiter_token = ours.word_delimiter_token
    texts = ["", "THE TT|ET A", "hello é", "<s>A <unk> B</s> <x>", "[PAD]a [UNK]"]
    for text in texts:
        assert ours(text).input_ids == theirs(text).input_ids == back(text).input_ids
    for path in paths(ours, 30):
        assert ours.decode(path) == theirs.decode(path) == back.decode(path)
    assert ours.get_vocab() == theirs.get_vocab() == back.get_vocab()
    assert ours.all_special_tokens == theirs.all_special_tokens == back.all_special_tokens
    again = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "ours")
    again.save_pretrained(tmp_path / "again")
    for name in ("vocab.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "ours" / name).read_text()


def test_older_files(tmp_path):
    """What version 4 wrote for a model fine-tuned on a vocabulary without sentence marks."""
    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    files = {
        "vocab.json": SMALL,
        "added_tokens.json": {"<s>": 19, "</s>": 20},
        "special_tokens_map.json": {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": {"content": "[PAD]", **token},
            "unk_token": "[UNK]",
            "additional_special_tokens": ["<s>", "</s>"],
        },
        "tokenizer_config.json": {
            "bos_token": {"__type": "AddedToken", "content": "<s>", **token},
            "unk_token": "[UNK]",
            "do_lower_case": False,
            "do_normalize": True,
            "name_or_path": "/somewhere/else",
            "special_tokens_map_file": "/somewhere/else/special_tokens_map.json",
            "tokenizer_file": None,
            "auto_map": {"AutoTokenizer": "evil.Tokenizer"},
            "model_max_length": 1e30,
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours, reference = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path), Reference.from_pretrained(tmp_path)
    assert ours.get_vocab() == reference.get_vocab()
    assert ours.all_special_tokens == reference.all_special_tokens
    assert ours("ab<s>c z").input_ids == reference("ab<s>c z").input_ids
    assert ours.decode([19, 0, 0, 18, 0, 20]) == reference.decode([19, 0, 0, 18, 0, 20])
    assert ours.init_kwargs["do_normalize"] is True
    assert "auto_map" not in ours.init_kwargs
    files["special_tokens_map.json"]["additional_special_tokens"] = [{"content": "<s>", **token}]
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(files["special_tokens_map.json"]))
    assert Wav2Vec2CTCTokenizer.from_pretrained(tmp_path).get_vocab() == ours.get_vocab()
    assert Wav2Vec2CTCTokenizer.from_pretrained(tmp_path, do_lower_case=True).do_lower_case


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "{}", "empty vocabulary"),
        ("vocab.json", '{"eng": {}}', "empty vocabulary"),
        ("vocab.json", '{"a": "0"}', "gives the token 'a' the id '0'"),
        ("vocab.json", '{"a": -1}', "the id -1"),
        ("vocab.json", '{"a": true}', "the id True"),
        ("vocab.json", '{"a": {"b": 1}, "c": 2}', "gives the token 'a'"),
        ("vocab.json", "[]", "JSON object"),
        ("vocab.json", '{"' + "a" * 257 + '": 1}', "gives the token 'aaa"),
        ("vocab.json", '{"a": 1, "a": 2}', "twice"),
        ("tokenizer_config.json", '{"pad_token": 5}', "`pad_token` must be a token's text or an AddedToken, but is 5"),
        ("tokenizer_config.json", '{"extra_special_tokens": [{"a": 1}]}', r"`extra_special_tokens\[0\]` must be a token"),
        ("tokenizer_config.json", '{"do_lower_case": "no"}', "`do_lower_case`"),
        ("tokenizer_config.json", '{"padding_side": "top"}', "`padding_side`"),
        ("tokenizer_config.json", '{"model_max_length": 0}', "`model_max_length`|`padding_side`"),
        ("tokenizer_config.json", '{"model_max_length": "x"}', "`model_max_length`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "`added_tokens_decoder`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "a"}}', "`added_tokens_decoder`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": {"content": ""}}}', "`added_tokens_decoder`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"' + "9" * 5000 + '": "a"}}', "`added_tokens_decoder`"),
        ("tokenizer_config.json", '{"target_lang": "eng"}', "target_lang is 'eng'"),
        ("special_tokens_map.json", '{"unk_token": ["a"]}', "`unk_token` must be a token"),
        ("added_tokens.json", '{"<s>": "first"}', "`added_tokens_decoder`"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    Wav2Vec2CTCTokenizer(SMALL, **NAMES).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "special_tokens_map.json").unlink()
    (tmp_path / name).write_text(content)
    with pytest.raises((FormatError, ConfigError, InputError), match=message):
        Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)


def test_missing_files_and_misspelt_settings(tmp_path):
    with pytest.raises(FileError, match=r"'vocab\.json' is not"):
        Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    Wav2Vec2CTCTokenizer(CAPITALS).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no setting 'do_lowercase'.*'do_lower_case'"):
        Wav2Vec2CTCTokenizer.from_pretrained(tmp_path, do_lowercase=True)


@pytest.mark.filterwarnings("ignore:.*added tokens have other ids")
def test_hostile_files_end_in_our_errors(tmp_path):
    """A thousand mutations of good files load or fail in a typed error."""
    Wav2Vec2CTCTokenizer(DIGRAPHS).save_pretrained(tmp_path)
    texts = {name: (tmp_path / name).read_text() for name in ("vocab.json", "tokenizer_config.json")}
    chance, failed = random.Random(0), 0
    bits = ["null", "-1", "[]", "{}", '""', "true", "1e999", '"x"', "{", "}", ",", "[[", "\\u0000", "9" * 30, ""]
    for _ in range(1000):
        name = chance.choice(list(texts))
        text = texts[name]
        start = chance.randrange(len(text))
        end = start + chance.choice([0, 1, 1, 3, 20])
        (tmp_path / name).write_text(text[:start] + chance.choice(bits) + text[end:])
        try:
            tokenizer = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
            tokenizer.decode(tokenizer("THE <s> TEA", padding="max_length", max_length=20).input_ids)
        except TranseptError:
            failed += 1
        (tmp_path / name).write_text(text)
    assert 300 < failed < 1000


def test_splitting_prefers_the_longest_token():
    tokenizer = Wav2Vec2CTCTokenizer(DIGRAPHS)
    assert tokenizer.tokenize("THETHTTA") == ["THE", "TH", "TT", "A"]
    assert tokenizer.tokenize("") == []
