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


@dataclass(frozen=True)
class LayerWeight:
    """A weight of few bits as a layer has it.

    Args:
        make: gives its rows, those of one expert after those of another; they may have more columns than the layer has inputs.
        shape: of the layer's weight.
        inputs_first: whether that is (in, out), or (experts, in, out).
        expert: gives the rows of one of the experts.
    """

    make: Callable[[], GroupedWeight]
    shape: tuple[int, ...]
    inputs_first: bool
    expert: Callable[[int], GroupedWeight] | None = None

    def dequantized(self) -> Tensor:
        """The layer's weight in float32."""
        *experts, rows, inputs = self.shape[:-2] + (self.shape[:-3:-1] if self.inputs_first else self.shape[-2:])
        plain = self.make().dequantized()[:, :inputs].reshape(*experts, rows, inputs)
        return plain.mT if self.inputs_first else plain

    def row(self, expert: int, piece: int, pieces: int) -> LayerWeight:
        """One of so many equal pieces of the matrix (out, in) of one of the experts."""
        find, (_, outputs, inputs) = self.expert, self.shape
        assert find is not None

        def make() -> GroupedWeight:
            return find(expert).map_rows(lambda part: part.chunk(pieces)[piece])

        return LayerWeight(make, (outputs // pieces, inputs), inputs_first=False)


class QuantizedLayer(Packed):
    """A layer with a weight of few bits, which stays on the CPU, and cannot be read or replaced."""

    packed_bytes: int

    def stored(self, name: str) -> dict[str, LayerWeight]:
        """The weight by its name in the state of a model that has the layer under a name."""
        raise NotImplementedError

    def restore(self, owner: nn.Module, name: str, dtype: torch.dtype) -> None:
        """Give a module that has the layer under a name a plain weight of a type in its place."""
        raise NotImplementedError

    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise gone()

    def check_move(self, fn: Callable[[Tensor], Tensor]) -> None:
        if (place := fn(torch.empty(0)).device.type) != "cpu":
            raise InputError(f"a model with weights of few bits cannot be moved to {place!r}.", hint=_UNPACK)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay as it is, as long as the model stays on the CPU."""
        self.check_move(fn)
        return self  # the bias is added to sums in float32, whatever type the model has


class QuantizedLinear(QuantizedLayer):
    """A linear layer with a weight (out, in) of few bits.

    Args:
        source: the layer in whose place it stands.
    """

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
        if not has_names_alone():
            raise gone()
        return torch.empty(self.out_features, self.in_features, device="meta")

    def grouped(self) -> GroupedWeight:
        """The weight in its bits."""
        raise NotImplementedError

    def as_stored(self, weight: GroupedWeight) -> LayerWeight:
        """The weight, or some rows of it, as a layer of this kind has it in its state."""
        sizes, turned = (len(weight.codes), self.in_features), self.kind is Conv1D
        return LayerWeight(lambda: weight, sizes[::-1] if turned else sizes, turned)

    def stored(self, name: str) -> dict[str, LayerWeight]:
        return {f"{name}.weight": self.as_stored(self.grouped())}

    def restore(self, owner: nn.Module, name: str, dtype: torch.dtype) -> None:
        setattr(owner, name, self.plain_layer(self.dequantized().to(dtype)))

    def plain_layer(self, weight: Tensor, rows: slice = slice(None)) -> nn.Linear | Conv1D:
        """A layer (of some of the outputs) with a plain weight (out, in)."""
        with torch.device("meta"):
            layer = self.kind(*((len(weight), self.in_features) if self.kind is Conv1D else (self.in_features, len(weight))))
        layer.weight = nn.Parameter((weight.T if self.kind is Conv1D else weight).contiguous())
        bias = None if self.bias is None else nn.Parameter(self.bias.detach()[rows].to(weight.dtype, copy=True))
        layer.register_parameter("bias", bias)
        return layer

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not has_names_alone():
            raise gone()
        if not self.shared:
            destination[f"{prefix}weight"] = self.weight if self.kind is nn.Linear else self.weight.T
            if self.bias is not None:
                destination[f"{prefix}bias"] = self.bias.detach()


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


def has_names_alone() -> bool:
    """Whether states have no weights of few bits."""
    return _NAMES_ALONE.get()


def few_bits(model: nn.Module) -> dict[str, LayerWeight]:
    """The weights of few bits of a model by their names in its state; those of a shared product row by row."""
    found, grouped = dict[str, LayerWeight](), cache(lambda layer: layer.grouped())
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLayer) and not module.shared:
            found |= module.stored(name)
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
            elif isinstance(child, QuantizedLayer) and child.shared:
                delattr(module, name)
            elif isinstance(child, QuantizedLayer):
                child.restore(module, name, dtype)


def gone() -> InputError:
    """What it is to read a weight of few bits as a plain one."""
    return InputError("the model's weights are rounded to few bits and cannot be read or replaced.", hint=_UNPACK)


_UNPACK = "Call model.dequantize() first, which gives plain weights."
