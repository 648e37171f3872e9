"""The examples run: a few steps lower the loss, and the model and the drawn answers are written."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(("name", "picture"), [("digits", "digits"), ("shapes", "boxes"), ("shapes_clip", "sentences")])
def test_examples_learn(
    name: str, picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
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
    with Image.open(tmp_path / f"{picture}.png") as drawn:
        assert len(drawn.convert("RGB").getcolors(2**20)) > 10


def test_each_example_is_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 7
    assert max(lengths.values()) < 120
