"""The families with SentencePiece vocabularies (``.model``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, normalizers, pre_tokenizers

from transept.errors import FormatError
from transept.preprocess.text.build import Template, VocabularyFiles
from transept.preprocess.text.segmentation import sentencepiece_backend
from transept.preprocess.text.sentencepiece import CONTROL, UNKNOWN, Piece, SentencePieceModel
from transept.preprocess.text.special import Token
from transept.preprocess.text.tokenizer import Tokenizer

MAX_SENTINELS = 10_000
_BERT_TEMPLATE: Template = (("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1"))
_ROBERTA_TEMPLATE: Template = (("bos", "A", "eos"), ("bos", "A", "eos", "eos", "B", "eos"))


def _mask(text: str) -> AddedToken:
    """A mask token takes the space before it, as a word does."""
    return AddedToken(text, lstrip=True, special=True, normalized=False)


def _files(vocab_name: str) -> Mapping[str, str]:
    return {"vocab_file": vocab_name, "tokenizer_file": "tokenizer.json"}


def _cleaned(options: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """What ALBERT and XLNet do to a text before SentencePiece does its part."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not options["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if options["do_lower_case"] else steps


class LlamaTokenizer(Tokenizer):
    """Llama's tokenizer (byte pairs with byte fallback).

    Options: ``legacy`` (whether the space before a text is also put after special tokens), ``add_prefix_space``,
    ``add_bos_token`` and ``add_eos_token``.
    """

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("tokenizer.model")
    padding_side = "left"
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    options: ClassVar[Mapping[str, Any]] = {"legacy": False, "add_prefix_space": None}

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces in their own order; arguments as in the base class."""
        prefix = "always" if options["legacy"] else "first"
        if options["add_prefix_space"] is False:
            prefix = "never"
        return sentencepiece_backend(files.need_sentencepiece(), prefix=prefix)


class GemmaTokenizer(Tokenizer):
    """Gemma's tokenizer (byte pairs with byte fallback). Options: ``add_bos_token`` and ``add_eos_token``."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("tokenizer.model")
    padding_side = "left"
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces in their own order; arguments as in the base class."""
        return sentencepiece_backend(files.need_sentencepiece())


class T5Tokenizer(Tokenizer):
    """T5's tokenizer. Option ``extra_ids``: how many sentinels ``<extra_id_0>``, ... follow the vocabulary."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("spiece.model")
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    options: ClassVar[Mapping[str, Any]] = {"extra_ids": 100}
    template: ClassVar[Template | None] = (("A", "eos"), ("A", "eos", "B", "eos"))

    @classmethod
    def extra_tokens(cls, options: Mapping[str, Any]) -> list[str]:
        """The sentinels; ``FormatError`` where their number is none."""
        count = options["extra_ids"]
        if type(count) is not int or not 0 <= count <= MAX_SENTINELS:
            raise FormatError(f"extra_ids is {count!r}, but must be an integer from 0 to {MAX_SENTINELS}.")
        return [f"<extra_id_{place}>" for place in range(count)]

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces, then the sentinels from the last to the first; arguments as in the base class."""
        model = files.need_sentencepiece()
        known = {piece.text for piece in model.pieces}
        sentinels = [text for text in reversed(cls.extra_tokens(options)) if text not in known]
        pieces = [*model.pieces, *(Piece(text, kind=CONTROL) for text in sentinels)]
        return sentencepiece_backend(model, pieces=pieces)


class ReformerTokenizer(Tokenizer):
    """Reformer's tokenizer (byte pairs), which adds no special tokens."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("spiece.model")
    special_tokens: ClassVar[Mapping[str, Token | None]] = {"eos_token": "</s>", "unk_token": "<unk>"}
    options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces in their own order; arguments as in the base class."""
        return sentencepiece_backend(files.need_sentencepiece())


class AlbertTokenizer(Tokenizer):
    """ALBERT's tokenizer. Options: ``do_lower_case`` and ``keep_accents``."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("spiece.model")
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": _mask("[MASK]"),
    }
    options: ClassVar[Mapping[str, Any]] = {"do_lower_case": True, "keep_accents": False}
    template: ClassVar[Template | None] = _BERT_TEMPLATE

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces in their own order, of cleaned text; arguments as in the base class."""
        return sentencepiece_backend(files.need_sentencepiece(), before=_cleaned(options))


class XLNetTokenizer(AlbertTokenizer):
    """XLNet's tokenizer: special tokens follow the text, and padding goes before it."""

    padding_side = "left"
    pad_token_type_id: ClassVar[int] = 3
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "<sep>",
        "pad_token": "<pad>",
        "cls_token": "<cls>",
        "mask_token": _mask("<mask>"),
    }
    options: ClassVar[Mapping[str, Any]] = {"do_lower_case": False, "keep_accents": False}
    template: ClassVar[Template | None] = (("A", "sep", "cls:2"), ("A", "sep", "B:1", "sep:1", "cls:2"))

    @classmethod
    def extra_tokens(cls, options: Mapping[str, Any]) -> list[str]:
        """End of paragraph and end of document."""
        return ["<eop>", "<eod>"]


