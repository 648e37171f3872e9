"""The card of a trained model: what it was trained on, how, and how well it does, with figures that were measured."""

from __future__ import annotations

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transept.files import PathName, make_directory, write_text

CARD_NAME = "README.md"
MOST_CONFUSIONS = 5
Z = 1.959963984540054  # of the standard normal distribution: 95 % of it lies within


def wilson(correct: int, n: int) -> tuple[float, float]:
    """The interval of 95 % for a share of which ``correct`` of ``n`` were seen (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = correct / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass
class Answers:
    """How a classifier did on rows that it was not trained on.

    Args:
        correct, n: answers that were right, and all.
        majority: the most frequent class and its share.
        confusions: the most frequent mistakes: what it was, what was said, how often.
    """

    correct: int
    n: int
    majority: tuple[str, float]
    confusions: list[tuple[str, str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, predicted: Sequence[int], labels: Sequence[int], names: Mapping[int, str]) -> Answers:
        """From the numbers of classes that were said and that are right."""
        counts = Counter(labels)
        most, times = counts.most_common(1)[0]
        wrong = Counter((right, said) for right, said in zip(labels, predicted) if right != said)
        name = {number: names.get(number, str(number)) for number in {*labels, *predicted}}
        confusions = [(name[right], name[said], n) for (right, said), n in wrong.most_common(MOST_CONFUSIONS)]
        n = len(labels)
        return cls(n - wrong.total(), n, (name[most], times / n), confusions)


@dataclass
class Card:
    """What a card tells.

    Args:
        task: the name of the task.
        base: the model that training began with, or how a new one was made.
        data: lines about the data: files, rows, digests.
        arguments: the settings that differ from the defaults.
        metrics: what the evaluation measured, by name.
        n: rows of the evaluation.
        answers: more about a classifier.
        seconds, updates: how long training took.
        repeat: the command that does the same again.
        versions: of what was used.
        tag: the task's tag on the hub.
    """

    task: str
    base: str
    data: list[str]
    arguments: Mapping[str, Any]
    metrics: Mapping[str, float]
    n: int
    seconds: float
    updates: int
    repeat: str
    answers: Answers | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    tag: str | None = None

    def text(self, plot: bool = False) -> str:
        """The card in Markdown."""
        head = ["---", "library_name: transept", *([f"pipeline_tag: {self.tag}"] if self.tag else []), "---"]
        return "\n".join(
            [
                *head,
                *("", f"# A model for {self.task}", ""),
                f"Trained from {_inline(self.base)} with transept. All figures below were measured by this run.",
                *("", "## How well it does", "", *self._figures()),
                *("", "## Data", "", *(f"- {line}" for line in self.data)),
                *("", "## Training", "", *self._training()),
                *(["", "![loss, evaluation, learning rate and norm](plot.png)"] if plot else []),
                *("", "## Do it again", "", "```console", f"$ {self.repeat}", "```", ""),
            ]
        )

    def _figures(self) -> list[str]:
        rows = [f"| {name.replace('_', ' ')} | {_figure(value)} |" for name, value in self.metrics.items()]
        lines = [f"On {self.n} rows that it was not trained on:", "", "| metric | value |", "|---|---|", *rows]
        if self.answers is not None:
            low, high = wilson(self.answers.correct, self.answers.n)
            share = self.answers.correct / max(self.answers.n, 1)
            right = f"{self.answers.correct} of {self.answers.n} answers are right: {100 * share:.1f} %"
            name, most = self.answers.majority
            lines += ["", f"{right} (95 % interval {100 * low:.1f} to {100 * high:.1f} %, Wilson)."]
            lines += [f"Always saying {_inline(name)}, the most frequent class, would be right in {100 * most:.1f} %."]
        if self.answers is not None and self.answers.confusions:
            lines += ["", "The most frequent mistakes:", "", "| it was | the model said | times |", "|---|---|---|"]
            lines += [f"| {_cell(was)} | {_cell(said)} | {times} |" for was, said, times in self.answers.confusions]
        return lines

    def _training(self) -> list[str]:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        took = f"{self.updates} updates in {self.seconds:.0f} seconds on {machine()} ({cores} processor cores)."
        told = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        settings = [f"| {name} | {_cell(json.dumps(value))} |" for name, value in self.arguments.items()]
        return [took, *(["", f"Made with {told}."] if told else []), "", "| setting | value |", "|---|---|", *settings]


def write_card(card: Card, directory: PathName) -> Path:
    """Write a card as ``README.md`` into a model's directory (``FileError``: it cannot be written)."""
    path = Path(make_directory(directory), CARD_NAME)
    write_text(path, card.text(plot=Path(directory, "plot.png").exists()))
    return path


def machine() -> str:
    """The kind of device that a run used."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"a processor of the kind {platform.machine()}"


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _inline(text: str) -> str:
    """A text from data as code, on one line."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
