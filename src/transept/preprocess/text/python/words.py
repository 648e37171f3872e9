"""Tokenizers that cut words in Python: by merges, with ``@@`` behind parts of a word, or into characters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from tokenizers import AddedToken

from transept.errors import InputError
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.python.slow import PreTrainedTokenizer

_WORDS = re.compile(r"\S+\n?")
_SIGNS, _QUOTE = re.compile(r"([.,!?()])"), re.compile(r"(')")
# Words that begin a text of some kind, and their ids in the released vocabulary.
CONTROL_CODES = {
    "Pregnancy": 168629,
    "Christianity": 7675,
    "Explain": 106423,
    "Fitness": 63440,
    "Saving": 63163,
    "Ask": 27171,
    "Ass": 95985,
    "Joke": 163509,
    "Questions": 45622,
    "Thoughts": 49605,
    "Retail": 52342,
    "Feminism": 164338,
    "Writing": 11992,
    "Atheism": 192263,
    "Netflix": 48616,
    "Computing": 39639,
    "Opinion": 43213,
    "Alone": 44967,
    "Funny": 58917,
    "Gaming": 40358,
    "Human": 4088,
    "India": 1331,
    "Joker": 77138,
    "Diet": 36206,
    "Legal": 11859,
    "Norman": 4939,
    "Tip": 72689,
    "Weight": 52343,
    "Movies": 46273,
    "Running": 23425,
    "Science": 2090,
    "Horror": 37793,
    "Confession": 60572,
    "Finance": 12250,
    "Politics": 16360,
    "Scary": 191985,
    "Support": 12654,
    "Technologies": 32516,
    "Teenage": 66160,
    "Event": 32769,
    "Learned": 67460,
    "Notion": 182770,
    "Wikipedia": 37583,
    "Books": 6665,
    "Extract": 76050,
    "Confessions": 102701,
    "Conspiracy": 75932,
    "Links": 63674,
    "Narcissus": 150425,
    "Relationship": 54766,
    "Relationships": 134796,
    "Reviews": 41671,
    "News": 4256,
    "Translation": 26820,
    "multilingual": 128406,
}
_NAMES = {0: "[PAD]", 0xE000: "[CLS]", 0xE001: "[SEP]", 0xE002: "[BOS]", 0xE003: "[MASK]", 0xE004: "[RESERVED]"}
CHARACTERS = 0x110000


def joined(pieces: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Pieces of a word, of which neighbours are joined as long as a pair has a rank, the lowest one first."""
    word = list(pieces)
    while len(word) > 1:
        pair = min(pairwise(word), key=lambda two: ranks.get(two, math.inf))
        if pair not in ranks:
            break
        merged, place = [], 0
        while place < len(word):
            fits = tuple(word[place : place + 2]) == pair
            merged.append("".join(pair) if fits else word[place])
            place += 2 if fits else 1
        word = merged
    return word


class BytePairTokenizer(PreTrainedTokenizer, files={"vocab_file": "vocab.json", "merges_file": "merges.txt"}):
    """Words joined of their characters by merges; files are ``vocab.json`` and ``merges.txt``."""

    def __init__(self, vocab_file: Any = None, merges_file: Any = None, **settings: Any) -> None:
        files = VocabularyFiles(vocab_file, merges_file)
        self.encoder = files.read_vocab()
        self._written = {index: token for token, index in self.encoder.items()}
        self.bpe_ranks = {pair: rank for rank, pair in enumerate(self.merges_of(files))}
        self._known: dict[str, list[str]] = {}
        super().__init__(**settings)

    def merges_of(self, files: VocabularyFiles) -> list[tuple[str, str]]:
        return files.read_merges()

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return self.encoder | self.added_tokens_encoder

    def _convert_token_to_id(self, token: str) -> Any:
        return self.encoder.get(token, self.encoder.get(str(self.unk_token)))

    def _convert_id_to_token(self, index: int) -> Any:
        return self._written.get(index, self.unk_token)

    def parts(self, word: str) -> list[str]:
        """The pieces of a word, with ``@@`` behind all but the last."""
        *parts, last = self.pieces(word)
        return [*(f"{part}@@" for part in parts), last.removesuffix("</w>")]

    def pieces(self, word: str) -> list[str]:
        """The pieces of a word, the last of which ends in ``</w>``."""
        if (found := self._known.get(word)) is None:
            found = joined([*word[:-1], word[-1] + "</w>"], self.bpe_ranks)
            if len(self._known) < 50_000:
                self._known[word] = found
        return found


