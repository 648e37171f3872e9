"""The public names of tokenizers. The spelling with ``Fast`` means the same class: the library does the work of all."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import tokenizers

from transept.errors import InputError, nearest
from transept.preprocess.text import families, marian, tokenizer
from transept.preprocess.text.build import Template, template_processor
from transept.preprocess.text.loading import Parts
from transept.preprocess.text.tokenizer import Tokenizer

AddedToken = tokenizers.AddedToken
PreTrainedTokenizerFast = PreTrainedTokenizer = PreTrainedTokenizerBase = TokenizersBackend = tokenizer.Tokenizer
MarianTokenizer = marian.MarianTokenizer


class BertTokenizer(Tokenizer):
    """BERT's tokenizer. ``do_lower_case``, ``tokenize_chinese_chars`` and ``strip_accents`` are its options."""

    family = families.BERT


class DistilBertTokenizer(BertTokenizer):
    """DistilBERT's: BERT's without token types."""

    family = families.DISTILBERT


class ElectraTokenizer(BertTokenizer):
    """ELECTRA's: BERT's."""

    family = families.ELECTRA


class MPNetTokenizer(BertTokenizer):
    """MPNet's: BERT's word pieces with RoBERTa's special tokens."""

    family = families.MPNET


class GPT2Tokenizer(Tokenizer):
    """GPT-2's tokenizer. Options: ``add_prefix_space``, ``add_bos_token`` and ``add_eos_token``."""

    family = families.GPT2


class RobertaTokenizer(GPT2Tokenizer):
    """RoBERTa's: GPT-2's byte pairs with special tokens around. Options: ``add_prefix_space``, ``trim_offsets``."""

    family = families.ROBERTA


class BartTokenizer(RobertaTokenizer):
    """BART's: RoBERTa's."""

    family = families.BART


class GPTNeoXTokenizer(GPT2Tokenizer):
    """GPT-NeoX's: GPT-2's byte pairs of text in Unicode's NFC."""

    family = families.GPT_NEOX


class Qwen2Tokenizer(GPT2Tokenizer):
    """Qwen2's: byte pairs of text in Unicode's NFC, with digits apart."""

    family = families.QWEN2


class CLIPTokenizer(GPT2Tokenizer):
    """CLIP's: byte pairs of lower-case words that end in ``</w>``, with the begin token before a text and the end after it."""

    family = families.CLIP

    def _decoded(self, ids: list[Any], skip_special_tokens: bool) -> str:
        return super()._decoded(ids, skip_special_tokens).replace("</w>", " ").strip()


class LlamaTokenizer(Tokenizer):
    """Llama's tokenizer (byte pairs with byte fallback).

    Options: ``legacy`` (whether the space before a text is also put after special tokens), ``add_prefix_space``,
    ``add_bos_token`` and ``add_eos_token``.
    """

    family = families.LLAMA


class GemmaTokenizer(Tokenizer):
    """Gemma's tokenizer (byte pairs with byte fallback). Options: ``add_bos_token`` and ``add_eos_token``."""

    family = families.GEMMA


class T5Tokenizer(Tokenizer):
    """T5's tokenizer. Option ``extra_ids``: how many sentinels ``<extra_id_0>``, ... follow the vocabulary."""

    family = families.T5


class ReformerTokenizer(Tokenizer):
    """Reformer's tokenizer (byte pairs), which adds no special tokens."""

    family = families.REFORMER


class AlbertTokenizer(Tokenizer):
    """ALBERT's tokenizer. Options: ``do_lower_case`` and ``keep_accents``."""

    family = families.ALBERT


class XLNetTokenizer(AlbertTokenizer):
    """XLNet's tokenizer: special tokens follow the text, and padding goes before it."""

    family = families.XLNET


class XLMRobertaTokenizer(Tokenizer):
    """XLM-RoBERTa's tokenizer, whose ids are those of fairseq: four special tokens, the pieces, the mask."""

    family = families.XLM_ROBERTA


