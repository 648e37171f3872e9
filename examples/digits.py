"""Train a small ConvNeXt on scikit-learn's digits: ``python examples/digits.py [--steps N] [--output DIR]``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from transept import ConvNextConfig, ConvNextForImageClassification, ViTImageProcessor, draw, pipeline

HELD_OUT = 360  # the last ones


def measure(model: Any, processor: Any, pictures: list[Image.Image], digits: np.ndarray) -> float:
    """The share of pictures whose likeliest class is right."""
    answers = pipeline("image-classification", model=model, image_processor=processor, top_k=1)(pictures)
    return float(np.mean([rows[0]["label"] == str(digit) for rows, digit in zip(answers, digits, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--output", type=Path, default=Path("digits"))
    options = parser.parse_args()
    torch.manual_seed(0)

    data = load_digits()  # 1,797 pictures of 8 x 8 pixels, from 0 to 16
    pictures = [Image.fromarray((each * 255 / 16).round().astype(np.uint8)).convert("RGB") for each in data.images]
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    config = ConvNextConfig(
        image_size=16,
        patch_size=2,
        num_stages=2,
        hidden_sizes=[32, 64],
        depths=[2, 2],
        layer_scale_init_value=1.0,  # the default is for deep networks
        id2label={digit: str(digit) for digit in range(10)},
    )
    model = ConvNextForImageClassification(config)
    pixels = processor(pictures[:-HELD_OUT], return_tensors="pt")["pixel_values"]
    labels = torch.from_numpy(data.target[:-HELD_OUT])

    held_out = pictures[-HELD_OUT:], data.target[-HELD_OUT:]
    print(f"before: {measure(model.eval(), processor, *held_out):.1%} of the held-out digits right")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps)
    started, total, every = time.monotonic(), 0.0, max(1, options.steps // 10)
    model.train()
    for step in range(1, options.steps + 1):
        rows = torch.randint(len(pixels), (64,))
        moved = pixels[rows].roll(torch.randint(-1, 2, (2,)).tolist(), dims=(2, 3))
        loss = model(pixel_values=moved, labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % every == 0:
            print(f"step {step}: loss {total / every:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0
    print(f"after: {measure(model.eval(), processor, *held_out):.1%} of the held-out digits right")

    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    classify = pipeline("image-classification", model=options.output, top_k=3)
    chosen = [picture.resize((96, 96), Image.Resampling.NEAREST) for picture in pictures[-HELD_OUT:][:8]]
    drawn = [draw(picture, classify(picture)) for picture in chosen]
    sheet = Image.new("RGB", (len(drawn) * 104 - 8, drawn[0].height), "white")
    for place, picture in enumerate(drawn):
        sheet.paste(picture, (place * 104, 0))
    sheet.save(options.output / "digits.png")


if __name__ == "__main__":
    main()