class CTRLTokenizer(BytePairTokenizer, model_types=("ctrl",)):
    """CTRL's: byte pairs of words, with ``@@`` behind all parts of a word but the last; ``control_codes`` begin texts."""

    control_codes = CONTROL_CODES
    add_bpe_version_header = True

    def __init__(self, vocab_file: Any = None, merges_file: Any = None, unk_token: Any = "<unk>", **settings: Any) -> None:  # noqa: S107
        ways = {"token_type_ids_pattern": "all_zeros", "special_tokens_pattern": "none"}
        super().__init__(vocab_file, merges_file, unk_token=unk_token, **ways | settings)

    def _tokenize(self, text: str) -> list[str]:
        return [part for word in _WORDS.findall(text) for part in self.parts(word)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace("@@ ", "").strip()


class BlenderbotSmallTokenizer(BytePairTokenizer, model_types=("blenderbot-small",)):
    """The small BlenderBot's: byte pairs of lower-case words, apart from signs; ``__newln__`` stands for a new line."""

    def __init__(self, vocab_file: Any = None, merges_file: Any = None, **settings: Any) -> None:
        names = {"bos_token": "__start__", "eos_token": "__end__", "unk_token": "__unk__", "pad_token": "__null__"}
        super().__init__(vocab_file, merges_file, **names | {"special_tokens_pattern": "none"} | settings)

    def _tokenize(self, text: str) -> list[str]:
        apart = (_QUOTE.sub(r" \1 ", _SIGNS.sub(r" \1", word)).replace("\n", " __newln__") for word in _WORDS.findall(text))
        return [part for words in apart for word in words.lower().split(" ") if word for part in self.parts(word)]

    def _convert_token_to_id(self, token: str) -> Any:
        return super()._convert_token_to_id(token.lower())

    convert_tokens_to_string = CTRLTokenizer.convert_tokens_to_string


@cache
def _characters() -> dict[str, int]:
    return {chr(index): index for index in range(CHARACTERS)}


class CanineTokenizer(PreTrainedTokenizer, inputs=("input_ids", "attention_mask", "token_type_ids"), model_types=("canine",)):
    """CANINE's: the characters of a text, by their numbers in Unicode; special tokens are of the range for private use."""

    vocab_files_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **settings: Any) -> None:
        cls, sep, mask = chr(0xE000), chr(0xE001), chr(0xE003)
        names: dict[str, Any] = {"bos_token": cls, "eos_token": sep, "sep_token": sep, "cls_token": cls, "pad_token": chr(0)}
        names |= {"mask_token": AddedToken(mask, lstrip=True), "add_prefix_space": False, "model_max_length": 2048}
        ways = {"token_type_ids_pattern": "all_zeros", "special_tokens_pattern": "cls_sep"}
        super().__init__(**names | ways | settings)

    @property
    def vocab_size(self) -> int:
        return CHARACTERS

    def get_vocab(self) -> dict[str, int]:
        return _characters() | self.added_tokens_encoder

    def _tokenize(self, text: str) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        if len(token) != 1:
            raise InputError(f"{token!r:.40} is not one character.")
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        if not 0 <= index < CHARACTERS:
            raise InputError(f"{index} is no character's number.", hint=f"They are 0 to {CHARACTERS - 1}.")
        return _NAMES.get(index, chr(index))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)
