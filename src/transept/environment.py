"""What the machine has installed, by the reference's functions, and one seed for all generators."""

from __future__ import annotations

import os
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


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Set the seed, and let PyTorch use algorithms alone that give the same numbers again."""
    import torch

    set_seed(seed)
    names = ("CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC")
    os.environ |= {**dict.fromkeys(names, "1"), "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def seed_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seed a worker of a loader of one's own, by ``worker_init_fn=partial(seed_worker, num_workers=..., rank=...)``."""
    import torch

    set_seed((num_workers * rank + torch.initial_seed()) % 2**32)


def is_main_process(local_rank: int) -> bool:
    return local_rank in (-1, 0)
