"""Weights of eight bits on the CPU: a fourth of what float32 reads for every token that is written.

Each row of a weight is rounded to 255 steps of its own (symmetric, per output channel) and inputs are rounded when they come
(dynamic quantization), so that products are those of integers (Jacob et al. 2018). A model is not the same afterwards: it
answers a little differently, and its weights cannot be saved or trained; adapters on top of it can.

Which product is fastest depends on the use and on the processor: a model that writes multiplies one row a step, by FBGEMM's
operator; an encoder multiplies many, by oneDNN's, or in bfloat16 where there are matrix units (AMX).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.adapt.pack import join_projections
from transept.core.model import Model
from transept.environment import tiles
from transept.errors import InputError
from transept.layers.attention import Attention
from transept.layers.linear import Conv1D, Packed, matrix
from transept.layers.mlp import MLP

M = TypeVar("M", bound=Model)

# Inputs that the operator of compiled programs takes at a time.
_STEP = 64
# Positions that a feed-forward layer takes at a time: few enough that what stands between its products stays in the caches, and
# more of them where products take twice as long.
_CHUNK = 256 if torch.cpu._is_vnni_supported() else 512
# A float32 that is added to this one is rounded to an integer, which the lowest bits of the sum are.
_ROUNDS = 1.5 * 2**23
_TINY = torch.finfo(torch.float32).tiny


def can_quantize() -> bool:
    """Whether this PyTorch and processor multiply integers."""
    return torch.backends.quantized.engine in ("x86", "fbgemm", "onednn") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def has_matrix_units() -> bool:
    """Whether this processor multiplies bfloat16 about as fast as integers."""
    tiles.settle()
    return bool(torch.cpu._is_amx_tile_supported())


def quantize(model: M) -> M:
    """Round a model's linear layers to eight bits in place, for inference on the CPU.

    Embeddings stay, and so do a mixture's experts and its routers, whose choices small errors would change.

    Raises:
        InputError: the model is in training mode or not on the CPU, or the processor cannot do it.
    """
    tiles.check()
    if not can_quantize():
        raise InputError(f"weights of eight bits cannot be multiplied here (engine {torch.backends.quantized.engine!r}).")
    if model.training or model.device.type != "cpu":
        mode = "training" if model.training else "evaluation"
        raise InputError(
            f"a model on {model.device.type!r} in {mode} mode cannot be quantized.",
            hint="Only models on the CPU in evaluation mode can.",
        )
    make: type[QuantizedLinear] = QuantizedForMatrixUnits if has_matrix_units() else QuantizedForManyRows
    if model.can_generate():
        make = QuantizedForOneRow
    for module in tuple(model.modules()):
        if isinstance(module, Attention):
            join_projections(module, make)
        if make is QuantizedForManyRows and isinstance(module, MLP):
            module.chunk_size = module.chunk_size or _CHUNK
        for name, child in module.named_children():
            if isinstance(child, nn.Linear | Conv1D) and not child._forward_hooks:
                setattr(module, name, make(child))
    return model


class QuantizedLinear(Packed):
    """A linear layer with a weight (out, in) of eight bits.

    Args:
        source: the layer to round.
    """

    scale: Tensor

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__(source)
        weight = matrix(source).detach().float()
        steps = self.steps()
        scale = (weight.abs().amax(dim=1) / steps).clamp(min=_TINY)
        scale = scale.bfloat16().float()  # compiled programs multiply by it in that type
        rounded = (weight / scale[:, None]).round().clamp(-steps, steps).to(torch.int8)
        self.register_buffer("scale", scale.bfloat16(), persistent=False)
        self.packed_bytes = rounded.nbytes
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.packed = self.pack(rounded)

    def steps(self) -> int:
        """The largest number that a weight is rounded to."""
        return 127

    def pack(self, rounded: Tensor) -> Any:
        """The rounded weight (out, in) as the operator reads it."""
        return rounded

    def rounded(self) -> Tensor:
        """The rounded weight (out, in)."""
        whole: Tensor = self.packed
        return whole

    def multiply(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out) in float32."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in the type of the input."""
        rows = x.reshape(-1, self.in_features)
        if torch.is_grad_enabled() and x.requires_grad:
            out: Tensor = _Product.apply(rows, self)  # type: ignore[no-untyped-call]
        else:
            out = self.multiply(rows.detach()) if self.plain is None else self._compiled(rows, self.plain)
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        """As compilers know it: inputs of 16 bits by weights of eight, which reads as little and is more exact."""
        rows = F.pad(rows.bfloat16(), (0, plain.shape[1] - self.in_features))
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, plain, self.scale)
        return out if self.bias is None else out + self.bias

    def dequantized(self) -> Tensor:
        """The weight (out, in) in float32, as it was rounded."""
        weight: Tensor = self.rounded().float() * self.scale.float()[:, None]
        return weight

    def unpacked(self) -> Tensor:
        """The rounded weight (out, in), with zeros up to a whole step of the operator, which reads on behind other ends."""
        return F.pad(self.rounded(), (0, -self.in_features % _STEP))

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
            raise InputError(f"a model with weights of eight bits cannot be moved to {place!r}.", hint="Load it again.")
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


