"""Small Whisper models of random weights that write varied texts with times, ours and the reference's."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from transept import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

END, START, FIRST_LANGUAGE, TRANSLATE, TRANSCRIBE, PREVIOUS, SILENT, UNTIMED = 90, 91, 92, 96, 97, 99, 100, 101
FIRST_TIME, WINDOW = 102, 100  # frames
LANGUAGES = {"<|en|>": 92, "<|zh|>": 93, "<|de|>": 94, "<|fr|>": 95}
CONFIG: dict[str, Any] = {
    "vocab_size": 153,
    "num_mel_bins": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "d_model": 16,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_source_positions": 50,
    "max_target_positions": 48,
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
    "median_filter_width": 7,
}
GENERATION: dict[str, Any] = {
    "pad_token_id": END,
    "bos_token_id": END,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "begin_suppress_tokens": [3, END],
    "suppress_tokens": [1, 2, START, *range(92, 101)],
    "no_timestamps_token_id": UNTIMED,
    "prev_sot_token_id": PREVIOUS,
    "is_multilingual": True,
    "lang_to_id": LANGUAGES,
    "return_timestamps": False,
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "max_initial_timestamp_index": 20,
    "alignment_heads": [[0, 1], [1, 0], [1, 1]],
    "max_new_tokens": 18,
}


@cache
def pair(seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """Our model and the reference's with the same weights; ``changes`` are settings of generation, ``None`` takes one away."""
    torch.manual_seed(seed)
    ours = WhisperForConditionalGeneration(WhisperConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 if "embed_tokens" in name else 0.6)
        ours.backbone.decoder.embed_tokens.weight[END] *= 2.0  # so that texts end
    settings = {
        name: value
        for name, value in (GENERATION | dict(json.loads(changes.pop("generation", "{}"))) | changes).items()
        if value is not None
    }
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        reference = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    ours.generation_config = GenerationConfig.from_dict(settings)
    reference.generation_config = transformers.GenerationConfig.from_dict(settings)
    return ours, reference


def sounds(rows: int = 1, frames: int = WINDOW, seed: int = 0) -> Tensor:
    return 2 * torch.randn((rows, 8, frames), generator=torch.Generator().manual_seed(seed))


def mask(*lengths: int) -> Tensor:
    """(B, T') for sounds of so many frames."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
