"""Tokenizers that put the language of a text beside it."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

import tokenizers

from transept.errors import InputError, nearest
from transept.preprocess.text import build
from transept.preprocess.text.build import Template
from transept.preprocess.text.loading import Parts
from transept.preprocess.text.settings import Token
from transept.preprocess.text.tokenizer import Tokenizer

# The mask is a word of its own, and takes the space before it, as words do.
_MASK = tokenizers.AddedToken("<mask>", lstrip=True, special=True, normalized=False)
_TOKENS: dict[str, Token | None] = {"eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
_TOKENS |= {"cls_token": "<s>", "mask_token": _MASK}
_LANGUAGES = (
    *("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ"),
    *("ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"),
)
_LANGUAGES_50 = (
    *_LANGUAGES,
    *("af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN"),
    *("pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES"),
    "sl_SI",
)


class MBartTokenizer(
    Tokenizer,
    files={"vocab_file": "sentencepiece.bpe.model", "tokenizer_file": "tokenizer.json"},
    tokens={"bos_token": "<s>"} | _TOKENS,
    build=partial(build.fairseq_backend, between=_LANGUAGES),
    options={"src_lang": None, "tgt_lang": None},
    template=None,  # it depends on the language
    extra_tokens=lambda options: _LANGUAGES,
    applied=True,
    model_types=("mbart",),
):
    """mBART's tokenizer: the end of a text and its language follow it.

    Options: ``src_lang`` is the language of texts and ``tgt_lang`` that of targets (that of texts when absent); both can be
    set at any time, and passed for one call. The codes of the languages follow the vocabulary, and the mask follows them.
    """

    tgt_lang: str | None
    languages: ClassVar[tuple[str, ...]] = _LANGUAGES
    spoken: ClassVar[Template] = (("A", "eos", "lang"), ("A", "B", "eos", "lang"))

    def _take(self, parts: Parts) -> None:
        super()._take(parts)
        self._speak(self._backend, self.src_lang)

    @property
    def lang_code_to_id(self) -> dict[str, int]:
        """The ids of the languages."""
        return {code: index for code in self.languages if (index := self._backend.token_to_id(code)) is not None}

    @property
    def src_lang(self) -> str:
        """The language of texts."""
        return self._options["src_lang"] or "en_XX"

    @src_lang.setter
    def src_lang(self, code: str) -> None:
        self._speak(self._backend, code)
        self._views.clear()
        self._options["src_lang"] = code

    def _speak(self, backend: tokenizers.Tokenizer, code: str) -> None:
        """Put one language's token around texts; ``InputError`` where the vocabulary has no such language."""
        if code not in self.languages or backend.token_to_id(code) is None:
            hint = nearest(str(code), self.languages)
            raise InputError(f"{code!r} is no language of {type(self).__name__}.", hint=hint)
        tokens = self.special_tokens_map | {"lang_token": code}
        backend.post_processor = build.template_processor(self.spoken, tokens, backend)

    def _in_language(self, code: str) -> Self:
        if code == self.src_lang:
            return self
        views = self._views.twin(code, lambda backend: self._speak(backend, code))
        return self._with(_views=views, _options=self._options | {"src_lang": code})

    def _for_targets(self, language: str | None) -> Self:
        return self._in_language(language or self.tgt_lang or self.src_lang)


class MBart50Tokenizer(
    MBartTokenizer,
    tokens=_TOKENS,
    build=partial(build.fairseq_backend, between=_LANGUAGES_50),
    extra_tokens=lambda options: _LANGUAGES_50,
):
    """mBART-50's tokenizer: the language stands before a text, and there are 52 of them."""

    languages = _LANGUAGES_50
    spoken = (("lang", "A", "eos"), ("lang", "A", "B", "eos"))
