"""Tokenizers that put the language of a text beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import tokenizers

from transept.errors import InputError, nearest
from transept.preprocess.text import build
from transept.preprocess.text.build import Template
from transept.preprocess.text.loading import Parts, stated_settings, where_and_what
from transept.preprocess.text.python.marian import MarianTokenizer
from transept.preprocess.text.settings import PathOr, Token, TokenizerSettings, from_caller
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage.files import dump_json

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


_CODES_200 = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab ary_Arab
arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng
bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn
cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn
pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn
hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn
khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn
lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn
mkd_Cyrl plt_Latn mlt_Latn mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn
sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn
tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn
xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn
"""
_LANGUAGES_200 = tuple(_CODES_200.split())
_CODES_100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_LANGUAGES_100 = tuple(_CODES_100.split())
_BY_NAME = {"m2m100": _LANGUAGES_100, "wmt21": ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")}


class Multilingual(Tokenizer):
    """A tokenizer whose texts have the token of their language beside them."""

    tgt_lang: str | None
    languages: ClassVar[tuple[str, ...]]
    first_language: ClassVar[str] = "en_XX"  # that of texts, where none is given

    def _take(self, parts: Parts) -> None:
        super()._take(parts)
        self._speak(self._backend, self.src_lang)

    @property
    def lang_code_to_id(self) -> dict[str, int]:
        """The ids of the languages."""
        ids = {code: self._backend.token_to_id(self.token_of(code)) for code in self.languages}
        return {code: index for code, index in ids.items() if index is not None}

    @property
    def spoken(self) -> Template:
        """Where the language stands, and the end."""
        return ("lang", "A", "eos"), ("lang", "A", "B", "eos")

    def token_of(self, code: str) -> str:
        """The token of a language."""
        return code

    @property
    def src_lang(self) -> str:
        """The language of texts."""
        return self._options["src_lang"] or self.first_language

    @src_lang.setter
    def src_lang(self, code: str) -> None:
        self._speak(self._backend, code)
        self._views.clear()
        self._options["src_lang"] = code

    def _speak(self, backend: tokenizers.Tokenizer, code: str) -> None:
        """Put one language's token around texts; ``InputError`` where the vocabulary has no such language."""
        if code not in self.languages or backend.token_to_id(self.token_of(code)) is None:
            hint = nearest(str(code), self.languages)
            raise InputError(f"{code!r} is no language of {type(self).__name__}.", hint=hint)
        tokens = self.special_tokens_map | {"lang_token": self.token_of(code)}
        backend.post_processor = build.template_processor(self.spoken, tokens, backend)

    def _in_language(self, code: str) -> Self:
        if code == self.src_lang:
            return self
        views = self._views.twin(code, lambda backend: self._speak(backend, code))
        return self._with(_views=views, _options=self._options | {"src_lang": code})

    def _for_targets(self, language: str | None) -> Self:
        return self._in_language(language or self.tgt_lang or self.src_lang)


class MBartTokenizer(
    Multilingual,
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

    languages: ClassVar[tuple[str, ...]] = _LANGUAGES

    @property
    def spoken(self) -> Template:
        return ("A", "eos", "lang"), ("A", "B", "eos", "lang")


class MBart50Tokenizer(
    MBartTokenizer,
    tokens=_TOKENS,
    build=partial(build.fairseq_backend, between=_LANGUAGES_50),
    extra_tokens=lambda options: _LANGUAGES_50,
):
    """mBART-50's tokenizer: the language stands before a text, and there are 52 of them."""

    languages, spoken = _LANGUAGES_50, Multilingual.spoken


class NllbTokenizer(
    Multilingual,
    files={"vocab_file": "sentencepiece.bpe.model", "tokenizer_file": "tokenizer.json"},
    tokens={"bos_token": "<s>"} | _TOKENS,
    build=partial(build.fairseq_backend, between=_LANGUAGES_200),
    options={"src_lang": None, "tgt_lang": None, "legacy_behaviour": False},
    template=None,
    extra_tokens=lambda options: _LANGUAGES_200,
    applied=True,
    model_types=("nllb", "nllb-moe"),
):
    """NLLB's tokenizer: one of 202 languages stands before a text, and the end after it.

    With ``legacy_behaviour`` both follow the text. Other options are as for mBART.
    """

    languages, first_language = _LANGUAGES_200, "eng_Latn"

    @property
    def spoken(self) -> Template:
        behind = ("A", "eos", "lang"), ("A", "B", "eos", "lang")
        return behind if self._options["legacy_behaviour"] else super().spoken


class M2M100Tokenizer(
    Multilingual,
    MarianTokenizer,
    files={"spm_file": "sentencepiece.bpe.model", "vocab_file": "vocab.json"},
    tokens={"bos_token": "<s>"} | {name: _TOKENS[name] for name in ("eos_token", "sep_token", "pad_token", "unk_token")},
    options={"src_lang": None, "tgt_lang": None, "language_codes": "m2m100", "num_madeup_words": 8, "sp_model_kwargs": None},
    template=None,
    extra_tokens=lambda options: [f"__{code}__" for code in _BY_NAME[options["language_codes"]]],
    model_types=("m2m_100",),
):
    """M2M-100's tokenizer: the token of one of a hundred languages, such as ``__en__``, and a text, and the end.

    Args:
        vocab_file: the path of ``vocab.json``, piece -> id, or its content.
        spm_file: the path of the SentencePiece model.
        settings: as for :class:`Tokenizer`; ``language_codes`` may be ``"wmt21"``, for the eight languages of such models.
    """

    first_language, separate_vocabs = "en", False

    def __init__(self, vocab_file: PathOr | Mapping[str, Any], spm_file: PathOr, **settings: Any) -> None:
        caller = from_caller(settings, self.family.known_options)
        self._make((spm_file, spm_file), vocab_file, None, TokenizerSettings(), caller)

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        source, caller = where_and_what(self.family, name, options)
        model, vocab = (source.need(self.family.files[key]) for key in ("spm_file", "vocab_file"))
        self._make((model, model), vocab, None, stated_settings(self.family, source), caller)

    @property
    def languages(self) -> tuple[str, ...]:  # type: ignore[override]
        return _BY_NAME[self._options["language_codes"]]

    def token_of(self, code: str) -> str:
        return f"__{code}__"

    get_lang_token = token_of  # what the reference calls it

    def get_lang_id(self, lang: str) -> int:
        """The id of a language's token, which ``forced_bos_token_id`` takes."""
        return self.lang_code_to_id[lang]

    def _segmented(self, text: str) -> list[str]:
        return self._segmenters[0].pieces(text)

    def _files(self) -> dict[str, str | bytes]:
        names = self.family.files
        return {names["spm_file"]: self._segmenters[0].data, names["vocab_file"]: dump_json(self._source_vocab)}


_CODES_OF_PROGRAMS: dict[str, tuple[str, ...]] = {"base": ("__java__", "__python__", "__en_XX__")}
_CODES_OF_PROGRAMS["multi"] = (*_CODES_OF_PROGRAMS["base"], "__javascript__", "__php__", "__ruby__", "__go__")


def _program_backend(files: build.VocabularyFiles, tokens: build.Tokens, options: build.Options) -> tokenizers.Tokenizer:
    codes = options["language_codes"]
    kept = tokens if codes == "base" else {name: token for name, token in tokens.items() if name != "mask_token"}
    return build.fairseq_backend(files, kept, options, between=_CODES_OF_PROGRAMS[codes])


class PLBartTokenizer(
    Multilingual,
    files={"vocab_file": "sentencepiece.bpe.model", "tokenizer_file": "tokenizer.json"},
    tokens={"bos_token": "<s>"} | _TOKENS,
    build=_program_backend,
    options={"src_lang": None, "tgt_lang": None, "language_codes": "base", "sp_model_kwargs": None},
    template=None,
    extra_tokens=lambda options: _CODES_OF_PROGRAMS[options["language_codes"]],
    applied=True,
    model_types=("plbart",),
):
    """PLBART's tokenizer: the end of a text follows it, and then the language, of programs or English, where one is set.

    Languages are such as ``"python"`` or ``"__python__"``; ``language_codes`` are ``"base"``, three of them and a mask, or
    ``"multi"``, seven, where texts without one are English. Other options are as for mBART.
    """

    clean_up_tokenization_spaces = True

    @property
    def languages(self) -> tuple[str, ...]:  # type: ignore[override]
        return _CODES_OF_PROGRAMS[self._options["language_codes"]]

    def token_of(self, code: str) -> str:
        return code if code.startswith("__") else f"__{code}__"

    @property  # type: ignore[override]
    def src_lang(self) -> str | None:
        """The language of texts, as its token."""
        code = self._options["src_lang"] or (None if self._options["language_codes"] == "base" else self.first_language)
        return None if code is None else self.token_of(code)

    @src_lang.setter
    def src_lang(self, code: str | None) -> None:
        Multilingual.src_lang.fset(self, code)  # type: ignore[attr-defined]

    def _speak(self, backend: tokenizers.Tokenizer, code: str | None) -> None:
        if code is None:
            ends = ("A", "eos"), ("A", "B", "eos")
            backend.post_processor = build.template_processor(ends, self.special_tokens_map, backend)
        else:
            super()._speak(backend, self.token_of(code))

    @property
    def spoken(self) -> Template:
        return ("A", "eos", "lang"), ("A", "B", "eos", "lang")