class XLMRobertaTokenizer(Tokenizer):
    """XLM-RoBERTa's tokenizer, whose ids are those of fairseq: four special tokens, the pieces, the mask."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("sentencepiece.bpe.model")
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": _mask("<mask>"),
    }
    options: ClassVar[Mapping[str, Any]] = {}
    template: ClassVar[Template | None] = _ROBERTA_TEMPLATE

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Arguments as in the base class."""
        model = files.need_sentencepiece()
        return sentencepiece_backend(model, pieces=cls.pieces(model, tokens))

    @classmethod
    def pieces(cls, model: SentencePieceModel, tokens: Mapping[str, str]) -> Sequence[Piece]:
        """The vocabulary by id: the model's own special pieces give way to fairseq's."""
        first = [
            Piece(tokens[f"{role}_token"], kind=UNKNOWN if role == "unk" else CONTROL) for role in ("bos", "pad", "eos", "unk")
        ]
        return [*first, *model.pieces[3:], Piece(tokens["mask_token"], kind=CONTROL)]


class CamembertTokenizer(XLMRobertaTokenizer):
    """CamemBERT's tokenizer: fairseq's places are not used, and the model's own special pieces are."""

    @classmethod
    def extra_tokens(cls, options: Mapping[str, Any]) -> list[str]:
        """The places that are not used."""
        return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]

    @classmethod
    def pieces(cls, model: SentencePieceModel, tokens: Mapping[str, str]) -> Sequence[Piece]:
        """The vocabulary by id."""
        first = [
            Piece("<s>NOTUSED", kind=CONTROL),
            Piece(tokens["pad_token"], kind=CONTROL),
            Piece("</s>NOTUSED", kind=CONTROL),
            Piece(tokens["unk_token"], kind=UNKNOWN),
            Piece("<unk>NOTUSED", kind=CONTROL),
        ]
        return [*first, *model.pieces[1:], Piece(tokens["mask_token"], kind=CONTROL)]


class BarthezTokenizer(XLMRobertaTokenizer):
    """BARThez's tokenizer: its model has fairseq's order already."""

    @classmethod
    def pieces(cls, model: SentencePieceModel, tokens: Mapping[str, str]) -> Sequence[Piece]:
        """The vocabulary by id."""
        return model.pieces


class DebertaV2Tokenizer(Tokenizer):
    """The tokenizer of DeBERTa's second and third version. Options: ``do_lower_case`` and ``split_by_punct``."""

    vocab_files_names: ClassVar[Mapping[str, str]] = _files("spm.model")
    model_input_names = ["input_ids", "attention_mask", "token_type_ids"]
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    options: ClassVar[Mapping[str, Any]] = {"do_lower_case": False, "split_by_punct": False}
    template: ClassVar[Template | None] = _BERT_TEMPLATE

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The model's pieces in their own order; arguments as in the base class."""
        lower = [normalizers.Lowercase()] if options["do_lower_case"] else []
        apart = [pre_tokenizers.Punctuation(behavior="isolated")] if options["split_by_punct"] else []
        return sentencepiece_backend(files.need_sentencepiece(), before=lower, before_words=apart)
