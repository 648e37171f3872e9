"""Train a small Segformer on labelled frames of CamVid: ``python examples/camvid.py FOLDER [--steps N] [--output DIR]``.

The folder holds ``train`` (frames) and ``trainannot`` (a picture of class numbers for each, of the same name).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from transept import SegformerConfig, SegformerForSemanticSegmentation, SegformerImageProcessor, draw, pipeline

NAMES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]
VOID = 11  # pixels of no class
HELD_OUT = 3


def measure(model: Any, processor: Any, frames: list[Image.Image], maps: list[Image.Image]) -> tuple[float, float]:
    """The mean over classes of intersection over union, and the share of pixels that are right."""
    inputs = processor(frames, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    sizes = [(frame.height, frame.width) for frame in frames]
    found = torch.stack(list(processor.post_process_semantic_segmentation(outputs, target_sizes=sizes))).numpy()
    known = np.stack([np.asarray(each) for each in maps])
    found, known = found[known != VOID], known[known != VOID]
    both = np.bincount(known[found == known], minlength=VOID)
    either = np.bincount(known, minlength=VOID) + np.bincount(found, minlength=VOID) - both
    return float((both / np.maximum(either, 1))[np.bincount(known, minlength=VOID) > 0].mean()), float((found == known).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", type=Path, default=Path("camvid"))
    options = parser.parse_args()
    torch.manual_seed(0)

    paths = sorted((options.folder / "train").glob("*.png"))
    frames = [Image.open(path).convert("RGB") for path in paths]
    maps = [Image.open(options.folder / "trainannot" / path.name) for path in paths]
    processor = SegformerImageProcessor(size={"height": 96, "width": 128})
    config = SegformerConfig(
        num_attention_heads=[1, 2, 4, 8],
        hidden_sizes=[16, 32, 64, 96],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=64,
        mlp_ratios=[2, 2, 2, 2],
        drop_path_rate=0.0,
        hidden_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        semantic_loss_ignore_index=VOID,
        id2label=dict(enumerate(NAMES)),
    )
    model = SegformerForSemanticSegmentation(config)
    inputs = processor(frames[:-HELD_OUT], maps[:-HELD_OUT], return_tensors="pt")
    pixels, labels = inputs["pixel_values"], inputs["labels"]

    held_out = frames[-HELD_OUT:], maps[-HELD_OUT:]
    print("before: mean IoU {:.1%}, {:.1%} of the pixels right".format(*measure(model.eval(), processor, *held_out)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps)
    started, total, every = time.monotonic(), 0.0, max(1, options.steps // 10)
    model.train()
    for step in range(1, options.steps + 1):
        rows = torch.randperm(len(pixels))[:4]
        x, y = pixels[rows], labels[rows]
        if torch.rand(()) < 0.5:  # a street looks as likely in a mirror
            x, y = x.flip(-1), y.flip(-1)
        loss = model(pixel_values=x, labels=y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % every == 0:
            print(f"step {step}: loss {total / every:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0
    print("after: mean IoU {:.1%}, {:.1%} of the pixels right".format(*measure(model.eval(), processor, *held_out)))

    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    segment = pipeline("image-segmentation", model=options.output)
    truth = np.asarray(maps[-1])
    known = [{"label": name, "score": None, "mask": Image.fromarray(truth == place)} for place, name in enumerate(NAMES)]
    found = segment(frames[-1])
    order = [row["label"] for row in found]  # colours are given in order: the same classes come first in both
    known = sorted((row for row in known if row["mask"].getbbox()), key=lambda row: [*order, row["label"]].index(row["label"]))
    drawn = draw(frames[-1], found), draw(frames[-1], known)
    sheet = Image.new("RGB", (drawn[0].width, 2 * drawn[0].height + 8), "white")
    for place, picture in enumerate(drawn):
        sheet.paste(picture, (0, place * (picture.height + 8)))
    sheet.save(options.output / "segments.png")


if __name__ == "__main__":
    main()
