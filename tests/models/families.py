"""One line per family: from it the whole suite of `test_families.py` derives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """What the suite cannot find out by itself.

    `tiny` are the settings of a small random model. `modality` chooses the inputs. `left_padded_alone` tells whether a row
    padded on the left equals the row alone (positions that are relative or derived from the mask). `variants` are further
    settings to check, on top of `tiny`. `rounded` names the classes whose float64 results the reference computes in
    float32.
    """

    model_type: str
    tiny: dict[str, Any]
    modality: str = "text"
    left_padded_alone: bool = False
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounded: tuple[str, ...] = ()
    decoder: dict[str, Any] | None = None  # settings that make it a decoder, where it can be one
    token_types: bool = False


TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}

FAMILIES = [
    Family(
        "bert",
        TEXT | {"intermediate_size": 37},
        token_types=True,
        decoder={"is_decoder": True},
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"hidden_act": "relu"}},
    ),
]
