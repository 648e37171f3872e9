"""Real recordings, where they are."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared/data"


@pytest.fixture(scope="session", autouse=True)
def _quiet_reference():
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def real_audio() -> Path:
    if not (SHARED / "audio").is_dir():
        pytest.skip(f"real recordings are missing: {SHARED / 'audio'}")
    return SHARED / "audio"
