"""What a file or an argument may make a tokenizer do: no crash, no unbounded time or memory, and typed errors."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

import transept
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.sentencepiece import parse_sentencepiece
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage import directory

from .conftest import SentencePieces


@pytest.fixture
def bert(vocab_txt: Path) -> Tokenizer:
    return classes.BertTokenizer.from_pretrained(vocab_txt)


def _document(**changes: Any) -> str:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<unk>": 2}, [], unk_token="<unk>"))
    return json.dumps(json.loads(backend.to_str()) | changes)


def _template(pieces: list[Any], ids: int = 1) -> dict[str, Any]:
    token = {"id": "<unk>", "ids": [2] * ids, "tokens": ["<unk>"] * ids}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": {"<unk>": token}}


TOKEN, TEXT = {"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
PREPENDS = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁" * 9}] * 1000}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 300_000, -1.0]], "byte_fallback": False}
WORDPIECE = {"type": "WordPiece", "unk_token": "a", "vocab": {"a": 0}, "max_input_chars_per_word": 10**9}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": UNIGRAM}, "piece 1 has 300000 characters"),
        ({"model": WORDPIECE}, "max_input_chars_per_word is 1000000000"),
        ({"post_processor": _template([TEXT, TOKEN], ids=10**6)}, "puts 2000002 texts and tokens around a text"),
        ({"post_processor": _template([TOKEN] * 300_000)}, "rules have 600000 parts"),
        ({"normalizer": PREPENDS}, "1001 rules"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "times longer"),
    ],
)
def test_bombs_in_a_tokenizer_json(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(_document(**changes), encoding="utf-8")
    began = time.process_time()
    with pytest.raises(FormatError, match=message):
        AutoTokenizer.from_pretrained(tmp_path)
    assert time.process_time() - began < 10


def test_a_long_piece_in_a_sentencepiece_file() -> None:
    text = b"a" * 300_000
    size = bytes((len(text) & 0x7F | 0x80, len(text) >> 7 & 0x7F | 0x80, len(text) >> 14))
    inner = b"\x0a" + size + text + b"\x15" + struct.pack("<f", -1.0)
    whole = len(inner)
    piece = b"\x0a" + bytes((whole & 0x7F | 0x80, whole >> 7 & 0x7F | 0x80, whole >> 14)) + inner
    with pytest.raises(FormatError, match="piece 0 has 300000 characters"):
        parse_sentencepiece(piece)


def test_pieces_that_are_allowed_do_not_crash(tmp_path: Path) -> None:
    model = UNIGRAM | {"vocab": [["<unk>", 0.0], ["é" * 2000, -1.0]]}
    (tmp_path / "tokenizer.json").write_text(_document(model=model), encoding="utf-8")
    code = (
        "import threading, transept\n"
        f"def load(): transept.AutoTokenizer.from_pretrained({str(tmp_path)!r})('éé')\n"
        "thread = threading.Thread(target=load); thread.start(); thread.join(); load()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "max_length", "max_length": 10**12},
        {"padding": True, "pad_to_multiple_of": 10**12},
        {"padding": "max_length", "max_length": 10**12, "return_tensors": "np"},
        {"padding": "max_length"},
    ],
)
def test_padding_stays_in_proportion(bert: Tokenizer, options: dict[str, Any]) -> None:
    bert.model_max_length = 10**12
    began = time.process_time()
    for call in (lambda: bert(["the", "a b"], **options), lambda: bert.pad({"input_ids": [[1], [2, 3]]}, **options)):
        with pytest.raises(InputError, match="padding 2 rows to a length of 1000000000000 adds"):
            call()
    assert time.process_time() - began < 5
    assert len(bert("the", padding="max_length", max_length=100_000)["input_ids"]) == 100_000
    ctc = transept.Wav2Vec2CTCTokenizer({"<pad>": 0, "a": 1})
    with pytest.raises(InputError, match="adds"):
        ctc("a", padding="max_length", max_length=10**12)
    with pytest.raises(InputError, match="adds"):
        transept.Wav2Vec2FeatureExtractor()([0.0, 0.5], sampling_rate=16000, padding="max_length", max_length=10**12)


WRONG: dict[str, Callable[[Tokenizer], Any]] = {
    "decode a mapping": lambda t: t.decode({}),
    "decode text": lambda t: t.decode("abc"),
    "decode None": lambda t: t.decode(None),
    "decode a batch of one id": lambda t: t.batch_decode(5),
    "decode a batch of None": lambda t: t.batch_decode(None),
    "ids of None": lambda t: t.convert_tokens_to_ids(None),
    "ids of a number": lambda t: t.convert_tokens_to_ids([3]),
    "ids of half a character": lambda t: t.convert_tokens_to_ids("\ud800"),
    "tokens of text": lambda t: t.convert_ids_to_tokens("a"),
    "tokens of None": lambda t: t.convert_ids_to_tokens(None),
    "text of half a character": lambda t: t.convert_tokens_to_string(["\ud800"]),
    "half a character": lambda t: t("\ud800"),
    "half a character in tokenize": lambda t: t.tokenize("a\udfff"),
    "add a number": lambda t: t.add_tokens(5),
    "add a list of numbers": lambda t: t.add_tokens([5]),
    "add half a character": lambda t: t.add_tokens(["\ud800"]),
    "add special tokens by text": lambda t: t.add_special_tokens("[PAD]"),
    "add special tokens by number": lambda t: t.add_special_tokens({"pad_token": 5}),
    "name half a character": lambda t: setattr(t, "pad_token", "\ud800"),
    "a longest length of text": lambda t: setattr(t, "model_max_length", "x"),
    "a side that is none": lambda t: setattr(t, "padding_side", "up"),
    "encode a text as a batch": lambda t: t.encode_ids("a"),
    "encode None": lambda t: t.encode_ids(None),
    "save to None": lambda t: t.save_pretrained(None),
    "save to no name": lambda t: t.save_pretrained(""),
    "save with another argument": lambda t: t.save_pretrained("x", no_such="a"),
    "save the vocabulary to None": lambda t: t.save_vocabulary(None),
    "load None": lambda t: type(t).from_pretrained(None),
    "load a number": lambda t: type(t).from_pretrained(5),
    "a language": lambda t: t("a", src_lang="de_DE"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", ["word pieces", "characters"])
def test_wrong_arguments_are_typed_errors(
    name: str, kind: str, bert: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer: Any = bert if kind == "word pieces" else transept.Wav2Vec2CTCTokenizer({"<pad>": 0, "a": 1})
    with pytest.raises(InputError):
        WRONG[name](tokenizer)
    assert set(os.listdir(tmp_path)) <= {"x"}  # nothing was written into the working directory
    with pytest.raises(InputTypeError):
        AutoTokenizer.from_pretrained()


# Saving


def test_a_save_that_fails_leaves_the_files_of_before(bert: Tokenizer, tmp_path: Path) -> None:
    bert.save_pretrained(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    bert.add_tokens(["quux"])
    bert._other["bad"] = {1, 2}  # cannot be written as JSON, and comes after the rules
    with pytest.raises((TypeError, TranseptError)):
        bert.save_pretrained(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    assert os.listdir(tmp_path) == ["saved"]


def test_a_save_replaces_templates_and_keeps_other_files(bert: Tokenizer, tmp_path: Path) -> None:
    bert.chat_template = {"default": "a", "tool_use": "b"}
    bert.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    bert.chat_template = None
    paths = bert.save_pretrained(tmp_path)
    assert {Path(path).name for path in paths} == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    assert all(os.path.isfile(path) for path in paths)
    assert (tmp_path / "model.safetensors").read_bytes() == b"x"
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks files in another way")
def test_a_save_waits_for_its_own_lock_only_and_not_for_ever(
    bert: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    foreign = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(foreign, fcntl.LOCK_EX)  # what another program may do to a directory
    bert.save_pretrained(tmp_path / "saved")
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.2)
    handle = os.open(tmp_path / ".saved.saving.lock", os.O_CREAT | os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(FileError, match=r"being saved to by another process, which has held .*\.saved\.saving\.lock"):
        bert.save_pretrained(tmp_path / "saved")
    os.close(handle)
    os.close(foreign)
    bert.save_pretrained(tmp_path / "saved")
    assert sorted(os.listdir(tmp_path)) == ["saved"]


def test_processors_are_saved_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = transept.Wav2Vec2CTCTokenizer({"<pad>": 0, "a": 1})
    processor = transept.Wav2Vec2Processor(transept.Wav2Vec2FeatureExtractor(), tokenizer)
    paths = processor.save_pretrained(save_directory=tmp_path / "saved")
    assert sorted(os.path.basename(path) for path in paths) == sorted(os.listdir(tmp_path / "saved"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    processor.feature_extractor.sampling_rate = 8000

    def fail(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        processor.save_pretrained(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


# One call's language


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_the_language_of_a_call_stays_in_it(name: str, sentence_pieces: SentencePieces) -> None:
    tokenizer: Any = getattr(classes, name)(sentence_pieces())
    texts = ["the hello", "world and"]
    wanted = {}
    for code in ("en_XX", "de_DE", "fr_XX", "ro_RO"):
        other: Any = getattr(classes, name)(sentence_pieces(), src_lang=code)
        wanted[code] = other(texts)["input_ids"]
    assert tokenizer(texts, src_lang="de_DE", text_target=texts, tgt_lang="fr_XX")["labels"] == wanted["fr_XX"]
    assert tokenizer.encode_ids(texts, src_lang="ro_RO") == wanted["ro_RO"]
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en_XX", None)
    assert tokenizer(texts)["input_ids"] == wanted["en_XX"]
    wrong: list[str] = []

    def call(code: str) -> None:
        wrong.extend(code for _ in range(50) if tokenizer(texts, src_lang=code)["input_ids"] != wanted[code])

    threads = [threading.Thread(target=call, args=(code,)) for code in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    tokenizer.add_tokens(["quux"])
    assert tokenizer("quux", src_lang="de_DE")["input_ids"] != tokenizer("quux", src_lang="fr_XX")["input_ids"]
    assert tokenizer.convert_tokens_to_ids("quux") in tokenizer("quux", src_lang="de_DE")["input_ids"]
    with pytest.raises(InputError, match="'xx' is no language"):
        tokenizer("a", src_lang="xx")


# What scripts and libraries ask of a tokenizer


def test_names_and_arguments_of_the_reference(bert: Tokenizer, vocab_txt: Path, tmp_path: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(pretrained_model_name_or_path=vocab_txt, use_fast=True, trust_remote_code=False)
    assert isinstance(loaded, transept.PreTrainedTokenizerFast)
    assert isinstance(loaded, transept.PreTrainedTokenizerBase)
    assert isinstance(loaded("the"), transept.BatchEncoding)
    typed = AutoTokenizer.from_pretrained(vocab_txt, tokenizer_type="bert", config=None)
    assert type(typed) is type(bert)
    assert bert.save_pretrained(save_directory=tmp_path, filename_prefix="x") == tuple(sorted(map(str, tmp_path.iterdir())))
    assert [Path(path).name for path in bert.save_vocabulary(tmp_path, filename_prefix="y")] == ["y-vocab.txt"]
    with pytest.raises(InputError, match=r"legacy_format=True is not supported.*save_vocabulary"):
        bert.save_pretrained(tmp_path, legacy_format=True)
    with pytest.raises(InputError, match="pass push_to_hub=True"):
        bert.save_pretrained(tmp_path, repo_id="me/x")
    assert bert.is_fast
    assert bert.padding_side == bert.truncation_side == "right"
    assert bert.init_kwargs["do_lower_case"] is True
    assert bert.vocab_files_names["vocab_file"] == "vocab.txt"
    bert.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # as collators do
    bert.model_max_length = 128.0  # type: ignore[assignment]
    assert bert.model_max_length == 128
    bert.pad_token_id = bert.convert_tokens_to_ids("[UNK]")
    assert bert.pad_token == "[UNK]"


def test_the_ctc_tokenizer_has_all_methods() -> None:
    tokenizer = transept.Wav2Vec2CTCTokenizer({"<pad>": 0, "|": 1, "a": 2, "b": 3})
    assert isinstance(tokenizer, transept.PreTrainedTokenizer)
    assert not tokenizer.is_fast
    assert tokenizer(["a b"], ["b"], padding=True, return_tensors="np")["input_ids"].tolist() == [[2, 1, 3, 3]]
    assert tokenizer.add_tokens(["ab"]) == 1
    assert tokenizer("ab a").input_ids == [tokenizer.convert_tokens_to_ids("ab"), 1, 2]
    assert tokenizer.get_added_vocab()["ab"] == len(tokenizer) - 1
    assert tokenizer.convert_tokens_to_string(["a", "<pad>", "a", "|", "b"]) == "aa b"
    assert tokenizer.num_special_tokens_to_add() == 0
    assert tokenizer.build_inputs_with_special_tokens([2], [3]) == [2, 3]
    assert tokenizer.pad({"input_ids": [[2], [2, 3]]}, padding_side="left")["input_ids"] == [[0, 2], [2, 3]]


def test_a_tokenizer_class_of_ones_own(vocab_txt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transept.preprocess.text import auto

    class Own(classes.BertTokenizer):
        model_input_names = ["input_ids"]

    class OwnConfig:
        model_type = "own"

    monkeypatch.setattr(auto, "CLASSES", dict(auto.CLASSES))
    monkeypatch.setattr(auto, "MODEL_TYPES", dict(auto.MODEL_TYPES))
    AutoTokenizer.register(OwnConfig, fast_tokenizer_class=Own)
    with pytest.raises(InputError, match="exist_ok"):
        AutoTokenizer.register(OwnConfig, Own)
    (tmp_path / "vocab.txt").write_bytes((vocab_txt / "vocab.txt").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    assert list(AutoTokenizer.from_pretrained(tmp_path)("the")) == ["input_ids"]
