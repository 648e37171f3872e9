"""The table of how far the models are from the reference."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

from tests import report


def test_the_worst_of_all_processes_is_kept_and_printed(tmp_path: Path) -> None:
    recorder = report.Recorder(tmp_path / "parity.json")
    recorder.worst("A", "float64", 1e-12)
    other = {"errors": {"A": {"float64": 2e-11}, "B": {"loss": math.nan}}, "counts": {"A": {"tensors": 5, "checkpoints": 2}}}
    for _ in range(2):
        recorder.pytest_testnodedown(SimpleNamespace(workeroutput={"report": other}))
    recorder.pytest_testnodedown(SimpleNamespace(workeroutput={}))  # a process that died
    assert recorder.errors == {"A": {"float64": 2e-11}, "B": {"loss": math.inf}}
    lines = report.table({"errors": recorder.errors, "counts": recorder.counts}).splitlines()
    assert lines[1].split() == ["A", *["–"] * 7, "2.0e-11", *["–"] * 3, "4", "10"]
    assert "2 classes; bit for bit in both directions: 4 checkpoints, 10 tensors" in lines
    assert any(
        line.split()[:2] == ["bert", str(len((report.PACKAGE / "models/bert.py").read_text().splitlines()))] for line in lines
    )


def test_nothing_is_kept_where_it_is_not_asked_for() -> None:
    before = report.recorder
    report.note("logits", 1.0)
    report.count("tensors", 1)
    assert report.recorder is before
