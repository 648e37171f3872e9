"""Tokenizers of users, who write how texts are cut: the same class on this library and on the reference."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

import transept
from transept.errors import FileError, InputError, UnsupportedError

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "my", "dog", "is", "cute", "##s", ".", ","]
TEXTS = ["Hello world.", "my dog is cute", "hello"]


def words_class(library: Any) -> Any:
    """A tokenizer of words, as the reference's guides write one, on either library."""

    class Words(library.PreTrainedTokenizer):  # type: ignore[misc,name-defined]
        vocab_files_names = {"vocab_file": "words.txt"}
        model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

        def __init__(self, vocab_file: str, do_lower_case: bool = True, unk_token: str = "[UNK]", **kwargs: Any) -> None:
            self.words = Path(vocab_file).read_text(encoding="utf-8").split()
            self.vocab = {word: place for place, word in enumerate(self.words)}
            self.do_lower_case = do_lower_case
            names = {"sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
            super().__init__(do_lower_case=do_lower_case, unk_token=unk_token, **names | kwargs)

        @property
        def vocab_size(self) -> int:
            return len(self.vocab)

        def get_vocab(self) -> dict[str, int]:
            return dict(self.vocab, **self.added_tokens_encoder)

        def _tokenize(self, text: str) -> list[str]:
            return (text.lower() if self.do_lower_case else text).replace(".", " .").split()

        def _convert_token_to_id(self, token: str) -> int | None:
            return self.vocab.get(token, self.vocab.get(self.unk_token))

        def _convert_id_to_token(self, index: int) -> str:
            return self.words[index] if index < len(self.words) else self.unk_token

        def build_inputs_with_special_tokens(self, first: list[int], second: list[int] | None = None) -> list[int]:
            ids = [self.cls_token_id, *first, self.sep_token_id]
            return ids if second is None else [*ids, *second, self.sep_token_id]

        def create_token_type_ids_from_sequences(self, first: list[int], second: list[int] | None = None) -> list[int]:
            return [0] * (len(first) + 2) + ([] if second is None else [1] * (len(second) + 1))

        def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
            path = Path(save_directory, (f"{filename_prefix}-" if filename_prefix else "") + "words.txt")
            path.write_text("\n".join(self.words), encoding="utf-8")
            return (str(path),)

    return Words


def pattern_class(library: Any, pattern: str) -> Any:
    """A tokenizer of characters without files, with special tokens by the name of a pattern."""

    class Characters(library.PreTrainedTokenizer):  # type: ignore[misc,name-defined]
        prefix_tokens, suffix_tokens = [70, 71], [72]

        def __init__(self, **kwargs: Any) -> None:
            names = {name: f"<{name}>" for name in ("pad_token", "eos_token", "bos_token", "cls_token", "sep_token")}
            super().__init__(special_tokens_pattern=pattern, **names | kwargs)

        @property
        def vocab_size(self) -> int:
            return 128

        def get_vocab(self) -> dict[str, int]:
            return {chr(index): index for index in range(self.vocab_size)} | self.added_tokens_encoder

        def _tokenize(self, text: str) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return ord(token)

        def _convert_id_to_token(self, index: int) -> str:
            return chr(index)

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens)

    return Characters


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(TOKENS), encoding="utf-8")
    return str(path)


@pytest.fixture
def pair(vocabulary: str) -> tuple[Any, Any]:
    return words_class(transept)(vocabulary), words_class(transformers)(vocabulary)


def plain(value: Any) -> Any:
    return (
        {name: plain(one) for name, one in value.items()}
        if hasattr(value, "items")
        else getattr(value, "tolist", lambda: value)()
    )


