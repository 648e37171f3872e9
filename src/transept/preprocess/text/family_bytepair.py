"""The families with byte-pair vocabularies (``vocab.json`` and ``merges.txt``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

from transept.preprocess.text.build import VocabularyFiles, byte_level_backend, byte_pair_model
from transept.preprocess.text.family_wordpiece import roberta_processor
from transept.preprocess.text.special import Token
from transept.preprocess.text.tiktoken import QWEN
from transept.preprocess.text.tokenizer import Tokenizer

_END = "<|endoftext|>"
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class GPT2Tokenizer(Tokenizer):
    """GPT-2's tokenizer. Options: ``add_prefix_space``, ``add_bos_token`` and ``add_eos_token``."""

    vocab_files_names: ClassVar[Mapping[str, str]] = {
        "vocab_file": "vocab.json",
        "merges_file": "merges.txt",
        "tokenizer_file": "tokenizer.json",
    }
    special_tokens: ClassVar[Mapping[str, Token | None]] = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
    options: ClassVar[Mapping[str, Any]] = {"add_prefix_space": False}
    portable: ClassVar[bool] = True

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Byte pairs; arguments as in the base class."""
        return byte_level_backend(files, add_prefix_space=bool(options["add_prefix_space"]))


class RobertaTokenizer(GPT2Tokenizer):
    """RoBERTa's: GPT-2's byte pairs with special tokens around. Options: ``add_prefix_space``, ``trim_offsets``."""

    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": AddedToken("<mask>", lstrip=True, special=True, normalized=False),
    }
    options: ClassVar[Mapping[str, Any]] = {"add_prefix_space": False, "trim_offsets": True}

    @classmethod
    def adjust(cls, backend: tokenizers.Tokenizer, tokens: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """RoBERTa's rule for special tokens."""
        backend.post_processor = roberta_processor(
            backend,
            tokens,
            trim_offsets=bool(options["trim_offsets"]),
            add_prefix_space=bool(options["add_prefix_space"]),
        )


class BartTokenizer(RobertaTokenizer):
    """BART's: RoBERTa's."""


class GPTNeoXTokenizer(GPT2Tokenizer):
    """GPT-NeoX's: GPT-2's byte pairs of text in Unicode's NFC."""

    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": _END,
        "eos_token": _END,
        "unk_token": _END,
        "pad_token": "<|padding|>",
    }

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Byte pairs; arguments as in the base class."""
        return byte_level_backend(files, add_prefix_space=bool(options["add_prefix_space"]), compose=True)


class Qwen2Tokenizer(GPT2Tokenizer):
    """Qwen2's: byte pairs of text in Unicode's NFC, with digits apart."""

    special_tokens: ClassVar[Mapping[str, Token | None]] = {"eos_token": _END, "unk_token": _END, "pad_token": _END}

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Byte pairs; arguments as in the base class."""
        return byte_level_backend(files, add_prefix_space=bool(options["add_prefix_space"]), pattern=QWEN, compose=True)


class CLIPTokenizer(GPT2Tokenizer):
    """CLIP's: byte pairs of lower-case words that end in ``</w>``."""

    special_tokens: ClassVar[Mapping[str, Token | None]] = {
        "bos_token": "<|startoftext|>",
        "eos_token": _END,
        "unk_token": _END,
        "pad_token": _END,
    }
    options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def build(cls, files: VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """Byte pairs; arguments as in the base class."""
        ends = {"continuing_subword_prefix": "", "end_of_word_suffix": "</w>"}
        backend = tokenizers.Tokenizer(byte_pair_model(files, fuse_unk=False, unk_token=tokens["unk_token"], **ends))
        backend.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        )
        words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        backend.decoder = decoders.ByteLevel()
        return backend

    @classmethod
    def adjust(cls, backend: tokenizers.Tokenizer, tokens: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """The begin token before a text and the end token after it."""
        ends = {"sep_token": tokens["eos_token"], "cls_token": tokens["bos_token"]}
        backend.post_processor = roberta_processor(backend, ends, trim_offsets=False, add_prefix_space=False)

    def _decoded(self, ids: list[Any], skip_special_tokens: bool) -> str:
        return super()._decoded(ids, skip_special_tokens).replace("</w>", " ").strip()
