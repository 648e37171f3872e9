"""What a machine cannot run is said and left out of a benchmark, and the others go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import measure, quality
from benchmarks.measure import Isolated, Timing, UnableError, interleaved


def counts(upto: int) -> Callable[[], Any]:
    return lambda: sum(range(upto))


def refuses(reason: str) -> Callable[[], Any]:
    raise RuntimeError(reason)


def ends() -> Callable[[], Any]:
    raise SystemExit(3)


def test_what_cannot_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    contenders = {
        "sum": Isolated(counts, 10),
        "no bfloat16": Isolated(refuses, "this processor has no bfloat16"),
        "crash": Isolated(ends),
    }
    try:
        found = interleaved(contenders, rounds=2)
        assert contenders["sum"].answer() == 45
    finally:
        for contender in contenders.values():
            contender.close()
    assert [len(timing.seconds) for timing in found.values()] == [2]
    assert list(found) == ["sum"]
    said = capsys.readouterr().out
    assert "no bfloat16 cannot run on this machine: RuntimeError: this processor has no bfloat16" in said
    assert "crash cannot run on this machine: its process has ended." in said


def test_ratios_are_taken_round_by_round() -> None:
    assert Timing([1.0, 2.0, 4.0]).faster_than(Timing([2.0, 6.0, 8.0])) == 2.0
    with pytest.raises(UnableError):
        Isolated(refuses, "nothing")()


def test_losses_of_few_bits_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(quality, "SIZES", quality.SIZES | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1})
    text = tmp_path / "text.txt"
    text.write_text("".join(f"The number {number} follows the number {number - 1}.\n" for number in range(1500)))
    quality.main([str(text), "--steps", "2", "--threads", "1", "--only", "float32", "int8", "int4", "HqqConfig, 4 bits"])
    ways = json.loads((tmp_path / "quality.json").read_text())["ways"]
    assert list(ways) == ["float32", "int8", "int4", "HqqConfig, 4 bits"]
    assert ways["float32"]["loss"] == ways["float32"]["weights"] == 0
    assert ways["int8"]["bytes"] < ways["float32"]["bytes"]
    assert all(abs(each["loss"]) < 0.05 for each in ways.values())
    assert "published" in capsys.readouterr().out
