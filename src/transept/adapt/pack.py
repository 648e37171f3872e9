"""Packing linear layers and convolutions for inference on the CPU.

oneDNN multiplies fastest by weights in the processor's own block layout. ``pack`` puts every weight into it once, and joins a
feed-forward layer's activation to the product before it where oneDNN computes it as fast as PyTorch, so that its values are
written once and not three times. Queries, keys and values become one product, and a convolution, its norm, its activation and
a residual sum one step. The state dict keeps names, shapes and values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.core.model import Model
from transept.environment import tiles
from transept.errors import InputError
from transept.layers.attention import Attention
from transept.layers.conv import ConvNormAct
from transept.layers.linear import Conv1D, Packed, PlainLinear, share_product
from transept.layers.links import Linked, adopt
from transept.layers.mlp import ACTIVATIONS, MLP, GatedMLP, linear
from transept.quantized.fused import can_fuse

M = TypeVar("M", bound=Model)

# What oneDNN can do to a product before it is written: (attribute, algorithm).
_JOINED: dict[str, tuple[str, str]] = {
    "linear": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
    "sigmoid": ("sigmoid", ""),
}

# On processors with AVX2 alone oneDNN takes longer for any other activation than PyTorch does, by up to three times.
_JOINED_NARROW = ("linear", "relu")

# Ways to compute a feed-forward layer -> the projection that its activation follows.
_BEFORE: dict[Any, str] = {MLP.whole: "up_proj", GatedMLP.whole: "gate_proj"}


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this PyTorch and processor have packed layers for weights of a type."""
    if not (torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()):  # type: ignore[no-untyped-call]
        return False
    if dtype.itemsize == 2:
        tiles.settle()
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack(model: M) -> M:
    """Pack a model's linear layers and normed convolutions in place, for inference on the CPU.

    Decoders of float32 whose steps one kernel computes keep plain weights. Those that are tied to embeddings are packed as a
    copy, since rows are looked up in the plain ones; so are those of convolutions, into which their norms are folded.

    Raises:
        InputError: the model is in training mode, not on the CPU, or of a type that cannot be packed here.
    """
    if model.dtype.itemsize == 2:
        tiles.check()
    if model.training or model.device.type != "cpu" or not can_pack(model.dtype):
        mode = "training" if model.training else "evaluation"
        raise InputError(
            f"a model of {model.dtype} on {model.device.type!r} in {mode} mode cannot be packed.",
            hint="Only models on the CPU in evaluation mode can, of a type that its matrix units have.",
        )
    if model.can_generate() and model.dtype == torch.float32 and can_fuse(model):
        return _keep_plain(model)
    named = dict(model.named_parameters(remove_duplicate=False))  # what has few bits is none of them
    tied = {id(named[name]) for name in model.checkpoint_names().tied if name in named}
    for module in tuple(model.modules()):
        if (place := _BEFORE.get(getattr(type(module), "whole", None))) is not None:
            _join(module, place)
        if isinstance(module, Attention):
            join_projections(module, PackedLinear)
        for name, child in module.named_children():
            if type(child) is ConvNormAct and can_pack(child.conv.weight.dtype):
                setattr(module, name, FoldedConv(child))
            elif is_plain(child) and can_pack(child.weight.dtype):
                shares = isinstance(child, nn.Linear) and id(child.weight) in tied
                setattr(module, name, TiedLinear(child) if shares else PackedLinear(child))
    return model


def _keep_plain(model: M) -> M:
    """Leave the weights as they are, which steps of a model that writes read one after the other."""
    module: Any
    for module in tuple(model.modules()):
        if (place := _BEFORE.get(getattr(type(module), "whole", None))) is not None:
            before, joined = getattr(module, place), _joined(module.act)
            if is_plain(before) and isinstance(before, nn.Linear) and joined is not None:
                setattr(module, place, PlainLinear(before, ACTIVATIONS[joined], _JOINED[joined]))
                module.act = linear
        for name, child in module.named_children():
            if is_plain(child) and isinstance(child, nn.Linear):
                setattr(module, name, PlainLinear(child))
    return model


def join_projections(module: nn.Module, make: Callable[[nn.Linear], Packed]) -> None:
    """Let one product that ``make`` gives stand for queries, keys and values, or for a gate and what it is beside.

    Layers with a forward of their own or one product already, cross-attention, and those of which only some projections have
    a bias stay.
    """
    if not isinstance(module, Linked) or (found := module.side_by_side()) is None:
        return
    names, place = found
    parts = [getattr(module, name) for name in names]
    biases = [part.bias.detach() for part in parts if type(part) is nn.Linear and part.bias is not None]
    if not all(map(is_plain, parts)) or len(biases) not in (0, len(parts)):
        return
    whole = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts), bool(biases), device="meta")
    whole.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]), requires_grad=False)
    if biases:
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    share_product(module, names, place, make(whole))


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear | Conv1D]:
    """Whether a linear layer does nothing but its product, such as what an adapter's hook would add."""
    return type(module) in (nn.Linear, Conv1D) and not module._forward_hooks


def _join(module: Any, place: str) -> None:
    """Pack the projection of that name with the activation that follows it, if oneDNN has that."""
    before, joined = getattr(module, place), _joined(module.act)
    if is_plain(before) and joined is not None:
        setattr(module, place, PackedLinear(before, joined))
        module.act = linear


