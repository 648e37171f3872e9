"""Blocks of decoders that compute one position of each row in one call: on the CPU, a step is then as fast as memory is read.

A step of one row reads every weight once, and computes so little with it that to start some thirty operations for each block
takes longer than the operations. The kernel is built for the processor when it is first used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transept.environment.compiler import library
from transept.layers.attention import Attention, FusedAttention
from transept.layers.attention.kernels import sdpa
from transept.layers.block import Block, PreNorm, SandwichNorm
from transept.layers.context import Context
from transept.layers.linear import PlainLinear, shared_product
from transept.layers.mlp import ACTIVATIONS, MLP, FusedGatedMLP, GatedMLP
from transept.layers.norm import CenteredRMSNorm, RMSNorm, WideRMSNorm
from transept.layers.rotary import rotate, rotate_interleaved
from transept.layers.tensors import is_plain_call
from transept.quantized.grouped import SOURCE, GroupedLinear, Matrix

BLOCK = SOURCE.with_name("block.cpp")
# What is added to the weights of norms without a mean; the numbers are right in float32 alone, where the three are alike.
_NORMS: dict[type[nn.Module], float] = {RMSNorm: 0.0, WideRMSNorm: 0.0, CenteredRMSNorm: 1.0}
# In the order of the kernel's.
_ACTIVATIONS: tuple[Any, ...] = tuple(ACTIVATIONS[name] for name in ("silu", "gelu", "gelu_new", "relu"))
_PLAIN = (nn.Linear, PlainLinear)
_ALIGNED = 64  # bytes
_FEW = 64  # rows of a plain weight, more than which are as many as products of matrices are for


class _Norm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_float) for name in ("eps", "more")),
        ("centered", ctypes.c_int32),
    )


class _Linear(ctypes.Structure):
    _fields_ = (("matrix", Matrix), ("bias", ctypes.c_void_p))


class _Block(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("attention_norm", "attention_after", "query_norm", "key_norm", "mlp_norm", "mlp_after")),
        *(("projections", _Linear * 3), ("out", _Linear), ("wide", _Linear * 2), ("down", _Linear)),
        *((name, ctypes.c_int64) for name in ("size", "hidden", "heads", "shared", "head", "turned", "window")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("projected", "widened", "gated", "neighbours", "activation")),
    )


class _Positions(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "capacity", "place", "cosines", "sines")),
        ("apart", ctypes.c_int64),
    )


class _Room(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("states", "projected", "gathered", "wide", "scores", "rounded")),
        ("longest", ctypes.c_int64),
    )


class _Refused(Exception):  # noqa: N818 (no error, but a reason)
    """A block has a part that the kernel does not know."""


class FusedBlock:
    """One block as the kernel reads it.

    Args:
        block: what it computes.

    Raises:
        _Refused: the kernel cannot.
    """

    def __init__(self, block: Block) -> None:
        # Parts, where they were found, and what they compute by; a part may be given another `forward`.
        self.parts: list[tuple[dict[str, Any], str, nn.Module, dict[str, Any], Any, Any]] = []
        self.tensors: list[tuple[dict[str, Any], str, Tensor, int]] = []  # and where they lie, too
        self.hooks: list[dict[int, Any]] = []  # those of the parts, which the kernel would pass over
        attention, mlp = block.self_attn, block.mlp
        self.check(block)
        self.kind: str | None = attention.kind
        for name in ("self_attn", "self_attn_norm", "mlp", "mlp_norm", "dropout", "mlp_dropout"):
            self.part(block, name)
        found = _Block(heads=attention.heads, shared=attention.kv_heads, head=attention.head_dim)
        size = found.size = int(attention.o_proj.out_features)
        found.attention_norm, found.mlp_norm = self.norm(block, "self_attn_norm", size), self.norm(block, "mlp_norm", size)
        if isinstance(block, SandwichNorm):
            found.attention_after = self.norm(block, "self_attn_post_norm", size)
            found.mlp_after = self.norm(block, "mlp_post_norm", size)
        found.query_norm, found.key_norm = (self.norm(attention, name, found.head) for name in ("q_norm", "k_norm"))
        projections = self.beside(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj", isinstance(attention, FusedAttention))
        place = "up_proj" if type(mlp) is MLP else "gate_up_proj"
        widened = self.beside(mlp, ("gate_proj", "up_proj"), place, type(mlp) in (MLP, FusedGatedMLP))
        found.projections, found.wide = (_Linear * 3)(*projections), (_Linear * 2)(*widened)
        found.projected, found.widened, found.gated = len(projections), len(widened), type(mlp) is not MLP
        found.out, found.down = self.linear(attention, "o_proj"), self.linear(mlp, "down_proj")
        found.hidden, found.scale = found.down.matrix.inputs, attention.scale
        found.neighbours, found.activation = attention.rotate is rotate_interleaved, _activation(mlp)
        found.window = attention.pattern.window or 0
        self.block, self.address = found, ctypes.addressof(found)
        projected = (found.heads + 2 * found.shared) * found.head
        wider = max(found.heads * found.head, found.hidden)
        self.floats = (found.size, projected, wider, found.hidden * (1 + found.gated))
        matrices = [linear.matrix for linear in (*projections, *widened, found.out, found.down)]
        self.rounded = max(matrix.inputs + 12 * (matrix.inputs // matrix.group) for matrix in matrices)

    def check(self, block: Block) -> None:
        """Refuse what computes in another way, or something besides."""
        attention, mlp = block.self_attn, block.mlp
        own = type(attention)
        methods = ("whole", "gathered", "placed", "turned", "attend", "by_row", "by_cached_row", "self_keys", "forward")
        usual = all(getattr(own, name) is getattr(Attention, name) for name in methods)
        usual &= own.project in (Attention.project, FusedAttention.project) and own.rotate in (rotate, rotate_interleaved)
        usual &= type(block).whole in (PreNorm.whole, SandwichNorm.whole) and type(block).forward is Block.forward
        usual &= type(mlp) in (MLP, GatedMLP, FusedGatedMLP) and not block.is_split and not block.is_prepared
        usual &= not own.is_prepared and not attention.cross and block.cross_attn is None and not block.bounds
        usual &= attention.pattern.causal and not attention.pattern.chunked and attention.head_dim % 2 == 0
        usual &= not attention.by_steps and not getattr(mlp, "by_steps", False)
        usual &= all(type(part) in (nn.Dropout, nn.Identity) for part in (block.dropout, block.mlp_dropout))
        if not usual:
            raise _Refused

    def part(self, owner: nn.Module, name: str) -> nn.Module:
        """A part of a module, which is noted."""
        found: nn.Module = getattr(owner, name)
        if "forward" in found.__dict__:
            raise _Refused
        holder, key = owner.__dict__.get("_links", {}).get(name, (owner, name))
        self.parts.append((holder._modules, key, found, found.__dict__, type(found), type(found).forward))
        self.hooks += found._forward_hooks, found._forward_pre_hooks
        return found

    def tensor(self, owner: nn.Module, name: str) -> int | None:
        """Where a tensor of a module lies, which is noted; it must be of 32 bits."""
        tensor: Tensor | None = getattr(owner, name, None)
        if tensor is None:
            return None
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_sparse:
            raise _Refused
        held = owner._parameters if name in owner._parameters else owner._buffers
        self.tensors.append((held, name, tensor, tensor.data_ptr()))
        return tensor.data_ptr()

    def norm(self, owner: nn.Module, name: str, size: int) -> _Norm:
        """A norm of so many numbers; nothing where there is none."""
        norm: Any = self.part(owner, name)
        if type(norm) is nn.Identity:
            return _Norm()
        if type(norm) not in (*_NORMS, nn.LayerNorm) or norm.weight is None or norm.weight.shape != (size,):
            raise _Refused
        places = self.tensor(norm, "weight"), self.tensor(norm, "bias")
        return _Norm(*places, eps=norm.eps, more=_NORMS.get(type(norm), 0.0), centered=type(norm) is nn.LayerNorm)

    def beside(self, owner: nn.Module, names: Sequence[str], place: str, joined: bool) -> list[_Linear]:
        """Layers that read the same, or the one product that stands for them."""
        if joined:
            return [self.linear(owner, place)]
        shared = shared_product(*(self.part(owner, name) for name in names))
        return [self.linear(owner, name) for name in names] if shared is None else [self.linear(owner, place)]

    def linear(self, owner: nn.Module, name: str) -> _Linear:
        """A linear layer, plain or of few bits."""
        layer: Any = self.part(owner, name)
        bias = self.tensor(layer, "bias")
        if type(layer) in _PLAIN:
            weight, sizes = self.tensor(layer, "weight"), (layer.out_features, layer.in_features)
            return _Linear(Matrix(codes=weight, outputs=sizes[0], inputs=sizes[1], group=sizes[1], bits=32), bias)
        if not isinstance(layer, GroupedLinear) or layer.order is not None or layer.width != layer.in_features:
            raise _Refused
        self.tensors.append((layer._buffers, "codes", layer.codes, layer.codes.data_ptr()))
        return _Linear(layer.matrix(), bias)

    def is_unchanged(self) -> bool:
        """Whether all parts are where they were, and compute what they did."""
        for owner, name, part, own, kind, forward in self.parts:
            if owner.get(name) is not part or "forward" in own or kind.forward is not forward:
                return False
        for owner, name, tensor, place in self.tensors:
            if owner.get(name) is not tensor or tensor.data_ptr() != place:
                return False
        return True

    def __call__(self, x: Tensor, step: _Step) -> Tensor:
        """(B, T, D) -> (B, T, D) of as many positions as there are rows."""
        out = x.clone(memory_format=torch.contiguous_format)
        self.block.turned = step.turn(self.kind)
        room = step.room(self.floats, self.rounded, self.block.heads // self.block.shared)
        _kernel().transept_block(self.address, step.address, ctypes.addressof(room), out.data_ptr(), step.threads)
        return out


class _Step:
    """One more position of each row: what is the same for all blocks, and where the block that runs finds keys and values.

    Args:
        ctx: the pass.
        x: its states.
    """

    def __init__(self, ctx: Context, x: Tensor) -> None:
        self.ctx, self.count, self.threads = ctx, x.shape[0] * x.shape[1], torch.get_num_threads()
        numbers, pointers = ctypes.c_int64 * self.count, ctypes.c_void_p * self.count
        self.keys, self.values = pointers(), pointers()
        self.capacity, self.place = numbers(), numbers()
        arrays = (ctypes.addressof(each) for each in (self.keys, self.values, self.capacity, self.place))
        self.positions = _Positions(self.count, *arrays)
        self.address = ctypes.addressof(self.positions)
        self.rooms = dict[Any, tuple[_Room, Tensor]]()

    @classmethod
    def of(cls, ctx: Context, x: Tensor) -> _Step | bool:
        """What a pass needs; ``False`` where it is not for one more position of each row in float32 on the CPU alone."""
        told = (ctx.padding, ctx.full_mask, ctx.position_bias, ctx.texts, ctx.blocks, ctx.pooled, ctx.attentions)
        one = ctx.cache is not None and ctx.queries == 1 and (ctx.rows is None or bool(ctx.alone))
        fits = one and ctx.kernel is sdpa and is_plain_call(x) and all(each is None for each in told)
        return cls(ctx, x) if fits else False

    def turn(self, kind: str | None) -> int:
        """Have the tables of a kind of layer at hand; how many elements of a head turn."""
        table = None if kind is None else self.ctx.rotary.get(kind)
        if table is None:
            return 0
        cos, sin = table
        self.positions.cosines, self.positions.sines = cos.data_ptr(), sin.data_ptr()
        size = int(cos.shape[-1])
        self.positions.apart = 0 if cos.shape[0] * cos.shape[2] == 1 else size
        return size

    def can_turn(self, kind: str | None, size: int) -> bool:
        """Whether the kernel can read the tables, for heads of so many numbers."""
        table = None if kind is None else self.ctx.rotary.get(kind)
        if table is None:
            return True
        rows, turned = table[0].shape[0] * table[0].shape[2], table[0].shape[-1]
        plain = all(each.dtype == torch.float32 and each.is_contiguous() for each in table)
        return plain and rows in (1, self.count) and turned % 2 == 0 and turned <= size

    def extend(self, heads: int, size: int) -> bool:
        """Make room for the keys and values of the layer that runs, of so many heads; whether that could be done."""
        ctx = self.ctx
        for own in ctx.alone:
            own.layer = ctx.layer
        kept = [own.key_values() for own in ctx.alone] or [ctx.key_values()]
        if not all(each is not None and each.can_extend() for each in kept):
            return False
        at, like = 0, torch.empty(self.count // len(kept), heads, 0, size)
        for each in kept:
            assert each is not None
            place, (keys, values) = each.extend(1, like)
            rows, (_, heads, capacity, size) = keys.shape[0], keys.shape
            start, other, apart = keys.data_ptr(), values.data_ptr(), 4 * heads * capacity * size
            for row in range(rows):
                self.keys[at], self.values[at] = start + row * apart, other + row * apart
                self.capacity[at], self.place[at] = capacity, place
                at += 1
        return True

    def room(self, floats: tuple[int, ...], rounded: int, group: int) -> _Room:
        """Memory for what stands between the products, the same for all blocks of one size."""
        longest = max(self.place) + 1
        if (form := (floats, rounded, group)) in self.rooms and self.rooms[form][0].longest >= longest:
            return self.rooms[form][0]
        sizes = [4 * self.count * each for each in floats]
        sizes += [4 * self.threads * group * longest, (self.threads if self.count == 1 else self.count) * rounded]
        memory = torch.empty(sum(sizes) + _ALIGNED * len(sizes), dtype=torch.uint8)
        ends = accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=memory.data_ptr())
        room = _Room(*list(ends)[: len(sizes)], longest)
        self.rooms[form] = room, memory
        return room


@cache
def _kernel() -> Any:
    """The kernels' library; ``None`` where it cannot be built."""
    found = library(BLOCK, tells=False)
    return None if found is None else declared(found)


