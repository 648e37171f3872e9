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

import torch

from transept.config.fields import without_secrets
from transept.core.task_table import pipeline_tag
from transept.storage.files import PathName, make_directory, write_text
from transept.storage.publish import CARD_NAME, PLOT_NAME
from transept.storage.source import LIBRARY

# Settings in the card of a trainer's model.
SHOWN = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
    *("seed", "optim", "lr_scheduler_type", "warmup_steps", "weight_decay", "label_smoothing_factor", "bf16", "fp16"),
)
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
    """How a classifier did on rows that it was not trained on."""

    correct: int
    n: int  # of all answers
    majority: tuple[str, float]  # the most frequent class and its share
    # The most frequent mistakes: the right class, the predicted one, how often.
    confusions: list[tuple[str, str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, predicted: Sequence[int], labels: Sequence[int], names: Mapping[int, str]) -> Answers:
        """From the numbers of the classes that were predicted and that are right."""
        (most, times), n = Counter(labels).most_common(1)[0], len(labels)
        wrong = Counter((right, said) for right, said in zip(labels, predicted) if right != said)
        name = {number: names.get(number, str(number)) for number in {*labels, *predicted}}
        confusions = [(name[right], name[said], times) for (right, said), times in wrong.most_common(MOST_CONFUSIONS)]
        return cls(n - wrong.total(), n, (name[most], times / n), confusions)


@dataclass
class Card:
    """The contents of a card; what is absent is left out."""

    title: str
    base: str | None  # the model that training began with, or how a new one was made
    metrics: Mapping[str, Any]  # of the evaluation
    arguments: Mapping[str, Any]  # the settings of the run
    matter: Mapping[str, Any] = field(default_factory=dict)  # what the hub reads: `license`, `tags` and such
    rows: int | None = None  # of the evaluation
    answers: Answers | None = None  # of a classifier
    data: Sequence[str] = ()  # lines about the data: files, rows, digests
    seconds: float | None = None  # that training took
    updates: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)  # of the packages
    repeat: str | None = None  # the command that does the same again

    def text(self, plot: bool = False) -> str:
        from huggingface_hub import ModelCardData

        matter = {name: value for name, value in self.matter.items() if value is not None}
        header = ModelCardData(library_name=LIBRARY, **matter).to_yaml()
        origin = "random weights" if self.base is None else _inline(self.base)
        sections = {
            "How well it does": self._figures(),
            "Data": [f"- {line}" for line in self.data],
            "Training": self._training(plot),
            "Do it again": [] if self.repeat is None else ["```console", f"$ {self.repeat}", "```"],
        }
        lines = ["---", header, "---", "", f"# {self.title}", "", f"Trained from {origin} with {LIBRARY}."]
        for title, section in sections.items():
            lines += ["", f"## {title}", "", *section] if section else []
        return "\n".join([*lines, ""])

    def _figures(self) -> list[str]:
        if not self.metrics:
            return []
        on = "The last evaluation" if self.rows is None else f"On {self.rows} rows that it was not trained on"
        lines = [f"{on}, measured by this run:", "", "| metric | value |", "|---|---|"]
        for name, value in self.metrics.items():
            lines.append(f"| {name} | {value:.4f} |" if isinstance(value, float) else f"| {name} | {value} |")
        if (answers := self.answers) is None:
            return lines
        (low, high), (name, most) = wilson(answers.correct, answers.n), answers.majority
        share = answers.correct / max(answers.n, 1)
        right = f"{answers.correct} of {answers.n} answers are right: {100 * share:.1f} %"
        lines += ["", f"{right} (95 % interval {100 * low:.1f} to {100 * high:.1f} %, Wilson)."]
        lines += [f"Always saying {_inline(name)}, the most frequent class, would be right in {100 * most:.1f} %."]
        if answers.confusions:
            lines += ["", "The most frequent mistakes:", "", "| it was | the model said | times |", "|---|---|---|"]
            lines += [f"| {_cell(was)} | {_cell(said)} | {times} |" for was, said, times in answers.confusions]
        return lines

    def _training(self, plot: bool) -> list[str]:
        lines = []
        if self.seconds is not None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            processor = f"a processor of the kind {platform.machine()}"
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor
            took = f"{self.updates} updates in {self.seconds:.0f} seconds"
            lines += [f"{took} on {device} ({cores} processor cores).", ""]
        if self.versions:
            lines += [f"Made with {', '.join(f'{name} {version}' for name, version in self.versions.items())}.", ""]
        lines += ["| setting | value |", "|---|---|"]
        settings = without_secrets(self.arguments)
        lines += [f"| {name} | {_cell(json.dumps(value))} |" for name, value in settings.items()]
        return [*lines, "", f"![loss, evaluation, learning rate and norm]({PLOT_NAME})"] if plot else lines


def write_card(card: Card, directory: PathName) -> Path:
    """Write a card as ``README.md`` into a model's directory (``FileError``: it cannot be written)."""
    folder = make_directory(directory)
    text = card.text(plot=(folder / PLOT_NAME).exists())
    write_text(folder / CARD_NAME, text.encode(errors="backslashreplace"))
    return folder / CARD_NAME


def card_of(
    model: Any, settings: Mapping[str, Any], logs: Sequence[Mapping[str, Any]], name: str | None = None, **matter: Any
) -> Card:
    """The card of a trainer's model: its base model, the settings, and the figures of the last evaluation."""
    title = name or Path(settings.get("output_dir") or ".").resolve().name
    matter["base_model"] = matter.get("base_model") or getattr(model, "name_or_path", None) or None
    matter["pipeline_tag"] = matter.get("pipeline_tag") or pipeline_tag(type(model).__name__)
    evaluations = (log for log in reversed(logs) if any(key.startswith("eval_") for key in log))
    arguments = {key: value for key, value in settings.items() if key in SHOWN}
    return Card(title, matter["base_model"], next(evaluations, {}), arguments, matter)


def _inline(text: str) -> str:
    """A text from data as code, on one line."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def make_markdown_table(lines: list[dict[str, Any]]) -> str:
    """A table with the keys of the first row as its columns, numbers at most four digits behind the point."""

    def text(value: Any) -> str:
        return f"{round(value, 4)}" if isinstance(value, float) and "." in str(value) else str(value)

    if not lines:
        return ""
    names = list(lines[0])
    rows = [names, *([text(value) for value in line.values()] for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    head, *body = (f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths))} |\n" for row in rows)
    return f"{head}|{'|'.join(f':{chr(45) * width}:' for width in widths)}|\n{''.join(body)}"
