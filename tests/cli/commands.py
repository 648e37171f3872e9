"""Running the command, in this process or in one of its own; and tiny models to run it on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pace import PATIENCE
from transept.cli.main import main

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *SPECIAL,
    *"aicdeghlmnopqrstuvwy.!?",
    "the",
    "love",
    "hate",
    "this",
    "that",
    "film",
    "book",
    "cat",
    "dog",
    "good",
    "bad",
]
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return self.err.splitlines()


def answers(text: str) -> list[Any]:
    """The answers of rows on standard output, without what they belong to."""
    return [json.loads(line)["answer"] for line in text.splitlines()]


@dataclass
class Command:
    """The command, run in this process.

    ``terminal`` names the streams that pretend to be one: ``out``, ``err``, ``in``.
    """

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: object, stdin: bytes = b"", terminal: Sequence[str] = ()) -> Outcome:
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name in ("out", "err", "in"):
                patch.setattr(getattr(sys, f"std{name}"), "isatty", lambda name=name: name in terminal, raising=False)
            self.capsys.readouterr()
            code = main([str(argument) for argument in arguments])
        captured = self.capsys.readouterr()
        return Outcome(code, captured.out, captured.err)


@pytest.fixture
def command(capsys, monkeypatch) -> Command:
    return Command(capsys, monkeypatch)


def process(*arguments: object, stdin: bytes = b"", **settings: Any) -> Outcome:
    """The command in a process of its own, where pipes, signals and imports are real."""
    line = [sys.executable, "-m", "transept.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    done = subprocess.run(line, input=stdin, timeout=PATIENCE, env=environment, check=False, **pipes)
    return Outcome(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


def save_text_model(directory: Path, kind: str = "BertForSequenceClassification", **settings: Any) -> Path:
    """A tiny BERT with its tokenizer."""
    from transept.models import bert
    from transept.preprocess.text.classes import BertTokenizer

    torch.manual_seed(0)
    getattr(bert, kind)(bert.BertConfig(**(TINY | settings))).save_pretrained(directory)
    vocabulary = directory / "words.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    BertTokenizer(vocab_file=str(vocabulary), model_max_length=64).save_pretrained(directory)
    vocabulary.unlink()
    return directory


@pytest.fixture(scope="session")
def classifier(tmp_path_factory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("classifier"), id2label={0: "BAD", 1: "GOOD"})


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("encoder"), "BertModel")
