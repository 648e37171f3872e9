"""A model to spoil."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.small import config
from transept.models.bert import BertModel

Spoil = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The directory of a small BERT, beside a file that nobody may read."""
    torch.manual_seed(0)
    BertModel(config()).save_pretrained(tmp_path / "model")
    (tmp_path / "secret.txt").write_text("canary")
    return tmp_path / "model"


@pytest.fixture
def with_config(model: Path) -> Spoil:
    """Change settings of its ``config.json``, or replace the text."""

    def change(text: str | None = None, **settings: Any) -> Path:
        path = model / "config.json"
        path.write_text(text if text is not None else json.dumps(json.loads(path.read_text()) | settings))
        return model

    return change
