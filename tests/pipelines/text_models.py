"""Tiny models of text with vocabularies of their own, saved with their tokenizers, and texts for them.

Weights and vocabularies are the same on every machine, so that answers of other versions of the reference can be kept here.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from transept.config.model import Config
from transept.core.model import Model

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
POSITIONS = 64
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Paris",
    "Wolfgang lives in Berlin, and works for Siemens since 1999!",
    "",
    "A café in Zürich serves naïve résumés; nobody knows why.",
    "Hello 🙂 world — 東京 is far away...",
    "tokenization of unbelievably supercalifragilisticexpialidocious words",
    "   spaces   and\ttabs \n and lines  ",
    "Is this a question? No. It is an answer, or [UNK] perhaps.",
    "x",
    "Maria and Peter met Anna in New York on Monday, but Anna went to Rio de Janeiro later.",
]
CONTEXT = (
    "Wolfgang was born in Berlin in 1970. He moved to Paris when he was young, and works in a café near the river. "
    "His sister Anna lives in New York, where she sells old maps. Every summer they meet in Zürich for a week."
)
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jump",
    "over",
    "lazy",
    "dog",
    "paris",
    "wolfgang",
    "live",
    "in",
    "berlin",
    "and",
    "work",
    "for",
    "siemens",
    "since",
    "a",
    "cafe",
    "zurich",
    "serve",
    "naive",
    "resume",
    "nobody",
    "know",
    "why",
    "hello",
    "world",
    "is",
    "far",
    "away",
    "token",
    "of",
    "unbeliev",
    "super",
    "space",
    "tab",
    "line",
    "this",
    "question",
    "no",
    "it",
    "an",
    "answer",
    "or",
    "perhaps",
    "maria",
    "peter",
    "met",
    "anna",
    "new",
    "york",
    "on",
    "monday",
    "but",
    "went",
    "to",
    "rio",
    "de",
    "janeiro",
    "later",
    "was",
    "born",
    "he",
    "move",
    "when",
    "young",
    "near",
    "river",
    "his",
    "sister",
    "where",
    "she",
    "sell",
    "old",
    "map",
    "every",
    "summer",
    "they",
    "meet",
    "week",
    "example",
    "sports",
    "politics",
]
ENDINGS = ["s", "ed", "ing", "ly", "able", "ization", "ably", "er", "est", "ion"]
SPECIAL = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;!?-"


def wordpiece(lower: bool = True) -> Tokenizer:
    """A vocabulary of words, letters and pieces that go on with a word, marked by ##."""
    pieces = [*SPECIAL["bert"], *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS, *(f"##{e}" for e in ENDINGS)]
    made = Tokenizer(WordPiece({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL["bert"]])
    return made


def bytepairs(specials: list[str], template: bool) -> Tokenizer:
    """A vocabulary of bytes, and of words put together from them."""
    vocabulary = {text: i for i, text in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    merges: list[tuple[str, str]] = []
    for word in (f"Ġ{word}" for word in WORDS):
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append(pair)
    made = Tokenizer(BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if template:
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.add_special_tokens([AddedToken(text, normalized=False, special=True, lstrip=text == "<mask>") for text in specials])
    return made


@cache
def vocabulary(kind: str) -> tuple[str, str]:
    """``tokenizer.json`` and ``tokenizer_config.json`` of a family."""
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS}
    names = ["input_ids", "attention_mask"]
    if kind in ("bert", "distilbert"):
        made = wordpiece()
        config |= dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL["bert"], strict=True))
        config |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"] if kind == "bert" else names}
    elif kind == "roberta":
        made = bytepairs(SPECIAL["roberta"], template=True)
        config |= {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
        config |= {"cls_token": "<s>", "sep_token": "</s>", "model_input_names": names}
    else:
        made = bytepairs(["<|endoftext|>"], template=False)
        config |= {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "model_input_names": names}
    return made.to_str(), json.dumps(config)


def save(directory: Path, name: str, **settings: Any) -> Path:
    """Save a model of the class of that name, with a tokenizer of its family."""
    import transept

    kind = next(kind for kind in ("DistilBert", "Roberta", "Bert", "GPT2") if name.startswith(kind))
    rules, config = vocabulary(kind.lower())
    (directory / "tokenizer.json").write_text(rules, encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(config)
    size = Tokenizer.from_str(rules).get_vocab_size()
    own: dict[str, Any] = {"Roberta": {"max_position_embeddings": POSITIONS + 2, "pad_token_id": 1}}.get(kind, {})
    if kind == "GPT2":
        own = {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
        own |= {"pad_token_id": 0} if name.endswith("ForSequenceClassification") else {}
    elif kind == "DistilBert":
        own = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
    shared = {"max_position_embeddings": POSITIONS, **({} if kind in ("GPT2", "DistilBert") else SIZES)}
    made: Config = getattr(transept, f"{kind}Config")(**{"vocab_size": size, **shared, **own, **settings})
    model = getattr(transept, name)(made).eval()
    fill(model)
    model.save_pretrained(directory)
    return directory


def fill(model: Model, scale: float = 0.35) -> None:
    """Give every parameter values that depend on its name and shape alone, large enough to tell inputs apart.

    The name is the one that all families share, since answers of this model were kept under it.
    """
    names = model.checkpoint_names()
    with torch.no_grad():
        for public, parameter in model.named_parameters():
            name = re.sub(r"^backbone\.", "model.", names.dialect(public))
            stream = np.random.RandomState(zlib.crc32(name.encode()))  # whose numbers NumPy never changes
            values = torch.from_numpy(stream.standard_normal(tuple(parameter.shape))).to(parameter.dtype) * scale
            parameter.copy_(values + 1 if "norm" in name and name.endswith("weight") else values)


SavedModel = Callable[..., Path]


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """The directory of a tiny model by the name of its class and its settings, made once."""
    made: dict[str, Path] = {}

    def saved(name: str, **settings: Any) -> Path:
        key = f"{name} {settings}"
        if key not in made:
            made[key] = save(tmp_path_factory.mktemp(name), name, **settings)
        return made[key]

    return saved


@cache
def reference(task: str, directory: Path, **options: Any) -> Any:
    """The reference's pipeline over the same files."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.pipeline(task, model=str(directory), device="cpu", **options)


def long_text(words: int, seed: int = 0) -> str:
    """So many words, with a stop now and then."""
    stream = np.random.RandomState(seed)
    return " ".join(WORDS[i] + ("." if i % 7 == 0 else "") for i in stream.randint(0, len(WORDS), words))


def shuffled(count: int, longest: int, seed: int = 0) -> list[str]:
    """Texts of many lengths, in no order."""
    stream = np.random.RandomState(seed)
    return [long_text(int(n), seed=i) for i, n in enumerate(stream.randint(1, longest, count))]


def check_close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Equal in kind and text, and in numbers up to the tolerance; of those above one, up to so many times that."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name in theirs:
            check_close(ours[name], theirs[name], tolerance)
    elif isinstance(theirs, list | tuple):
        assert isinstance(ours, list | tuple)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_close(one, other, tolerance)
    elif isinstance(theirs, float | np.floating):
        assert isinstance(ours, float)
        assert ours == pytest.approx(float(theirs), abs=tolerance, rel=tolerance)
    else:
        assert ours == theirs
