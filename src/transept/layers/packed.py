"""Layers whose weights only kernels of their own can read, and what compilers see of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Packed(nn.Module):
    """A layer with a weight that is no plain tensor: compilers cannot read it, and get a plain one for as long as they look."""

    plain: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("plain", None, persistent=False)

    def unpacked(self) -> Tensor:
        """The weight (out, in) as a plain tensor of its own."""
        raise NotImplementedError


@contextmanager
def plain_weights(model: nn.Module) -> Iterator[None]:
    """Have the weights of packed layers at hand as plain ones too."""
    packed = [module for module in model.modules() if isinstance(module, Packed)]
    try:
        for module in packed:
            module.plain = module.unpacked()
        yield
    finally:
        for module in packed:
            module.plain = None
