"""Inputs and labels for encoder–decoders, and for what is made of one of their halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transept.core.model import Model
from transept.heads.seq2seq import StackForCausalLM
from transept.kinds.seq2seq import EncoderDecoderBackbone, Stack


def reads_only(cls: type[Model]) -> bool:
    """Whether the class has one half alone."""
    return cls.__name__.endswith(("EncoderModel", "ForTokenClassification")) or issubclass(cls, Stack)


def restores(cls: type[Model]) -> bool:
    """Whether the decoder reads what the encoder reads."""
    return cls.__name__.endswith(("ForSequenceClassification", "ForQuestionAnswering"))


def _padded(rows: int, length: int, pad: str, step: int) -> Tensor:
    mask = torch.ones(rows, length, dtype=torch.long)
    if pad != "none":
        for row in range(1, rows):
            mask[row, length - step * row :] = 0
    return mask.flip(1) if pad == "left" else mask


def seq2seq_batch(cls: type[Model], config: Any, *, pad: str, rows: int, length: int) -> dict[str, Tensor]:
    """Three rows for the encoder, padded on one side, each with one EOS; shorter ones for the decoder, padded at the end."""
    generator = torch.Generator().manual_seed(1)
    sizes = [config] * 2 if hasattr(config, "vocab_size") else [config.encoder, config.decoder]
    mask = _padded(rows, length, pad, 2)
    ids = torch.randint(5, sizes[0].vocab_size, (rows, length), generator=generator)
    if restores(cls):
        ends = (mask * torch.arange(1, length + 1)).argmax(dim=1)
        ids[torch.arange(rows), ends] = config.eos_token_id
    ids = torch.where(mask == 1, ids, config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if issubclass(cls, StackForCausalLM):
        states = torch.randn(rows, 5, config.hidden_size, generator=generator)
        return inputs | {"encoder_hidden_states": states, "encoder_attention_mask": _padded(rows, 5, pad, 1)}
    if reads_only(cls) or restores(cls):
        return inputs
    written = _padded(rows, length - 2, "none" if pad == "none" else "right", 1)
    words = getattr(sizes[1], "decoder_vocab_size", None) or sizes[1].vocab_size
    decoded = torch.randint(5, words, (rows, length - 2), generator=generator)
    if getattr(config, "decoder_start_token_id", None) is not None:
        decoded[:, 0] = config.decoder_start_token_id
    return inputs | {
        "decoder_input_ids": torch.where(written == 1, decoded, config.pad_token_id),
        "decoder_attention_mask": written,
    }


def speech_batch(cls: type[Model], tiny: dict[str, Any], *, pad: str, rows: int) -> dict[str, Tensor]:
    """Three spectrograms and what is written of them, padded at the end; for a decoder alone, states in their place."""
    generator = torch.Generator().manual_seed(1)
    if "encoder" in tiny:
        return _wave_batch(tiny, pad, rows, generator)
    if "max_length" in tiny:
        return {"input_values": torch.randn(rows, tiny["max_length"], tiny["num_mel_bins"], generator=generator)}
    bins, positions, dim = (tiny[name] for name in ("num_mel_bins", "max_source_positions", "d_model"))
    mask = _padded(rows, 9, "none" if pad == "none" else "right", 2)
    ids = torch.where(mask == 1, torch.randint(5, tiny["vocab_size"], (rows, 9), generator=generator), tiny["pad_token_id"])
    if issubclass(cls, StackForCausalLM):
        states = torch.randn(rows, positions, dim, generator=generator)
        return {"input_ids": ids, "attention_mask": mask, "encoder_outputs": states}
    features = {"input_features": torch.randn(rows, bins, 2 * positions, generator=generator)}
    if not issubclass(cls.backbone_class if hasattr(cls, "backbone_class") else cls, EncoderDecoderBackbone):
        return features
    ids[:, 0] = tiny["decoder_start_token_id"]
    return features | {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def _wave_batch(tiny: dict[str, Any], pad: str, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    heard, written = (_padded(rows, *sizes) for sizes in ((600, "right", 90), (9, "none" if pad == "none" else "right", 2)))
    heard = torch.ones_like(heard) if pad == "none" else heard
    ids = torch.randint(5, tiny["decoder"]["vocab_size"], (rows, 9), generator=generator)
    ids[:, 0] = tiny["decoder_start_token_id"]
    return {
        "inputs": torch.randn(rows, 600, generator=generator) * heard,
        "attention_mask": heard,
        "decoder_input_ids": torch.where(written == 1, ids, tiny["pad_token_id"]),
        "decoder_attention_mask": written,
    }


def image_to_text_batch(tiny: dict[str, Any], *, pad: str, rows: int) -> dict[str, Tensor]:
    """Three images and what is written of them, padded at the end."""
    generator, size = torch.Generator().manual_seed(1), tiny["encoder"]["image_size"]
    written = _padded(rows, 7, "none" if pad == "none" else "right", 2)
    ids = torch.randint(5, tiny["decoder"]["vocab_size"], (rows, 7), generator=generator)
    ids[:, 0] = tiny["decoder_start_token_id"]
    return {
        "pixel_values": torch.randn(rows, 3, size, size, generator=generator),
        "decoder_input_ids": torch.where(written == 1, ids, tiny["pad_token_id"]),
        "decoder_attention_mask": written,
    }


def written_labels(inputs: dict[str, Tensor]) -> Tensor:
    """(B, T) of what a decoder is to write: its inputs, one position earlier."""
    ids = inputs["decoder_input_ids"].roll(-1, dims=1)
    ids[inputs["decoder_attention_mask"] == 0] = -100
    ids[0, 2] = -100
    ids[:, -1] = -100
    return ids


def step(inputs: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """The inputs of one step of decoding; what belongs to an encoder stays whole."""
    return {name: value if name.startswith("encoder_") else value[:, start:end] for name, value in inputs.items()}
