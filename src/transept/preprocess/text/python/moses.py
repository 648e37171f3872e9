"""Tokenizers of byte pairs in words that Moses' rules cut (Koehn et al. 2007), which the package ``sacremoses`` has."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import Any

from transept.errors import FormatError, UnsupportedError, VersionError, refuse
from transept.preprocess.text.build import VocabularyFiles
from transept.preprocess.text.python.words import BytePairTokenizer
from transept.storage.files import dump_json, read_text, write_file

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


class FSMTTokenizer(
    MosesTokenizer,
    files={"src_vocab_file": "vocab-src.json", "tgt_vocab_file": "vocab-tgt.json", "merges_file": "merges.txt"},
    model_types=("fsmt",),
):
    """FSMT's: Moses' words of the first of two ``langs``. Texts have ids of one vocabulary, and ids are read by the other.

    Args:
        langs: the languages of texts and of what is decoded, such as ``["en", "ru"]``.
        src_vocab_file: the path of ``vocab-src.json``, piece -> id, or its content.
        tgt_vocab_file: the same for what is decoded.
        merges_file: the path of ``merges.txt``, or pairs.
        settings: ``do_lower_case``, special tokens, and all else that a :class:`Tokenizer` takes.
    """

    around = ("A sep", "A sep B sep")

    def __init__(
        self,
        langs: Any = None,
        src_vocab_file: Any = None,
        tgt_vocab_file: Any = None,
        merges_file: Any = None,
        **settings: Any,
    ) -> None:
        wrong = not isinstance(langs, list | tuple) or len(langs) != 2
        refuse(wrong, f"langs is {langs!r:.80}, but FSMTTokenizer needs two languages.", 'Pass langs=["en", "ru"].')
        self.langs, self.do_lower_case = list(langs), bool(settings.get("do_lower_case", False))
        self.src_lang, self.tgt_lang = self.lang, _ = langs
        written = VocabularyFiles(tgt_vocab_file).read_vocab()
        own = {"langs": self.langs, "do_lower_case": self.do_lower_case}
        super().__init__(src_vocab_file, merges_file, **_names() | settings | own)
        self._written = {index: token for token, index in written.items()}

    def words(self, text: str, lang: str) -> list[str]:
        cleaned = self.cleaned(text.lower() if self.do_lower_case else text, lang)
        return list(self.rules("Tokenizer", lang).tokenize(cleaned, aggressive_dash_splits=True, return_str=False, escape=True))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        words = "".join(token.replace(" ", "").replace("</w>", " ") for token in tokens).split()
        return str(self.rules("Detokenizer", self.tgt_lang).detokenize(words))

    def save_vocabulary(self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None) -> tuple[str, ...]:
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        tables = {"vocab-src.json": self.encoder, "vocab-tgt.json": {token: index for index, token in self._written.items()}}
        merges = "".join(" ".join(pair) + "\n" for pair in sorted(self.bpe_ranks, key=self.bpe_ranks.__getitem__))
        files = {name: dump_json(table) for name, table in tables.items()} | {"merges.txt": merges}
        for name, content in files.items():
            write_file(Path(save_directory, prefix + name), content)
        return tuple(str(Path(save_directory, prefix + name)) for name in files)
