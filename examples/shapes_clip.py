"""Train a small CLIP on drawn shapes and sentences: ``python examples/shapes_clip.py [--steps N] [--output DIR]``."""

from __future__ import annotations

import argparse
import random
import string
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from transept import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer, draw, pipeline

COLORS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 60, 220)}
COLORS |= {"yellow": (240, 220, 40), "purple": (140, 40, 160), "white": (250, 250, 250)}
KINDS = ("circle", "square", "triangle")
SENTENCES = [f"a {size} {color} {kind}" for size, color, kind in product(("small", "large"), COLORS, KINDS)]
# Never seen in training.
NEW = ["a small red triangle", "a large green circle", "a small blue square", "a large white triangle"]
KNOWN = [sentence for sentence in SENTENCES if sentence not in NEW]
SIDE = 32  # of the pictures that the model reads


def picture_of(sentence: str, rng: random.Random, side: int = SIDE) -> Image.Image:
    """A shape of a random place, of about the size and the colour that the sentence says, on gray."""
    _, size, color, kind = sentence.split()
    ground = rng.randint(60, 140)
    picture = Image.new("RGB", (side, side), (ground, ground, ground))
    low, high = (side // 3, side * 2 // 5) if size == "small" else (side // 2, side * 3 // 4)
    width = rng.randint(low, high)
    x, y = rng.randint(0, side - width), rng.randint(0, side - width)
    shade = tuple(min(max(level + rng.randint(-25, 25), 0), 255) for level in COLORS[color])
    pen, corners = ImageDraw.Draw(picture), (x, y, x + width - 1, y + width - 1)
    if kind == "circle":
        pen.ellipse(corners, fill=shade)
    elif kind == "square":
        pen.rectangle(corners, fill=shade)
    else:
        pen.polygon([(x + width / 2, y), (x, y + width - 1), (x + width - 1, y + width - 1)], fill=shade)
    return picture


def measure(model: Any, processor: Any, sentences: list[str], rng: random.Random) -> float:
    """The share of new pictures for which the likeliest of all sentences is the right one."""
    known = [sentence for sentence in sentences for _ in range(200 // len(sentences))]
    parts = {"image_processor": processor.image_processor, "tokenizer": processor.tokenizer}
    classify = pipeline("zero-shot-image-classification", model=model, **parts)
    pictures = [picture_of(sentence, rng) for sentence in known]
    answers = classify(pictures, candidate_labels=SENTENCES, hypothesis_template="{}")
    return sum(rows[0]["label"] == sentence for rows, sentence in zip(answers, known, strict=True)) / len(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("shapes_clip"))
    options = parser.parse_args()
    rng = random.Random(0)
    torch.manual_seed(0)

    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    vocab = {token: place for place, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[])  # of letters: there are few words
    pictures = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = CLIPProcessor(pictures, tokenizer)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": vocab["<|startoftext|>"], "eos_token_id": vocab["<|endoftext|>"]}
    config = CLIPConfig(
        text_config=sizes | ends | {"vocab_size": len(vocab), "max_position_embeddings": 32},
        vision_config=sizes | {"image_size": SIDE, "patch_size": 4},
        projection_dim=32,
    )
    model = CLIPModel(config)

    shares = "{:.1%} of new pictures matched, {:.1%} of those whose sentence was never seen"
    held_out = [(KNOWN, random.Random(1)), (NEW, random.Random(2))]
    print("before:", shares.format(*(measure(model.eval(), processor, *each) for each in held_out)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps)
    started, total, every = time.monotonic(), 0.0, max(1, options.steps // 10)
    model.train()
    for step in range(1, options.steps + 1):
        texts = rng.sample(KNOWN, len(KNOWN))  # each once: a sentence must not stand against itself
        inputs = processor(text=texts, images=[picture_of(text, rng) for text in texts], padding=True, return_tensors="pt")
        loss = model(**inputs, return_loss=True).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % every == 0:
            print(f"step {step}: loss {total / every:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0
    held_out = [(KNOWN, random.Random(1)), (NEW, random.Random(2))]
    print("after:", shares.format(*(measure(model.eval(), processor, *each) for each in held_out)))

    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    classify = pipeline("zero-shot-image-classification", model=options.output)
    asked = ["a small red triangle", "a large green circle", "a small blue square", "a large yellow square"]
    sheet = Image.new("RGB", (4 * 232 - 8, 300), "white")
    for place, sentence in enumerate(asked):
        picture = picture_of(sentence, rng, 224)
        answers = classify(picture, candidate_labels=SENTENCES, hypothesis_template="{}")[:3]
        sheet.paste(draw(picture, answers), (place * 232, 0))
    sheet.save(options.output / "sentences.png")


if __name__ == "__main__":
    main()
