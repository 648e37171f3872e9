"""Reversible layers (Gomez et al. 2017; Kitaev et al. 2020): what went into a layer is computed again from what came out.

Two streams run through the layers, ``y1 = x1 + attend(x2)`` and ``y2 = x2 + feed(y1)``. From the last outputs the backward
pass recovers the inputs of each layer, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from transept.layers import Context


class _Chance:
    """The state of the random numbers before a function runs, and what it takes to run the function again alike."""

    def __init__(self, x: Tensor) -> None:
        self.kind, self.host = x.device.type, torch.get_rng_state()
        self.devices, self.states = get_device_states(x)

    @contextmanager
    def again(self) -> Iterator[None]:
        kind = self.kind if self.devices else "cuda"
        with torch.random.fork_rng(self.devices, device_type=kind):
            torch.set_rng_state(self.host)
            set_device_states(self.devices, self.states, device_type=kind)
            yield


def through(layers: Iterable[nn.Module], x1: Tensor, x2: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """Pass both streams, (B, T, D) each, through layers that have ``attend`` and ``feed``.

    Nothing is kept for the backward pass but the outputs. With a cache, which may have gradients of its own, everything is.
    What ``attend`` chooses by chance or by a threshold it must leave in the context, and find there when it runs again.
    ``ctx.hidden_states`` takes the second stream before each layer.
    """
    chain: list[Any] = list(layers)
    if not torch.is_grad_enabled() or ctx.cache is not None:
        for index, layer in enumerate(chain):
            _enter(ctx, index, x2)
            x1, x2 = layer(x1, x2, ctx)
        return x1, x2
    weights = [[weight for weight in layer.parameters() if weight.requires_grad] for layer in chain]
    flat = (weight for part in weights for weight in part)
    return _Reversed.apply(chain, weights, ctx, x1, x2, *flat)  # type: ignore[no-untyped-call]  # PyTorch's


def _enter(ctx: Context, index: int, x: Tensor) -> None:
    ctx.layer = index
    if ctx.hidden_states is not None:
        ctx.hidden_states.append(x)


class _Reversed(torch.autograd.Function):
    """All layers as one step of the graph; weights are among its inputs so that their gradients are its own to give."""

    @staticmethod
    def forward(
        node: Any, layers: list[Any], parts: Any, ctx: Context, x1: Tensor, x2: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        node.layers, node.parts, node.ctx, node.chances = layers, parts, ctx, []
        kind = x1.device.type
        node.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for index, layer in enumerate(layers):
            _enter(ctx, index, x2)
            before = _Chance(x2)
            x1 = x1 + layer.attend(x2, ctx)
            node.chances.append((before, _Chance(x2)))
            x2 = x2 + layer.feed(x1)
        node.save_for_backward(x1, x2, *weights)  # weights for nobody to change them meanwhile
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(node: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        """From the last layer to the first: run its functions again, take them off, and pass gradients on."""
        y1, y2, *_ = node.saved_tensors
        unseen = replace(node.ctx, hidden_states=None, attentions=None)
        found: list[list[Tensor | None]] = []
        kind, dtype, enabled = node.autocast
        # What autocast has kept of the forward pass knows no gradients.
        with torch.autocast(kind, dtype, enabled, cache_enabled=False):
            for index in reversed(range(len(node.layers))):
                layer, weights, (before, between) = node.layers[index], node.parts[index], node.chances[index]
                unseen.layer = index
                out, dx, fed = _rerun(layer.feed, (y1,), d2, weights, between)
                y2, d1 = y2 - out, d1 + dx
                out, dx, attended = _rerun(layer.attend, (y2, unseen), d1, weights, before)
                y1, d2 = y1 - out, d2 + dx
                found.append([b if a is None else a for a, b in zip(fed, attended, strict=True)])
        return (None, None, None, d1, d2, *(gradient for part in reversed(found) for gradient in part))


def _rerun(
    function: Callable[..., Tensor], given: tuple[Any, ...], d: Tensor, weights: list[nn.Parameter], chance: _Chance
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """A function's output, and the gradients of its first input and of the weights."""
    with torch.enable_grad(), chance.again():
        x = given[0].detach().requires_grad_()
        out = function(x, *given[1:])
    dx, *found = torch.autograd.grad(out, (x, *weights), d.to(out.dtype), allow_unused=True)
    return out.detach(), dx, list(found)