class CamembertTokenizer(XLMRobertaTokenizer):
    """CamemBERT's tokenizer: fairseq's places are not used, and the model's own special pieces are."""

    family = families.CAMEMBERT


class BarthezTokenizer(XLMRobertaTokenizer):
    """BARThez's tokenizer: its model has fairseq's order already."""

    family = families.BARTHEZ


class DebertaV2Tokenizer(Tokenizer):
    """The tokenizer of DeBERTa's second and third version. Options: ``do_lower_case`` and ``split_by_punct``."""

    family = families.DEBERTA_V2


class MBartTokenizer(XLMRobertaTokenizer):
    """mBART's tokenizer: the end of a text and its language follow it.

    Options: ``src_lang`` is the language of texts and ``tgt_lang`` that of targets (that of texts when absent); both can be
    set at any time, and passed for one call. The codes of the languages follow the vocabulary, and the mask follows them.
    """

    languages: ClassVar[tuple[str, ...]] = families.LANGUAGES
    spoken: ClassVar[Template] = (("A", "eos", "lang"), ("A", "B", "eos", "lang"))
    family = families.MBART

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

    @property
    def tgt_lang(self) -> str | None:
        """The language of targets; that of texts where there is none."""
        code: str | None = self._options["tgt_lang"]
        return code

    @tgt_lang.setter
    def tgt_lang(self, code: str | None) -> None:
        self._options["tgt_lang"] = code

    def _speak(self, backend: tokenizers.Tokenizer, code: str) -> None:
        """Put one language's token around texts.

        Raises:
            InputError: the vocabulary has no such language.
        """
        if code not in self.languages or backend.token_to_id(code) is None:
            hint = nearest(str(code), self.languages)
            raise InputError(f"{code!r} is no language of {type(self).__name__}.", hint=hint)
        tokens = self.special_tokens_map | {"lang_token": code}
        backend.post_processor = template_processor(self.spoken, tokens, backend)

    def _in_language(self, code: str) -> Self:
        if code == self.src_lang:
            return self
        views = self._views.twin(code, lambda backend: self._speak(backend, code))
        return self._with(_views=views, _options=self._options | {"src_lang": code})

    def _for_targets(self, language: str | None) -> Self:
        return self._in_language(language or self.tgt_lang or self.src_lang)


class MBart50Tokenizer(MBartTokenizer):
    """mBART-50's tokenizer: the language stands before a text, and there are 52 of them."""

    languages = families.MBART50_LANGUAGES
    spoken = (("lang", "A", "eos"), ("lang", "A", "B", "eos"))
    family = families.MBART50


BertTokenizerFast = BertTokenizer
DistilBertTokenizerFast = DistilBertTokenizer
ElectraTokenizerFast = ElectraTokenizer
MPNetTokenizerFast = MPNetTokenizer
GPT2TokenizerFast = GPT2Tokenizer
RobertaTokenizerFast = RobertaTokenizer
BartTokenizerFast = BartTokenizer
GPTNeoXTokenizerFast = GPTNeoXTokenizer
Qwen2TokenizerFast = Qwen2Tokenizer
CLIPTokenizerFast = CLIPTokenizer
LlamaTokenizerFast = LlamaTokenizer
GemmaTokenizerFast = GemmaTokenizer
T5TokenizerFast = T5Tokenizer
ReformerTokenizerFast = ReformerTokenizer
AlbertTokenizerFast = AlbertTokenizer
XLNetTokenizerFast = XLNetTokenizer
XLMRobertaTokenizerFast = XLMRobertaTokenizer
CamembertTokenizerFast = CamembertTokenizer
BarthezTokenizerFast = BarthezTokenizer
DebertaV2TokenizerFast = DebertaV2Tokenizer
MBartTokenizerFast = MBartTokenizer
MBart50TokenizerFast = MBart50Tokenizer
