"""Real sentences to measure with: of the shared data sets where they are there, else of Python's own manual."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

SHARED = Path(__file__).parent.parent.parent / "shared/data/datasets"


def sentences(count: int = 1000, seed: int = 0) -> list[str]:
    """Texts of 4 to some 256 tokens, mixed."""
    found = _shared() if SHARED.is_dir() else _manual()
    found = [text for text in dict.fromkeys(found) if 12 <= len(text) <= 1100]
    random.Random(seed).shuffle(found)
    return found[:count]


def _shared() -> list[str]:
    texts: list[str] = []
    for path in sorted(SHARED.glob("xquad/*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                texts += [paragraph["context"], *(question["question"] for question in paragraph["qas"])]
    with open(SHARED / "ag_news/ag_news_first1000.csv", encoding="utf-8", newline="") as file:
        texts += [row[-1] for row in csv.reader(file)]
    texts += [line.split("\t")[0] for line in (SHARED / "sst2/dev.tsv").read_text(encoding="utf-8").splitlines()]
    return texts


def _manual() -> list[str]:
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for text in topics.values() for part in re.split(r"\n\s*\n", text)]
    return [piece for text in paragraphs for piece in (text, *re.split(r"(?<=\.) ", text))]
