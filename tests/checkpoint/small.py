"""Small models and raw safetensors files for the tests of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transept.models.bert import BertConfig

SMALL = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def config(**more: Any) -> BertConfig:
    return BertConfig(**SMALL | more)


def stored(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def store(directory: Path, state: dict[str, Tensor]) -> None:
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """The bytes of a safetensors file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models hold the same bits under the same names."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
