"""Backends that are built from vocabulary files, or learnt from texts, for tokenizers without a ``tokenizer.json``."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from transept.errors import FormatError, InputError
from transept.preprocess.settings import need
from transept.preprocess.text.backend import check_piece, guarded
from transept.preprocess.text.sentencepiece import (
    BPE,
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    merges_of,
    read_sentencepiece,
    sentencepiece_backend,
)
from transept.preprocess.text.settings import PathOr
from transept.storage.files import load_object, read_bytes, read_text

Vocab = dict[str, int]
Tokens = Mapping[str, str]
Options = Mapping[str, Any]
Build = Callable[["VocabularyFiles", Tokens, Options], Tokenizer]
Around = Callable[[Tokenizer, Tokens, Options], processors.PostProcessor]
Template = tuple[tuple[str, ...], tuple[str, ...]]
"""Where special tokens go around one text and around two: ``cls``, ``sep``, ``bos``, ``eos``, and ``A`` and ``B`` for
the texts; after a colon the token type id where it is not 0."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN3_5 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
BY_NAME = {
    "cl100k_base": LLAMA3.replace(r"|\s*[\r\n]+|", r"|\s+\z|\s*[\r\n]+|"),
    "o200k_base": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}",
    "qwen": QWEN,
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "multilingual"), GPT2),
}
"""How texts are split into words with a tiktoken file of that name; with others it is Llama 3's way."""
_MAX_SENTINELS = 10_000
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


# Vocabulary files


@dataclass(frozen=True)
class VocabularyFiles:
    """What a backend is built from: paths or the content of a vocabulary, of any kind, and for byte pairs of the merges."""

    vocab: Any = None
    merges: Any = None

    def need(self) -> Any:
        """The vocabulary; ``InputError`` where there is none."""
        if self.vocab is None:
            hint = "Pass vocab=, vocab_file= or tokenizer_file=, or call from_pretrained()."
            raise InputError("there is no vocabulary to build the tokenizer from.", hint=hint)
        return self.vocab

    @property
    def path(self) -> PathOr | None:
        """The vocabulary's file."""
        return self.vocab if isinstance(self.vocab, str | os.PathLike) else None

    def read_vocab(self) -> Vocab:
        """Token -> id, from ``vocab.txt`` (a line a token, its number the id), ``vocab.json``, or such a mapping."""
        source, found = self.need(), dict[int, str]()
        need("a vocabulary", source, Mapping | str | os.PathLike, "a path or a mapping of tokens to ids")
        if not isinstance(source, Mapping):
            if Path(source).suffix != ".json":
                # A token that stands twice has its last id, as everywhere: the ids of all others must not move.
                return {token: place for place, token in enumerate(_lines(source))}
            source = load_object(source)
        for token, index in source.items():
            if not isinstance(token, str) or type(index) is not int or not 0 <= index < 2**31:
                raise FormatError(f"the token {token!r} has the id {index!r}, but ids are integers from 0 on.", path=self.path)
            if found.setdefault(index, token) != token:
                raise FormatError(f"the tokens {found[index]!r} and {token!r} have the same id {index}.", path=self.path)
        return dict(source)

    def read_merges(self) -> list[tuple[str, str]]:
        """Pairs of pieces in the order in which they are joined, from ``merges.txt`` (a line a pair) or from a list."""
        merges, path = self.merges, self.merges if isinstance(self.merges, str | os.PathLike) else None
        if merges is None:
            raise InputError("there are no merges for the byte-pair vocabulary.", hint="Pass merges= or merges_file=.")
        if isinstance(merges, str | os.PathLike):
            merges = [line for line in _lines(merges) if line and not line.startswith("#version")]
        need("merges", merges, Sequence, "a path or a list of pairs")
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        for place, pair in enumerate(pairs):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
                raise FormatError(f"merge {place} is not two pieces with one space between: {pair!r:.80}.", path=path)
        return [(pair[0], pair[1]) for pair in pairs]

    @cached_property
    def is_tiktoken(self) -> bool:
        """Whether the file is tiktoken's, by its name or by its first line; ``.model`` is the name of such files too."""
        if self.path is None or Path(self.path).suffix == ".tiktoken":
            return self.path is not None
        code, _, rank = read_bytes(self.path).split(b"\n", 1)[0].strip().partition(b" ")
        return rank.isdigit() and code.replace(b"+", b"").replace(b"/", b"").rstrip(b"=").isalnum()

    @cached_property
    def sentencepiece(self) -> SentencePieceModel | None:
        """The SentencePiece model that the vocabulary is, or ``None`` where it is of another kind."""
        if self.path is None or Path(self.path).suffix in (".txt", ".json") or self.is_tiktoken:
            return None
        return read_sentencepiece(self.path)

    def need_sentencepiece(self) -> SentencePieceModel:
        """The SentencePiece model; ``InputError`` where the vocabulary is none."""
        self.need()
        if self.sentencepiece is None:
            raise InputError("this tokenizer is built from a SentencePiece model.", hint="Pass the path of its .model file.")
        return self.sentencepiece


