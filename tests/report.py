"""How far the models are from the reference: `pytest tests/models --report PATH` measures, `python -m tests.report PATH` prints.

The harness notes the error of every comparison; with the option, the worst of each class and check is kept and written as
JSON when the run ends, whatever the number of processes. Errors are max|difference| / max|reference|; those of gradients
are norm of the difference / max(own norm, 1e-3 × the largest gradient's norm), for one parameter.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DEFAULT = "parity.json"
PACKAGE = Path(__file__).parents[1] / "src" / "transept"
KERNELS, PADS = ("eager", "sdpa"), ("right", "left", "none")
CHECKS = [*(f"{kernel} {pad}" for kernel in KERNELS for pad in PADS), "variants", "float64", "loss", "loss64", "gradients"]
COUNTS = ["checkpoints", "tensors"]


class Recorder:
    """The worst error of each class and check, and what was counted; a pytest plugin while the option is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors: dict[str, dict[str, float]] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.current: tuple[str, str] | None = None

    def worst(self, name: str, check: str, error: float) -> None:
        """Keep the largest error; one that is no number is larger than all."""
        error = math.inf if math.isnan(error) else error
        checks = self.errors.setdefault(name, {})
        checks[check] = max(checks.get(check, 0.0), error)

    def merge(self, found: dict[str, Any]) -> None:
        """Add what another process kept."""
        for name, checks in found["errors"].items():
            for check, error in checks.items():
                self.worst(name, check, error)
        for name, counts in found["counts"].items():
            self.counts.setdefault(name, Counter()).update(counts)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Know whose errors are noted next."""
        params = item.callspec.params if hasattr(item, "callspec") else {}
        checks = {
            "test_equals_reference": "{kernel} {pad}",
            "test_equals_reference_in_double": "float64",
            "test_gradients_equal_reference": "gradients",
            "test_round_trip": "variants",
        }
        check = checks.get(getattr(item, "originalname", ""))
        self.current = None if check is None else (params["cls"].__name__, check.format(**params))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand what was kept to the process that started this one, or write it."""
        found = {"errors": self.errors, "counts": {name: dict(counts) for name, counts in self.counts.items()}}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["report"] = found
        else:
            self.path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker kept."""
        self.merge(getattr(node, "workeroutput", {}).get("report", {"errors": {}, "counts": {}}))


recorder: Recorder | None = None


def record(path: Path, config: pytest.Config) -> None:
    """Start to keep what is noted."""
    global recorder
    recorder = Recorder(path)
    config.pluginmanager.register(recorder)


def note(what: str, error: float) -> None:
    """An error that a comparison found; losses have columns of their own."""
    if recorder is not None and recorder.current is not None:
        name, check = recorder.current
        if "loss" in what and check != "variants":
            check = "loss64" if check == "float64" else "loss"
        recorder.worst(name, check, error)


def count(what: str, number: int) -> None:
    """A number of things that were compared bit for bit."""
    if recorder is not None and recorder.current is not None:
        recorder.counts.setdefault(recorder.current[0], Counter())[what] += number


def table(found: dict[str, Any]) -> str:
    """Classes × checks with the worst error each, the sums below, and the length of each family's file."""
    errors, counts = found["errors"], found["counts"]
    wide = max(map(len, errors), default=5)
    lines = [" ".join([f"{'class':{wide}}", *(f"{check:>11}" for check in [*CHECKS, *COUNTS])])]
    for name in sorted(errors):
        cells = [f"{errors[name][check]:11.1e}" if check in errors[name] else f"{'–':>11}" for check in CHECKS]
        cells += [f"{counts.get(name, {}).get(what, 0):11}" for what in COUNTS]
        lines.append(" ".join([f"{name:{wide}}", *cells]))
    worst = {check: max((errors[name].get(check, 0.0), name) for name in errors) for check in CHECKS} if errors else {}
    lines += ["", "worst of all:", *(f"  {check:12} {error:.1e}  {name}" for check, (error, name) in worst.items())]
    totals = {what: sum(values.get(what, 0) for values in counts.values()) for what in COUNTS}
    lines += ["", f"{len(errors)} classes; bit for bit in both directions: {totals['checkpoints']} checkpoints, "]
    lines[-1] += f"{totals['tensors']} tensors"
    lines += ["", "lines of each family's file or folder:"]
    lengths: Counter[str] = Counter()
    for path in sorted((PACKAGE / "models").rglob("*.py")):
        family = path.relative_to(PACKAGE / "models").parts[0].removesuffix(".py")
        if family != "__init__":
            lengths[family] += len(path.read_text(encoding="utf-8").splitlines())
    lines += [f"  {stem:12} {length:5}" for stem, length in lengths.items()]
    return "\n".join([*lines, f"  {'together':12} {sum(lengths.values()):5}"])


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT).read_text(encoding="utf-8"))))
