"""Writing text: settings, processors, strategies, streaming. Public names are imported when they are first used."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from transept.compat.names import installed

    return installed().get(name, __name__, ("generation.generate: Generates as GenerationMixin",))
