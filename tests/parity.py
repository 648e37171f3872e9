"""How far each text family is from the reference: `python -m tests.parity` prints a table in Markdown.

Errors are the worst of the outputs of all classes of a family, max|difference| / max|reference|, of tiny random models whose rows
are padded. In float64 what the reference computes in float32 stays in float64 where that is needed to see a difference in the
mathematics; roots and tables of angles that it makes in float32 stay so. `python -m tests.parity bert t5` prints some families.
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, Family
from tests.models.harness import DOUBLE, batch, classes, doubled, error, family_module, in_double, pair
from transept.core.model import Model

HEADER = "| family | lines | classes | float32 | float64 |\n| --- | ---: | ---: | ---: | ---: |"


def lines_of(family: Family) -> int:
    """Of a family's file, or of all files of its folder."""
    file = Path(str(family_module(family).__file__))
    files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def worst(ours: Any, theirs: Any) -> float:
    """Of the outputs that both have."""
    return max(error(ours[name], value) for name, value in theirs.items() if name in ours and value is not None)


def errors_of(family: Family, cls: type[Model]) -> tuple[float, float]:
    """In float32 and in float64, or no number where the reference does not compute in float64."""
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls)
    with torch.no_grad():
        single = worst(ours(**inputs), theirs(**inputs))
        inputs, ours, theirs = doubled(inputs), ours.double(), theirs.double()
        mine, double = ours(**inputs), math.inf
        for run in (theirs, partial(in_double, theirs, pytest.MonkeyPatch())):
            if double > DOUBLE:
                with contextlib.suppress(RuntimeError):  # a smallest number of float64 in a tensor of float32
                    double = min(double, worst(mine, run(**inputs)))
    return single, math.nan if math.isinf(double) else double


def shown(errors: Iterable[float]) -> str:
    """The largest one."""
    known = [error for error in errors if not math.isnan(error)]
    return f"{max(known):.1e}" if known else "–"


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    print(HEADER)
    chosen = [family for family in FAMILIES if family.modality in ("text", "seq2seq")]
    for family in sorted(chosen, key=lambda family: family.model_type):
        if names and family.model_type not in names:
            continue
        found = [errors_of(family, cls) for cls in classes(family)]
        single, double = map(shown, zip(*found, strict=True))
        print(f"| `{family.model_type}` | {lines_of(family)} | {len(found)} | {single} | {double} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
