"""Train a small Whisper to write spoken digits: ``python examples/spoken_digits.py FOLDER [--steps N] [--output DIR]``.

The folder holds recordings of the Free Spoken Digit Dataset, named ``digit_speaker_take.wav``; the last take of each speaker is
held out.
"""

from __future__ import annotations

import argparse
import string
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from transept import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
    pipeline,
)
from transept.preprocess.media import load_audio

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
END, START, UNTIMED = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
RATE = 8000  # of the recordings
RATES = [7000, 7500, 8000, 8500, 9000]  # taken to be of another rate, a recording is faster or slower


def measure(model: Any, processor: Any, sounds: list[np.ndarray], texts: list[str]) -> float:
    """The share of sounds that are written without a mistake."""
    parts = {"feature_extractor": processor.feature_extractor, "tokenizer": processor.tokenizer}
    write = pipeline("automatic-speech-recognition", model=model, **parts)
    answers = write([{"raw": sound, "sampling_rate": RATE} for sound in sounds])
    return sum(answer["text"].strip() == text for answer, text in zip(answers, texts, strict=True)) / len(texts)


def small_whisper() -> tuple[Any, Any]:
    """A model that hears one second and writes letters, and its processor."""
    vocab = {token: place for place, token in enumerate([*string.ascii_lowercase, END])}
    tokenizer = WhisperTokenizer(vocab, [], extra_special_tokens=[START, UNTIMED], pad_token=END)
    processor = WhisperProcessor(WhisperFeatureExtractor(feature_size=40, chunk_length=1), tokenizer)
    start, untimed, end = tokenizer.convert_tokens_to_ids([START, UNTIMED, END])
    ids = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 40, "init_std": 0.1, "dropout": 0.1}
    sizes |= {"max_source_positions": 50, "max_target_positions": 16, "vocab_size": len(tokenizer)}
    hidden = {"apply_spec_augment": True, "mask_time_prob": 0.15, "mask_feature_prob": 0.15, "mask_feature_length": 5}
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes, **ids, **hidden, begin_suppress_tokens=None))
    model.generation_config = GenerationConfig.from_dict(ids | {"no_timestamps_token_id": untimed, "max_new_tokens": 8})
    return model, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--output", type=Path, default=Path("spoken_digits"))
    options = parser.parse_args()
    torch.manual_seed(0)

    paths = sorted(options.folder.rglob("*.wav"), key=lambda path: path.stem.split("_")[::-1])  # by take
    last = paths[-1].stem.split("_")[2]
    split = next(place for place, path in enumerate(paths) if path.stem.split("_")[2] == last)
    sounds = [load_audio(path, RATE) for path in paths]
    texts = [WORDS[int(path.stem[0])] for path in paths]
    model, processor = small_whisper()

    known = [processor(audio=sounds[:split], sampling_rate=rate, return_tensors="pt")["input_features"] for rate in RATES]
    features = torch.cat(known)
    labels = processor.tokenizer(texts[:split] * len(RATES), padding=True, return_tensors="pt")
    targets = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)[:, 1:]  # the model adds the start itself

    held_out = sounds[split:], texts[split:]
    print(f"before: {measure(model.eval(), processor, *held_out):.1%} of {len(held_out[1])} held-out recordings right")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=options.steps)
    started, total, every = time.monotonic(), 0.0, max(1, options.steps // 10)
    model.train()
    for step in range(1, options.steps + 1):
        rows = torch.randint(len(features), (32,))
        later = features[rows].roll(int(torch.randint(-5, 20, ())), dims=-1)  # a hundredth of a second each
        loss = model(input_features=later, labels=targets[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % every == 0:
            print(f"step {step}: loss {total / every:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0
    print(f"after: {measure(model.eval(), processor, *held_out):.1%} of {len(held_out[1])} held-out recordings right")

    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    write = pipeline("automatic-speech-recognition", model=options.output)
    sheet = Image.new("RGB", (5 * 208 - 8, 2 * 108), "white")
    for place, path in enumerate(paths[split :: max(1, len(held_out[1]) // 10)][:10]):
        mel = processor(audio=load_audio(path, RATE), sampling_rate=RATE)["input_features"][0]
        shades = ((mel - mel.min()) / (mel.max() - mel.min()) * 255).astype(np.uint8)[::-1]
        left, top = place % 5 * 208, place // 5 * 108
        sheet.paste(Image.fromarray(shades).resize((200, 80)), (left, top))
        ImageDraw.Draw(sheet).text((left, top + 84), f"{path.stem}: {write(path)['text']}", fill="black")
    sheet.save(options.output / "spoken.png")


if __name__ == "__main__":
    main()
