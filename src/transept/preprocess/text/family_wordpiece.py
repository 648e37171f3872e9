"""The families with WordPiece vocabularies (``vocab.txt``): BERT and those that took its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, processors

from transept.preprocess.text.build import Template, VocabularyFiles, index_of, wordpiece_backend
from transept.preprocess.text.special import Token
from transept.preprocess.text.tokenizer import Tokenizer


class BertTokenizer(Tokenizer):
    """BERT's tokenizer. ``do_lower_case``, ``tokenize_chinese_chars`` and ``strip_accents`` are its options."""

    vocab_files_names: ClassVar[Mapping[str, str]] = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    options: ClassVar[Mapping[str, Any]] = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
    template: ClassVar[Template | None] = (("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1"))
    portable: ClassVar[bool] = True

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Word pieces; arguments as in the base class."""
        return wordpiece_backend(files, unk_token=tokens["unk_token"], **options)


class DistilBertTokenizer(BertTokenizer):
    """DistilBERT's: BERT's without token types."""

    model_input_names = ["input_ids", "attention_mask"]


class ElectraTokenizer(BertTokenizer):
    """ELECTRA's: BERT's."""


class MPNetTokenizer(BertTokenizer):
    """MPNet's: BERT's word pieces with RoBERTa's special tokens."""

    model_input_names = ["input_ids", "attention_mask"]
    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "[UNK]",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": AddedToken("<mask>", lstrip=True, special=True, normalized=False),
    }
    template: ClassVar[Template | None] = (("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep"))

    @classmethod
    def adjust(cls, backend: tokenizers.Tokenizer, tokens: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """RoBERTa's rule for special tokens."""
        backend.post_processor = roberta_processor(backend, tokens, trim_offsets=True, add_prefix_space=False)


def roberta_processor(
    backend: tokenizers.Tokenizer, tokens: Mapping[str, str], *, trim_offsets: bool, add_prefix_space: bool
) -> processors.RobertaProcessing:
    """``<s> A </s>`` and ``<s> A </s></s> B </s>``, with offsets that leave out the space before a word."""
    sep, cls = tokens["sep_token"], tokens["cls_token"]
    return processors.RobertaProcessing(
        (sep, index_of(backend, sep)), (cls, index_of(backend, cls)), trim_offsets, add_prefix_space
    )
