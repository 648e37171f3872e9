"""What moves within an update: the global random generators, and what a model keeps from one pass to the next."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transept.errors import FormatError, UnsupportedError, refuse
from transept.training.objective import carriers


@dataclass(frozen=True)
class Generators:
    """A copy of the states of Python's, NumPy's, PyTorch's and each accelerator's generator, made in microseconds."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    devices: tuple[Tensor, ...] = ()

    @classmethod
    def now(cls) -> Generators:
        legacy: Any = np.random.get_state()  # noqa: NPY002 (the one that libraries draw from)
        module, count = _accelerators()
        devices = tuple(module.get_rng_state(index) for index in range(count))
        return cls(random.getstate(), legacy, torch.get_rng_state(), devices)

    def restore(self) -> None:
        """Put the generators back; an accelerator that is not there is passed over."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        module, count = _accelerators()
        for index, state in enumerate(self.devices[:count]):
            module.set_rng_state(state, index)

    def tensors(self) -> dict[str, Tensor]:
        """The states as tensors, for a file."""
        what = f"NumPy's global generator is {self.numpy[0]!r}, whose state a checkpoint cannot hold."
        refuse(self.numpy[0] != "MT19937", what, "Leave it the Mersenne Twister.", UnsupportedError)
        _, words, gauss = self.python
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
            version = 3  # of the state that Python's generator gives
            python = (version, tuple(tensors["python"].tolist()), gauss[0] if gauss else None)
            key = tensors["numpy"].numpy().astype(np.uint32)
            position, has_gauss = tensors["numpy.position"].tolist()
            legacy = ("MT19937", key, position, has_gauss, *tensors["numpy.gauss"].tolist())
            random.Random().setstate(python)  # noqa: S311 (only whether it takes the state)
            np.random.RandomState().set_state(legacy)
            torch.Generator().set_state(tensors["torch"].clone())
        except (LookupError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise FormatError(f"holds no states of random generators ({str(error)[:200]}).") from error
        count = sum(name.startswith("device.") for name in tensors)
        devices = tuple(tensors[f"device.{index}"].clone() for index in range(count))
        return cls(python, legacy, tensors["torch"].clone(), devices)


def _accelerators() -> tuple[Any, int]:
    """PyTorch's module of the accelerators, and how many have a generator; asking must not start those not in use."""
    if not torch.accelerator.is_available():
        return None, 0
    module: Any = torch.get_device_module(torch.accelerator.current_accelerator())
    is_used = hasattr(module, "set_rng_state") and getattr(module, "is_initialized", lambda: True)()
    return module, torch.accelerator.device_count() if is_used else 0


class Rewind:
    """Notes the state at the beginning of an update, and goes back there, to make it again, bit for bit.

    That are the random generators, the running statistics of normalisations, and states carried between batches.
    """

    def __init__(self, model: nn.Module) -> None:
        tracking = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
        self._buffers = [buffer for module in tracking for buffer in module.buffers(recurse=False)]
        self._carriers = carriers(model)
        self.note()

    def note(self) -> None:
        self.generators = Generators.now()
        self._statistics = [buffer.clone() for buffer in self._buffers]
        self._carried = {path: dict(module.carried) for path, module in self._carriers.items()}

    @torch.no_grad()
    def back(self) -> None:
        self.generators.restore()
        for buffer, before in zip(self._buffers, self._statistics, strict=True):
            buffer.copy_(before)
        for path, module in self._carriers.items():
            module.carried = dict(self._carried[path])
