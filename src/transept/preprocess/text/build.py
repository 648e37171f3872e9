"""Vocabulary files, and the backends that are built from them for tokenizers that come without a ``tokenizer.json``."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from transept.errors import FormatError, InputError, InputTypeError
from transept.files import load_object, read_bytes, read_text
from transept.preprocess.text.backend import MAX_PIECE, PathOr, check_piece, guarded
from transept.preprocess.text.sentencepiece import (
    BPE,
    SentencePieceModel,
    merges_of,
    read_sentencepiece,
    sentencepiece_backend,
)
from transept.preprocess.text.special import Token

Vocab = dict[str, int]
Merges = list[tuple[str, str]]
Tokens = Mapping[str, str]
Options = Mapping[str, Any]
MAX_ID = 2**31 - 1

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
PATTERNS = {
    "cl100k_base": LLAMA3.replace(r"|\s*[\r\n]+|", r"|\s+\z|\s*[\r\n]+|"),
    "o200k_base": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}",
    "qwen": QWEN,
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "multilingual"), GPT2),
}
"""How texts are split into words with a tiktoken file of that name; with others it is Llama 3's way."""


# Vocabulary files


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


def load_vocab(source: PathOr | Mapping[str, Any]) -> Vocab:
    """Token -> id, from ``vocab.txt`` (a line a token, its number the id), ``vocab.json``, or such a mapping.

    Raises:
        FileError: the file cannot be read.
        FormatError: an id that is no integer from 0 on, or two tokens with one id.
    """
    if isinstance(source, Mapping):
        return _checked_vocab(source, None)
    if not isinstance(source, str | os.PathLike):
        raise InputTypeError(f"a vocabulary is a path or a mapping of tokens to ids, but {type(source).__name__} was passed.")
    if Path(source).suffix == ".json":
        return _checked_vocab(load_object(source), source)
    # A token that stands twice has its last id, as everywhere: the ids of all others must not move.
    return {token: place for place, token in enumerate(_lines(source))}


def _checked_vocab(vocab: Mapping[Any, Any], path: PathOr | None) -> Vocab:
    found: dict[int, str] = {}
    for token, index in vocab.items():
        if not isinstance(token, str) or type(index) is not int or not 0 <= index <= MAX_ID:
            raise FormatError(f"the token {token!r} has the id {index!r}, but ids are integers from 0 on.", path=path)
        if found.setdefault(index, token) != token:
            raise FormatError(f"the tokens {found[index]!r} and {token!r} have the same id {index}.", path=path)
    return dict(vocab)


def load_merges(source: PathOr | Sequence[Any]) -> Merges:
    """Pairs of pieces in the order in which they are joined, from ``merges.txt`` or from a list.

    Raises:
        FileError: the file cannot be read.
        FormatError: a line that is not two pieces with one space between.
    """
    if isinstance(source, str | os.PathLike):
        lines = [line for line in _lines(source) if line and not line.startswith("#version")]
        return [_pair(line.split(" "), place, source) for place, line in enumerate(lines)]
    if not isinstance(source, Sequence):
        raise InputTypeError(f"merges are a path or a list of pairs, but {type(source).__name__} was passed.")
    return [_pair(merge.split(" ") if isinstance(merge, str) else merge, place) for place, merge in enumerate(source)]


def _pair(parts: Any, place: int, path: PathOr | None = None) -> tuple[str, str]:
    if not isinstance(parts, list | tuple) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
        raise FormatError(f"merge {place} is not two pieces with one space between: {parts!r:.80}.", path=path)
    return parts[0], parts[1]


def _lines(path: PathOr) -> list[str]:
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n")


def is_tiktoken(path: PathOr) -> bool:
    """Whether a file is tiktoken's, by its name or by its first line; ``.model`` is the name of such files too."""
    if Path(path).suffix == ".tiktoken":
        return True
    code, _, rank = read_bytes(path).split(b"\n", 1)[0].strip().partition(b" ")
    return rank.isdigit() and code.replace(b"+", b"").replace(b"/", b"").rstrip(b"=").isalnum()


def read_ranks(path: PathOr) -> dict[bytes, int]:
    """The tokens of a tiktoken file (a line a token, its bytes in base64 and its rank) and their ranks, which are their ids.

    Raises:
        FileError: it cannot be read.
        FormatError: a line that is no such pair, a token or a rank that stands twice, or a byte without a token.
    """
    ranks: dict[bytes, int] = {}
    for number, token, rank in _ranked_lines(path):
        if token in ranks:
            raise FormatError(f"line {number} repeats the token {token!r}.", path=path)
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise FormatError("gives two tokens the same rank.", path=path)
    if missing := [byte for byte in range(256) if bytes((byte,)) not in ranks]:
        raise FormatError(f"lacks a token for {len(missing)} single bytes, such as {missing[0]}.", path=path)
    return ranks