CALLS: dict[str, Callable[[Any], Any]] = {
    "one": lambda t: t(TEXTS[0]),
    "batch": lambda t: t(TEXTS, padding=True),
    "tensors": lambda t: t(TEXTS, padding=True, return_tensors="pt"),
    "one row": lambda t: t(TEXTS[0], return_tensors="np"),
    "pair": lambda t: t(TEXTS[0], TEXTS[1]),
    "pairs": lambda t: t([(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])], padding="max_length", max_length=14, truncation=True),
    "longest first": lambda t: t(TEXTS[0], TEXTS[1], truncation=True, max_length=8),
    "only second": lambda t: t(TEXTS[:2], TEXTS[1:], truncation="only_second", max_length=7, padding="max_length"),
    "overflow": lambda t: t(TEXTS[1], truncation=True, max_length=4, stride=1, return_overflowing_tokens=True),
    "overflow of a pair": lambda t: t(
        TEXTS[0], TEXTS[1], truncation="only_second", max_length=8, stride=1, return_overflowing_tokens=True
    ),
    "left": lambda t: t(TEXTS, padding=True, pad_to_multiple_of=8, padding_side="left"),
    "words": lambda t: t([["hello", "world"], ["dog"]], is_split_into_words=True, padding=True),
    "bare": lambda t: t(TEXTS[0], TEXTS[1], add_special_tokens=False, return_attention_mask=False),
    "targets": lambda t: t("hello", text_target="dog"),
    "tokens": lambda t: [t.tokenize("Hello [SEP] you [MASK]"), t.tokenize("Hello [SEP] you", split_special_tokens=True)],
    "ids": lambda t: [t.convert_tokens_to_ids(["hello", "zz", "[CLS]"]), t.convert_tokens_to_ids("dog")],
    "names": lambda t: [t.convert_ids_to_tokens([2, 4, 3], skip_special_tokens=True), t.convert_ids_to_tokens(4)],
    "text": lambda t: [
        t.decode([2, 4, 11, 3]),
        t.decode([2, 4, 11, 3], skip_special_tokens=True, clean_up_tokenization_spaces=True),
        t.batch_decode([[2, 4], [3, 5]], skip_special_tokens=True),
        t.batch_decode([2, 4]),
    ],
    "sizes": lambda t: [len(t), t.vocab_size, t.is_fast, t.mask_token_id, t.num_special_tokens_to_add(pair=True)],
    "special": lambda t: [t.special_tokens_map, t.all_special_tokens, t.all_special_ids, dict(t.get_added_vocab())],
    "prepared": lambda t: t.prepare_for_model([4, 5, 6, 7], [8, 9], max_length=6, truncation=True, padding="max_length"),
    "prepared row": lambda t: t.prepare_for_model(
        [4, 5], max_length=6, padding="max_length", return_tensors="pt", prepend_batch_axis=True
    ),
    "prepared overflow": lambda t: t.prepare_for_model(
        [4, 5, 6, 7], max_length=4, truncation=True, return_overflowing_tokens=True, stride=1, return_length=True
    ),
    "padded": lambda t: t.pad([{"input_ids": [4, 5], "labels": 1}, {"input_ids": [4], "labels": 0}]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_give_what_the_reference_gives(name: str, pair: tuple[Any, Any]) -> None:
    ours, theirs = (plain(CALLS[name](tokenizer)) for tokenizer in pair)
    assert ours == theirs


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("way", ["longest_first", "only_first", "only_second"])
def test_sequences_are_truncated_as_in_the_reference(way: str, side: str, pair: tuple[Any, Any]) -> None:
    for tokenizer in pair:
        tokenizer.truncation_side = side
    for first, second, count, stride in ([1, 2, 3, 4, 5], [6, 7, 8], 3, 1), ([1, 2, 3], [6, 7, 8, 9], 4, 0), ([1], [2], 0, 0):
        ours, theirs = (list(tokenizer.truncate_sequences(first, second, count, way, stride)) for tokenizer in pair)
        assert ours == theirs


def test_added_tokens_are_cut_out_of_texts_as_in_the_reference(pair: tuple[Any, Any]) -> None:
    seen = []
    for library, tokenizer in zip((transept, transformers), pair, strict=True):
        token = library.AddedToken
        counts = [
            tokenizer.add_tokens(["New_Word", "dog", "<a b>"]),
            tokenizer.add_tokens(token("<L>", lstrip=True)),
            tokenizer.add_tokens([token("one", single_word=True, normalized=False)]),
            tokenizer.add_tokens(["<sp>"], special_tokens=True),
            tokenizer.add_special_tokens({"bos_token": "<s>", "additional_special_tokens": ["<x>", "<y>"]}),
        ]
        text = "hello   <L>world new_word someone one two <a b>dog <x>dog<sp>"
        ids = tokenizer(text)["input_ids"]
        flags = {index: repr(added) for index, added in tokenizer.added_tokens_decoder.items()}
        texts = tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=True)
        seen.append((counts, tokenizer.tokenize(text), ids, texts, flags, tokenizer.all_special_tokens, len(tokenizer)))
    assert seen[0] == seen[1]


