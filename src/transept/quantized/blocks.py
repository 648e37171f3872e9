"""Blocks of decoders as the kernel reads them that computes a step: what they are made of, and whether it is still so."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.layers.attention import Attention, FusedAttention
from transept.layers.block import Block, PreNorm, SandwichNorm
from transept.layers.linear import PlainLinear, shared_product
from transept.layers.links import Linked
from transept.layers.mlp import ACTIVATIONS, MLP, FusedGatedMLP, GatedMLP
from transept.layers.norm import CenteredRMSNorm, RMSNorm, WideRMSNorm
from transept.layers.rotary import rotate, rotate_interleaved
from transept.quantized.grouped import GroupedLinear, Matrix

# What is added to the weights of norms without a mean; the numbers are right in float32 alone, where the three are alike.
_NORMS: dict[type[nn.Module], float] = {RMSNorm: 0.0, WideRMSNorm: 0.0, CenteredRMSNorm: 1.0}
# In the order of the kernel's.
_ACTIVATIONS: tuple[Any, ...] = tuple(ACTIVATIONS[name] for name in ("silu", "gelu", "gelu_new", "relu"))
PLAIN = (nn.Linear, PlainLinear)
_OTHERWISE = ("forward", "by_steps")  # attributes by which a part computes in another way than its class


class _Norm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_float) for name in ("eps", "more")),
        ("centered", ctypes.c_int32),
    )


class _Linear(ctypes.Structure):
    _fields_ = (("matrix", Matrix), ("bias", ctypes.c_void_p))


class BlockData(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("attention_norm", "attention_after", "query_norm", "key_norm", "mlp_norm", "mlp_after")),
        *(("projections", _Linear * 3), ("out", _Linear), ("wide", _Linear * 2), ("down", _Linear)),
        *((name, ctypes.c_int64) for name in ("size", "hidden", "heads", "shared", "head", "window")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("table", "projected", "widened", "gated", "neighbours", "activation")),
    )


class Refused(Exception):  # noqa: N818 (no error, but a reason)
    """A block has a part that the kernel does not know."""


class FusedBlock:
    """One block as the kernel reads it.

    Args:
        layers: where it stands.
        index: its number there.

    Raises:
        Refused: the kernel cannot compute it.
    """

    def __init__(self, layers: nn.ModuleList, index: int) -> None:
        self.held: list[tuple[dict[str, Any], str, Any]] = []  # parts and tensors, where they were found, and what is absent
        self.tensors: list[tuple[Tensor, int]] = []  # and where they lie
        self.forwards: dict[type[nn.Module], Any] = {}
        self.hooks: list[dict[int, Any]] = []  # those of the parts, which the kernel would pass over
        block: Any = self.part(layers, str(index))
        attention, mlp = self.check(block)
        self.kind: str | None = attention.kind
        for name in ("self_attn", "self_attn_norm", "mlp", "mlp_norm", "dropout", "mlp_dropout"):
            self.part(block, name)
        found = BlockData(heads=attention.heads, shared=attention.kv_heads, head=attention.head_dim)
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
        self.block = found
        projected = (found.heads + 2 * found.shared) * found.head
        wider = max(found.heads * found.head, found.hidden)
        self.floats = (found.size, projected, wider, found.hidden * (1 + found.gated))
        matrices = [linear.matrix for linear in (*projections, *widened, found.out, found.down)]
        self.rounded = max(matrix.inputs + 12 * (matrix.inputs // matrix.group) for matrix in matrices)

    def check(self, block: Any) -> tuple[Any, Any]:
        """The attention and the feed-forward layer of a block; refuse what computes in another way, or something besides."""
        if not isinstance(block, Block):
            raise Refused
        attention, mlp = block.self_attn, block.mlp
        own = type(attention)
        methods = ("whole", "gathered", "placed", "turned", "attend", "by_row", "by_cached_row", "self_keys", "forward")
        usual = all(getattr(own, name) is getattr(Attention, name) for name in methods)
        usual &= own.project in (Attention.project, FusedAttention.project) and own.rotate in (rotate, rotate_interleaved)
        usual &= type(block).whole in (PreNorm.whole, SandwichNorm.whole) and type(block).forward is Block.forward
        usual &= type(mlp) in (MLP, GatedMLP, FusedGatedMLP) and not block.is_split and not block.is_prepared
        usual &= not own.is_prepared and not attention.cross and block.cross_attn is None and not block.bounds
        usual &= attention.pattern.causal and not attention.pattern.chunked and attention.head_dim % 2 == 0
        usual &= not any(getattr(part, "by_steps", False) for part in (block, attention, mlp))
        usual &= all(type(part) in (nn.Dropout, nn.Identity) for part in (block.dropout, block.mlp_dropout))
        if not usual:
            raise Refused
        return attention, mlp

    def part(self, owner: nn.Module, name: str) -> nn.Module:
        """A part of a module, which is noted."""
        found: nn.Module = getattr(owner, name)
        if "forward" in found.__dict__:
            raise Refused
        holder, key = owner.__dict__.get("_links", {}).get(name, (owner, name))
        otherwise = _OTHERWISE if isinstance(found, Linked) else _OTHERWISE[:1]
        self.held += (holder._modules, key, found), *((found.__dict__, each, None) for each in otherwise)
        self.forwards[type(found)] = type(found).forward
        self.hooks += found._forward_hooks, found._forward_pre_hooks
        return found

    def tensor(self, owner: nn.Module, name: str) -> int | None:
        """Where a tensor of a module lies, which is noted; it must be of 32 bits."""
        tensor: Tensor | None = getattr(owner, name, None)
        if tensor is None:
            return None
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_sparse:
            raise Refused
        return self.place(owner, name, tensor)

    def place(self, owner: nn.Module, name: str, tensor: Tensor) -> int:
        """Where a tensor lies, which is noted."""
        self.held.append((owner._parameters if name in owner._parameters else owner._buffers, name, tensor))
        self.tensors.append((tensor, place := tensor.data_ptr()))
        return place

    def norm(self, owner: nn.Module, name: str, size: int) -> _Norm:
        """A norm of so many numbers; nothing where there is none."""
        norm: Any = self.part(owner, name)
        if type(norm) is nn.Identity:
            return _Norm()
        if type(norm) not in (*_NORMS, nn.LayerNorm) or norm.weight is None or norm.weight.shape != (size,):
            raise Refused
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
        if type(layer) in PLAIN:
            weight, sizes = self.tensor(layer, "weight"), (layer.out_features, layer.in_features)
            return _Linear(Matrix(codes=weight, outputs=sizes[0], inputs=sizes[1], group=sizes[1], bits=32), bias)
        if not isinstance(layer, GroupedLinear) or layer.order is not None or layer.width != layer.in_features:
            raise Refused
        self.place(layer, "codes", layer.codes)
        return _Linear(layer.matrix(), bias)


def _activation(mlp: Any) -> int:
    """The number of a feed-forward layer's activation, which may be joined to the product before it."""
    before = mlp.up_proj if type(mlp) is MLP else getattr(mlp, "gate_proj", None)
    act: Any = before.act if isinstance(before, PlainLinear) and before.act is not None else mlp.act
    for number, known in enumerate(_ACTIVATIONS):
        alike = isinstance(act, partial) and isinstance(known, partial)
        if act is known or (alike and (act.func, act.args, act.keywords) == (known.func, known.args, known.keywords)):
            return number
    raise Refused
