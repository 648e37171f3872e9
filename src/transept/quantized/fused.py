"""Blocks of decoders that compute one position of each row in one call: on the CPU, a step is then as fast as memory is read.

A step of one row reads every weight once, and computes so little with it that to start some thirty operations for each block
takes longer than the operations. The kernel is built for the processor when it is first used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, groupby
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transept.environment.compiler import library
from transept.layers.attention.kernels import sdpa
from transept.layers.block import Block
from transept.layers.caches.layer import KeyValues
from transept.layers.context import Context
from transept.layers.tensors import is_plain_call
from transept.quantized.blocks import PLAIN, BlockData, FusedBlock, Refused
from transept.quantized.grouped import SOURCE, Matrix

BLOCK = SOURCE.with_name("block.cpp")
_ALIGNED = 64  # bytes
_FEW = 64  # rows of a plain weight, more than which are as many as products of matrices are for


class _Table(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosines", "sines")),
        *((name, ctypes.c_int64) for name in ("turned", "apart")),
    )


class _Positions(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("keys", "values", "capacity", "place"))


class _Room(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("states", "projected", "gathered", "wide", "scores", "rounded")),
        ("longest", ctypes.c_int64),
    )


class Chain:
    """Blocks that follow each other, which the kernel computes in one call.

    Args:
        start: the number of the first one.
        blocks: one or more.
    """

    def __init__(self, start: int, blocks: Sequence[FusedBlock]) -> None:
        self.start, self.stop = start, start + len(blocks)
        self.kinds = tuple(dict.fromkeys(block.kind for block in blocks))
        for block in blocks:
            block.block.table = self.kinds.index(block.kind)
        self.blocks = [block.block for block in blocks]
        self.addresses = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, self.blocks))
        self.least = min(block.head for block in self.blocks)
        self.floats = [max(sizes) for sizes in zip(*(block.floats for block in blocks), strict=True)]
        self.rounded = max(block.rounded for block in blocks)
        self.group = max(block.heads // block.shared for block in self.blocks)
        held = [each for block in blocks for each in block.held]
        self.owners, self.names, self.held = zip(*held, strict=True)
        self.tensors, self.places = zip(*(each for block in blocks for each in block.tensors), strict=True)
        self.hooks = [hooks for block in blocks for hooks in block.hooks]
        self.forwards = {kind: forward for block in blocks for kind, forward in block.forwards.items()}

    def is_unchanged(self) -> bool:
        """Whether all parts are where they were, and compute what they did."""
        return (
            all(map(is_, map(dict.get, self.owners, self.names), self.held))
            and tuple(map(Tensor.data_ptr, self.tensors)) == self.places
            and all(kind.forward is forward for kind, forward in self.forwards.items())
        )

    def tables(self, ctx: Context, count: int) -> Any:
        """What heads turn by, kind by kind; ``None`` where the kernel cannot read it."""
        tables = (_Table * len(self.kinds))()
        for place, kind in enumerate(self.kinds):
            if kind is None or (table := ctx.rotary.get(kind)) is None:
                continue
            cos, sin = table
            rows, turned = cos.shape[0] * cos.shape[2], cos.shape[3]
            plain = all(each.dtype == torch.float32 and each.is_contiguous() for each in table)
            if not plain or rows not in (1, count) or turned % 2 or turned > self.least:
                return None
            tables[place] = _Table(cos.data_ptr(), sin.data_ptr(), turned, 0 if rows == 1 else turned)
        return tables

    def room(self, count: int, longest: int, threads: int) -> tuple[_Room, Tensor]:
        """Memory for what stands between the products, the same for all blocks."""
        sizes = [4 * count * each for each in self.floats]
        sizes += [4 * threads * self.group * longest, (threads if count == 1 else count) * self.rounded]
        memory = torch.empty(sum(sizes) + _ALIGNED * len(sizes), dtype=torch.uint8)
        ends = accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=memory.data_ptr())
        return _Room(*list(ends)[: len(sizes)], longest), memory

    def extended(self, blocks: Sequence[BlockData], kept: Sequence[Sequence[KeyValues]], x: Tensor) -> list[Any]:
        """Where each block finds the keys and values of each row, in which there is room for one position more."""
        keys, values, capacity, place, like = list[int](), list[int](), list[int](), list[int](), x
        for block, parts in zip(blocks, kept, strict=True):
            form = x.shape[0] * x.shape[1] // len(parts), block.shared, 0, block.head
            if like.shape != form:
                like = x.new_empty(form)
            for part in parts:
                at, (own_keys, own_values) = part.extend(1, like)
                rows, heads, room, size = own_keys.shape
                apart = 4 * heads * room * size
                keys += range(begin := own_keys.data_ptr(), begin + rows * apart, apart)
                values += range(begin := own_values.data_ptr(), begin + rows * apart, apart)
                capacity += [room] * rows
                place += [at] * rows
        pointers, numbers = ctypes.c_void_p * len(keys), ctypes.c_int64 * len(keys)
        return [pointers(*keys), pointers(*values), numbers(*capacity), numbers(*place)]

    def __call__(self, x: Tensor, ctx: Context, first: int, stop: int) -> Tensor | None:
        """(B, T, D) -> (B, T, D) of as many positions as there are rows, by the blocks of these numbers."""
        count, threads, begin = x.shape[0] * x.shape[1], torch.get_num_threads(), first - self.start
        caches: list[Any] = [own.cache for own in ctx.alone] or [ctx.cache]
        kept = [[cache.part(index, KeyValues) for cache in caches] for index in range(first, stop)]
        tables = self.tables(ctx, count)
        if tables is None or any(self.hooks) or not all(part.can_extend() for parts in kept for part in parts):
            return None
        arrays = self.extended(self.blocks[begin : begin + len(kept)], kept, x)
        positions = _Positions(*(ctypes.addressof(array) for array in arrays))
        room, _memory = self.room(count, max(arrays[-1]) + 1, threads)
        out = x.clone(memory_format=torch.contiguous_format)
        blocks = ctypes.addressof(self.addresses) + begin * ctypes.sizeof(ctypes.c_void_p)
        told = (blocks, len(kept), ctypes.byref(positions), tables, ctypes.byref(room), out.data_ptr(), count, threads)
        _kernel().transept_blocks(*told)
        return out


@cache
def _kernel() -> Any:
    """The kernels' library; ``None`` where it cannot be built."""
    found = library(BLOCK, tells=False)
    return None if found is None else declared(found)


