"""Tokenizers of byte pairs in words that Moses' rules cut (Koehn et al. 2007), which the package ``sacremoses`` has."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Any

from transept.errors import FormatError, UnsupportedError, VersionError, refuse
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.python.words import BytePairTokenizer
from transept.storage.files import read_text

_STOP = re.compile(r"[。．]\s*")
_MARKS = str.maketrans(
    dict(zip("，、”“∶：？《》）！（；」「～’━〈〉【】％", ',,""::?"")!(;""~\'-<>[]%', strict=True))
    | dict(zip("０１２３４５６７８９", "0123456789", strict=True))
    | {"…": "..."}
)
_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")
_SPECIAL = [f"<special{number}>" for number in range(10)]


def sacremoses() -> Any:
    """The package; a ``VersionError`` where it is not installed."""
    try:
        import sacremoses as package  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        what = "this tokenizer cuts words by the package sacremoses, which is not installed."
        raise VersionError(what, hint="pip install sacremoses") from error
    return package


def without_accents(words: list[str]) -> list[str]:
    """Words in lower case, without accents."""
    text = unicodedata.normalize("NFD", " ".join(words).lower())
    return "".join(letter for letter in text if unicodedata.category(letter) != "Mn").lower().split(" ")


class MosesTokenizer(BytePairTokenizer):
    """Byte pairs of Moses' words. A merge may have further columns, such as how often it was seen."""

    around = ("bos A sep", "bos A sep B sep")
    lang = "en"

    def __init__(self, vocab_file: Any = None, merges_file: Any = None, **settings: Any) -> None:
        self._rules: dict[tuple[str, str], Any] = {}
        sacremoses()
        super().__init__(vocab_file, merges_file, **settings)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_rules": {}}

    def merges_of(self, files: VocabularyFiles) -> list[tuple[str, str]]:
        if not isinstance(files.merges, str | os.PathLike):
            return files.read_merges()
        pairs = [tuple(line.split()[:2]) for line in read_text(files.merges).split("\n")[:-1]]
        if wrong := [place for place, pair in enumerate(pairs) if len(pair) != 2]:
            raise FormatError(f"merge {wrong[0]} is not two pieces.", path=files.merges)
        return pairs  # type: ignore[return-value]

    def rules(self, kind: str, lang: str) -> Any:
        """The package's rules of a kind for a language."""
        if (kind, lang) not in self._rules:
            self._rules[kind, lang] = getattr(sacremoses(), f"Moses{kind}")(lang=lang)
        return self._rules[kind, lang]

    def cleaned(self, text: str, lang: str) -> str:
        """A text with plain punctuation, and without characters that do not show."""
        text = self.rules("PunctNormalizer", lang).normalize(_STOP.sub(". ", text).translate(_MARKS))
        return "".join(letter for letter in text if not unicodedata.category(letter).startswith("C"))

    def words(self, text: str, lang: str) -> list[str]:
        """The words of a text."""
        found = self.rules("Tokenizer", lang).tokenize(self.cleaned(text, lang), return_str=False, escape=False)
        return list(found)

    def _tokenize(self, text: str, lang: str | None = None, bypass_tokenizer: bool = False) -> list[str]:
        words = text.split() if bypass_tokenizer else self.words(text, self.lang if lang is None else lang)
        return [piece for word in words if word for piece in self.pieces(word)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace("</w>", " ").strip()


def _names(**more: Any) -> dict[str, Any]:
    names = {"unk_token": "<unk>", "bos_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    return names | more


class XLMTokenizer(MosesTokenizer, model_types=("xlm",)):
    """XLM's, whose words are lower-case and without accents unless ``do_lowercase_and_remove_accent`` is false.

    Chinese, Japanese and Thai are cut by other packages: cut such texts before, and call ``_tokenize`` with
    ``bypass_tokenizer=True``.
    """

    def __init__(
        self,
        vocab_file: Any = None,
        merges_file: Any = None,
        lang2id: Any = None,
        id2lang: Any = None,
        do_lowercase_and_remove_accent: bool = True,
        **settings: Any,
    ) -> None:
        self.lang2id, self.id2lang = lang2id, id2lang
        self.do_lowercase_and_remove_accent = do_lowercase_and_remove_accent
        own = {"lang2id": lang2id, "id2lang": id2lang, "do_lowercase_and_remove_accent": do_lowercase_and_remove_accent}
        names = _names(cls_token="</s>", mask_token="<special1>", additional_special_tokens=_SPECIAL)  # noqa: S106
        super().__init__(vocab_file, merges_file, **names | own | settings)

    @property
    def do_lower_case(self) -> bool:
        return self.do_lowercase_and_remove_accent

    def words(self, text: str, lang: str) -> list[str]:
        what = f"texts in {lang!r} are cut by another package than sacremoses."
        refuse(lang in ("zh", "ja", "th"), what, "Cut them before.", UnsupportedError)
        cleaned = self.cleaned(text, lang)
        cleaned = cleaned.translate(_ROMANIAN) if lang == "ro" else cleaned
        found = list(self.rules("Tokenizer", lang).tokenize(cleaned, return_str=False, escape=False))
        return without_accents(found) if self.do_lowercase_and_remove_accent else found


class FlaubertTokenizer(MosesTokenizer, model_types=("flaubert",)):
    """FlauBERT's: Moses' words of French; ``do_lowercase`` makes them lower-case."""

    lang = "fr"

    def __init__(
        self,
        vocab_file: Any = None,
        merges_file: Any = None,
        do_lowercase: bool = False,
        lang2id: Any = None,
        id2lang: Any = None,
        **settings: Any,
    ) -> None:
        self.do_lowercase, self.lang2id, self.id2lang = do_lowercase, lang2id, id2lang
        settings.pop("do_lowercase_and_remove_accent", None)  # which files have, and has no effect
        own = {"do_lowercase": do_lowercase, "lang2id": lang2id, "id2lang": id2lang}
        names = _names(cls_token="</s>", mask_token="<special1>", additional_special_tokens=_SPECIAL)  # noqa: S106
        super().__init__(vocab_file, merges_file, **names | own | settings)

    def words(self, text: str, lang: str) -> list[str]:
        text = unicodedata.normalize("NFC", text.replace("``", '"').replace("''", '"'))
        return super().words(text.lower() if self.do_lowercase else text, lang)


class BioGptTokenizer(MosesTokenizer, model_types=("biogpt",)):
    """BioGPT's: Moses' words of English, with the separator before each text."""

    around = ("sep A", "sep A sep B")

    def __init__(self, vocab_file: Any = None, merges_file: Any = None, **settings: Any) -> None:
        super().__init__(vocab_file, merges_file, **_names(eos_token="</s>") | settings)  # noqa: S106

    def words(self, text: str, lang: str) -> list[str]:
        return list(self.rules("Tokenizer", lang).tokenize(text, aggressive_dash_splits=True, return_str=False, escape=True))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        words = "".join(token.replace(" ", "").replace("</w>", " ") for token in tokens).split()
        return str(self.rules("Detokenizer", self.lang).detokenize(words))
