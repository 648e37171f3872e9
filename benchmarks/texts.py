"""Real texts to measure with: of the shared data sets where they are there, else of Python's own manual."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

SHARED = Path(__file__).parent.parent.parent / "shared/data/datasets"
OCTAVES = ((4, 8), (8, 16), (16, 32), (32, 64), (64, 128), (128, 257))


def sentences(count: int = 1000, seed: int = 0) -> list[str]:
    """Texts of 4 to 256 tokens, mixed: equally many of each octave of lengths, so that short and long ones both count."""
    draw = random.Random(seed)
    found = list(dict.fromkeys(_shared() if SHARED.is_dir() else _manual()))
    draw.shuffle(found)
    chosen: list[str] = []
    for number, (low, high) in enumerate(OCTAVES):
        share = count * (number + 1) // len(OCTAVES) - len(chosen)
        fitting = [text for text in found if low <= _size(text) < high]
        chosen += (fitting * (share // max(len(fitting), 1) + 1))[:share]
    draw.shuffle(chosen)
    return chosen


def _size(text: str) -> int:
    """Roughly its tokens: words, marks and the two around them."""
    return len(re.findall(r"\w+|[^\w\s]", text)) + 2


def _shared() -> list[str]:
    texts: list[str] = []
    for path in sorted(SHARED.glob("xquad/*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                texts += [paragraph["context"], *(question["question"] for question in paragraph["qas"])]
    with open(SHARED / "ag_news/ag_news_first1000.csv", encoding="utf-8", newline="") as file:
        texts += [row[-1] for row in csv.reader(file)]
    with open(SHARED / "stsb/stsb-en-dev.csv", encoding="utf-8", newline="") as file:
        texts += [row[0] for row in csv.reader(file)]
    for part in ("dev", "train"):
        lines = (SHARED / f"sst2/{part}.tsv").read_text(encoding="utf-8").splitlines()
        texts += [line.split("\t")[0] for line in lines]
    with open(SHARED / "dialogsum/dialogsum.dev.jsonl", encoding="utf-8") as file:
        texts += [json.loads(line)["dialogue"] for line in file]
    return texts


def _manual() -> list[str]:
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for text in topics.values() for part in re.split(r"\n\s*\n", text)]
    return [piece for text in paragraphs for piece in (text, *re.split(r"(?<=\.) ", text))]
