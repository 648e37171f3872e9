"""Attention of many queries in float32 on the CPU by a kernel of our own, which is built when it is first used.

PyTorch's computes its products by a library that is slow on many processors, and for sequences as short as most texts.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transept.environment.compiler import library

SOURCE = Path(__file__).with_name("attention.cpp")
_QUERIES, _WIDE = 12, 16  # that the kernel takes at a time; numbers that rows are filled up to
_FEWEST = 4  # queries; for fewer, keys would be turned in vain
_PIECE = 64  # queries at least that one thread takes, where there are more threads than heads
_TENSORS = ("queries", "keys", "values", "out")


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_TENSORS, "mask", "room")),
        *(
            (f"{name}_{axis}", ctypes.c_int64)
            for name in ("queries", "keys", "values", "out")
            for axis in ("row", "head", "apart")
        ),
        ("mask_row", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "group", "count", "positions", "size", "pieces")),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
    )


def attend_by_tiles(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor | None:
    """What queries (B, H, T, E) gather from keys and values (B, K, S, E); ``None`` where the kernel cannot compute it.

    ``mask`` (B or 1, 1, 1, S) is true for keys that may be seen. Where nothing records gradients or traces is for the caller
    to see to.
    """
    (rows, heads, count, size), (_, shared, positions, _) = q.shape, k.shape
    if count < _FEWEST or size % _WIDE or v.shape[-1] != size or scale <= 0 or (causal and positions < count):
        return None
    if any(type(x) is not Tensor or x.dtype != torch.float32 or x.device.type != "cpu" or x.stride(3) != 1 for x in (q, k, v)):
        return None
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1:3] != (1, 1) or mask.stride(3) != 1):
        return None
    if (kernel := _kernel()) is None:
        return None
    threads = torch.get_num_threads()
    pieces = min(-(-4 * threads // (rows * shared)), -(-count // _PIECE)) if rows * shared < 4 * threads else 1
    out = q.new_empty(rows, count, heads, size).transpose(1, 2)
    room = q.new_empty(threads * (size + _QUERIES) * -(-positions // _WIDE) * _WIDE)
    places = [x.data_ptr() for x in (q, k, v, out)]
    apart = [step for x in (q, k, v, out) for step in x.stride()[:3]]
    hidden = (None, 0) if mask is None else (mask.data_ptr(), mask.stride(0) if mask.shape[0] > 1 else 0)
    sizes = rows, heads, heads // shared, count, positions, size, pieces
    call = _Call(*places, hidden[0], room.data_ptr(), *apart, hidden[1], *sizes, scale, causal)
    kernel(ctypes.addressof(call), threads)
    return out


@cache
def _kernel() -> Any:
    found = library(SOURCE, tells=False)
    if found is None:
        return None
    function = found.transept_attention
    function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_int32]
    return function
