"""Tiny random models of pictures and of sounds, saved with their preprocessing, and inputs for them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

RATE = 16000
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOINSHR"]
# Seven convolutions of the real model, with few channels: 320 samples a frame, which is made of 400.
SOUND = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "vocab_size": len(LETTERS),
    "pad_token_id": 0,
    "layerdrop": 0.0,
    "initializer_range": 0.3,
}
STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 30,
    "patch_size": 15,
    "initializer_range": 0.3,
}


def save_image_model(directory: Path, kind: str = "ViTForImageClassification", classes: int = 7, **settings: Any) -> Path:
    """A ViT with its image processor."""
    from transept.models import vit
    from transept.preprocess.image.vit import ViTImageProcessor

    torch.manual_seed(0)
    labels = {i: f"class {i}" for i in range(classes)}
    getattr(vit, kind)(vit.ViTConfig(**PICTURE, id2label=labels, **settings)).save_pretrained(directory)
    ViTImageProcessor(size={"height": 30, "width": 30}).save_pretrained(directory)
    return directory


def save_audio_model(directory: Path, kind: str = "Wav2Vec2ForCTC", **settings: Any) -> Path:
    """A Wav2Vec2 with its feature extractor and, for CTC, its vocabulary."""
    from transept.models import wav2vec2
    from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer
    from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor

    torch.manual_seed(0)
    model = getattr(wav2vec2, kind)(wav2vec2.Wav2Vec2Config(**(SOUND | settings))).eval()
    if kind == "Wav2Vec2ForCTC":
        balance(model)
    model.save_pretrained(directory)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(directory)
    if kind == "Wav2Vec2ForCTC":
        vocabulary = directory / "letters.json"
        vocabulary.write_text(json.dumps({letter: i for i, letter in enumerate(LETTERS)}))
        Wav2Vec2CTCTokenizer(vocabulary).save_pretrained(directory)
        vocabulary.unlink()
    return directory


def balance(model: Any) -> None:
    """Make all letters about equally likely, so that texts vary."""
    with torch.inference_mode():
        logits = model(torch.from_numpy(sound(3.0, seed=99))[None]).logits[0]
        model.lm_head.bias.sub_(logits.mean(dim=0))


def picture(seed: int = 0, height: int = 40, width: int = 50) -> np.ndarray:
    """A picture of smooth noise, (H, W, 3) of uint8."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 5, 3), np.uint8)
    return np.kron(coarse, np.ones((-(-height // 5), -(-width // 5), 1), np.uint8))[:height, :width]


def png(array: np.ndarray) -> bytes:
    """A picture as a PNG file's bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def sound(seconds: float = 1.0, seed: int = 0) -> np.ndarray:
    """A sound that changes with time, (S) of float32."""
    random = np.random.default_rng(seed)
    size = round(seconds * RATE)
    pitch = np.repeat(random.uniform(100, 2000, size // 1600 + 1), 1600)[:size]
    wave = np.sin(np.cumsum(pitch) * 2 * np.pi / RATE) + 0.3 * random.standard_normal(size)
    return wave.astype(np.float32) * np.float32(0.2)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A sound as a WAV file's bytes, of float samples."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def rated(samples: np.ndarray, rate: int = RATE) -> dict[str, Any]:
    """A sound as data sets give it."""
    return {"array": samples, "sampling_rate": rate}