class QuantizedForOneRow(QuantizedLinear):
    """Multiplies by FBGEMM's operator, which rounds inputs by itself and is fastest for a single row."""

    def pack(self, rounded: Tensor) -> Any:
        with warnings.catch_warnings():
            # PyTorch wants to replace its tensors of integers, and has nothing yet that is as fast as these products.
            warnings.filterwarnings("ignore", ".*quantized tensor creation functions.*", UserWarning)
            zeros = torch.zeros(len(rounded), dtype=torch.long)
            tensor = torch._make_per_channel_quantized_tensor(rounded, self.scale.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(tensor, None)

    def rounded(self) -> Tensor:
        whole: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].int_repr()
        return whole

    def multiply(self, x: Tensor) -> Tensor:
        x, narrow = x.float(), not torch.cpu._is_vnni_supported()
        if len(x) == 1:
            out: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, narrow)
        else:
            # The operator has one step for all rows: those of small values would be lost beside others.
            size = x.abs().amax(dim=-1, keepdim=True).clamp(min=_TINY)
            out = torch.ops.quantized.linear_dynamic(x / size, self.packed, narrow) * size
        return out if self.bias is None else out + self.bias


class QuantizedForManyRows(QuantizedLinear):
    """Multiplies by oneDNN's operator, and rounds each row of the inputs to steps of its own between its ends and zero."""

    def steps(self) -> int:
        # Where processors have no instructions for it, the sum of two products must fit 16 bits: 2 * (2 * 90) * 90 does.
        return 127 if torch.cpu._is_vnni_supported() else 90

    def pack(self, rounded: Tensor) -> Any:
        self.zeros = torch.zeros(len(rounded), dtype=torch.int32)  # of the weight's steps
        self.sums = rounded.sum(dim=1) * self.scale.float()
        return torch.ops.onednn.qlinear_prepack(rounded, None)

    def rounded(self) -> Tensor:
        whole: Tensor = self.packed.to_dense().t().contiguous()
        return whole

    def multiply(self, x: Tensor) -> Tensor:
        x, steps = x.float(), self.steps()
        low, high = x.amin(dim=-1, keepdim=True).clamp_(max=0), x.amax(dim=-1, keepdim=True).clamp_(min=0)
        size = ((high - low) / (2 * steps - 1)).clamp_(min=_TINY)  # one step less, so that ends which round up still fit
        zero = (low / size - 1e-3).round_()
        rounded = (x * (1 / size)).add_(_ROUNDS - zero).view(torch.int32).to(torch.uint8)
        weight = (self.packed, self.scale.float(), self.zeros, None)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(rounded, 1.0, 0, *weight, 1.0, 0, torch.float32, "none", [], "")
        # In place: memory that was not in a core's cache costs as much as the arithmetic.
        if self.bias is None:
            out.mul_(size)
        else:
            torch.addcmul(self.bias.detach(), out, size, out=out)
        return out.addcmul_(size * zero, self.sums)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": self.rounded()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.packed = self.pack(state["packed"])


class QuantizedForMatrixUnits(QuantizedLinear):
    """Multiplies in bfloat16, which the weight is turned into for each product; inputs need not be rounded to eight bits."""

    def multiply(self, x: Tensor) -> Tensor:
        weight = self.packed.to(torch.bfloat16).mul_(self.scale[:, None])
        if self.bias is None or x.dtype == torch.bfloat16:
            return F.linear(x.bfloat16(), weight, None if self.bias is None else self.bias.bfloat16())
        return F.linear(x.bfloat16(), weight) + self.bias


def _gone() -> InputError:
    return InputError(
        "the model's weights are rounded to eight bits, and are there no more to be read, saved or replaced.",
        hint="Load the model again, without rounding it.",
    )
