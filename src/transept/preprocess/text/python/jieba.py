"""A tokenizer of Chinese words, which the package ``rjieba`` finds."""

from __future__ import annotations

from typing import Any

from tokenizers import normalizers

from transept.errors import VersionError
from transept.preprocess.text import build, tokens
from transept.preprocess.text.loading import Parts
from transept.preprocess.text.python.table import PythonTokenizer

_APART = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)


def rjieba() -> Any:
    """The package; a ``VersionError`` where it is not installed."""
    try:
        import rjieba as package  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        what = "this tokenizer finds Chinese words by the package rjieba, which is not installed."
        raise VersionError(what, hint="pip install rjieba") from error
    return package


class RoFormerTokenizer(
    PythonTokenizer,
    files=tokens.files("vocab.txt"),
    tokens=tokens.BERT_TOKENS,
    build=build.wordpiece_backend,
    options={"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
    template=tokens.BERT_TEMPLATE,
    applied=True,
    model_types=("roformer",),
):
    """RoFormer's: Chinese words of the vocabulary stay whole; all else is cut into signs, and into word pieces as BERT's."""

    def _take(self, parts: Parts) -> None:
        rjieba()
        super()._take(parts)
        self._words = self._backend.get_vocab(with_added_tokens=False)
        self._index()

    def _segmented(self, text: str) -> list[str]:
        lowers, accents = self._options["do_lower_case"], self._options["strip_accents"]
        clean = normalizers.BertNormalizer(handle_chinese_chars=False, strip_accents=accents, lowercase=lowers)
        words = (word for word, *_ in rjieba().tokenize(clean.normalize_str(text), hmm=False))
        pieces = (piece for word in words for piece in ([word] if word in self._words else _APART.normalize_str(word).split()))
        return [token.value for piece in pieces for token in self._backend.model.tokenize(piece)]