def declared(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    kernels.transept_block.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int32]
    kernels.transept_plain.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_int32]
    kernels.transept_block.restype = kernels.transept_plain.restype = None
    return kernels


def _activation(mlp: Any) -> int:
    """The number of a feed-forward layer's activation, which may be joined to the product before it."""
    before = mlp.up_proj if type(mlp) is MLP else getattr(mlp, "gate_proj", None)
    act: Any = before.act if isinstance(before, PlainLinear) and before.act is not None else mlp.act
    for number, known in enumerate(_ACTIVATIONS):
        alike = isinstance(act, partial) and isinstance(known, partial)
        if act is known or (alike and (act.func, act.args, act.keywords) == (known.func, known.args, known.keywords)):
            return number
    raise _Refused


# What the kernel knows of blocks; ``None`` for those that it cannot compute.
_FUSED: WeakKeyDictionary[Block, FusedBlock | None] = WeakKeyDictionary()
_UNKNOWN: Any = object()


def fused_step(block: Block, x: Tensor, ctx: Context) -> Tensor | None:
    """What a block makes of one position of each row, (B, 1, D) or (1, N, D); ``None`` where it has to compute it itself."""
    if torch.compiler.is_compiling() or block.training:
        return None
    if ctx.step is None:
        ctx.step = _Step.of(ctx, x)
    step: _Step | bool = ctx.step
    if isinstance(step, bool):
        return None
    fused: FusedBlock | None = _FUSED.get(block, _UNKNOWN)
    if fused is _UNKNOWN or (fused is not None and not fused.is_unchanged()):
        _FUSED[block] = fused = _made(block)
    if (
        fused is None
        or any(fused.hooks)
        or not step.can_turn(fused.kind, fused.block.head)
        or not step.extend(fused.block.shared, fused.block.head)
    ):
        return None
    return fused(x, step)


def _made(block: Block) -> FusedBlock | None:
    try:
        return None if _kernel() is None else FusedBlock(block)
    except _Refused:
        return None


def fused_product(layer: Any, x: Tensor) -> Tensor | None:
    """What a plain linear layer makes of a few rows (..., in), read at the speed of memory; ``None`` where it has to itself."""
    bias: Tensor | None = getattr(layer, "bias", None)
    if type(layer) not in _PLAIN or layer._forward_hooks or layer._forward_pre_hooks or bias is not None:
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
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    return bool(blocks) and all(_made(block) is not None for block in blocks)


def fuse(model: Any) -> None:
    """Let the blocks of a decoder, and its output layer, compute steps by the kernel, where it knows them."""
    for module in model.modules():
        if isinstance(module, Block):
            module.step = fused_step
    if hasattr(model, "head_step"):
        model.head_step = fused_product
