"""Tokenizers of both sides over one small vocabulary, and rows of tokens."""

from __future__ import annotations

from typing import Any

import tokenizers
import torch
import transformers
from tokenizers.models import WordLevel, WordPiece
from tokenizers.pre_tokenizers import Whitespace, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from transept.preprocess.text.tokenizer import Tokenizer

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
VOCABULARY = [*SPECIAL.values(), *SYLLABLES, *(f"##{each}" for each in SYLLABLES)]
SENTINELS = [f"<extra_id_{number}>" for number in range(30)]


def both(side: str = "right", mask: bool = True) -> tuple[Any, Any]:
    """Our tokenizer and the reference's."""
    backend = tokenizers.Tokenizer(WordPiece({token: n for n, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    backend.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {name: token for name, token in SPECIAL.items() if mask or name != "mask_token"}
    kinds = Tokenizer, transformers.PreTrainedTokenizerFast
    text = backend.to_str()
    return tuple(
        kind(tokenizer_object=tokenizers.Tokenizer.from_str(text), padding_side=side, model_max_length=64, **names)
        for kind in kinds
    )


def restoring(ends: tuple[str, ...] = (".",)) -> Any:
    """Our tokenizer of whole words with sentinels, a mask and an end token."""
    tokens = ["<pad>", "</s>", "<s>", "<mask>", *SENTINELS[::-1], *ends, *SYLLABLES]
    backend = tokenizers.Tokenizer(WordLevel({token: n for n, token in enumerate(tokens)}, unk_token="<pad>"))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", bos_token="<s>", mask_token="<mask>")


def words(count: int, generator: torch.Generator) -> str:
    """Words of one to three syllables."""
    picks = [
        torch.randint(60, (int(torch.randint(1, 4, (1,), generator=generator)),), generator=generator) for _ in range(count)
    ]
    return " ".join("".join(SYLLABLES[int(n)] for n in pick) for pick in picks)


def texts(rows: int = 5, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    return [words(int(torch.randint(1, 12, (1,), generator=generator)), generator) for _ in range(rows)]


def same(ours: Any, theirs: Any, leave_out: tuple[str, ...] = ()) -> None:
    """Batches of the same names, types and values."""
    assert {*ours} == {name for name in theirs if theirs[name] is not None and name not in leave_out}
    for name in ours:
        one, other = torch.as_tensor(ours[name]), torch.as_tensor(theirs[name])
        assert one.dtype == other.dtype, name
        assert type(ours[name]) is type(theirs[name]), name
        assert torch.equal(one, other), name
