"""Tokenizers of few families, on small vocabularies, beside the reference's classes."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import transept
from transept.errors import InputError

WORDS = ["who", "wrote", "the", "book", "##s", "a", "man", "in", "town", ".", ",", "?", "title", "of", "it"]
TEXTS = ["Who wrote the books?", "a man in town.", "the Title of it, the zebra"]
PAIRS = [("who wrote the book?", "a man in town wrote it."), ("the title?", "It.")]


def same(ours: Any, theirs: Any, *texts: Any, **options: Any) -> None:
    mine, other = ours(*texts, **options), theirs(*texts, **options)
    assert dict(mine) == dict(other)


def word_pieces(folder: Path, *special: str) -> str:
    path = folder / "vocab.txt"
    path.write_text("\n".join([*special, *WORDS]) + "\n", encoding="utf-8")
    return str(folder)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["FunnelTokenizer", "SplinterTokenizer", "DPRReaderTokenizer"])
def test_word_pieces(name: str, tmp_path: Path) -> None:
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special = {"FunnelTokenizer": ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"]}
    folder = word_pieces(tmp_path, *special.get(name, [*bert, "[QUESTION]"]))
    ours, theirs = (getattr(library, name).from_pretrained(folder) for library in (transept, transformers))
    assert ours.model_input_names == theirs.model_input_names
    assert ours.get_vocab() == theirs.get_vocab()
    same(ours, theirs, TEXTS)
    first, second = map(list, zip(*PAIRS, strict=True))
    same(ours, theirs, first, second, padding=True)
    row = ours(TEXTS[0])["input_ids"]
    assert ours.decode(row) == theirs.decode(row)
    ours.save_pretrained(tmp_path / "saved")
    again = transept.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(ours)
    assert dict(again(first, second)) == dict(ours(first, second))


@pytest.mark.reference
@pytest.mark.parametrize(
    "special", ["[PAD] [UNK] [CLS] [SEP] [MASK] [X_SEP]", "[PAD] [UNK] [SEP] [MASK]"], ids=["all", "added"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_basic_tokenize": False},
    ],
    ids=str,
)
def test_word_pieces_with_an_end(options: dict[str, Any], special: str, tmp_path: Path) -> None:
    words = "\n".join([*special.split(), *WORDS, *"日本'neé", "##é", "cafe", "café", "Who"])
    (tmp_path / "prophetnet.tokenizer").write_text(f"{words}\n", encoding="utf-8")
    ours, theirs = (library.ProphetNetTokenizer.from_pretrained(tmp_path, **options) for library in (transept, transformers))
    assert ours.model_input_names == theirs.model_input_names
    assert (ours.get_vocab(), ours.special_tokens_map) == (theirs.get_vocab(), theirs.special_tokens_map)
    assert ours.x_sep_token_id == theirs.x_sep_token_id
    texts = [*TEXTS, "café, Cafe\u0301 town", "the [X_SEP] it [MASK].", "日本 who? n't \u200b\u00ad", "", "x" * 150 + " it"]
    same(ours, theirs, texts, padding=True)
    more = {"truncation": "only_second", "max_length": 12, "return_token_type_ids": True, "return_special_tokens_mask": True}
    same(ours, theirs, texts[:4], texts[1:5], padding=True, **more)
    for row in ours(texts)["input_ids"]:
        for skip in (False, True):
            assert ours.decode(row, skip_special_tokens=skip) == theirs.decode(row, skip_special_tokens=skip)
    ours.save_pretrained(tmp_path / "saved")
    for library in (transept, transformers):
        again = library.AutoTokenizer.from_pretrained(tmp_path / "saved")
        assert type(again).__name__ == "ProphetNetTokenizer"
        same(again, ours, texts)
    with pytest.raises(InputError, match="never_split"):
        transept.ProphetNetTokenizer.from_pretrained(tmp_path, never_split=["who"])


@pytest.mark.reference
def test_questions_of_splinter(tmp_path: Path) -> None:
    folder = word_pieces(tmp_path, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[QUESTION]")
    ours = transept.SplinterTokenizer.from_pretrained(folder)
    assert (ours.question_token, ours.question_token_id) == ("[QUESTION]", 5)
    assert ours.tokenize(*PAIRS[1], add_special_tokens=True) == (
        ["[CLS]", "the", "title", "?", "[QUESTION]", ".", "[SEP]", "it", ".", "[SEP]"]
    )


@pytest.mark.reference
def test_passages_and_their_best_spans(tmp_path: Path) -> None:
    folder = word_pieces(tmp_path, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ours, theirs = (library.DPRReaderTokenizer.from_pretrained(folder) for library in (transept, transformers))
    given = {"questions": "who wrote it?", "titles": ["the book", "a town"], "texts": TEXTS[:2]}
    for options in ({}, {"padding": True, "return_tensors": "pt"}, {"max_length": 9, "truncation": True}):
        mine, other = ours(**given, **options), theirs(**given, **options)
        assert {name: list(map(list, rows)) for name, rows in mine.items()} == {
            name: list(map(list, rows)) for name, rows in other.items()
        }
    batch, generator = ours(**given, padding=True, return_tensors="pt"), torch.Generator().manual_seed(0)
    shape = batch["input_ids"].shape
    logits = (torch.randn(shape, generator=generator), torch.randn(shape, generator=generator), torch.tensor([0.1, 0.7]))
    expected = theirs.decode_best_spans(batch, logits, num_spans=5, max_answer_length=3, num_spans_per_passage=3)
    found = ours.decode_best_spans(batch, logits, num_spans=5, max_answer_length=3, num_spans_per_passage=3)
    assert [tuple(one) for one in found] == [tuple(one) for one in expected]
    with pytest.raises(InputError, match="1 questions for 2 titles"):
        ours(["who?"], titles=["a", "b"], texts=["a", "b"])


def byte_pairs(folder: Path, *, ends: str, header: bool) -> str:
    merges = [("t", f"h{ends}") if ends else ("t", "h"), ("b", "o"), ("bo", "o"), ("boo", f"k{ends}"), ("i", f"t{ends}")]
    letters = [*"abcdefghijklmnopqrstuvwxyz.,?\n", *(f"{letter}{ends}" for letter in "abcdefghijklmnopqrstuvwxyz.,?")]
    tokens = ["<unk>", *dict.fromkeys([*letters, *("".join(pair) for pair in merges)])]
    if ends == "</w>":  # as CTRL writes them
        tokens = ["<unk>", *dict.fromkeys(token.removesuffix(ends) for token in tokens[1:])]
        tokens += [f"{token}@@" for token in tokens[1:]]
    (folder / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}), encoding="utf-8")
    lines = ["#version: 0.2"] * header + [" ".join(pair) for pair in merges]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


@pytest.mark.reference
def test_parts_of_words_with_signs_behind(tmp_path: Path) -> None:
    folder = byte_pairs(tmp_path, ends="</w>", header=True)
    ours, theirs = (library.CTRLTokenizer.from_pretrained(folder) for library in (transept, transformers))
    text = "it book with a\nbooks Zoo? x"
    assert ours.tokenize(text) == theirs.tokenize(text)
    same(ours, theirs, text)
    row = ours(text)["input_ids"]
    assert ours.decode(row) == theirs.decode(row)
    assert ours.control_codes == theirs.control_codes
    ours.save_pretrained(tmp_path / "saved")
    again = transept.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again(text)["input_ids"] == row
    assert transformers.CTRLTokenizer.from_pretrained(tmp_path / "saved")(text)["input_ids"] == row


@pytest.mark.reference
def test_lower_case_words_apart_from_signs(tmp_path: Path) -> None:
    folder = byte_pairs(tmp_path, ends="</w>", header=True)
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    names = ["__start__", "__end__", "__unk__", "__null__", "__newln__", "'"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {name: len(vocab) + place for place, name in enumerate(names)}))
    ours, theirs = (library.BlenderbotSmallTokenizer.from_pretrained(folder) for library in (transept, transformers))
    for text in ("It, BOOK! with a\nbooks (Zoo)? don't x", "__start__ it __end__", "a\n\nb  c", ""):
        assert ours.tokenize(text) == theirs.tokenize(text)
        same(ours, theirs, text)
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    (tmp_path / "config.json").write_text('{"model_type": "blenderbot-small"}')
    again = transept.AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is transept.BlenderbotSmallTokenizer


@pytest.mark.reference
def test_programs_end_before_a_pattern(tmp_path: Path) -> None:
    text = "def a():\n    x\ndef b():\n    # no\nprint(1)\n# end\nprint(2)\n"
    vocab = {
        token: place for place, token in enumerate(["<|endoftext|>", *sorted({*"".join(map(chr, range(33, 127))), "Ġ", "Ċ"})])
    }
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    ours, theirs = (library.CodeGenTokenizer.from_pretrained(tmp_path) for library in (transept, transformers))
    same(ours, theirs, text)
    row = ours(text)["input_ids"]
    for patterns in (None, [], ["^#"], [re.escape("x"), "zzz"], ["\n\n"]):
        assert ours.decode(row, truncate_before_pattern=patterns) == theirs.decode(row, truncate_before_pattern=patterns)
    assert ours.decode([row, row], truncate_before_pattern=["^#"]) == ["def a():\n    x\n"] * 2


@pytest.mark.reference
def test_characters_by_their_numbers(tmp_path: Path) -> None:
    ours, theirs = transept.CanineTokenizer(), transformers.CanineTokenizer()
    for texts in (["life is 🤗", "ä"], ["a" * 3000]):
        same(ours, theirs, texts, padding=True, truncation=True)
    same(ours, theirs, "ab", "c")
    row = ours("ab", "c")["input_ids"]
    assert ours.decode(row) == theirs.decode(row)
    assert ours.decode(row, skip_special_tokens=True) == theirs.decode(row, skip_special_tokens=True)
    assert (ours.mask_token_id, len(ours), ours.model_max_length) == (theirs.mask_token_id, len(theirs), 2048)
    ours.save_pretrained(tmp_path)
    assert transept.AutoTokenizer.from_pretrained(tmp_path)("ab")["input_ids"] == ours("ab")["input_ids"]
    assert pickle.loads(pickle.dumps(ours))("ab") == ours("ab")
    with pytest.raises(InputError, match="no character's number"):
        ours.convert_ids_to_tokens(0x110000)


class Rules:
    """What stands for the package's rules, where it is not installed: it cuts at spaces and before punctuation."""

    def __init__(self, lang: str = "en") -> None:
        self.lang = lang

    def normalize(self, text: str) -> str:
        return text.replace("  ", " ")

    def tokenize(self, text: str, **options: Any) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.replace("-", " @-@ ") if options.get("aggressive_dash_splits") else text)

    def detokenize(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" .", ".")


