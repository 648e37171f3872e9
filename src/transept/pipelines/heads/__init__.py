"""Classifiers that come with the library: heads of a few kB on the default embedding model, each in a folder with its card.

A folder holds ``config.json``, the head's weights under a checkpoint's names in ``model.safetensors``, and ``README.md``.
"""

from __future__ import annotations

import os
from pathlib import Path

from transept.checkpoint.store import open_store
from transept.core.model import Model
from transept.errors import CheckpointError
from transept.storage.files import load_object
from transept.storage.source import Source

SENTIMENT_MODEL, INTENTS_MODEL = "transept/minilm-sentiment", "transept/minilm-intents"
FOLDERS = {SENTIMENT_MODEL: "sentiment", INTENTS_MODEL: "intents"}


def head_directory(name: str | os.PathLike[str] | None) -> Path | None:
    """Where the head of that name is; ``None`` for every other model, and where a directory has the name."""
    folder = FOLDERS.get(name) if isinstance(name, str) else None
    return None if folder is None or os.path.isdir(str(name)) else Path(__file__).parent / folder


def fill_head(model: Model, directory: Path) -> None:
    """Give a classifier the weights of a head (``CheckpointError``: it has others)."""
    weights = dict(open_store(Source(str(directory))))
    found = model.load_state_dict(weights, strict=False)
    if found.unexpected_keys or not all(name.startswith(f"{model.base_model_prefix}.") for name in found.missing_keys):
        raise CheckpointError(f"the head in {directory} does not fit {type(model).__name__}.")


def summary(name: str) -> str | None:
    """What a head was trained on and how well it does, in one sentence; ``None`` for other models."""
    directory = head_directory(name)
    return None if directory is None else str(load_object(directory / "config.json")["summary"])
