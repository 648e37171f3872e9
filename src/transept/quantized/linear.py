"""What linear layers with weights of few bits share: they compute on the CPU, and have no weight to be read or trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.linear import Conv1D, Packed, Projection
from transept.quantized.weights import GroupedWeight

# Whether a state has tensors without memory in the place of weights of few bits, which cannot be in one.
_NAMES_ALONE = ContextVar("names_alone", default=False)


class QuantizedLinear(Packed):
    """A linear layer with a weight (out, in) of few bits.

    Args:
        source: the layer in whose place it stands.
    """

    packed_bytes: int

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__(source)
        self.kind: type[nn.Linear | Conv1D] = Conv1D if isinstance(source, Conv1D) else nn.Linear
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
    def weight(self) -> Tensor:
        """There is none any more: it is an ``InputError`` to ask, but within :func:`names_alone`."""
        if not _NAMES_ALONE.get():
            raise _gone()
        return torch.empty(self.out_features, self.in_features, device="meta")

    def grouped(self) -> GroupedWeight:
        """The weight in its bits."""
        raise NotImplementedError

    def as_stored(self, weight: GroupedWeight) -> LayerWeight:
        """The weight, or some rows of it, as a layer of this kind has it in its state."""
        sizes, turned = (len(weight.codes), self.in_features), self.kind is Conv1D
        return LayerWeight(weight, sizes[::-1] if turned else sizes, turned)

    def plain_layer(self, weight: Tensor, rows: slice = slice(None)) -> nn.Linear | Conv1D:
        """A layer (of some of the outputs) with a plain weight (out, in)."""
        with torch.device("meta"):
            layer = self.kind(*((len(weight), self.in_features) if self.kind is Conv1D else (self.in_features, len(weight))))
        layer.weight = nn.Parameter((weight.T if self.kind is Conv1D else weight).contiguous())
        bias = None if self.bias is None else nn.Parameter(self.bias.detach()[rows].to(weight.dtype, copy=True))
        layer.register_parameter("bias", bias)
        return layer

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not _NAMES_ALONE.get():
            raise _gone()
        if not self.shared:
            destination[f"{prefix}weight"] = self.weight if self.kind is nn.Linear else self.weight.T
            if self.bias is not None:
                destination[f"{prefix}bias"] = self.bias.detach()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise _gone()

    def check_move(self, fn: Callable[[Tensor], Tensor]) -> None:
        if (place := fn(torch.empty(0)).device.type) != "cpu":
            raise InputError(f"a model with weights of few bits cannot be moved to {place!r}.", hint=_UNPACK)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay as it is, as long as the model stays on the CPU."""
        self.check_move(fn)
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


@contextmanager
def names_alone() -> Iterator[None]:
    """Have states of models with tensors without memory in the place of weights of few bits."""
    token = _NAMES_ALONE.set(True)
    try:
        yield
    finally:
        _NAMES_ALONE.reset(token)


@dataclass(frozen=True)
class LayerWeight:
    """A weight of few bits as a layer has it.

    Args:
        weight: its rows, which may have more columns than the layer has inputs.
        shape: of the layer's weight.
        inputs_first: whether that is (in, out).
    """

    weight: GroupedWeight
    shape: tuple[int, ...]
    inputs_first: bool

    def dequantized(self) -> Tensor:
        """The layer's weight in float32."""
        plain = self.weight.dequantized()
        return plain[:, : self.shape[0]].T if self.inputs_first else plain[:, : self.shape[1]]


def few_bits(model: nn.Module) -> dict[str, LayerWeight]:
    """The weights of few bits of a model by their names in its state; those of a shared product row by row."""
    found, grouped = dict[str, LayerWeight](), cache(lambda layer: layer.grouped())
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear) and not module.shared:
            found[f"{name}.weight"] = module.as_stored(module.grouped())
        elif isinstance(module, Projection) and isinstance(module.shared, QuantizedLinear):
            rows = module.place
            weight = grouped(module.shared).map_rows(lambda part, rows=rows: part[rows])
            found[f"{name}.weight"] = module.shared.as_stored(weight)
    return found


def dequantize(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Give a model plain layers of a type in the place of those of few bits."""

    @lru_cache(1)  # the projections of a product follow each other
    def weight(layer: QuantizedLinear) -> Tensor:
        return layer.dequantized().to(dtype)

    for module in tuple(model.modules()):
        for name, child in tuple(module.named_children()):
            if isinstance(child, Projection) and isinstance(child.shared, QuantizedLinear):
                setattr(module, name, child.shared.plain_layer(weight(child.shared)[child.place].clone(), child.place))
            elif isinstance(child, QuantizedLinear) and child.shared:
                delattr(module, name)
            elif isinstance(child, QuantizedLinear):
                setattr(module, name, child.plain_layer(weight(child)))


def _gone() -> InputError:
    return InputError("the model's weights are rounded to few bits and cannot be read or replaced.", hint=_UNPACK)


_UNPACK = "Call model.dequantize() first, which gives plain weights."
