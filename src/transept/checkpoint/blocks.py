"""The blocks of numbers in which GGUF files store weights.

A block holds 32 or 256 numbers of a row as small integers and a scale of 16 bits. The K encodings (`llama.cpp pull request
1684 <https://github.com/ggml-org/llama.cpp/pull/1684>`_) have 256 numbers in groups, with a scale and where they say so an
offset for each group, which are integers of 4 to 8 bits themselves. Every function takes the bytes of blocks, (N, bytes);
products are formed in the order of the format's own library, so that results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transept.quantized.weights import GroupedWeight

# What the 16 codes of four bits stand for, where steps are not even (IQ4), and where codes are floating-point numbers (MXFP4,
# in halves).
_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FLOATS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(name: str, blocks: Tensor) -> Tensor:
    """The numbers (N, block) in float32 of blocks (N, bytes) of an encoding, such as ``Q4_K``."""
    return _PLAIN[name](blocks) if name in _PLAIN else _GROUPED[name](blocks).dequantized()


def grouped(name: str, blocks: Tensor, rows: int) -> GroupedWeight | None:
    """A weight (rows, in) as it is stored; ``None`` for encodings of plain numbers."""
    if name not in _GROUPED:
        return None
    weight = _GROUPED[name](blocks)
    return weight.map_rows(lambda part: part.reshape(rows, -1))


def _half(data: Tensor) -> Tensor:
    """(N, 2 k) bytes as (N, k) numbers of float16."""
    return data.contiguous().view(torch.float16)


def _signed(data: Tensor) -> Tensor:
    return data.contiguous().view(torch.int8)


def _bits(data: Tensor, width: int, count: int) -> Tensor:
    """(N, k) bytes as (N, count, k): the lowest ``width`` bits of all bytes, then the next ones."""
    shifts = torch.arange(0, count * width, width, dtype=torch.uint8)
    bits: Tensor = (data[:, None] >> shifts[:, None]) & (2**width - 1)
    return bits


def _halves(data: Tensor) -> Tensor:
    """(N, k) bytes as (N, 2 k) numbers of four bits: the lower ones of all bytes, then the higher ones."""
    return torch.cat([data & 15, data >> 4], dim=1)


def _bit_field(data: Tensor) -> Tensor:
    """(N, k) bytes as (N, 8 k) bits, the lowest of each byte first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((data[..., None] >> shifts) & 1).flatten(1)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _f16(blocks: Tensor) -> Tensor:
    return _half(blocks).float()


def _q4_0(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_halves(blocks[:, 2:]), 32, _half(blocks[:, :2]))


def _q4_1(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_halves(blocks[:, 4:]), 32, _half(blocks[:, :2]), low=-_half(blocks[:, 2:4]))


def _q5(high: Tensor, low: Tensor) -> Tensor:
    return _signed(_halves(low) | (_bit_field(high) << 4))


def _q5_0(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_q5(blocks[:, 2:6], blocks[:, 6:]) - 16, 32, _half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_q5(blocks[:, 4:8], blocks[:, 8:]), 32, _half(blocks[:, :2]), low=-_half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_signed(blocks[:, 2:]), 32, _half(blocks[:, :2]))


def _q2_k(blocks: Tensor) -> GroupedWeight:
    scales, codes, whole = blocks[:, :16], blocks[:, 16:80], _half(blocks[:, 80:])
    codes = _bits(codes.reshape(-1, 32), 2, 4).reshape(len(blocks), 256)
    return GroupedWeight(codes, 16, whole[:, :1], _signed(scales & 15), whole[:, 1:], _signed(scales >> 4))


def _q3_k(blocks: Tensor) -> GroupedWeight:
    high, low, packed, whole = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108], _half(blocks[:, 108:])
    scales = _halves(packed[:, :8]) | (_bits(packed[:, 8:], 2, 4).flatten(1) << 4)
    codes = _bits(low.reshape(-1, 32), 2, 4).reshape(len(blocks), 256) | (_bits(high, 1, 8).flatten(1) << 2)
    return GroupedWeight(codes + 4, 16, whole, _signed(scales) - 32)  # codes are lessened by 8, these by 4


def _scales_and_offsets(packed: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 12) bytes as eight scales and eight offsets of six bits."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    offsets = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    return _signed(scales), _signed(offsets)


def _in_chunks(data: Tensor) -> Tensor:
    """(N, 128) bytes as 256 numbers of four bits: of each 32 bytes the lower ones, then the higher ones."""
    return _halves(data.reshape(-1, 32)).reshape(len(data), 256)


def _q4_k(blocks: Tensor) -> GroupedWeight:
    whole, (scales, offsets) = _half(blocks[:, :4]), _scales_and_offsets(blocks[:, 4:16])
    return GroupedWeight(_in_chunks(blocks[:, 16:]), 32, whole[:, :1], scales, whole[:, 1:], offsets)


def _q5_k(blocks: Tensor) -> GroupedWeight:
    whole, (scales, offsets) = _half(blocks[:, :4]), _scales_and_offsets(blocks[:, 4:16])
    codes = _in_chunks(blocks[:, 48:]) | (_bits(blocks[:, 16:48], 1, 8).flatten(1) << 4)
    return GroupedWeight(_signed(codes), 32, whole[:, :1], scales, whole[:, 1:], offsets)


def _q6_k(blocks: Tensor) -> GroupedWeight:
    low, high = blocks[:, :128].reshape(-1, 64), blocks[:, 128:192].reshape(-1, 32)
    codes = (_halves(low) | (_bits(high, 2, 4).flatten(1) << 4)).reshape(len(blocks), 256)
    return GroupedWeight(_signed(codes) - 32, 16, _half(blocks[:, 208:]), _signed(blocks[:, 192:208]))


def _iq4_nl(blocks: Tensor) -> GroupedWeight:
    table = torch.tensor(_UNEVEN, dtype=torch.int8)
    return GroupedWeight(_halves(blocks[:, 2:]), 32, _half(blocks[:, :2]), table=table)


def _iq4_xs(blocks: Tensor) -> GroupedWeight:
    high = _bits(blocks[:, 2:4], 2, 4).transpose(1, 2).flatten(1)
    low = _bits(blocks[:, 4:8], 4, 2).transpose(1, 2).flatten(1)
    scales, table = _signed(low | (high << 4)) - 32, torch.tensor(_UNEVEN, dtype=torch.int8)
    codes = _halves(blocks[:, 8:].reshape(-1, 16)).reshape(len(blocks), 256)
    return GroupedWeight(codes, 32, _half(blocks[:, :2]), scales, table=table)


def _mxfp4(blocks: Tensor) -> GroupedWeight:
    return GroupedWeight(_halves(blocks[:, 1:]), 32, blocks[:, :1], table=floats_of_four_bits())


def floats_of_four_bits() -> Tensor:
    """Twice what codes of MXFP4 stand for."""
    return torch.tensor(_FLOATS, dtype=torch.int8)


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}
_GROUPED: dict[str, Callable[[Tensor], GroupedWeight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
