"""Layers whose weights only kernels of their own can read, and what compilers see of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from transept.layers.projection import Conv1D


class Packed(nn.Module):
    """A layer with a weight that is no plain tensor: compilers cannot read it, and get a plain one for as long as they look."""

    plain: Tensor | None

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.register_buffer("plain", None, persistent=False)

    def unpacked(self) -> Tensor:
        """The weight (out, in) as a plain tensor of its own."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Projection(nn.Module):
    """Some outputs of a product that several projections share; it stands where a layer of its own stood.

    Its weight and bias are read, saved and loaded under its own name.

    Args:
        shared: the product; another module owns it.
        place: which of its outputs these are.
    """

    shared: Any  # a `Packed`; what it holds is its kind's own

    def __init__(self, shared: Packed, place: slice) -> None:
        super().__init__()
        self.__dict__["shared"] = shared  # not as a child, whose parameters would be counted again
        self.place, self.in_features, self.out_features = place, shared.in_features, place.stop - place.start

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = self.shared(x)[..., self.place]
        return out

    @property
    def weight(self) -> nn.Parameter:
        """A plain copy of (out, in)."""
        return nn.Parameter(self.shared.weight.detach().to_dense()[self.place], requires_grad=False)

    @property
    def bias(self) -> nn.Parameter | None:
        """A view of (out)."""
        whole = self.shared.bias
        return None if whole is None else nn.Parameter(whole.detach()[self.place], requires_grad=False)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.data
        if (bias := self.bias) is not None:
            destination[f"{prefix}bias"] = bias.data

    def _load_from_state_dict(self, *arguments: Any) -> None:
        own = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        own.weight = self.weight
        own.register_parameter("bias", self.bias)
        own._load_from_state_dict(*arguments)
        weight = self.shared.weight.detach().to_dense()
        weight[self.place] = own.weight
        self.shared.weight = nn.Parameter(weight, requires_grad=False)
        if self.shared.bias is not None and own.bias is not None:
            self.shared.bias.data[self.place] = own.bias


def shared_product(*projections: nn.Module) -> Packed | None:
    """The product that all of these projections share, if nobody has put another layer in the place of one, or a hook on it."""
    found = [each.shared for each in projections if isinstance(each, Projection) and not each._forward_hooks]
    return found[0] if len(found) == len(projections) and all(each is found[0] for each in found) else None


@contextmanager
def plain_weights(model: nn.Module) -> Iterator[None]:
    """Have the weights of packed layers at hand as plain ones too."""
    packed = [module for module in model.modules() if isinstance(module, Packed)]
    try:
        for module in packed:
            module.plain = module.unpacked()
        yield
    finally:
        for module in packed:
            module.plain = None
