"""Weights of experts in few bits, which the kernel multiplies by for the rows of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from transept.quantized.grouped import BlockedLayer
from transept.quantized.layout import BlockedWeight
from transept.quantized.linear import LayerWeight, gone, has_names_alone
from transept.quantized.weights import GroupedWeight, is_alike, parts_of_rows


class GroupedExperts(BlockedLayer):
    """The weight (E, out, in) of experts, in the place of a parameter.

    Args:
        weights: that of each expert (out, in), all of one kind.
        inputs: how many columns of these belong to inputs.
        inputs_first: whether the parameter is (E, in, out).
    """

    def __init__(self, weights: list[BlockedWeight], inputs: int, *, inputs_first: bool) -> None:
        first = weights[0]
        super().__init__(nn.Linear(inputs, first.rows, device="meta"))
        self.count, self.inputs_first = len(weights), inputs_first
        self.take(replace(first, **parts_of_rows(weights)))

    @classmethod
    def of(cls, weights: Iterable[GroupedWeight | None], shape: torch.Size, *, inputs_first: bool) -> Self | None:
        """The weights of experts in the place of a parameter of a shape.

        ``None`` where one is absent, of another shape or of another kind than the first; those that follow are not read.
        """
        sizes, blocks = tuple(shape[:0:-1] if inputs_first else shape[1:]), list[BlockedWeight]()
        for weight in weights:
            if weight is None or len(weight.codes) != sizes[0] or weight.codes.shape[1] - sizes[1] not in range(weight.group):
                return None
            blocks.append(BlockedWeight.of(weight))
            if not is_alike(blocks[0], blocks[-1]):
                return None
        return cls(blocks, sizes[1], inputs_first=inputs_first) if len(blocks) == shape[0] else None

    @property
    def shape(self) -> torch.Size:
        """That of the parameter."""
        sizes = (self.out_features, self.in_features)
        return torch.Size((self.count, *(sizes[::-1] if self.inputs_first else sizes)))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """(N, in) rows, sorted by expert -> (N, out) in their type; ``ends`` (E) are the rows behind those of each expert."""
        if torch.is_grad_enabled() and rows.requires_grad:
            out: Tensor = _Product.apply(rows, ends, self)  # type: ignore[no-untyped-call]
        else:
            out = self.multiply(rows.detach(), ends)
        return out.to(rows.dtype)

    def multiply(self, rows: Tensor, ends: Tensor) -> Tensor:
        """The same in float32, without a gradient."""
        out: Tensor = torch.ops.transept.grouped_product(self.columns(rows.float()), *self.operands(), ends)
        return out

    def dequantized(self, experts: Iterable[int] | None = None) -> Iterator[Tensor]:
        """The weights (out, in) of some experts, or of all, in float32."""
        weights = self.blocks.apart(self.count)
        for expert in range(self.count) if experts is None else experts:
            yield weights[expert].grouped().dequantized()[:, : self.in_features]

    def grouped(self) -> GroupedWeight:
        """The rows of all experts."""
        weights = [weight.grouped() for weight in self.blocks.apart(self.count)]
        rows = GroupedWeight.joined(weights)
        assert rows is not None
        return rows

    def replace(self, owner: nn.Module, name: str) -> None:
        """Stand in the place of a parameter of a module."""
        names = [*owner._parameters]
        self.behind = tuple(names[names.index(name) + 1 :])
        delattr(owner, name)
        setattr(owner, name, self)

    def stored(self, name: str) -> dict[str, LayerWeight]:
        weights = self.blocks.apart(self.count)
        return {name: LayerWeight(self.grouped, tuple(self.shape), self.inputs_first, lambda expert: weights[expert].grouped())}

    def restore(self, owner: nn.Module, name: str, dtype: torch.dtype) -> None:
        plain = torch.empty(self.count, self.out_features, self.in_features, dtype=dtype)
        for row, weight in zip(plain, self.dequantized(), strict=True):
            row.copy_(weight)
        setattr(owner, name, nn.Parameter(plain.mT.contiguous() if self.inputs_first else plain))
        for other in self.behind:  # parameters stay in their order
            if other in owner._parameters:
                owner._parameters[other] = owner._parameters.pop(other)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not has_names_alone():
            raise gone()
        destination[prefix.removesuffix(".")] = torch.empty(self.shape, device="meta")

    def extra_repr(self) -> str:
        return f"{self.count} of {super().extra_repr()}"


class _Product(torch.autograd.Function):
    """The product by rounded weights, whose gradient with respect to the rows is that by the dequantised ones."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Tensor, experts: GroupedExperts) -> Tensor:
        ctx.experts, ctx.ends, ctx.dtype = experts, ends, rows.dtype
        return experts.multiply(rows.detach(), ends)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        parts = {e: part for e, part in enumerate(gradient.float().tensor_split(ctx.ends[:-1])) if len(part)}
        weights = zip(parts.values(), ctx.experts.dequantized(parts), strict=True)
        found = [gradient.new_empty(0, ctx.experts.in_features), *(part @ weight for part, weight in weights)]
        return torch.cat(found).to(ctx.dtype), None, None
