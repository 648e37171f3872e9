"""The states of the global random generators: Python's, NumPy's, PyTorch's, and each accelerator's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.errors import FormatError, UnsupportedError

_PYTHON_VERSION = 3  # of the state that Python's generator gives


@dataclass(frozen=True)
class Generators:
    """A copy of the states; taking one costs some ten microseconds on a CPU."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    devices: tuple[Tensor, ...] = ()

    @classmethod
    def now(cls) -> Generators:
        """The states of this moment."""
        legacy: Any = np.random.get_state()  # noqa: NPY002 (the one that libraries draw from)
        return cls(random.getstate(), legacy, torch.get_rng_state(), tuple(_device_states()))

    def restore(self) -> None:
        """Put the generators back; an accelerator that is not there is passed over."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        for index, state in enumerate(self.devices[: _device_count()]):
            _module().set_rng_state(state, index)

    def tensors(self) -> dict[str, Tensor]:
        """The states as tensors, for a file."""
        if self.numpy[0] != "MT19937":
            what = f"NumPy's global generator is {self.numpy[0]!r}, whose state a checkpoint cannot hold."
            raise UnsupportedError(what, hint="Leave it the Mersenne Twister.")
        version, words, gauss = self.python
        if version != _PYTHON_VERSION:
            raise UnsupportedError(f"Python's generator has a state of version {version}, which a checkpoint cannot hold.")
        _, key, position, has_gauss, cached = self.numpy
        return {
            "python": torch.tensor(words, dtype=torch.int64),
            "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
            "numpy": torch.from_numpy(np.asarray(key).astype(np.int64)),
            "numpy.position": torch.tensor([position, has_gauss]),
            "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
            "torch": self.torch,
        } | {f"device.{index}": state for index, state in enumerate(self.devices)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Generators:
        """The states that :meth:`tensors` gave (``FormatError``: it did not give these)."""
        try:
            gauss = tensors["python.gauss"].tolist()
            python = (_PYTHON_VERSION, tuple(tensors["python"].tolist()), gauss[0] if gauss else None)
            key = tensors["numpy"].numpy().astype(np.uint32)
            position, has_gauss = tensors["numpy.position"].tolist()
            legacy = ("MT19937", key, position, has_gauss, *tensors["numpy.gauss"].tolist())
            random.Random().setstate(python)  # noqa: S311 (only whether it takes the state)
            np.random.RandomState().set_state(legacy)
            torch.Generator().set_state(tensors["torch"].clone())
        except (LookupError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise FormatError(f"holds no states of random generators ({str(error)[:200]}).") from error
        count = sum(name.startswith("device.") for name in tensors)
        return cls(python, legacy, tensors["torch"].clone(), tuple(tensors[f"device.{i}"].clone() for i in range(count)))


def _device_states() -> list[Tensor]:
    return [_module().get_rng_state(index) for index in range(_device_count())]


def _device_count() -> int:
    """How many accelerators have a generator that is in use; asking must not start them in a process that has none."""
    if not torch.accelerator.is_available() or not hasattr(_module(), "set_rng_state"):
        return 0
    return torch.accelerator.device_count() if getattr(_module(), "is_initialized", lambda: True)() else 0


def _module() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())
