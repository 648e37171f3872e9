"""What the machine has installed, by the reference's functions, and one seed for all generators."""

from __future__ import annotations

import random
from functools import cache, partial
from importlib.util import find_spec


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


is_torch_available = partial(_installed, "torch")
is_vision_available = partial(_installed, "PIL")
is_tokenizers_available = partial(_installed, "tokenizers")
is_sentencepiece_available = partial(_installed, "sentencepiece")
is_accelerate_available = partial(_installed, "accelerate")
is_peft_available = partial(_installed, "peft")
is_datasets_available = partial(_installed, "datasets")


def is_torch_cuda_available() -> bool:
    """Whether PyTorch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def is_tf_available() -> bool:
    """False, as is :func:`is_flax_available`: models are PyTorch's."""
    return False


is_flax_available = is_tf_available


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Set the seed, of 32 bits, of Python's, NumPy's and PyTorch's generators; ``deterministic`` also for the algorithms."""
    import numpy
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 (what callers draw from)
    if deterministic:
        torch.use_deterministic_algorithms(True)
