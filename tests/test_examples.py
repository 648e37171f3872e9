"""The examples run: a few steps lower the loss, and the model and the drawn answers are written."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.thorough import in_turn

EXAMPLES = Path(__file__).parent.parent / "examples"


PICTURES = {"digits": "digits", "shapes": "boxes", "shapes_clip": "sentences"}  # what examples draw


@pytest.mark.parametrize("name", in_turn(PICTURES, 1))
def test_examples_learn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--steps", "30", "--output", str(tmp_path)])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    shown = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", shown)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert "before: " in shown
    assert "after: " in shown
    assert {"config.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    with Image.open(tmp_path / f"{PICTURES[name]}.png") as drawn:
        assert len(drawn.convert("RGB").getcolors(2**20)) > 10


@pytest.mark.parametrize(("name", "falls"), [("autoencoder", False), ("k-means", False), ("masked pixels (SimMIM)", True)])
def test_objectives_for_pictures_learn(name: str, falls: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert learns("objectives_of_pictures", [name], monkeypatch, capsys) != falls


@pytest.mark.real_data
def test_objectives_for_texts_learn(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    data = EXAMPLES.parent / "../shared/data/datasets"
    if not (data / "stsb").is_dir():
        pytest.skip(f"pairs of sentences are missing: {data}")
    assert learns("objectives_of_texts", [str(data), "SimCSE"], monkeypatch, capsys)


def learns(example: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> bool:
    """Whether the figure of the only row of an example's table rises."""
    monkeypatch.setattr(sys, "argv", [example, *words])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    row = capsys.readouterr().out.splitlines()[-1]
    before, after = (float(figure) for figure in re.findall(r"-?[\d.]+", row.rpartition("   ")[0])[-2:])
    assert before != after
    return after > before


def test_each_example_is_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    tables = {lengths.pop(f"objectives_of_{kind}.py") for kind in ("pictures", "texts")}
    assert max(tables) < 240  # a dozen or two of runs each
    assert len(lengths) == 7
    assert max(lengths.values()) < 120