@pytest.fixture
def moses(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MosesTokenizer", "MosesDetokenizer", "MosesPunctNormalizer")
    monkeypatch.setitem(sys.modules, "sacremoses", SimpleNamespace(**dict.fromkeys(names, Rules)))


@pytest.mark.reference
@pytest.mark.usefixtures("moses")
@pytest.mark.parametrize("name", ["XLMTokenizer", "FlaubertTokenizer", "BioGptTokenizer"])
def test_words_by_the_rules_of_moses(name: str, tmp_path: Path) -> None:
    letters = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!-@é"0123456789:'
    merges = ["t h 9", "th e</w> 8", "b o 7", "o k</w> 6", "bo ok</w> 5"]
    tokens = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{number}>" for number in range(10))]
    tokens += [*letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>", "bo", "ok</w>", "book</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    ours, theirs = (getattr(library, name).from_pretrained(tmp_path) for library in (transept, transformers))
    texts = ["The book, the Zoo-book.", "“É” 12：３…。x\u200b ``a''", "ăâ <special1> book"]
    for text in texts:
        assert ours.tokenize(text) == theirs.tokenize(text)
        row = ours(text)["input_ids"]
        assert ours.decode(row) == theirs.decode(row)
        assert ours.decode(row, skip_special_tokens=True) == theirs.decode(row, skip_special_tokens=True)
    same(ours, theirs, texts, padding=True)
    same(ours, theirs, texts[0], texts[2])
    assert ours.get_special_tokens_mask([5, 6], [7]) == theirs.get_special_tokens_mask([5, 6], [7])
    assert ours.special_tokens_map.keys() >= {"unk_token", "pad_token", "sep_token"}
    ours.save_pretrained(tmp_path / "saved")
    again = transept.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(ours)
    assert dict(again(texts)) == dict(ours(texts))
    assert dict(pickle.loads(pickle.dumps(ours))(texts)) == dict(ours(texts))


@pytest.mark.reference
@pytest.mark.usefixtures("moses")
@pytest.mark.parametrize("lower", [False, True])
def test_fsmt_reads_one_vocabulary_and_writes_another(lower: bool, tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,-@"
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>"]
    written = [*tokens[:4], *tokens[:3:-1], "да</w>"]
    for name, table in (("vocab-src.json", tokens), ("vocab-tgt.json", written)):
        (tmp_path / name).write_text(json.dumps({token: place for place, token in enumerate(table)}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("t h 9\nth e</w> 8\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "fsmt"}')
    given = {"langs": ["en", "ru"], "do_lower_case": lower}
    ours: Any = transept.AutoTokenizer.from_pretrained(tmp_path, **given)
    theirs = transformers.FSMTTokenizer.from_pretrained(tmp_path, **given)
    assert type(ours) is transept.FSMTTokenizer
    texts = ["The book, the Zoo-book.", "“É” ３…。x\u200b ``a''", "</s> book"]
    for text in texts:
        assert ours.tokenize(text) == theirs.tokenize(text)
        row = ours(text)["input_ids"]
        assert ours.decode(row) == theirs.decode(row)
        assert ours.decode(row, skip_special_tokens=True) == theirs.decode(row, skip_special_tokens=True)
    assert ours.decode([len(written) - 1]) == theirs.decode([len(written) - 1]) == "да"
    same(ours, theirs, texts, padding=True)
    same(ours, theirs, texts[0], texts[2])
    assert ours.get_special_tokens_mask([5, 6], [7]) == theirs.get_special_tokens_mask([5, 6], [7])
    assert (ours.vocab_size, ours.get_vocab()) == (theirs.vocab_size, theirs.get_vocab())
    ours.save_pretrained(tmp_path / "saved")
    for twin in (transept.AutoTokenizer.from_pretrained(tmp_path / "saved"), pickle.loads(pickle.dumps(ours))):
        assert type(twin) is type(ours)
        assert dict(twin(texts)) == dict(ours(texts))
        assert twin.decode(row) == ours.decode(row)
    with pytest.raises(ValueError, match="needs two languages"):
        transept.FSMTTokenizer(["en"], tmp_path / "vocab-src.json", tmp_path / "vocab-tgt.json", tmp_path / "merges.txt")


def test_moses_is_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ImportError, match="pip install sacremoses"):
        transept.BioGptTokenizer({"<unk>": 0}, [])


@pytest.mark.reference
def test_chinese_words_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] 今 天 气 非常 好 。 天气 hello world ##s ##ing play , ! 我 们 我们 北京 北 京 大 学 大学"
    vocab = {word: index for index, word in enumerate(words.split())}
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    theirs, ours = transformers.RoFormerTokenizer(vocab), transept.RoFormerTokenizer(str(tmp_path / "vocab.txt"))
    texts = ["今天天气非常好。", "Hello worlds, playing!  我们在北京大学 [MASK] 好", "", " ", "我们\t好 naïve", "北京大学hello"]
    ours.save_pretrained(tmp_path)
    again = transept.AutoTokenizer.from_pretrained(tmp_path)
    for text in texts:
        assert ours.tokenize(text) == theirs.tokenize(text)
        for options in ({}, {"text_pair": "今天"}, {"padding": "max_length", "truncation": True, "max_length": 5}):
            expected = dict(theirs(text, **options))
            assert dict(ours(text, **options)) == dict(again(text, **options)) == expected
        assert ours.decode(expected["input_ids"]) == theirs.decode(expected["input_ids"])
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ImportError, match="pip install rjieba"):
        transept.RoFormerTokenizer(str(tmp_path / "vocab.txt"))
