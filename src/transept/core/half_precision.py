"""Models of half precision on a processor whose matrix tiles may trap."""

from __future__ import annotations

from typing import Any

from transept import tiles


def guard(model: Any) -> None:
    """See that products of half precision on the CPU are possible; where they are not, forward passes raise ``InputError``."""
    if multiplies_halves(model) and tiles.settle():
        model.register_forward_pre_hook(_refuse)


def multiplies_halves(model: Any) -> bool:
    """Whether it is of half precision and on the CPU."""
    return bool(model.device.type == "cpu" and model.dtype.itemsize == 2)


def _refuse(model: Any, inputs: Any) -> None:
    if multiplies_halves(model):
        tiles.check()
