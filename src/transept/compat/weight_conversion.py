"""What peft asks of the reference about names and layouts of weights that differ between files and models: nothing differs.

Weights of adapters are read and written under the names that the model has.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import torch.distributed.tensor  # noqa: F401 (where peft looks for a class without importing it)

from transept.errors import UnsupportedError

_MODEL_TO_CONVERSION_PATTERN: dict[str, str] = {}
_NUMBER = re.compile(r"(\d+)")


def get_checkpoint_conversion_mapping(model_type: str) -> None:
    """None: nothing is converted."""


def get_model_conversion_mapping(model: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Nothing is converted."""
    return []


class ConversionOps:
    """A step of a conversion; making one is an ``UnsupportedError``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hint = "Convert the weights, and save them under the model's names."
        raise UnsupportedError(f"{type(self).__name__} is a step of the reference's loading, which is not here.", hint=hint)


class Concatenate(ConversionOps): ...


class MergeModulelist(ConversionOps): ...


class Transpose(ConversionOps): ...


class WeightConverter(ConversionOps): ...


class WeightRenaming(ConversionOps): ...


def dot_natural_key(key: str) -> list[tuple[int, int | str]]:
    """By which names are sorted so that layer 10 comes after layer 9."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in _NUMBER.split(key)]


def rename_source_key(source_key: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ``UnsupportedError``."""
    raise UnsupportedError(f"{source_key!r} cannot be renamed: the reference's loading is not here.")
