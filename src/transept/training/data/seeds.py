"""Global random generators, seeded for a while."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch


@contextlib.contextmanager
def kept_generators() -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the global generators, which are as before at the end; it takes some 100 microseconds."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (what transforms draw from)
    try:
        yield _seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