def _lines(path: PathOr) -> list[str]:
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n")


def read_ranks(path: PathOr) -> dict[bytes, int]:
    """The ids of the tokens of a tiktoken file: a line a token, its bytes in base64 and its rank, which is its id."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line:
            continue
        code, _, rank = line.partition(b" ")
        try:
            token = b"" if code == b"=" else base64.b64decode(code, validate=True)
            if not rank.isdigit() or len(rank) > 9:
                raise ValueError(rank)
        except ValueError as error:
            raise FormatError(f"line {number} is not a token in base64 and its rank: {line[:60]!r}.", path=path) from error
        check_piece(token, f"line {number}", path)
        if token in ranks:
            raise FormatError(f"line {number} repeats the token {token!r}.", path=path)
        ranks[token] = int(rank)
    if len(set(ranks.values())) != len(ranks):
        raise FormatError("gives two tokens the same rank.", path=path)
    if missing := [byte for byte in range(256) if bytes((byte,)) not in ranks]:
        raise FormatError(f"lacks a token for {len(missing)} single bytes, such as {missing[0]}.", path=path)
    return ranks


# Backends


def vocab_with_unknown(files: VocabularyFiles, tokens: Tokens) -> Vocab:
    """Token -> id; ``FormatError`` where the unknown token is not among them."""
    vocab, unknown = files.read_vocab(), tokens.get("unk_token")
    if unknown not in vocab:
        raise FormatError(f"the vocabulary lacks {unknown!r}, which stands for all unknown ones.", path=files.path)
    return vocab


def wordpiece_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """BERT's word pieces (Devlin et al. 2018, arXiv:1810.04805)."""
    backend = Tokenizer(models.WordPiece(vocab_with_unknown(files, tokens), unk_token=tokens["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=options.get("clean_text", True),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=options.get("wordpieces_prefix", "##"))
    return backend


def words_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """Whole tokens, the longest first, wherever they stand; what is between them is unknown, a word at a time."""
    vocab = vocab_with_unknown(files, tokens)
    words = sorted((word for word in vocab if word), key=len, reverse=True)
    backend = Tokenizer(models.WordLevel(vocab, unk_token=tokens["unk_token"]))
    apart = pre_tokenizers.Split(Regex("|".join(map(_escaped, words))), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([apart, pre_tokenizers.WhitespaceSplit()])
    return backend


def _escaped(word: str) -> str:
    """A pattern that fits a word alone."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in word)


def byte_pair_model(files: VocabularyFiles, **settings: Any) -> models.BPE:
    """A byte-pair model of a vocabulary and its merges; ``FormatError`` where they contradict each other."""
    vocab, merges = files.read_vocab(), files.read_merges()
    with guarded(FormatError, "the merges do not fit the vocabulary", files.path):
        return models.BPE(vocab=vocab, merges=merges, dropout=None, **settings)


def byte_level_backend(
    files: VocabularyFiles,
    tokens: Tokens,
    options: Options,
    *,
    pattern: str | None = None,
    compose: bool = False,
    digits: bool = False,
) -> Tokenizer:
    """GPT-2's byte pairs (Radford et al. 2019), of words split by a pattern, and with ``compose`` of text in Unicode's NFC.

    With ``digits`` each digit is a word.
    """
    backend = Tokenizer(byte_pair_model(files, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    if compose:
        backend.normalizer = normalizers.NFC()
    _on_bytes(backend, pattern, add_prefix_space=bool(options.get("add_prefix_space")))
    if digits:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), backend.pre_tokenizer])
    return backend


def _on_bytes(backend: Tokenizer, pattern: str | None, *, add_prefix_space: bool = False) -> Tokenizer:
    """Make a backend split texts into words by a pattern, GPT-2's where it is ``None``, and write bytes as letters."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=pattern is None)
    words = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, letters]) if words else letters
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it is a visible character, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def _tiktoken_backend(path: PathOr) -> Tokenizer:
    letters = byte_letters()
    ranks = {"".join([letters[byte] for byte in token]): rank for token, rank in read_ranks(path).items()}
    merges = merges_of({token: -rank for token, rank in ranks.items()})
    backend = Tokenizer(models.BPE(vocab=ranks, merges=merges, fuse_unk=False, ignore_merges=True))
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return _on_bytes(backend, BY_NAME.get(Path(path).stem, LLAMA3))


def any_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """A backend from whatever vocabulary there is, by what is in it, for a tokenizer of no known family."""
    files.need()
    if (model := files.sentencepiece) is not None:
        return sentencepiece_backend(model, prefix="first" if model.trainer.model_type == BPE else "always")
    if files.path is not None and files.is_tiktoken:
        return _tiktoken_backend(files.path)
    if files.merges is None:
        return wordpiece_backend(files, {"unk_token": "[UNK]"} | dict(tokens), {})
    known = files.read_vocab()
    if sum(letter in known for letter in byte_letters()) >= 200:
        return byte_level_backend(files, tokens, {})
    suffix = "</w>" if any(token.endswith("</w>") for token in known) else ""
    backend = Tokenizer(byte_pair_model(files, unk_token=tokens.get("unk_token"), end_of_word_suffix=suffix))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix=suffix)
    return backend


def clip_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    ends = {"continuing_subword_prefix": "", "end_of_word_suffix": "</w>"}
    backend = Tokenizer(byte_pair_model(files, fuse_unk=False, unk_token=tokens["unk_token"], **ends))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def gpt_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """The first GPT's byte pairs (Radford et al. 2018): lower-case words, split as BERT's, that end in ``</w>``."""
    ends = {"continuing_subword_prefix": "", "end_of_word_suffix": "</w>"}
    backend = Tokenizer(byte_pair_model(files, fuse_unk=False, unk_token=tokens["unk_token"], **ends))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


def _control(*texts: str) -> list[Piece]:
    return [Piece(text, kind=CONTROL) for text in texts]


def plain_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """The model's pieces in their own order."""
    return sentencepiece_backend(files.need_sentencepiece())


def llama_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    prefix = "never" if options["add_prefix_space"] is False else "always" if options["legacy"] else "first"
    return sentencepiece_backend(files.need_sentencepiece(), prefix=prefix)


def sentinels(options: Options) -> list[str]:
    count = options["extra_ids"]
    if type(count) is not int or not 0 <= count <= _MAX_SENTINELS:
        raise FormatError(f"extra_ids is {count!r:.40}, but must be an integer from 0 to {_MAX_SENTINELS}.")
    return [f"<extra_id_{place}>" for place in range(count)]


def t5_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """The model's pieces, then the sentinels from the last to the first."""
    model = files.need_sentencepiece()
    known = {piece.text for piece in model.pieces}
    more = [text for text in reversed(sentinels(options)) if text not in known]
    return sentencepiece_backend(model, pieces=[*model.pieces, *_control(*more)])


def cleaned_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """The model's pieces in their own order, of text without accents and with plain quotes."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not options["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if options["do_lower_case"]:
        steps.append(normalizers.Lowercase())
    return sentencepiece_backend(files.need_sentencepiece(), before=steps)


def siglip_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    """The model's pieces in their own order, of text without ASCII's punctuation and with single spaces."""
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if options["do_lower_case"] else []
    steps += [normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""), normalizers.Replace(Regex(r"\s+"), " ")]
    return sentencepiece_backend(files.need_sentencepiece(), before=[*steps, normalizers.Strip()])


def fairseq_backend(files: VocabularyFiles, tokens: Tokens, options: Options, between: tuple[str, ...] = ()) -> Tokenizer:
    """The order of fairseq's ids: four special tokens in place of the model's own, the pieces, ``between``, a mask."""
    model, bos = files.need_sentencepiece(), tokens.get("bos_token") or tokens["cls_token"]
    first = [*_control(bos, tokens["pad_token"], tokens["eos_token"]), Piece(tokens["unk_token"], kind=UNKNOWN)]
    last = [*between, *([tokens["mask_token"]] if "mask_token" in tokens else [])]
    return sentencepiece_backend(model, pieces=[*first, *model.pieces[3:], *_control(*last)])


def camembert_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    model, unknown = files.need_sentencepiece(), Piece(tokens["unk_token"], kind=UNKNOWN)
    first = [*_control("<s>NOTUSED", tokens["pad_token"], "</s>NOTUSED"), unknown, *_control("<unk>NOTUSED")]
    return sentencepiece_backend(model, pieces=[*first, *model.pieces[1:], *_control(tokens["mask_token"])])


def deberta_backend(files: VocabularyFiles, tokens: Tokens, options: Options) -> Tokenizer:
    lower = [normalizers.Lowercase()] if options["do_lower_case"] else []
    apart = [pre_tokenizers.Punctuation(behavior="isolated")] if options["split_by_punct"] else []
    return sentencepiece_backend(files.need_sentencepiece(), before=lower, before_words=apart)


# Special tokens around texts


def template_processor(template: Template, tokens: Tokens, backend: Tokenizer) -> processors.PostProcessor:
    """The rule that puts special tokens around texts; errors as of :func:`token_of`."""
    used: dict[str, int] = {}

    def piece(spec: str) -> str:
        name, _, kind = spec.partition(":")
        if name in ("A", "B"):
            return f"${name}:{kind or 0}"
        text, used[text] = token_of(backend, tokens, f"{name}_token")
        return f"{text}:{kind or 0}"

    single, pair = ([piece(spec) for spec in specs] for specs in template)
    with guarded(FormatError, "the special tokens cannot be put around texts"):
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(used.items()))


def token_of(backend: Tokenizer, tokens: Tokens, name: str) -> tuple[str, int]:
    """The text and the id of a special token; ``InputError`` where it is not set, ``FormatError`` where it has no id."""
    if (text := tokens.get(name)) is None:
        raise InputError(f"a tokenizer of this class needs a {name}, which is not set.")
    if (index := backend.token_to_id(text)) is None:
        raise FormatError(f"the special token {text!r} is not in the vocabulary.")
    return text, index


def around_roberta(
    backend: Tokenizer, tokens: Tokens, options: Options, sep: str = "sep_token", cls: str = "cls_token"
) -> processors.PostProcessor:
    """``<s> A </s>`` and ``<s> A </s></s> B </s>``, with offsets that leave out the space before a word where asked to."""
    space, trim = bool(options.get("add_prefix_space")), bool(options.get("trim_offsets", sep == "sep_token"))
    return processors.RobertaProcessing(token_of(backend, tokens, sep), token_of(backend, tokens, cls), trim, space)
