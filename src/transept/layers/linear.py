"""Linear layers: with a weight (in, out), or one that only a kernel of its own can read; tables of tokens that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.tensors import is_plain_call


def matrix(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """The weight (out, in) of a linear layer, or one that it is to have, as it keeps it; the other way round just as well."""
    own: Any = layer.weight if weight is None else weight
    found: Tensor = own.t() if isinstance(layer, Conv1D) else own
    return found


class Conv1D(nn.Module):
    """A linear layer of ``nf`` outputs and ``nx`` inputs with a weight (in, out), under the reference's name."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.in_features, self.out_features = self.nx, self.nf = nx, nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.empty(nf))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


class PlainLinear(nn.Module):
    """A packed linear layer that keeps its plain weight, and multiplies by oneDNN, where PyTorch alone takes a library that is
    slow on some processors.

    It is no ``nn.Linear``: what puts other layers in the place of those would lose the activation.

    Args:
        source: the layer in whose place it stands, whose parameters it has.
        act: an activation that follows the product, if it is joined to it.
        joined: what oneDNN calls that: attribute and algorithm.
    """

    act: Callable[[Tensor], Tensor] | None
    bias: nn.Parameter | None

    def __init__(
        self, source: nn.Linear, act: Callable[[Tensor], Tensor] | None = None, joined: tuple[str, str] = ("none", "")
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.weight = source.in_features, source.out_features, source.weight
        bias: nn.Parameter | None = source.bias  # absent where the layer was made without one
        self.register_parameter("bias", bias)
        self.act, self.joined = act, joined
        self.train(source.training)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        weight = self.weight
        if not is_plain_call(x) or weight.dtype != torch.float32 or x.numel() < 2 * self.in_features:
            plainly = F.linear(x, weight, self.bias)
            return plainly if self.act is None else self.act(plainly)
        name, algorithm = self.joined
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, self.bias, name, [], algorithm)
        return out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Packed(nn.Module):
    """A layer with a weight that is no plain tensor: compilers cannot read it, and get a plain one for as long as they look."""

    plain: Tensor | None
    shared = False  # whether projections that share the product have the names of its weight

    def __init__(self, source: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.register_buffer("plain", None, persistent=False)

    def unpacked(self) -> Tensor:
        """The weight (out, in) as a plain tensor of its own."""
        raise NotImplementedError

    def check_move(self, fn: Callable[[Tensor], Tensor]) -> None:
        """``InputError`` where the layer cannot go to the device, or have the type, that ``fn`` gives tensors."""

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


def share_product(module: Any, names: Sequence[str], place: str, product: Packed) -> None:
    """Put projections in the place of a module's layers, of which ``product``, named ``place``, gives all outputs in order."""
    product.shared, start = True, 0
    layers = [getattr(module, name) for name in names]
    setattr(module, place, product)
    for name, layer in zip(names, layers, strict=True):
        setattr(module, name, Projection(product, slice(start, start + layer.out_features)))
        start += layer.out_features


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


@torch.no_grad()
def resize_rows(layers: Iterable[nn.Module], rows: int, initialize: Callable[[nn.Module], object] | None = None) -> None:
    """Give layers so many rows; a tensor that several share is made once.

    New rows are the mean of the old ones, or what ``initialize`` fills a new layer with. Where one cannot be resized, such as
    a layer of few bits (``InputError``), none is.
    """
    fresh: dict[int, nn.Parameter] = {}
    olds = [(layer, {name: getattr(layer, name, None) for name in ("weight", "bias")}) for layer in layers]
    for layer, tensors in olds:
        old = dict(layer.named_parameters(recurse=False))
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(layer, name, fresh[id(tensor)] if id(tensor) in fresh else _shared(fresh, tensor, rows))
        setattr(layer, "num_embeddings" if isinstance(layer, nn.Embedding) else "out_features", rows)
        if initialize is not None:
            initialize(layer)
            for name, kept in old.items():
                getattr(layer, name)[: len(kept)] = kept[:rows]


def _shared(fresh: dict[int, nn.Parameter], old: Tensor, rows: int) -> nn.Parameter:
    return fresh.setdefault(id(old), _resized(old, rows))


def _resized(old: Tensor, rows: int) -> nn.Parameter:
    kept = old.detach().to_dense()[:rows]  # packed layers have theirs in another layout
    mean = kept.float().mean(0).to(kept.dtype)
    grown = torch.cat([kept, mean.expand(rows - len(kept), *mean.shape)])
    return nn.Parameter(grown, requires_grad=old.requires_grad)
