"""Packing linear layers for inference on the CPU.

oneDNN multiplies fastest by weights in the processor's own block layout. ``pack`` puts every weight into it once, and joins a
feed-forward layer's activation to the product before it, so that its values are written once and not three times. The
state dict keeps names, shapes and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.backbone import Model
from transept.errors import InputError
from transept.layers.activation import ACTIVATIONS, linear
from transept.layers.mlp import MLP

M = TypeVar("M", bound=Model)

# What oneDNN can do to a product before it is written: (attribute, algorithm).
_JOINED: dict[Callable[[Tensor], Tensor], tuple[str, str]] = {
    F.gelu: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    F.relu: ("relu", ""),
    F.silu: ("swish", ""),
    torch.tanh: ("tanh", ""),
    torch.sigmoid: ("sigmoid", ""),
}


def can_pack() -> bool:
    """Whether this PyTorch and processor have packed layers."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]


def pack(model: M) -> M:
    """Pack a model's linear layers in place, for inference on the CPU; weights that are tied to embeddings stay.

    Raises:
        InputError: the model is not on the CPU, or in training mode.
    """
    if model.device.type != "cpu" or model.training:
        raise InputError("only a model on the CPU and in evaluation mode can be packed.", hint="Call model.cpu().eval().")
    tied = {id(model.get_parameter(name)) for name in model.active_ties()}
    for module in tuple(model.modules()):
        if type(module) is MLP and module.act in _JOINED and isinstance(module.up_proj, nn.Linear):
            module.register_module("up_proj", PackedLinear(module.up_proj, *_JOINED[module.act]))
            module.act = linear
        for name, child in module.named_children():
            if type(child) is nn.Linear and id(child.weight) not in tied:
                setattr(module, name, PackedLinear(child))
    return model


class PackedLinear(nn.Module):
    """A linear layer with its weight in oneDNN's layout, and an activation joined to it.

    Args:
        source: the layer to pack.
        act: name of oneDNN's post-operation; ``none`` for none.
        algorithm: its variant.
    """

    def __init__(self, source: nn.Linear, act: str = "none", algorithm: str = "") -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.act, self.algorithm = act, algorithm
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.packed = _packed(source.weight)

    @property
    def weight(self) -> Tensor:
        """(out, in): a plain copy of the weight."""
        plain: Tensor = self.packed.to_dense()
        return plain

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.act, [], self.algorithm)
        return out

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if (weight := state_dict.pop(f"{prefix}weight", None)) is not None:
            self.packed = _packed(weight)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Sizes and activation."""
        return f"in_features={self.in_features}, out_features={self.out_features}, act={self.act}"


def _packed(weight: Tensor) -> Tensor:
    with torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        return packed
