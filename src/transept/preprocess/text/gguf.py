"""The tokenizers of GGUF files: their vocabulary, special tokens and chat template stand beside the weights.

``tokenizer.ggml.model`` names the algorithm, and for byte pairs ``tokenizer.ggml.pre`` how texts are split into words before.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from transept.errors import FileError, FormatError, UnsupportedError
from transept.preprocess.text.build import (
    BY_NAME,
    GPT2,
    LLAMA3,
    QWEN,
    Options,
    Template,
    Tokens,
    VocabularyFiles,
    byte_pair_model,
    wordpiece_backend,
)
from transept.preprocess.text.loading import Family, Parts, from_vocabulary, load_parts, where_and_what
from transept.preprocess.text.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Normalization,
    Piece,
    SentencePieceModel,
    Trainer,
    sentencepiece_backend,
)
from transept.preprocess.text.settings import TokenizerSettings
from transept.storage.files import parse_json
from transept.storage.gguf import GGUF, gguf_of

_NAME = "tokenizer.ggml"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "cls": "cls", "mask": "mask"}
_ROLES["seperator"] = "sep"  # codespell:ignore seperator (the format's spelling)
_DIGIT = r"\p{N}"
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_NOT_LOWER, _NOT_UPPER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*"
_TEKKEN += r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How words are found, as patterns that are applied one after another, by the names of `tokenizer.ggml.pre`.
_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe", "modern-bert"), (GPT2,)),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v1-en", "jina-v2-code", "jina-v2-es", "jina-v2-de"), (GPT2,)),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "lfm2", "chatglm-bpe", "glm4"), (LLAMA3,)
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan"), (QWEN,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (_DIGIT, GPT2)),
    "falcon": (_PUNCTUATION, GPT2, "[0-9][0-9][0-9]"),
    "default": (_PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_WORDS,)),
    "viking": (_WORDS, _DIGIT),
    "tekken": (_TEKKEN,),
    "gpt-4o": (BY_NAME["o200k_base"],),
}
_WHOLE_FIRST = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "lfm2",
    "glm4",
    "tekken",
)  # a word that is a token needs no merges
_BEGINS = ("llama3", "llama-v3", "llama-bpe", "tekken")  # where the file does not say whether texts begin with a token


def any_parts(family: Family, name: str | os.PathLike[str], arguments: dict[str, Any]) -> Parts:
    """The parts of the tokenizer of a directory, a repository, or a vocabulary or GGUF file."""
    source, caller = where_and_what(family, name, arguments)
    gguf = gguf_of(source)
    return load_parts(family, name, arguments) if gguf is None else gguf_parts(family, gguf, caller)


def gguf_parts(family: Family, gguf: GGUF, caller: TokenizerSettings) -> Parts:
    """The parts of the tokenizer of a file.

    Raises:
        FileError: the file has no tokenizer.
        FormatError: it has no vocabulary, or one that contradicts itself.
        UnsupportedError: its algorithm, or its way to split texts, is not here.
    """
    model = gguf.get(f"{_NAME}.model", str)
    hint = "Load the tokenizer of the repository it was made of."
    if model in (None, "none"):
        raise FileError("holds no tokenizer.", path=gguf.paths[0], hint=hint)
    if model not in _BACKENDS:
        what = f"has a tokenizer of the kind {model!r:.60}, which is not here."
        raise UnsupportedError(what, path=str(gguf.paths[0]), hint=hint)
    tokens, kinds = _texts(gguf, "tokens"), _numbers(gguf, "token_type")
    special = {name: tokens[index] for role, name in _ROLES.items() if (index := _id(gguf, role, len(tokens))) is not None}
    stated = TokenizerSettings(tokens={f"{name}_token": _added(text, CONTROL) for name, text in special.items()}, extra=[])
    if isinstance(template := gguf.get("tokenizer.chat_template", str), str):
        stated.attributes["chat_template"] = template
    is_writer, is_encoder = model not in ("bert", "t5"), "bert" in gguf.architecture
    stated.attributes["padding_side"] = "left" if is_writer and not is_encoder else "right"
    begins = model in ("llama", "gemma4") or (model == "gpt2" and gguf.get(f"{_NAME}.pre", str) in _BEGINS)
    stated.options["add_bos_token"] = is_writer and gguf.get(f"{_NAME}.add_bos_token", bool, begins) and "bos" in special
    stated.options["add_eos_token"] = is_writer and gguf.get(f"{_NAME}.add_eos_token", bool, False) and "eos" in special
    if model not in ("llama", "t5"):  # these find them by the kinds of their pieces
        marked = (CONTROL, USER_DEFINED)
        stated.added = {i: _added(tokens[i], int(kind)) for i, kind in enumerate(kinds[: len(tokens)]) if kind in marked}
    if model == "bert":
        stated.attributes["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    found = replace(family, tokens={}, template=_template(gguf, model, special) if is_encoder or not is_writer else None)
    found = replace(found, build=lambda files, texts, options: _BACKENDS[model](gguf, tokens, kinds, texts), options={})
    return from_vocabulary(found, VocabularyFiles(), stated, caller)


def _template(gguf: GGUF, model: str, special: Mapping[str, str]) -> Template | None:
    """Where an encoder's special tokens go."""
    if model == "bert":
        return ("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1")
    if {"bos", "eos"} <= {*special} and gguf.get(f"{_NAME}.add_bos_token", bool, False):
        between = ("eos", "eos") if model == "t5" or gguf.architecture == "bert" else ("eos",)  # RoBERTa has two of them
        return ("bos", "A", "eos"), ("bos", "A", *between, "B", "eos")
    return (("A", "eos"), ("A", "eos", "B", "eos")) if model == "t5" else None


