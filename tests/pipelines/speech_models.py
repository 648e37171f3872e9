"""A tiny Whisper of random weights with its extractor and tokenizer, and sounds for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.preprocess.audio.speech_vocabulary import write_files
from transept.preprocess.audio.languages import LANGUAGES

RATE = 16000
SIZES = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
SIZES |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_target_positions": 64}


def save_writer(directory: Path, **settings: Any) -> Path:
    """The model; ``settings`` are of generation."""
    from transept import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    vocabulary = write_files(directory)
    find = vocabulary.convert_tokens_to_ids
    end, start, untimed = vocabulary.eos_token_id, find("<|startoftranscript|>"), find("<|notimestamps|>")
    ids = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(13)  # with which it writes many a piece
    config = WhisperConfig(vocab_size=len(vocabulary), **SIZES, **ids, begin_suppress_tokens=None)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 if "embed_tokens" in name else 0.6)
        model.backbone.decoder.embed_tokens.weight[end] *= 2
    chosen: dict[str, Any] = ids | {"no_timestamps_token_id": untimed, "prev_sot_token_id": find("<|startofprev|>")}
    chosen |= {"lang_to_id": {f"<|{code}|>": find(f"<|{code}|>") for code in LANGUAGES}, "is_multilingual": True}
    chosen |= {"task_to_id": {task: find(f"<|{task}|>") for task in ("translate", "transcribe")}, "return_timestamps": False}
    chosen |= {"max_initial_timestamp_index": 50, "alignment_heads": [[0, 1], [1, 0]], "num_beams": 1, "max_new_tokens": 24}
    chosen |= {"suppress_tokens": list(range(end + 1, untimed))} | settings
    model.generation_config = GenerationConfig.from_dict({name: value for name, value in chosen.items() if value is not None})
    model.save_pretrained(directory)
    WhisperFeatureExtractor().save_pretrained(directory)
    return directory


def talk(seconds: float, seed: int = 0) -> np.ndarray:
    """A tone that moves, in noise."""
    time, noise = np.arange(round(seconds * RATE)) / RATE, np.random.default_rng(seed)
    tone = 0.3 * np.sin(2 * np.pi * (200 + 400 * np.sin(time + seed)) * time)
    return (tone + 0.05 * noise.standard_normal(len(time))).astype(np.float32)
