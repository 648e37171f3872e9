"""Tokenizers of GGUF files: they give the ids of llama.cpp, whose own test vectors lie beside its vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.gguf_files import write
from tests.preprocess.text.conftest import DATA
from transept import AutoTokenizer
from transept.errors import FormatError, UnsupportedError

TOKENIZER = "tokenizer.ggml"
VOCABULARIES = DATA / "tokenizers"
VECTORS = VOCABULARIES / "gguf_vocab"


def vectors(name: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids, without special tokens around them."""
    texts = (VECTORS / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (VECTORS / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=False)]


def check(tokenizer: Any, name: str) -> None:
    cases = vectors(name)
    assert len(cases) > 40
    assert [tokenizer(text, add_special_tokens=False)["input_ids"] for text, _ in cases] == [ids for _, ids in cases]


@pytest.mark.real_data
def test_word_pieces() -> None:
    tokenizer = AutoTokenizer.from_pretrained(VECTORS / "ggml-vocab-bert-bge.gguf")
    check(tokenizer, "bert-bge")
    encoded = tokenizer("Hello", "you")
    assert encoded["input_ids"] == [101, 7592, 102, 2017, 102]
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1]
    assert (tokenizer.mask_token, tokenizer.padding_side) == ("[MASK]", "right")


@pytest.mark.real_data
def test_pieces_with_scores(tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(str(VOCABULARIES / "llama2" / "tokenizer.model"))
    count = model.get_piece_size()
    kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(count)]
    values = {"model": "llama", "tokens": [model.id_to_piece(i) for i in range(count)], "token_type": kinds}
    values |= {"scores": [model.get_score(i) for i in range(count)], "add_bos_token": True}
    values |= {f"{role}_token_id": index for index, role in enumerate(("unknown", "bos", "eos"))}
    values = {f"{TOKENIZER}.{name}": value for name, value in values.items()}
    values["tokenizer.chat_template"] = "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path / "llama.gguf", "llama", values, {}))
    check(tokenizer, "llama-spm")
    assert tokenizer("Hello")["input_ids"] == [1, 15043]
    assert (tokenizer.eos_token, tokenizer.unk_token, tokenizer.padding_side) == ("</s>", "<unk>", "left")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>[hi]"
    tokenizer.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("Hello you")["input_ids"] == tokenizer("Hello you")["input_ids"]


def byte_pairs(**changes: Any) -> dict[str, Any]:
    """Letters, one merge, and an end token that texts may hold."""
    from transept.preprocess.text.build import byte_letters

    tokens = [*byte_letters(), "he", "<|end|>", "<tool>"]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["h e"], "eos_token_id": 257}
    values |= {"token_type": [1] * 257 + [3, 4]}
    return {f"{TOKENIZER}.{name}": value for name, value in (values | changes).items()}


@pytest.mark.real_data
def test_byte_pairs(tmp_path: Path) -> None:
    vocab = json.loads((VOCABULARIES / "gpt2" / "vocab.json").read_text())
    merges = (VOCABULARIES / "gpt2" / "merges.txt").read_text().split("\n")[1:-1]
    tokens = sorted(vocab, key=lambda token: int(vocab[token]))
    kinds = [3 if token == "<|endoftext|>" else 1 for token in tokens]
    values = byte_pairs(tokens=tokens, merges=merges, token_type=kinds, eos_token_id=50256)
    check(AutoTokenizer.from_pretrained(write(tmp_path / "gpt2.gguf", "gpt2", values, {})), "gpt-2")


def test_special_tokens_are_found_in_texts(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path / "m.gguf", "qwen2", byte_pairs(pre="qwen2"), {}))
    ids = tokenizer("he<|end|><tool>")["input_ids"]
    assert ids == [256, 257, 258]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he<tool>"
    assert tokenizer.eos_token_id == 257


def test_byte_pairs_with_spaces_in_them(tmp_path: Path) -> None:
    """As Gemma 4's: newlines have merges, and what is no token is written in bytes."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<0xC3>", "<0xA9>", "h", "e", "\u2581", "\n", "\u2581h", "\u2581he", "\n\n"]
    merges, kinds = ["\u2581 h", "\u2581h e", "\n \n"], [3, 3, 3, 2, 6, 6, *[1] * 7]
    roles = {"eos_token_id": 1, "bos_token_id": 2, "unknown_token_id": 3, "pre": "gemma4"}
    values = byte_pairs(model="gemma4", tokens=tokens, merges=merges, token_type=kinds, **roles)
    tokenizer = AutoTokenizer.from_pretrained(write(tmp_path / "m.gguf", "gemma4", values, {}))
    ids = tokenizer("h he\n\n\u00e9<eos>")["input_ids"]
    assert ids == [2, 6, 11, 12, 4, 5, 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "h he\n\n\u00e9"
    assert tokenizer.padding_side == "left"


def test_digits_are_split_as_the_file_says(tmp_path: Path) -> None:
    """Llama 3 takes three digits together, Qwen 2 one."""
    values = byte_pairs()
    tokens, merges = values[f"{TOKENIZER}.tokens"], ["h e", "1 2"]
    more = {"tokens": [*tokens, "12"], "merges": merges, "token_type": [1] * 257 + [3, 4, 1]}
    for pre, wanted in (("llama-bpe", 1), ("qwen2", 2), ("smollm", 2), ("gpt-2", 1)):
        path = write(tmp_path / f"{pre}.gguf", "llama", byte_pairs(**more, pre=pre), {})
        assert len(AutoTokenizer.from_pretrained(path)("12")["input_ids"]) == wanted, pre


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for number, (changes, kind, message) in enumerate(
        (
            ({"model": "rwkv"}, UnsupportedError, "rwkv"),
            ({"pre": "starfish"}, UnsupportedError, "starfish"),
            ({"tokens": ["a", "b", "a"], "merges": ["a a"], "eos_token_id": 1}, FormatError, "twice"),
            ({"merges": ["x y z"]}, FormatError, "two pieces"),
            ({"eos_token_id": 1000}, FormatError, "1000 of 259"),
            ({"model": "llama"}, FormatError, "0 scores"),
            ({"tokens": 3}, FormatError, "cannot be"),
        )
    ):
        path = write(tmp_path / f"{number}.gguf", "llama", byte_pairs(**changes), {})
        with pytest.raises(kind, match=message):
            AutoTokenizer.from_pretrained(path)
