"""What models of every kind accept, and how it is checked."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from transept.errors import InputError


class Recorded(TypedDict, total=False):
    """What else a caller may ask to see; the config's settings when absent."""

    output_attentions: bool | None
    output_hidden_states: bool | None


class RecordOptions(Recorded, total=False):
    """What image and audio backbones accept beside their inputs; ``return_dict=False`` asks for a tuple."""

    return_dict: bool | None


def check_finite(values: Tensor, name: str) -> None:
    """Refuse infinite values and those that are not numbers; skipped while compiling or exporting, and off the CPU.

    Raises:
        InputError: naming the place of the first one.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return
    if not (finite := values.isfinite()).all():
        place = (~finite).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {float(values[tuple(place)])} at {place}.", hint="Check the file it was read from.")