def test_saved_and_loaded_here_and_by_the_reference(pair: tuple[Any, Any], tmp_path: Path) -> None:
    text = "hello <x> New_Word dog"
    for tokenizer, name in zip(pair, ("ours", "theirs"), strict=True):
        tokenizer.add_tokens("New_Word")
        tokenizer.add_special_tokens({"extra_special_tokens": ["<x>"]})
        tokenizer.model_max_length = 16
        tokenizer.save_pretrained(tmp_path / name)
    wanted = pair[1](text)["input_ids"]
    for name in ("ours", "theirs"):
        for library in (transept, transformers):
            loaded = words_class(library).from_pretrained(tmp_path / name)
            assert (loaded(text)["input_ids"], loaded.model_max_length, len(loaded)) == (wanted, 16, len(pair[1]))
    changed = words_class(transept).from_pretrained(
        tmp_path / "ours", do_lower_case=False, pad_token="[UNK]", padding_side="left"
    )
    assert (changed.do_lower_case, changed.pad_token, changed.padding_side) == (False, "[UNK]", "left")
    assert changed.init_kwargs["do_lower_case"] is False
    for twin in (copy.deepcopy(pair[0]), words_class(transept).from_pretrained(tmp_path / "ours" / "words.txt")):
        assert twin("hello dog")["input_ids"] == [2, 4, 7, 3]
    with pytest.raises(FileError, match=r"'words.txt' is not there"):
        words_class(transept).from_pretrained(tmp_path)


@pytest.mark.parametrize("pattern", ["none", "eos", "bos", "bos_eos", "cls_sep", "cls_double_sep", "prefix_suffix"])
@pytest.mark.parametrize("types", ["bert_style", "all_zeros"])
def test_patterns_of_special_tokens(pattern: str, types: str) -> None:
    ours, theirs = (pattern_class(library, pattern)(token_type_ids_pattern=types) for library in (transept, transformers))
    for second in (None, [66, 67, 68]):
        for ask in ("build_inputs_with_special_tokens", "get_special_tokens_mask", "create_token_type_ids_from_sequences"):
            assert getattr(ours, ask)([65], second) == getattr(theirs, ask)([65], second), ask
    assert ours.decode(ours("ab c").input_ids) == theirs.decode(theirs("ab c").input_ids)
    assert ours.encode_ids(["ab", "c"], max_length=4) == [
        theirs(text, max_length=4, truncation=True)["input_ids"] for text in ("ab", "c")
    ]


def test_what_is_refused(vocabulary: str, tmp_path: Path) -> None:
    tokenizer = words_class(transept)(vocabulary)
    assert isinstance(tokenizer, transept.PreTrainedTokenizerBase)
    with pytest.raises(UnsupportedError, match="does not know the characters of a token"):
        tokenizer("hello", return_offsets_mapping=True)
    with pytest.raises(InputError, match="what longest_first cuts off a pair is not told"):
        tokenizer("hello dog", "hello dog", truncation=True, max_length=4, return_overflowing_tokens=True)
    with pytest.raises(UnsupportedError, match="cannot be trained here"):
        tokenizer.train_new_from_iterator([["a"]], 10)
    with pytest.raises(InputError, match="special_tokens_pattern is 'odd'"):
        pattern_class(transept, "odd")()
    with pytest.raises(InputError, match="needs a sep_token, which is not set"):
        pattern_class(transept, "cls_sep")(sep_token=None)("a")
    assert pattern_class(transept, "none")().save_vocabulary(str(tmp_path)) == ()


def test_a_class_of_ones_own_is_loaded_for_its_model(vocabulary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transept.preprocess.text import auto

    for table in ("CLASSES", "MODEL_TYPES"):
        monkeypatch.setattr(auto, table, dict(getattr(auto, table)))
    words, config = words_class(transept), type("WordsConfig", (), {"model_type": "words"})
    transept.AutoTokenizer.register(config, slow_tokenizer_class=words)
    words(vocabulary).save_pretrained(tmp_path)
    assert type(transept.AutoTokenizer.from_pretrained(tmp_path)) is words


def test_it_is_pickled() -> None:
    tokenizer = Pickled(eos_token="</s>")
    assert pickle.loads(pickle.dumps(tokenizer))("ab")["input_ids"] == tokenizer("ab")["input_ids"] == [97, 98, 128]


class Pickled(pattern_class(transept, "eos")):  # type: ignore[misc]
    """A class that pickle can find by its name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(pad_token=None, bos_token=None, cls_token=None, sep_token=None, **kwargs)
