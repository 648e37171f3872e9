"""Rounding of weights to the blocks of numbers in which GGUF files store them; see :mod:`transept.checkpoint.blocks`.

Scales are those of the least squared error among some that are tried, so that results differ a little from those of other
programs, which weigh errors otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transept.quantized.weights import rounded_to_four_bits

_MOST = 63  # of the integers that scales of four bits are multiplied by
# How much finer or coarser than the range of a group its steps are tried.
_TRIED = tuple(0.1 * step for step in range(-10, 11))


def encode(name: str, rows: Tensor) -> Tensor:
    """The blocks (N, bytes) of rows (N, in) in an encoding, of whose blocks ``in`` is a multiple."""
    encoded = _ENCODERS[name](rows.float())
    return encoded.reshape(len(rows), -1)


def _bytes(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.uint8)


def _joined(codes: Tensor, half: int) -> Tensor:
    """(N, 2 half k) numbers of four bits -> bytes: of each two halves the first are the lower ones."""
    parts = codes.unflatten(1, (-1, 2, half))  # type: ignore[no-untyped-call]
    joined: Tensor = (parts[:, :, 0] | (parts[:, :, 1] << 4)).flatten(1)
    return joined


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0, 1 / torch.where(scale == 0, 1, scale))


def _q8_0(rows: Tensor) -> Tensor:
    groups = rows.reshape(-1, 32)
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half()
    codes = (groups * _inverse(scale.float())).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([_bytes(scale), _bytes(codes)], dim=1)


def _q4_0(rows: Tensor) -> Tensor:
    weight = rounded_to_four_bits(rows, 32)
    return torch.cat([_bytes(weight.scale.view(-1, 1)), _joined(weight.codes.view(-1, 32), 16)], dim=1)


def _q4_k(rows: Tensor) -> Tensor:
    groups = rows.reshape(-1, 8, 32)
    scale, low = _ranges(groups)
    whole = torch.stack([scale.amax(1), low.amax(1)], dim=1).div(_MOST).half()
    fine, fine_low = (
        (part * _inverse(step.float()[:, None])).round().clamp(0, _MOST)
        for part, step in zip((scale, low), whole.unbind(1), strict=True)
    )
    step, less = whole[:, :1].float() * fine, whole[:, 1:].float() * fine_low
    codes = ((groups + less[..., None]) * _inverse(step)[..., None]).round().clamp(0, 15).to(torch.uint8)
    packed = _six_bits(fine.to(torch.uint8), fine_low.to(torch.uint8))
    return torch.cat([_bytes(whole), packed, _joined(codes.flatten(1), 32)], dim=1)


def _ranges(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The step and what is taken from 0 to 15 of them, neither below zero, of (N, 8, 32) numbers.

    For each of some ranges numbers are rounded, and step and offset are then those of the least squared error.
    """
    least, most = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True)
    count, total = groups.shape[-1], groups.sum(-1)
    best = torch.zeros_like(total), torch.zeros_like(total)
    smallest = torch.full_like(total, torch.inf)
    for more in _TRIED:
        codes = ((groups - least) * (15 + more) * _inverse(most - least)).round_().clamp_(0, 15)
        codes_total, squares, products = codes.sum(-1), codes.square().sum(-1), (codes * groups).sum(-1)
        spread = count * squares - codes_total.square()
        scale = (count * products - total * codes_total) * _inverse(spread)
        low = ((scale * codes_total - total) / count).clamp(min=0)
        scale = torch.where(low > 0, scale, products * _inverse(squares)).clamp(min=0)
        error = (codes * scale[..., None] - low[..., None] - groups).square().sum(-1)
        better = error < smallest
        best = torch.where(better, scale, best[0]), torch.where(better, low, best[1])
        smallest = torch.minimum(smallest, error)
    return best


def _six_bits(scales: Tensor, offsets: Tensor) -> Tensor:
    """Eight scales and eight offsets of six bits as (N, 12) bytes."""
    last, behind = scales[:, 4:], offsets[:, 4:]
    first, second = scales[:, :4] | (last >> 4 << 6), offsets[:, :4] | (behind >> 4 << 6)
    return torch.cat([first, second, (last & 15) | (behind & 15) << 4], dim=1)


def _q6_k(rows: Tensor) -> Tensor:
    groups = rows.reshape(-1, 16, 16)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)).squeeze(-1)
    best, smallest = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for more in _TRIED:
        scale = largest / -(32 + 2 * more)
        steps = (groups * _inverse(scale)[..., None]).round_().clamp_(-32, 31)
        error = (steps * scale[..., None] - groups).square().sum(-1)
        best, smallest = torch.where(error < smallest, scale, best), torch.minimum(smallest, error)
    whole = (best.abs().amax(1, keepdim=True) / 127).half()
    fine = (best * _inverse(whole.float())).round().clamp(-128, 127)
    step = whole.float() * fine
    codes = (groups * _inverse(step)[..., None]).round().clamp(-32, 31).add(32).to(torch.uint8).reshape(-1, 2, 128)
    low = _joined((codes & 15).flatten(1), 64)
    quarters = (codes >> 4).unflatten(2, (4, 32))  # type: ignore[no-untyped-call]
    high = (quarters << torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]).sum(2, dtype=torch.uint8).flatten(1)
    return torch.cat([low, high, _bytes(fine.to(torch.int8)), _bytes(whole)], dim=1)


_ENCODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _bytes,
    "F16": lambda rows: _bytes(rows.half()),
    "BF16": lambda rows: _bytes(rows.bfloat16()),
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
