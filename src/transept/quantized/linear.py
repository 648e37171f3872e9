"""What linear layers with weights of few bits share: they compute on the CPU, and have no weight to be read or saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.linear import Conv1D, Packed


class QuantizedLinear(Packed):
    """A linear layer with a weight (out, in) of few bits.

    Args:
        source: the layer to round.
    """

    packed_bytes: int

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__(source)
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def multiply(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out) in float32."""
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """The weight (out, in) in float32, as it was rounded."""
        raise NotImplementedError

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        """The product as compilers know it, of inputs (N, in) by what :meth:`unpacked` gives."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in the type of the input."""
        rows = x.reshape(-1, self.in_features)
        if torch.is_grad_enabled() and x.requires_grad:
            out: Tensor = _Product.apply(rows, self)  # type: ignore[no-untyped-call]
        else:
            out = self.multiply(rows.detach()) if self.plain is None else self._compiled(rows, self.plain)
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    @property
    def weight(self) -> NoReturn:
        """There is none any more.

        Raises:
            InputError: always.
        """
        raise _gone()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        raise _gone()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise _gone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay, as long as the model stays on the CPU.

        Raises:
            InputError: it is moved.
        """
        if (place := fn(torch.empty(0)).device.type) != "cpu":
            raise InputError(f"a model with weights of few bits cannot be moved to {place!r}.", hint="Load it again.")
        return self  # the bias is added to sums in float32, whatever type the model has


class _Product(torch.autograd.Function):
    """The product by rounded weights, whose gradient with respect to the inputs is that by the dequantised ones.

    The rounding of the inputs counts as none.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer, ctx.dtype = layer, rows.dtype
        return layer.multiply(rows.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient.float() @ ctx.layer.dequantized()).to(ctx.dtype), None


def _gone() -> InputError:
    return InputError(
        "the model's weights are rounded to few bits, and are there no more to be read, saved or replaced.",
        hint="Load the model again, without rounding it.",
    )