def declared(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    place, number = ctypes.c_void_p, ctypes.c_int64
    kernels.transept_blocks.argtypes = [place, number, *[place] * 4, number, ctypes.c_int32]
    kernels.transept_plain.argtypes = [*[place] * 3, number, ctypes.c_int32]
    kernels.transept_blocks.restype = kernels.transept_plain.restype = None
    return kernels


# What the kernel can compute of networks.
_CHAINS: WeakKeyDictionary[nn.Module, list[Chain]] = WeakKeyDictionary()


def fused_step(network: Any, x: Tensor, ctx: Context, first: int, stop: int) -> tuple[Tensor, int] | None:
    """What layers make of one position of each row, (B, 1, D) or (1, N, D), and the number of the layer that follows them.

    ``None`` where the layer of the first number has to compute by itself.
    """
    if torch.compiler.is_compiling() or network.training:
        return None
    if ctx.step is None:
        ctx.step = _is_step(ctx, x)
    if not ctx.step:
        return None
    chains = _CHAINS.get(network)
    if chains is None or not all(chain.is_unchanged() for chain in chains):
        _CHAINS[network] = chains = _made(network)
    for chain in chains:
        if chain.start <= first < chain.stop:
            last = first + 1 if ctx.hidden_states is not None else min(stop, chain.stop)
            made = chain(x, ctx, first, last)
            return None if made is None else (made, last)
    return None


def _is_step(ctx: Context, x: Tensor) -> bool:
    """Whether a pass is for one more position of each row in float32 on the CPU alone."""
    told = (ctx.padding, ctx.full_mask, ctx.position_bias, ctx.texts, ctx.blocks, ctx.pooled, ctx.attentions)
    one = ctx.cache is not None and ctx.queries == 1 and (ctx.rows is None or bool(ctx.alone))
    return one and ctx.kernel is sdpa and is_plain_call(x) and all(each is None for each in told)


def _made(network: Any) -> list[Chain]:
    """The longest runs of layers that the kernel knows."""
    if _kernel() is None:
        return []
    known = [_block(network.layers, index) for index in range(len(network.layers))]
    chains, start = list[Chain](), 0
    for is_known, some in groupby(known, lambda block: block is not None):
        blocks = list(some)
        if is_known:
            chains.append(Chain(start, [block for block in blocks if block is not None]))
        start += len(blocks)
    return chains


def _block(layers: nn.ModuleList, index: int) -> FusedBlock | None:
    try:
        return FusedBlock(layers, index)
    except Refused:
        return None


def fused_product(layer: Any, x: Tensor) -> Tensor | None:
    """What a plain linear layer makes of a few rows (..., in), read at the speed of memory; ``None`` where it has to itself."""
    bias: Tensor | None = getattr(layer, "bias", None)
    if type(layer) not in PLAIN or layer._forward_hooks or layer._forward_pre_hooks or bias is not None:
        return None
    weight, rows = layer.weight, x.numel() // layer.in_features
    plain = weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()
    if not (plain and is_plain_call(x) and 0 < rows <= _FEW) or _kernel() is None:
        return None
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], layer.out_features)
    matrix = Matrix(codes=weight.data_ptr(), outputs=layer.out_features, inputs=layer.in_features, bits=32)
    _kernel().transept_plain(ctypes.byref(matrix), x.data_ptr(), out.data_ptr(), rows, torch.get_num_threads())
    return out


def can_fuse(model: nn.Module) -> bool:
    """Whether the kernel knows all blocks of a model."""
    blocks = sum(isinstance(module, Block) for module in model.modules())
    known = sum(chain.stop - chain.start for network in _networks(model) for chain in _made(network))
    return 0 < blocks == known


def fuse(model: Any) -> None:
    """Let the blocks of a decoder, and its output layer, compute steps by the kernel, where it knows them."""
    for network in _networks(model):
        network.layers_step = fused_step
    if hasattr(model, "head_step"):
        model.head_step = fused_product


def _networks(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "layers_step") and hasattr(module, "layers")]
