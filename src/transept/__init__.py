"""transept: transformer models with the ecosystem's names and checkpoints.

Public names are imported when they are first used: the stub beside this file is both their index here and what an editor
sees, and a test keeps it complete.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from transept.names import Names, explain

__version__ = "0.1.0"


def _index() -> dict[str, str]:
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = re.findall(r"^from (\S+) import (\([^)]*\)|.*)$", stub, re.MULTILINE)
    pairs = [(module, *pair) for module, names in imports for pair in re.findall(r"(\w+) as (\w+)", names)]
    return {name: module if name == there else f"{__name__}.models" for module, there, name in pairs}


_MODULE = _index()
__all__ = sorted(_MODULE)
if not any(isinstance(finder, Names) for finder in sys.meta_path):
    sys.meta_path.append(Names(_MODULE))


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(explain(name, _MODULE))
    value = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE]
