"""Weights of four bits on the CPU: an eighth of what float32 reads for every token that is written.

Each row of a weight is cut into groups, whose numbers are rounded to 16 steps with a scale of 16 bits (as in Q4_0 of GGUF
files), and inputs are rounded to eight bits when they come, a scale for each group. Products are those of integers, by a kernel
that is built for the processor when it is first used; where that cannot be done, weights are unpacked for each product.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.adapt.quantized_linear import QuantizedLinear
from transept.environment.compiler import library
from transept.layers.linear import Conv1D

SOURCE = Path(__file__).with_name("kernels") / "four_bits.cpp"
GROUP = 32
_ROWS = 16  # of a weight, which lie together
_MIDDLE = 8
# Shares of the largest number that the outermost step is tried at; one that is less may cut it, and fits the others better.
_TRIED = tuple(1 - 0.02 * step for step in range(-2, 13))


@cache
def _kernel() -> Any:
    """The kernel's function; ``None`` where it cannot be built."""
    found = library(SOURCE)
    if found is None:
        return None
    function = found.transept_four_bits
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 4 + [ctypes.c_int32]
    return function


def rounded_to_four_bits(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """A weight (out, in), which is near (code - 8) * scale: codes 0 to 15 of uint8, and scales (out, in / group) of float16.

    Of several scales that of the least squared error is taken. ``in`` is a multiple of ``group``.
    """
    groups = weight.float().unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    best, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for share in _TRIED:
        scale = (largest * share / -_MIDDLE).half().float()
        steps = (groups / torch.where(scale == 0, 1, scale)).round().clamp(-_MIDDLE, _MIDDLE - 1)
        error = (steps * scale - groups).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    codes = (groups / torch.where(best == 0, 1, best)).round().clamp(-_MIDDLE, _MIDDLE - 1) + _MIDDLE
    return codes.to(torch.uint8).flatten(1), best.squeeze(-1).half()


class FourBitLinear(QuantizedLinear):
    """A linear layer with a weight (out, in) of four bits.

    Args:
        source: the layer to round.
        group: how many numbers of a row have one scale.
    """

    def __init__(self, source: nn.Linear | Conv1D, group: int = GROUP) -> None:
        self.group = group
        super().__init__(source)

    def take(self, weight: Tensor) -> None:
        padded = F.pad(weight, (0, -weight.shape[1] % self.group))
        codes, scales = rounded_to_four_bits(padded, self.group)
        self.register_buffer("codes", _together(codes), persistent=False)
        self.register_buffer("scales", _in_blocks(scales), persistent=False)
        self.packed_bytes = self.codes.nbytes + self.scales.nbytes

    codes: Tensor  # (blocks, in / 8, 16, 4) of uint8: sixteen rows lie together, see the kernel's source
    scales: Tensor  # (blocks, groups, 16) of float16

    def multiply(self, x: Tensor) -> Tensor:
        kernel, x = _kernel(), F.pad(x.float(), (0, -self.in_features % self.group)).contiguous()
        if kernel is None:
            out = F.linear(x[:, : self.in_features], self.dequantized())
        else:
            (rows, width), groups = x.shape, self.scales.shape[1]
            out, room = torch.empty(rows, self.out_features), torch.empty(rows * (width + 8 * groups), dtype=torch.uint8)
            # The place between scales and results is of what scales are lessened by, which is none here.
            places = [0 if each is None else each.data_ptr() for each in (x, self.codes, self.scales, None, out, room)]
            kernel(*places, rows, self.out_features, width, self.group, torch.get_num_threads())
        return out if self.bias is None else out.add_(self.bias.detach())

    def dequantized(self) -> Tensor:
        blocks = torch.stack([self.codes & 15, self.codes >> 4], dim=-2)  # (blocks, in / 8, 16, 2, 4)
        codes = blocks.transpose(1, 2).flatten(0, 1).flatten(1)
        scales = self.scales.transpose(1, 2).flatten(0, 1).float().repeat_interleave(self.group, 1)
        return ((codes.float() - _MIDDLE) * scales)[: self.out_features, : self.in_features]

    def unpacked(self) -> Tensor:
        return self.dequantized().bfloat16()

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        out = F.linear(rows.bfloat16(), plain)
        return out if self.bias is None else out + self.bias


def _in_blocks(rows: Tensor) -> Tensor:
    """(out, n) -> (blocks, n, 16): what belongs to sixteen rows lies together; what lacks at the end is zero."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _ROWS))
    return padded.view(-1, _ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def _together(codes: Tensor) -> Tensor:
    """(out, in) codes -> (blocks, in / 8, 16, 4) bytes, of which the lower halves are the first four columns of each eight."""
    padded = F.pad(codes, (0, 0, 0, -len(codes) % _ROWS))
    parts = padded.view(-1, _ROWS, codes.shape[1] // 8, 2, 4)
    return (parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)).transpose(1, 2).contiguous()
