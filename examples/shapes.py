"""Train a small DETR to find circles, squares and triangles: ``python examples/shapes.py [--steps N] [--output DIR]``."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from transept import DetrConfig, DetrForObjectDetection, DetrImageProcessor, draw, pipeline

LABELS = {0: "circle", 1: "square", 2: "triangle"}
SIDE = 64  # of the pictures that the model reads


def scene(rng: random.Random, side: int = SIDE) -> tuple[Image.Image, list[dict[str, Any]]]:
    """A picture of one to three shapes that do not overlap, and their classes and boxes (left, top, width, height)."""
    ground = rng.randrange(256)
    picture = Image.new("RGB", (side, side), (ground, ground, ground))
    pen, objects = ImageDraw.Draw(picture), []
    for _ in range(rng.randint(1, 3)):
        size = rng.randint(side // 5, side // 2)
        x, y = rng.randint(0, side - size - 1), rng.randint(0, side - size - 1)
        if any(x < a + w and a < x + size and y < b + h and b < y + size for a, b, w, h in (each["bbox"] for each in objects)):
            continue
        kind, color = rng.randrange(3), (ground, ground, ground)
        while sum(abs(level - ground) for level in color) < 150:
            color = rng.randrange(256), rng.randrange(256), rng.randrange(256)
        corners = (x, y, x + size - 1, y + size - 1)
        if kind == 0:
            pen.ellipse(corners, fill=color)
        elif kind == 1:
            pen.rectangle(corners, fill=color)
        else:
            pen.polygon([(x + size / 2, y), (x, y + size - 1), (x + size - 1, y + size - 1)], fill=color)
        objects.append({"bbox": [x, y, size, size], "category_id": kind, "area": size**2, "iscrowd": 0})
    return picture, objects


def overlap(box: dict[str, float], known: list[int]) -> float:
    """The intersection of two boxes over their union."""
    x, y, width, height = known
    across = min(box["xmax"], x + width) - max(box["xmin"], x)
    down = min(box["ymax"], y + height) - max(box["ymin"], y)
    both = max(across, 0) * max(down, 0)
    return both / ((box["xmax"] - box["xmin"]) * (box["ymax"] - box["ymin"]) + width * height - both)


def measure(model: Any, processor: Any, scenes: list[Any]) -> tuple[float, float]:
    """Of objects, the share that is found (right class, overlap above a half); of answers, that which finds one, each once."""
    answers = pipeline("object-detection", model=model, image_processor=processor)([picture for picture, _ in scenes])
    found = 0
    for rows, (_, objects) in zip(answers, scenes, strict=True):
        for known in objects:
            same = [row for row in rows if row["label"] == LABELS[known["category_id"]]]
            found += any(overlap(row["box"], known["bbox"]) > 0.5 for row in same)
    return found / sum(len(objects) for _, objects in scenes), found / max(1, sum(map(len, answers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--output", type=Path, default=Path("shapes"))
    options = parser.parse_args()
    rng = random.Random(0)
    torch.manual_seed(0)

    # A map of 8 x 8 places of 64 x 64 pixels. Narrow layers need larger new weights than the default of 0.02.
    maps = {"model_type": "resnet", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic"}
    maps |= {"out_features": ["stage2"]}
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 3, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 8, "dropout": 0.0, "init_std": 0.1}
    # Few queries find nothing: that is no rare class here, whose weight would be 0.1.
    kind = {"use_timm_backbone": False, "auxiliary_loss": True, "eos_coefficient": 0.3, "id2label": LABELS}
    model = DetrForObjectDetection(DetrConfig(backbone_config=maps, **sizes, **kind))
    model.model.unfreeze_backbone()  # nothing was trained before
    torch.nn.init.normal_(model.model.query_position_embeddings.weight)  # far apart, so that queries look at different places
    processor = DetrImageProcessor(size={"shortest_edge": SIDE, "longest_edge": SIDE})

    held_out = [scene(rng) for _ in range(300)]
    shares = "{:.1%} of the objects found, {:.1%} of the answers right"
    print("before:", shares.format(*measure(model.eval(), processor, held_out)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=options.steps)
    started, total, every = time.monotonic(), 0.0, max(1, options.steps // 10)
    model.train()
    for step in range(1, options.steps + 1):
        pictures, objects = zip(*(scene(rng) for _ in range(16)))
        known = [{"image_id": place, "annotations": each} for place, each in enumerate(objects)]
        loss = model(**processor(list(pictures), known, return_tensors="pt")).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % every == 0:
            print(f"step {step}: loss {total / every:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            total = 0.0
    print("after:", shares.format(*measure(model.eval(), processor, held_out)))

    model.save_pretrained(options.output)
    processor.save_pretrained(options.output)
    detect = pipeline("object-detection", model=options.output)
    sheet = Image.new("RGB", (4 * 200 - 8, 2 * 200 - 8), "white")
    for place in range(8):
        picture = scene(rng, 192)[0]
        sheet.paste(draw(picture, detect(picture)), (place % 4 * 200, place // 4 * 200))
    sheet.save(options.output / "boxes.png")


if __name__ == "__main__":
    main()
