"""Packing linear layers for inference on the CPU.

oneDNN multiplies fastest by weights in the processor's own block layout. ``pack`` puts every weight into it once, and joins a
feed-forward layer's activation to the product before it, so that its values are written once and not three times. The
parameters and the state dict keep names, shapes and values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from transept.backbone import Model
from transept.errors import InputError
from transept.layers.activation import ACTIVATIONS, linear
from transept.layers.mlp import MLP

M = TypeVar("M", bound=Model)

# What oneDNN can do to a product before it is written: (attribute, algorithm).
_JOINED: dict[str, tuple[str, str]] = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
    "sigmoid": ("sigmoid", ""),
}


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this PyTorch and processor have packed layers for weights of a type."""
    if not (torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()):  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack(model: M) -> M:
    """Pack a model's linear layers in place, for inference on the CPU; weights that are tied to embeddings stay.

    Raises:
        InputError: the model is in training mode, not on the CPU, or of a type that cannot be packed here.
    """
    if model.training or model.device.type != "cpu" or not can_pack(model.dtype):
        mode = "training" if model.training else "evaluation"
        raise InputError(
            f"a model of {model.dtype} on {model.device.type!r} in {mode} mode cannot be packed.",
            hint="Only models on the CPU in evaluation mode can, of a type that its matrix units have.",
        )
    tied = {id(model.get_parameter(name)) for name in model.active_ties()}
    for module in tuple(model.modules()):
        if type(module) is MLP and type(module.up_proj) is nn.Linear and (joined := _joined(module.act)) is not None:
            module.register_module("up_proj", PackedLinear(module.up_proj, *joined))
            module.act = linear
        for name, child in module.named_children():
            if type(child) is nn.Linear and id(child.weight) not in tied and can_pack(child.weight.dtype):
                setattr(module, name, PackedLinear(child))
    return model


def _joined(act: Callable[[Tensor], Tensor]) -> tuple[str, str] | None:
    """How oneDNN computes an activation, if it does; that of a copied model is a copy too."""
    known = (joined for name, joined in _JOINED.items() if _same(act, ACTIVATIONS[name]))
    return next(known, None)


def _same(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one is other


class PackedLinear(nn.Module):
    """A linear layer with its weight (out, in) in oneDNN's layout, and an activation joined to it.

    A plain weight that is put in its place is packed too.

    Args:
        source: the layer to pack.
        act: name of oneDNN's post-operation; ``none`` for none.
        algorithm: its variant.
    """

    def __init__(self, source: nn.Linear, act: str = "none", algorithm: str = "") -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.act, self.algorithm = act, algorithm
        self.weight = source.weight
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _packed(value) if name == "weight" and not value.is_mkldnn else value)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.act, [], self.algorithm)
        return out

    def _plain(self) -> nn.Parameter:
        return nn.Parameter(self.weight.to_dense(), requires_grad=False)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self._plain().data

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._parameters["weight"] = plain = self._plain()
        super()._load_from_state_dict(*arguments)
        self.weight = plain

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, as ``Module.to`` does.

        Raises:
            InputError: to where, or what, cannot be packed.
        """
        plain = fn(self._plain().data)
        if plain.device.type != "cpu" or not can_pack(plain.dtype):
            raise InputError(
                f"a packed model cannot be moved to {plain.device.type!r} as {plain.dtype}.",
                hint="Load it with packed=False.",
            )
        self.weight = plain
        if self.bias is not None:
            self.bias = nn.Parameter(fn(self.bias.data), requires_grad=False)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parameters": {**self._parameters, "weight": self._plain()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.weight = state["_parameters"]["weight"]

    def extra_repr(self) -> str:
        """Sizes and activation."""
        return f"in_features={self.in_features}, out_features={self.out_features}, act={self.act}"


def _packed(weight: Tensor) -> nn.Parameter:
    with torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return nn.Parameter(packed, requires_grad=False)
