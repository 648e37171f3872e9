"""Backends from vocabulary files, for tokenizers that come without a ``tokenizer.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from transept.errors import FormatError, InputError
from transept.files import read_bytes
from transept.preprocess.text.backend import guarded
from transept.preprocess.text.segmentation import sentencepiece_backend
from transept.preprocess.text.sentencepiece import BPE, SentencePieceModel, read_sentencepiece
from transept.preprocess.text.tiktoken import byte_letters, tiktoken_backend
from transept.preprocess.text.vocab_files import Merges, PathOr, Vocab, load_merges, load_vocab


@dataclass(frozen=True)
class VocabularyFiles:
    """What a backend is built from: paths, or the content itself.

    Args:
        vocab: ``vocab.txt``, ``vocab.json``, a ``.model`` or tiktoken file, or a mapping of tokens to ids.
        merges: ``merges.txt``, or a list of pairs.
    """

    vocab: PathOr | Mapping[str, Any] | None = None
    merges: PathOr | Sequence[Any] | None = None

    def need_vocab(self) -> PathOr | Mapping[str, Any]:
        """The vocabulary; ``InputError`` where there is none."""
        if self.vocab is None:
            raise InputError(
                "there is no vocabulary to build the tokenizer from.",
                hint="Pass vocab=, vocab_file= or tokenizer_file=, or call from_pretrained().",
            )
        return self.vocab

    def need_merges(self) -> Merges:
        """The merges; ``InputError`` where there are none."""
        if self.merges is None:
            raise InputError("there are no merges for the byte-pair vocabulary.", hint="Pass merges= or merges_file=.")
        return load_merges(self.merges)

    @cached_property
    def sentencepiece(self) -> SentencePieceModel | None:
        """The SentencePiece model that the vocabulary is, or ``None`` where it is of another kind."""
        path = self.path
        if path is None or Path(path).suffix in (".txt", ".json") or is_tiktoken(path):
            return None
        return read_sentencepiece(path)

    def need_sentencepiece(self) -> SentencePieceModel:
        """The SentencePiece model; ``InputError`` where the vocabulary is none."""
        self.need_vocab()
        if self.sentencepiece is None:
            raise InputError("this tokenizer is built from a SentencePiece model.", hint="Pass the path of its .model file.")
        return self.sentencepiece

    @property
    def path(self) -> PathOr | None:
        """The vocabulary's file, for messages."""
        return self.vocab if isinstance(self.vocab, str | os.PathLike) else None


def wordpiece_backend(
    files: VocabularyFiles,
    *,
    unk_token: str,
    do_lower_case: bool = True,
    tokenize_chinese_chars: bool = True,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """BERT's word pieces (Devlin et al. 2018, arXiv:1810.04805).

    Raises:
        FormatError: the vocabulary is none, or lacks ``unk_token``.
    """
    vocab = load_vocab(files.need_vocab())
    if unk_token not in vocab:
        raise FormatError(f"the vocabulary lacks {unk_token!r}, which stands for unknown words.", path=files.path)
    backend = Tokenizer(models.WordPiece(vocab, unk_token=unk_token))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenize_chinese_chars,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def byte_pair_model(files: VocabularyFiles, **settings: Any) -> models.BPE:
    """A byte-pair model of a vocabulary and its merges; ``FormatError`` where they contradict each other."""
    vocab, merges = load_vocab(files.need_vocab()), files.need_merges()
    with guarded(FormatError, "the merges do not fit the vocabulary", files.path):
        return models.BPE(vocab=vocab, merges=merges, dropout=None, **settings)


def byte_level_backend(
    files: VocabularyFiles, *, add_prefix_space: bool = False, pattern: str | None = None, compose: bool = False
) -> Tokenizer:
    """GPT-2's byte pairs (Radford et al. 2019).

    Args:
        files: vocabulary and merges.
        add_prefix_space: whether a text gets a space before it.
        pattern: how texts are split into words, where not as in GPT-2.
        compose: whether texts are brought to Unicode's NFC.
    """
    model = byte_pair_model(files, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    backend = Tokenizer(model)
    if compose:
        backend.normalizer = normalizers.NFC()
    if pattern is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False),
            ]
        )
    backend.decoder = decoders.ByteLevel()
    return backend


def any_backend(files: VocabularyFiles, *, unk_token: str | None = None) -> Tokenizer:
    """A backend from whatever vocabulary there is, by what is in it, for a tokenizer of no known family."""
    vocab = files.need_vocab()
    if (model := files.sentencepiece) is not None:
        return sentencepiece_backend(model, prefix="first" if model.trainer.model_type == BPE else "always")
    if files.path is not None and is_tiktoken(files.path):
        return tiktoken_backend(files.path)
    if files.merges is None:
        return wordpiece_backend(files, unk_token=unk_token or "[UNK]")
    tokens = load_vocab(vocab)
    if sum(letter in tokens for letter in byte_letters()) >= 200:
        return byte_level_backend(files)
    return _plain_backend(files, tokens, unk_token)


def _plain_backend(files: VocabularyFiles, tokens: Vocab, unk_token: str | None) -> Tokenizer:
    """Byte pairs over characters, of words between spaces."""
    suffix = "</w>" if any(token.endswith("</w>") for token in tokens) else ""
    backend = Tokenizer(byte_pair_model(files, unk_token=unk_token, end_of_word_suffix=suffix))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=suffix)
    return backend


def is_tiktoken(path: PathOr) -> bool:
    """Whether a file is tiktoken's, by its name or by its first line; ``.model`` is the name of such files too."""
    if Path(path).suffix == ".tiktoken":
        return True
    code, _, rank = read_bytes(path).split(b"\n", 1)[0].strip().partition(b" ")
    return rank.isdigit() and code.replace(b"+", b"").replace(b"/", b"").rstrip(b"=").isalnum()


def index_of(backend: Tokenizer, token: str) -> int:
    """The id of a special token; ``FormatError`` where the vocabulary lacks it."""
    if (index := backend.token_to_id(token)) is None:
        raise FormatError(f"the special token {token!r} is not in the vocabulary.")
    return index


Template = tuple[tuple[str, ...], tuple[str, ...]]
"""Where special tokens go around one text and around two: ``cls``, ``sep``, ``bos``, ``eos``, and ``A`` and ``B`` for
the texts; after a colon the token type id where it is not 0."""


def template_processor(template: Template, tokens: Mapping[str, str], backend: Tokenizer) -> processors.PostProcessor:
    """The rule that puts special tokens around texts.

    Args:
        template: where they go.
        tokens: name -> text of the special tokens.
        backend: the vocabulary that has them.
    """
    used: dict[str, int] = {}

    def piece(spec: str) -> str:
        name, _, kind = spec.partition(":")
        if name in ("A", "B"):
            return f"${name}:{kind or 0}"
        text = tokens[f"{name}_token"]
        used[text] = index_of(backend, text)
        return f"{text}:{kind or 0}"

    single, pair = ([piece(spec) for spec in specs] for specs in template)
    with guarded(FormatError, "the special tokens cannot be put around texts"):
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(used.items()))


def ends_template(*, add_bos: bool, add_eos: bool) -> Template:
    """The template that puts ``bos`` before each text and ``eos`` after each, where asked to."""
    bos, eos = ("bos",) * add_bos, ("eos",) * add_eos
    second = tuple(f"{name}:1" for name in (*bos, "B", *eos))
    return (*bos, "A", *eos), (*bos, "A", *eos, *second)
