"""Tokenizers of models for many languages: a token says which language a text is in."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from transept.errors import InputError, nearest
from transept.preprocess.text.assembly import Parts
from transept.preprocess.text.build import Template, template_processor
from transept.preprocess.text.family_sentencepiece import XLMRobertaTokenizer
from transept.preprocess.text.sentencepiece import CONTROL, Piece, SentencePieceModel
from transept.preprocess.text.special import Token

_DEFAULT = "en_XX"
_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO "
    "ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MORE_LANGUAGES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


class MBartTokenizer(XLMRobertaTokenizer):
    """mBART's tokenizer: the end of a text and its language follow it.

    Options: ``src_lang`` is the language of texts and ``tgt_lang`` that of targets (that of texts when absent); both can be
    set at any time. The codes of the languages follow the vocabulary, and the mask follows them.
    """

    languages: ClassVar[tuple[str, ...]] = tuple(_LANGUAGES.split())
    options: ClassVar[Mapping[str, Any]] = {"src_lang": None, "tgt_lang": None}
    applied: ClassVar[frozenset[str]] = frozenset(options)
    template = None  # it depends on the language
    spoken: ClassVar[Template] = (("A", "eos", "lang"), ("A", "B", "eos", "lang"))

    def _take(self, parts: Parts) -> Self:
        super()._take(parts)
        self._speak(self.src_lang)
        return self

    @classmethod
    def extra_tokens(cls, options: Mapping[str, Any]) -> list[str]:
        """The codes of the languages."""
        return list(cls.languages)

    @classmethod
    def pieces(cls, model: SentencePieceModel, tokens: Mapping[str, str]) -> Sequence[Piece]:
        """The vocabulary by id."""
        *pieces, mask = super().pieces(model, {"bos_token": tokens["cls_token"], **tokens})
        return [*pieces, *(Piece(code, kind=CONTROL) for code in cls.languages), mask]

    @property
    def lang_code_to_id(self) -> dict[str, int]:
        """The ids of the languages."""
        return {code: index for code in self.languages if (index := self._backend.token_to_id(code)) is not None}

    @property
    def src_lang(self) -> str:
        """The language of texts."""
        return self._options["src_lang"] or _DEFAULT

    @src_lang.setter
    def src_lang(self, code: str) -> None:
        self._speak(code)
        self._options["src_lang"] = code

    @property
    def tgt_lang(self) -> str | None:
        """The language of targets; that of texts where there is none."""
        code: str | None = self._options["tgt_lang"]
        return code

    @tgt_lang.setter
    def tgt_lang(self, code: str | None) -> None:
        self._options["tgt_lang"] = code

    def _speak(self, code: str) -> None:
        """Put one language's token around texts.

        Raises:
            InputError: the vocabulary has no such language.
        """
        if code not in self.languages or self._backend.token_to_id(code) is None:
            hint = nearest(str(code), self.languages)
            raise InputError(f"{code!r} is no language of {type(self).__name__}.", hint=hint)
        tokens = self.special_tokens_map | {"lang_token": code}
        self._backend.post_processor = template_processor(self.spoken, tokens, self._backend)
        self._views.clear()

    def _target_tokenizer(self) -> Self:
        listener = copy.copy(self)
        listener._views, listener._options = self._views.twin(), dict(self._options)
        listener._speak(self.tgt_lang or self.src_lang)
        return listener


class MBart50Tokenizer(MBartTokenizer):
    """mBART-50's tokenizer: the language stands before a text, and there are 52 of them."""

    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        name: token for name, token in MBartTokenizer.special_tokens.items() if name != "bos_token"
    }
    languages: ClassVar[tuple[str, ...]] = tuple(f"{_LANGUAGES} {_MORE_LANGUAGES}".split())
    spoken: ClassVar[Template] = (("lang", "A", "eos"), ("lang", "A", "B", "eos"))
