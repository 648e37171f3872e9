"""A small vocabulary of byte pairs with all of Whisper's special tokens, in their order."""

from __future__ import annotations

import json
from functools import cache

import tokenizers

from transept.preprocess.audio.languages import LANGUAGES

TEXTS = [
    "The quick brown fox jumps over the lazy dog; and the dog, it sleeps.",
    " He said: “twenty one dollars”, (or thereabouts)! Isn't that so? Yes... no. colour centre",
    " Ça c'est l'été à Paris — où êtes-vous? ¿Qué? ¡No!",
    "今日は東京で会議があります。你好，世界！ ขอบคุณ ຂອບໃຈ မင်္ဂလာပါ",
] * 3
_AFTER = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), *_AFTER)
TIMES = [f"<|{place * 0.02:.2f}|>" for place in range(1501)]


@cache
def trained(size: int = 400) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges."""
    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train_from_iterator(TEXTS, vocab_size=size, show_progress=False)
    document = json.loads(learner._tokenizer.to_str())["model"]
    return document["vocab"], [tuple(merge) for merge in document["merges"]]


def write_files(folder, *, times: bool = True, size: int = 400, **settings):
    """Write the reference's tokenizer with this vocabulary to a folder; returns it."""
    import transformers

    vocab, merges = trained(size)
    extra = list(SPECIAL[1:])
    reference = transformers.WhisperTokenizer(dict(vocab), list(merges), extra_special_tokens=extra, **settings)
    if times:
        reference.add_tokens([tokenizers.AddedToken(time, special=False, normalized=False) for time in TIMES])
    reference.save_pretrained(str(folder))
    return reference