def _joined(act: Callable[[Tensor], Tensor]) -> str | None:
    """The name of an activation that oneDNN computes, and fast; that of a copied model is a copy too."""
    fast = _JOINED_NARROW if torch.backends.cpu.get_cpu_capability() == "AVX2" else _JOINED
    return next((name for name in fast if _same(act, ACTIVATIONS[name])), None)


def _same(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one is other


class PackedLinear(Packed):
    """A linear layer with its weight (out, in) in oneDNN's layout, and an activation joined to it.

    A plain weight that is put in its place is packed too; that of a ``Conv1D`` is (in, out), and saved so.

    Args:
        source: the layer to pack.
        act: name of the activation.
    """

    def __init__(self, source: nn.Linear | Conv1D, act: str = "linear") -> None:
        super().__init__(source)
        self.act, self.is_turned = act, isinstance(source, Conv1D)
        self.weight = source.weight
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and not value.is_mkldnn:
            value = _packed(value.t() if self.is_turned else value)
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self.plain is not None:
            return ACTIVATIONS[self.act](F.linear(x, self.plain, self.bias))
        act, algorithm = _JOINED[self.act]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, act, [], algorithm)
        return out

    def unpacked(self) -> Tensor:
        """The weight (out, in), plain."""
        plain: Tensor = self.weight.detach().to_dense()
        return plain

    def _plain(self) -> nn.Parameter:
        """The weight as it is saved."""
        plain = self.unpacked()
        return nn.Parameter(plain.t().contiguous() if self.is_turned else plain, requires_grad=False)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not self.shared:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}weight"] = self._plain().data

    def _load_from_state_dict(self, *arguments: Any) -> None:
        if not self.shared:
            self._parameters["weight"] = plain = self._plain()
            super()._load_from_state_dict(*arguments)
            self.weight = plain

    def check_move(self, fn: Callable[[Tensor], Tensor]) -> None:
        to = fn(torch.empty(0, dtype=self.weight.dtype))
        if to.device.type != "cpu" or not can_pack(to.dtype):
            what = f"a packed model cannot be moved to {to.device.type!r} as {to.dtype}."
            raise InputError(what, hint="Load it with packed=False.")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, as ``Module.to`` does."""
        self.check_move(fn)
        self.weight = fn(self._plain().data)
        if self.bias is not None:
            self.bias = nn.Parameter(fn(self.bias.data), requires_grad=False)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": {**self._parameters, "weight": self._plain()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.weight = state["_parameters"]["weight"]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act={self.act}"


class TiedLinear(nn.Linear):
    """A linear layer that keeps its plain weight (out, in), which is another layer's too, and multiplies by a packed copy.

    The copy is made when it is first needed, and again when the weight has changed.

    Args:
        source: the layer to pack.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(source.in_features, source.out_features, bias=False, device="meta")
        self.weight, self.bias = source.weight, source.bias
        self._copy: Tensor | None = None
        self._copied: tuple[int, int, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        weight, bias = self.weight, self.bias
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling()  # compilers pack by themselves
        if plain or weight.device.type != "cpu" or not can_pack(weight.dtype):
            return super().forward(x)
        state = (id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if state != self._copied:
            self._copy, self._copied = _packed(weight).data, state
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._copy, bias, "none", [], "")
        return out

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self._copy is None else self._copy.nbytes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copy": None, "_copied": None}


class FoldedConv(ConvNormAct):
    """A convolution that keeps its parts as they are, and works by a packed copy of its weight with the norm folded in.

    The copy is made when it is first needed, and again when a part has changed.

    Args:
        source: the layer to pack.
    """

    def __init__(self, source: ConvNormAct) -> None:
        nn.Module.__init__(self)
        adopt(self, source)
        self.act = source.act
        self.joined = _joined(source.act)
        self._copy: tuple[Tensor, Tensor] | None = None
        self._copied: tuple[Any, ...] = ()
        self.train(source.training)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), to which a map is ``added`` before the activation."""
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or not self.folds
        if plain or x.device.type != "cpu" or not can_pack(x.dtype):
            return super().forward(x, added)
        weight, bias = self._packed_copy(x)
        conv, (act, algorithm) = self.conv, _JOINED[self.joined or "linear"]
        how = conv.padding, conv.stride, conv.dilation, conv.groups
        if added is None:
            out = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *how, act, [], algorithm)
        elif self.joined in ("linear", "relu"):  # what oneDNN has after a sum
            after = None if act == "none" else act
            out = torch.ops.mkldnn._convolution_pointwise.binary(x, added, weight, bias, *how, "add", 1.0, after, [], "")
        else:
            return self.act(torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *how, "none", [], "") + added)
        return out if self.joined else self.act(out)

    def _packed_copy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.norm
        parts = (self.conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        state = tuple((id(each), each.data_ptr(), 0 if each.is_inference() else each._version) for each in parts)
        if self._copy is None or state != self._copied:
            conv, (weight, bias) = self.conv, self.folded()
            how = conv.padding, conv.stride, conv.dilation, conv.groups
            weight = weight.contiguous(memory_format=torch.channels_last)
            packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *how, list(x.shape))
            self._copy, self._copied = (packed, bias), state
        return self._copy

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self._copy is None else self._copy[0].nbytes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copy": None, "_copied": ()}


def _packed(weight: Tensor) -> nn.Parameter:
    with torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return nn.Parameter(packed, requires_grad=False)
