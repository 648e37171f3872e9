"""transept: transformer models with the ecosystem's names and checkpoints.

Public names are imported when they are first used: the stub beside this file is both their index here and what an editor
sees, and a test keeps it complete.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from transept.compat.names import ModuleFinder
from transept.compat.table import ROOT

__version__ = "0.1.0"


def _index() -> dict[str, str]:
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = re.findall(r"^from (\S+) import (\([^)]*\)|.*)$", stub, re.MULTILINE)
    pairs = [(module, *pair) for module, names in imports for pair in re.findall(r"(\w+) as (\w+)", names)]
    return {name: module if name == there else f"{__name__}.models" for module, there, name in pairs}


_MODULE = _index()
__all__ = sorted(_MODULE)
_NAMES = next((finder for finder in sys.meta_path if isinstance(finder, ModuleFinder)), ModuleFinder(_MODULE))
if _NAMES not in sys.meta_path:
    sys.meta_path.insert(0, _NAMES)  # before the one that finds files, since families have names beside those of their files


def __getattr__(name: str) -> Any:
    value = _NAMES.get(name, __name__, ROOT)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE]
