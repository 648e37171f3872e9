"""Writing text: settings, processors, strategies, streaming. Public names are imported when they are first used."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import transept

    if name.startswith("_") or not hasattr(transept, name):
        raise AttributeError(f"{__name__} has no name {name!r}.")
    return getattr(transept, name)
