"""Mixtures of experts: each token passes through a few of many feed-forward layers (Shazeer et al. 2017).

Tokens are sorted by expert, so that each expert's weights are read once. The sizes of the groups are known only when the values
are: the product over groups is an operator of our own, which compiled graphs call as a whole.
Shapes: N tokens, D hidden size, I inner size, E experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.context import Context
from transept.layers.links import Linked
from transept.layers.mlp import activation, apply_chunking_to_forward

# (N, E) logits -> (N, K) weights in float32 at least, and (N, K) experts.
Route = Callable[[Tensor], tuple[Tensor, Tensor]]


def choose_top(logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """The K most probable experts of each token, by a softmax over (N, E); ``normalize`` lets their weights sum to one."""
    half = logits.dtype in (torch.float16, torch.bfloat16)
    weights, experts = torch.topk(F.softmax(logits.float() if half else logits, dim=-1), count, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True) if normalize else weights, experts


@torch.library.custom_op("transept::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """A linear layer for each group of rows: (N, in), (E, out, in) -> (N, out); ``ends`` (E) are the rows behind each group."""
    out = x.new_empty(x.shape[0], weight.shape[1])
    for expert, start, end in _groups(ends):
        torch.mm(x[start:end], weight[expert].t(), out=out[start:end])
    return out


@torch.library.custom_op("transept::grouped_linear_backward", mutates_args=())
def _grouped_linear_backward(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
    for expert, start, end in _groups(ends):
        torch.mm(grad[start:end], weight[expert], out=grad_x[start:end])
        torch.mm(grad[start:end].t(), x[start:end], out=grad_weight[expert])
    return grad_x, grad_weight


def _groups(ends: Tensor) -> list[tuple[int, int, int]]:
    """(expert, start, end) of the groups that have rows."""
    spans = enumerate(pairwise([0, *ends.tolist()]))
    return [(expert, start, end) for expert, (start, end) in spans if start < end]


@grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_grouped_linear_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_grouped_linear_backward(grad.contiguous(), *ctx.saved_tensors), None


grouped_linear.register_autograd(_differentiate, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def held(weight: Any) -> Tensor:
    """What this process holds of a weight; our operator knows no tensors that several processes share."""
    found: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return found


class Experts(nn.Module):
    """E (``count``) gated feed-forward layers side by side; ``gate_up_proj`` gives the gates and then what is gated."""

    def __init__(self, count: int, dim: int, hidden: int, act: str) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * hidden, dim))
        self.down_proj = nn.Parameter(torch.empty(count, dim, hidden))
        self.act = activation(act)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        for weight in (self.gate_up_proj, self.down_proj):
            nn.init.normal_(weight, std=std)

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """(N, D) tokens, (N, K) weights and (N, K) experts -> (N, D): the weighted sum over each token's experts."""
        wide, down = map(held, (self.gate_up_proj, self.down_proj))
        chosen, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(chosen, torch.arange(len(wide), device=x.device), right=True)
        rows = x[order // experts.shape[1]]
        gate, up = grouped_linear(rows, wide, ends).chunk(2, dim=-1)
        out = grouped_linear(self.act(gate) * up, down, ends)
        back = torch.empty_like(out).index_copy(0, order, out).view(*experts.shape, -1)
        return (back * weights[..., None]).sum(dim=1).to(x.dtype)

    def extra_repr(self) -> str:
        count, dim, hidden = self.down_proj.shape
        return f"{count} of {dim} -> {hidden} -> {dim}"


class Router(nn.Module):
    """Logits of E (``count``) experts for each token."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, E)."""
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        return "{1} -> {0}".format(*self.weight.shape)


class SparseMLP(Linked):
    """A feed-forward layer in which a router chooses the experts of each token.

    In training the tokens are multiplied by noise that is so far from one (``jitter``) at most; ``chunk_size`` is tokens at a
    time, 0 for all at once.
    """

    def __init__(
        self, dim: int, hidden: int, act: str, *, experts: int, route: Route, jitter: float = 0.0, chunk_size: int = 0
    ) -> None:
        super().__init__()
        self.router, self.experts = Router(dim, experts), Experts(experts, dim, hidden, act)
        self.route, self.jitter, self.chunk_size = route, jitter, chunk_size

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = x.flatten(0, 1)
        if self.training and self.jitter > 0:
            rows = rows * torch.empty_like(rows).uniform_(1 - self.jitter, 1 + self.jitter)
        logits = self.router(rows)
        if ctx.router_logits is not None:
            ctx.router_logits.append(logits)
        return apply_chunking_to_forward(self.experts, self.chunk_size, 0, rows, *self.route(logits)).view_as(x)
