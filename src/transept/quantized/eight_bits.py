"""Weights of eight bits on the CPU: a fourth of what float32 reads for every token that is written.

Each row of a weight is rounded to 255 steps of its own (symmetric, per output channel) and inputs are rounded when they come
(dynamic quantization), so that products are those of integers (Jacob et al. 2018).

These are layers for many rows, such as an encoder's, which multiply by oneDNN's operator, or in bfloat16 where there are matrix
units (AMX). Models that write multiply one row a step, by :class:`transept.quantized.grouped.GroupedLinear`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.environment import tiles
from transept.layers.linear import Conv1D, matrix
from transept.quantized.linear import QuantizedLinear
from transept.quantized.weights import GroupedWeight

# Inputs that the operator of compiled programs takes at a time.
_STEP = 64
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


class EightBitLinear(QuantizedLinear):
    """A linear layer with a weight (out, in) of eight bits: each row has a scale."""

    scale: Tensor

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__(source)
        weight, steps = matrix(source).detach().float(), self.steps()
        scale = (weight.abs().amax(dim=1) / steps).clamp(min=_TINY)
        scale = scale.bfloat16().float()  # compiled programs multiply by it in that type
        rounded = (weight / scale[:, None]).round().clamp(-steps, steps).to(torch.int8)
        self.register_buffer("scale", scale.bfloat16(), persistent=False)
        self.packed_bytes = rounded.nbytes + self.scale.nbytes
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

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        """As compilers know it: inputs of 16 bits by weights of eight, which reads as little and is more exact."""
        rows = F.pad(rows.bfloat16(), (0, plain.shape[1] - self.in_features))
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, plain, self.scale)
        return out if self.bias is None else out + self.bias

    def dequantized(self) -> Tensor:
        weight: Tensor = self.rounded().float() * self.scale.float()[:, None]
        return weight

    def grouped(self) -> GroupedWeight:
        rounded = self.rounded()[:, : self.in_features]
        return GroupedWeight(rounded.contiguous(), rounded.shape[1], self.scale.half()[:, None])

    def unpacked(self) -> Tensor:
        """The rounded weight (out, in), with zeros up to a whole step of the operator, which reads on behind other ends."""
        return F.pad(self.rounded(), (0, -self.in_features % _STEP))


class QuantizedForManyRows(EightBitLinear):
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


class QuantizedForMatrixUnits(EightBitLinear):
    """Multiplies in bfloat16, which the weight is turned into for each product; inputs need not be rounded to eight bits."""

    def multiply(self, x: Tensor) -> Tensor:
        weight = self.packed.to(torch.bfloat16).mul_(self.scale[:, None])
        if self.bias is None or x.dtype == torch.bfloat16:
            return F.linear(x.bfloat16(), weight, None if self.bias is None else self.bias.bfloat16())
        return F.linear(x.bfloat16(), weight) + self.bias
