"""What the machine has installed, by the reference's functions, and one seed for all generators."""

from __future__ import annotations

import random
from functools import cache
from importlib.util import find_spec

__all__ = [
    "is_accelerate_available",
    "is_datasets_available",
    "is_flax_available",
    "is_peft_available",
    "is_sentencepiece_available",
    "is_tf_available",
    "is_tokenizers_available",
    "is_torch_available",
    "is_torch_cuda_available",
    "is_vision_available",
    "set_seed",
]


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


def is_torch_available() -> bool:
    """Whether PyTorch is installed."""
    return _installed("torch")


def is_torch_cuda_available() -> bool:
    """Whether PyTorch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def is_tf_available() -> bool:
    """False: models are PyTorch's."""
    return False


def is_flax_available() -> bool:
    """False: models are PyTorch's."""
    return False


def is_vision_available() -> bool:
    """Whether Pillow is installed."""
    return _installed("PIL")


def is_tokenizers_available() -> bool:
    """Whether tokenizers is installed."""
    return _installed("tokenizers")


def is_sentencepiece_available() -> bool:
    """Whether sentencepiece is installed; its files are read without it."""
    return _installed("sentencepiece")


def is_accelerate_available() -> bool:
    """Whether accelerate is installed."""
    return _installed("accelerate")


def is_peft_available() -> bool:
    """Whether peft is installed."""
    return _installed("peft")


def is_datasets_available() -> bool:
    """Whether datasets is installed."""
    return _installed("datasets")


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Set the seed of Python's, NumPy's (where installed) and PyTorch's generators, on all devices.

    Args:
        seed: a whole number of 32 bits.
        deterministic: let PyTorch use deterministic algorithms only.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if _installed("numpy"):
        import numpy

        numpy.random.seed(seed)  # noqa: NPY002 (what callers draw from)
    if deterministic:
        torch.use_deterministic_algorithms(True)