def _ranked_lines(path: PathOr) -> Iterator[tuple[int, bytes, int]]:
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line:
            continue
        code, _, rank = line.partition(b" ")
        try:
            token = b"" if code == b"=" else base64.b64decode(code, validate=True)
            if not rank.isdigit() or len(rank) > 9:
                raise ValueError(rank)
        except (binascii.Error, ValueError) as error:
            raise FormatError(f"line {number} is not a token in base64 and its rank: {line[:60]!r}.", path=path) from error
        if len(token) > MAX_PIECE:
            check_piece("x" * len(token), f"line {number}", path)
        yield number, token, int(rank)


# Backends


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
    backend = Tokenizer(byte_pair_model(files, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    if compose:
        backend.normalizer = normalizers.NFC()
    return _on_bytes(backend, pattern, add_prefix_space=add_prefix_space)


def _on_bytes(backend: Tokenizer, pattern: str | None, *, add_prefix_space: bool = False) -> Tokenizer:
    """Make a backend split texts into words by a pattern, GPT-2's where it is ``None``, and write bytes as letters."""
    if pattern is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    else:
        letters = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), letters])
    backend.decoder = decoders.ByteLevel()
    return backend


def tiktoken_backend(path: PathOr) -> Tokenizer:
    """A backend with the vocabulary of a tiktoken file; errors as of :func:`read_ranks`."""
    letters = byte_letters()
    ranks = {"".join([letters[byte] for byte in token]): rank for token, rank in read_ranks(path).items()}
    merges = merges_of({token: -rank for token, rank in ranks.items()})
    backend = Tokenizer(models.BPE(vocab=ranks, merges=merges, fuse_unk=False, ignore_merges=True))
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return _on_bytes(backend, PATTERNS.get(Path(path).stem, LLAMA3))


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it is a visible character, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def any_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """A backend from whatever vocabulary there is, by what is in it, for a tokenizer of no known family."""
    vocab = files.need_vocab()
    if (model := files.sentencepiece) is not None:
        return sentencepiece_backend(model, prefix="first" if model.trainer.model_type == BPE else "always")
    if files.path is not None and is_tiktoken(files.path):
        return tiktoken_backend(files.path)
    unk_token = tokens.get("unk_token")
    if files.merges is None:
        return wordpiece_backend(files, unk_token=unk_token or "[UNK]")
    known = load_vocab(vocab)
    if sum(letter in known for letter in byte_letters()) >= 200:
        return byte_level_backend(files)
    suffix = "</w>" if any(token.endswith("</w>") for token in known) else ""
    backend = Tokenizer(byte_pair_model(files, unk_token=unk_token, end_of_word_suffix=suffix))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=suffix)
    return backend


# Special tokens around texts

Template = tuple[tuple[str, ...], tuple[str, ...]]
"""Where special tokens go around one text and around two: ``cls``, ``sep``, ``bos``, ``eos``, and ``A`` and ``B`` for
the texts; after a colon the token type id where it is not 0."""


def template_processor(template: Template, tokens: Tokens, backend: Tokenizer) -> processors.PostProcessor:
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


def index_of(backend: Tokenizer, token: str) -> int:
    """The id of a special token; ``FormatError`` where the vocabulary lacks it."""
    if (index := backend.token_to_id(token)) is None:
        raise FormatError(f"the special token {token!r} is not in the vocabulary.")
    return index


@dataclass(frozen=True)
class Family:
    """What the tokenizers of one family have in common; a tokenizer class is the public name of one of these.

    Args:
        files: argument of the class -> name of the file that a model has for it.
        tokens: the special tokens by name.
        build: makes the backend of vocabulary files, special tokens and options.
        options: options of the rules and their defaults; ``None`` where the files decide.
        template: where special tokens go; ``None``: before and after each text, as the options ask.
        finish: changes a backend that has its special tokens.
        extra_tokens: the special tokens without a name, by the options.
        inputs: the names of what a call returns (``model_input_names``).
        padding_side: where padding goes.
        pad_type: the token type of padding.
        max_length: how many tokens the models take, where all of them take as many.
        applied: options that the class itself applies and no file has rules for; its name is saved, so that they are found
            again.
        portable: whether the reference, told the class's name, builds the very backend that ``build`` makes.
        model_types: ``model_type`` of configs whose models have these tokenizers, where their files name no class.
    """

    files: Mapping[str, str] = field(default_factory=lambda: {"tokenizer_file": "tokenizer.json"})
    tokens: Mapping[str, Token | None] = field(default_factory=dict)
    build: Callable[[VocabularyFiles, Tokens, Options], Tokenizer] = any_backend
    options: Options = field(default_factory=lambda: {"add_prefix_space": None, "add_bos_token": False, "add_eos_token": False})
    template: Template | None = None
    finish: Callable[[Tokenizer, Tokens, Options], None] | None = None
    extra_tokens: Callable[[Options], Sequence[str]] = lambda options: ()
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    padding_side: str = "right"
    pad_type: int = 0
    max_length: int | None = None
    applied: frozenset[str] = frozenset()
    portable: bool = False
    model_types: tuple[str, ...] = ()