def _added(text: str, kind: int) -> AddedToken:
    return AddedToken(text, normalized=False, special=kind == CONTROL)


def _texts(gguf: GGUF, name: str) -> list[str]:
    texts = gguf.get(f"{_NAME}.{name}", list, [])
    if not texts or not all(isinstance(text, str) for text in texts):
        raise FormatError(f"has no `{_NAME}.{name}`.", path=gguf.paths[0])
    return list(texts)


def _numbers(gguf: GGUF, name: str) -> Any:
    import numpy as np  # not at the top: a tokenizer of plain files needs none of it

    return gguf.get(f"{_NAME}.{name}", np.ndarray, np.zeros(0))


def _id(gguf: GGUF, role: str, count: int) -> int | None:
    index: int | None = gguf.get(f"{_NAME}.{role}_token_id", int)
    if index is not None and not 0 <= index < count:
        raise FormatError(f"has the {role} token {index} of {count} tokens.", path=gguf.paths[0])
    return index


def _vocab(gguf: GGUF, tokens: Sequence[str]) -> Mapping[str, int]:
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise FormatError(f"has the token {twice!r:.80} twice.", path=gguf.paths[0])
    return vocab


def _byte_pairs(gguf: GGUF, tokens: Sequence[str], kinds: Any, texts: Tokens) -> Tokenizer:
    name = gguf.get(f"{_NAME}.pre", str, "default")
    if name not in _PATTERNS:
        hint = "Load the tokenizer of the repository that the file was made of."
        raise UnsupportedError(f"splits texts in the way {name!r:.60}, which is not here.", path=str(gguf.paths[0]), hint=hint)
    files = VocabularyFiles(_vocab(gguf, tokens), _texts(gguf, "merges"))
    backend = Tokenizer(byte_pair_model(files, fuse_unk=False, ignore_merges=name in _WHOLE_FIRST))
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def _spaced_pairs(gguf: GGUF, tokens: Sequence[str], kinds: Any, texts: Tokens) -> Tokenizer:
    """Byte pairs of whole texts, in which spaces are letters, and bytes stand for letters that are no tokens."""
    files = VocabularyFiles(_vocab(gguf, tokens), _texts(gguf, "merges"))
    backend = Tokenizer(byte_pair_model(files, unk_token=texts.get("unk_token"), fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _word_pieces(gguf: GGUF, tokens: Sequence[str], kinds: Any, texts: Tokens) -> Tokenizer:
    """BERT's pieces, of which the file marks those that begin a word, where ours marks the others."""
    marks = [*kinds, *[0] * (len(tokens) - len(kinds))]
    pieces = [
        token if kind == CONTROL else token[1:] if token.startswith(SPACE) else f"##{token}"
        for token, kind in zip(tokens, marks, strict=False)
    ]
    # The file does not say it, but a vocabulary of lower-case words has none that begins with a capital letter.
    options: Options = {"do_lower_case": not any("A" <= piece[:1] <= "Z" for piece in pieces)}
    return wordpiece_backend(VocabularyFiles(_vocab(gguf, pieces)), {"unk_token": "[UNK]"} | dict(texts), options)


def _pieces(gguf: GGUF, tokens: Sequence[str], kinds: Any, texts: Tokens) -> Tokenizer:
    scores, is_unigram = _numbers(gguf, "scores"), gguf.get(f"{_NAME}.model", str) == "t5"
    if not len(scores) == len(kinds) == len(tokens):
        what = f"has {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} types"
        raise FormatError(f"{what}, which must be as many.", path=gguf.paths[0])
    pieces = [Piece(text, float(score), int(kind)) for text, score, kind in zip(tokens, scores, kinds, strict=True)]
    charsmap = _numbers(gguf, "precompiled_charsmap").astype("uint8")
    unknown = tokens.index(texts["unk_token"]) if "unk_token" in texts else 0
    cleans = gguf.get(f"{_NAME}.remove_extra_whitespaces", bool, is_unigram)
    prefix = gguf.get(f"{_NAME}.add_space_prefix", bool, True)
    rules = Normalization(charsmap.tobytes(), prefix, cleans)
    trainer = Trainer(UNIGRAM if is_unigram else BPE, byte_fallback=not is_unigram, unk_id=unknown)
    return sentencepiece_backend(SentencePieceModel(pieces, trainer, rules), prefix="always" if prefix else "never")


# Writing: the other way of all above.


def settings_of_tokenizer(tokenizer: Any, count: int) -> dict[str, Any]:
    """The settings of a file for a tokenizer, of a model of ``count`` tokens (``UnsupportedError``: they have none such)."""
    backend = parse_json(tokenizer.backend_tokenizer.to_str())
    model, added = backend["model"], {each["id"]: each for each in backend["added_tokens"]}
    vocab = model["vocab"]
    texts = (
        {index: text for text, index in vocab.items()} if isinstance(vocab, dict) else {i: t for i, (t, _) in enumerate(vocab)}
    )
    texts |= {index: each["content"] for index, each in added.items()}
    if most := [index for index in texts if index >= count]:
        raise UnsupportedError(f"the tokenizer has the token {max(most)}, but the model has {count} tokens.")
    kinds = [_kind(added.get(index), texts.get(index), model) for index in range(count)]
    tokens = [texts.get(index, f"[PAD{index}]") for index in range(count)]
    kind, more = _written_model(backend, tokens, kinds)
    found: dict[str, Any] = {"model": kind, "tokens": tokens, "token_type": kinds} | more
    for role, name in _ROLES.items():
        if (index := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            found[f"{role}_token_id"] = index
    if kind != "bert":
        ids = tokenizer("a").input_ids or [None]
        for number, role, other in ((ids[0], "bos", "cls"), (ids[-1], "eos", "sep")):  # ModernBERT has no others
            named = [getattr(tokenizer, f"{name}_token_id") for name in (role, other)]
            found[f"add_{role}_token"] = adds = number is not None and number in named
            found |= {f"{role}_token_id": number} if adds else {}
    if kind in ("llama", "t5"):
        found["add_space_prefix"] = tokenizer.tokenize("a")[0].startswith(SPACE)
        found["remove_extra_whitespaces"] = tokenizer.tokenize("a  a") == tokenizer.tokenize("a a")
    settings = {f"{_NAME}.{name}": value for name, value in found.items()}
    if isinstance(template := tokenizer.chat_template, str):
        settings["tokenizer.chat_template"] = template
    return settings


def _kind(added: Mapping[str, Any] | None, text: str | None, model: Mapping[str, Any]) -> int:
    if text is None:
        return UNUSED
    if model["type"] != "WordPiece" and text == (model.get("unk_token") or _unknown(model)) and not _is_byte_level(model):
        return UNKNOWN
    if added is not None:
        return CONTROL if added["special"] else USER_DEFINED
    return BYTE if model.get("byte_fallback") and _BYTE.fullmatch(text) else NORMAL


def _unknown(model: Mapping[str, Any]) -> str | None:
    index = model.get("unk_id")
    return None if index is None else model["vocab"][index][0]


def _is_byte_level(model: Mapping[str, Any]) -> bool:
    return model["type"] == "BPE" and not model["byte_fallback"]


def _written_model(backend: Mapping[str, Any], tokens: list[str], kinds: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """The format's name for the algorithm of a backend, and what else it needs; ``tokens`` are respelled in place."""
    model, steps = backend["model"], [*_steps(backend.get("normalizer")), *_steps(backend.get("pre_tokenizer"))]
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        for index, token in enumerate(tokens):
            if kinds[index] == NORMAL:
                tokens[index] = token.removeprefix(prefix) if token.startswith(prefix) else SPACE + token
        return "bert", {}
    if model["type"] == "Unigram":
        charsmap = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), "")
        scores = [score for _, score in model["vocab"]]
        more: dict[str, Any] = {
            "scores": scores + [0.0] * (len(tokens) - len(scores)),
        }
        if charsmap:
            more["precompiled_charsmap"] = base64.b64decode(charsmap)  # numbers of 8 bits, which readers expect
        return "t5", more
    if model["type"] != "BPE":
        raise UnsupportedError(f"GGUF files have no tokenizers of the kind {model['type']}.")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not _is_byte_level(model):
        ranks = {merge.replace(" ", ""): -float(rank) for rank, merge in reversed([*enumerate(merges, 1)])}
        lowest = -float(len(merges) + 1)
        scores = [ranks.get(token, lowest) if kind == NORMAL else 0.0 for token, kind in zip(tokens, kinds, strict=True)]
        return "llama", {"scores": scores}
    patterns = tuple(pattern for step in steps for pattern in _patterns_of(step))
    whole = bool(model.get("ignore_merges"))
    names = [name for name, known in _PATTERNS.items() if known == patterns and (name in _WHOLE_FIRST) == whole]
    if not names:
        what = f"GGUF files have no name for how the tokenizer splits texts: by {str(patterns)[:300]}."
        raise UnsupportedError(what, hint="Pass no tokenizer to write the weights alone.")
    return "gpt2", {"pre": names[0], "merges": merges}


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer that may be a sequence of others."""
    if step is not None and step["type"] == "Sequence":
        for each in step.get("normalizers") or step.get("pretokenizers") or ():
            yield from _steps(each)
    elif step is not None:
        yield step


def _patterns_of(step: Mapping[str, Any]) -> Iterator[str]:
    """The patterns by which a step splits texts."""
    if step["type"] == "Split":
        yield from step["pattern"].values()
    elif step["type"] == "Digits" and step["individual_digits"]:
        yield _DIGIT
    elif step["type"] == "ByteLevel" and step["use_regex"]:
        yield GPT2


_BACKENDS = {"llama": _pieces, "gpt2": _byte_pairs, "bert": _word_pieces, "t5": _pieces, "gemma4": _spaced_pairs}
