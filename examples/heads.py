"""Fit the heads that come with the library: ``python examples/heads.py sentiment|intents [--data CSV] [--output DIR]``.

A linear layer on the mean state of the embedding model, which stays as it is: the states are computed once, and the layer is
fitted to them by L-BFGS. Sentiment learns from the made-up opinions of ``sentiment_rows.py``; intents from banking77
(Casanueva et al. 2020, CC BY 4.0), a file with the columns text and category. ``--measure`` is a file of text, tab, 0 or 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import transept
from transept.layers import pool

sys.path.insert(0, str(Path(__file__).parent))
from sentiment_rows import rows  # the file beside this one

Rows = list[tuple[str, str]]


def states(texts: list[str], batch: int = 64) -> Tensor:
    """The mean state of each text (N, 384), computed in the order of lengths."""
    embed = transept.pipeline("text-embedding")
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found = torch.empty(len(texts), embed.model.config.hidden_size)
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            chosen = [texts[row] for row in part]
            inputs = embed.tokenizer(chosen, padding=True, truncation=True, max_length=128, return_tensors="pt")
            found[part] = pool.mean(embed.model(**inputs).last_hidden_state, inputs["attention_mask"])
    return found.clone()


def fit(x: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C) of the least cross-entropy plus ``decay`` times the squared weights."""
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=80, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x.double() @ weight.T + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach().float(), bias.detach().float()


def share_right(head: tuple[Tensor, Tensor], x: Tensor, labels: Tensor) -> float:
    return ((x @ head[0].T + head[1]).argmax(1) == labels).double().mean().item()


def best_scale(head: tuple[Tensor, Tensor], x: Tensor, labels: Tensor) -> float:
    """What to multiply the logits by, so that scores are as sure as they are right (Guo et al. 2017)."""
    scales, logits = torch.arange(0.5, 8, 0.1).tolist(), x @ head[0].T + head[1]
    return min(scales, key=lambda scale: torch.nn.functional.cross_entropy(logits * scale, labels).item())


def save(directory: Path, head: tuple[Tensor, Tensor], names: list[str], summary: str) -> None:
    """A head as ``pipeline("text-classification")`` reads it: config, weights."""
    labels = {"id2label": {str(number): name for number, name in enumerate(names)}}
    labels |= {"label2id": {name: number for number, name in enumerate(names)}}
    config = transept.pipeline("text-embedding").model.config.to_dict() | labels
    config |= {"architectures": ["BertForSequenceClassification"], "head_pooling": "mean", "summary": summary}
    for name in ("dtype", "torch_dtype", "_name_or_path", "transformers_version"):
        config.pop(name, None)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({"classifier.weight": head[0].contiguous(), "classifier.bias": head[1]}, directory / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("sentiment", "intents"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--output", type=Path, default=Path("head"))
    options = parser.parse_args()
    if options.kind == "sentiment":
        every: Rows = [(text, ("NEGATIVE", "POSITIVE")[kind]) for text, kind in rows(options.rows)]
        decay, what = 0.1, f"{options.rows} made-up English opinions"
    else:
        with open(options.data, encoding="utf-8", newline="") as file:
            every = [(row["text"], row["category"]) for row in csv.DictReader(file)]
        decay, what = 1e-6, f"{len(every)} questions to a bank (banking77, CC BY 4.0)"
    names = sorted({name for _, name in every})
    x, labels = states([text for text, _ in every]), torch.tensor([names.index(name) for _, name in every])
    held_out = (
        torch.arange(len(every)) % 4 == 3 if options.kind == "intents" else torch.arange(len(every)) >= len(every) * 3 // 4
    )
    print(f"before: {1 / len(names):.1%} of the held-out rows right by chance")
    tried = fit(x[~held_out], labels[~held_out], len(names), decay)
    reached, scale = share_right(tried, x[held_out], labels[held_out]), best_scale(tried, x[held_out], labels[held_out])
    print(f"after: {reached:.1%} of {int(held_out.sum())} held-out rows right")
    head = tuple(weight * scale for weight in fit(x, labels, len(names), decay))
    measured = f"{reached:.1%} of held-out rows of their kind right"
    if options.measure is not None:
        lines = [line.rsplit("\t", 1) for line in options.measure.read_text(encoding="utf-8").splitlines()]
        real = share_right(head, states([text for text, _ in lines]), torch.tensor([int(kind) for _, kind in lines]))
        print(f"{real:.1%} of {len(lines)} rows of {options.measure.name} right")
        measured = f"{real:.1%} of the {len(lines)} sentences of SST-2's development set right"
    save(options.output, head, names, f"trained on {what}; {measured}.")


if __name__ == "__main__":
    main()
