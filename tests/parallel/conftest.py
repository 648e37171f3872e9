"""The processes that the tests of this directory share."""

from __future__ import annotations

import pytest

from .ranks import Ranks

RANKS = Ranks()


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Processes that wait for functions."""
    return RANKS
