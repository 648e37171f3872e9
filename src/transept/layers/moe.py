"""Mixtures of experts: each token passes through a few of many feed-forward layers (Shazeer et al. 2017).

Tokens are sorted by expert, so that each expert's weights are read once. The sizes of the groups are known only when the values
are: the product over groups is an operator of our own, which compiled graphs call as a whole.
Shapes: N tokens, D hidden size, I inner size, E experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.context import Context
from transept.layers.links import Linked
from transept.layers.mlp import activation, apply_chunking_to_forward


def wide(x: Tensor) -> Tensor:
    """Numbers in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


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


class SortedExperts(nn.Module):
    """E (``count``) feed-forward layers side by side, each of which is applied to the tokens that chose it.

    Weights are (E, out, in), or (E, in, out) with ``inputs_first``. In the place of one may stand a module that multiplies by
    one of few bits: it takes rows and ``ends`` as :meth:`multiply` does.
    """

    inputs_first = False
    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def __init__(self, count: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.count = count
        self.make_weights(dim, hidden)
        self.reset_parameters()

    def make_weights(self, dim: int, hidden: int) -> None:
        """Make the parameters for all experts."""
        raise NotImplementedError

    def reset_parameters(self, std: float = 0.02) -> None:
        self.fill(self.gate_up_proj, self.down_proj, std=std)

    def fill(self, *weights: nn.Module | nn.Parameter, std: float) -> None:
        """Draw new weights, in the place of plain ones."""
        for weight in weights:
            if isinstance(weight, nn.Parameter):
                nn.init.normal_(weight, std=std)

    def multiply(self, name: str, rows: Tensor, ends: Tensor) -> Tensor:
        """(N, in) -> (N, out), by the weight of that name; ``ends`` (E) are the rows behind those of each expert."""
        weight = getattr(self, name)
        if isinstance(weight, nn.Module):
            out: Tensor = weight(rows, ends)
            return out
        return grouped_linear(rows, held(weight).mT if self.inputs_first else held(weight), ends)

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """(N, D) tokens, (N, K) weights and (N, K) experts -> (N, D): the weighted sum over each token's experts."""
        chosen, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(chosen, torch.arange(self.count, device=x.device), right=True)
        out = self.apply_sorted(x[order // experts.shape[1]], chosen, ends)
        back = torch.empty_like(out).index_copy(0, order, out).view(*experts.shape, -1)
        return (back * weights[..., None]).sum(dim=1).to(x.dtype)

    def apply_sorted(self, rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
        """(N * K, D) rows -> (N * K, D): each through its expert.

        Experts are ``chosen`` (N * K) in order, and ``ends`` (E) are the rows behind those of each.
        """
        raise NotImplementedError


class Experts(SortedExperts):
    """Gated layers without biases; ``gate_up_proj`` gives the gates and then what is gated."""

    def __init__(self, count: int, dim: int, hidden: int, act: str) -> None:
        super().__init__(count, dim, hidden)
        self.act = activation(act)

    def make_weights(self, dim: int, hidden: int) -> None:
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, 2 * hidden, dim))
        self.down_proj = nn.Parameter(torch.empty(self.count, dim, hidden))

    def apply_sorted(self, rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
        gate, up = self.multiply("gate_up_proj", rows, ends).chunk(2, dim=-1)
        return self.multiply("down_proj", self.act(gate) * up, ends)

    def extra_repr(self) -> str:
        count, dim, hidden = self.down_proj.shape
        return f"{count} of {dim} -> {hidden} -> {dim}"


class Router(Linked):
    """Chooses K (``top``) of E (``count``) experts for each token, the most probable by a softmax over all.

    With ``normalize`` the weights of those chosen sum to one; then they are multiplied by ``scale``. A subclass that chooses
    otherwise overrides ``choose``.
    """

    def __init__(self, dim: int, count: int, top: int, *, normalize: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        self.top, self.normalize, self.scale = top, normalize, scale
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, D) -> logits (N, E), weights (N, K) in float32 at least, and experts (N, K)."""
        logits = self.logits(x)
        return logits, *self.choose(logits)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, E) -> weights (N, K) and experts (N, K)."""
        weights, experts = torch.topk(F.softmax(wide(logits), dim=-1), self.top, dim=-1)
        return self.weigh(weights), experts

    def weigh(self, scores: Tensor) -> Tensor:
        """The weights (N, K) of experts with these scores."""
        weights = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20) if self.normalize else scores
        return weights if self.scale == 1 else weights * self.scale

    def extra_repr(self) -> str:
        return "{1} -> {0}, top {2}".format(*self.weight.shape, self.top)


class TopRouter(Router):
    """Chooses the experts with the largest logits, and weighs them by a softmax over these alone."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        best, experts = torch.topk(logits, self.top, dim=-1)
        return F.softmax(wide(best), dim=-1), experts


class SigmoidRouter(Router):
    """Scores each expert by itself, with a sigmoid, and balances them without a loss (DeepSeek-AI 2024).

    ``correction_bias`` (E), a buffer, is added to the scores when experts are chosen, and is no part of the weights. Experts
    stand in ``groups``; only those of the ``top_groups`` whose two best have the highest sum are chosen from.
    """

    correction_bias: Tensor

    def __init__(self, dim: int, count: int, top: int, *, groups: int = 1, top_groups: int = 1, **options: Any) -> None:
        super().__init__(dim, count, top, **options)
        self.groups, self.top_groups = groups, top_groups
        self.register_buffer("correction_bias", torch.zeros(count))

    def reset_parameters(self, std: float = 0.02) -> None:
        super().reset_parameters(std)
        if "correction_bias" in self._buffers:  # is made behind the weights
            nn.init.zeros_(self.correction_bias)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(wide(x), wide(self.weight))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = logits.sigmoid()
        corrected = scores + self.correction_bias
        eligible = in_best_groups(corrected, self.groups, self.top_groups, counted=2, otherwise=-torch.inf)
        experts = torch.topk(eligible, self.top, dim=-1).indices
        return self.weigh(scores.gather(1, experts)), experts


def in_best_groups(scores: Tensor, groups: int, kept: int, *, counted: int, otherwise: float) -> Tensor:
    """Scores (N, E) of experts in equal groups, those outside of the ``kept`` best replaced by ``otherwise``.

    Of each group its ``counted`` best experts count, by their sum.
    """
    if groups == kept:
        return scores
    grouped = scores.view(len(scores), groups, -1)
    best = grouped.topk(counted, dim=-1).values.sum(dim=-1).topk(kept, dim=-1).indices
    left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(left_out[..., None], otherwise).flatten(1)


class WidenedLinear(nn.Linear):
    """A layer that computes in a type of its own, or in a wider one if its input has that: (..., in) -> (..., out)."""

    def __init__(self, features: int, outputs: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(features, outputs, bias)
        self.computes_in = dtype

    def forward(self, input: Tensor) -> Tensor:
        wider = self.computes_in is torch.float32 and input.dtype is torch.float64
        kind = input.dtype if wider else self.computes_in
        bias = self._parameters["bias"]
        return F.linear(input.to(kind), self.weight.to(kind), None if bias is None else bias.to(kind))


class CapacityMLP(Linked):
    """A feed-forward layer whose experts are modules, each of which may take a limited number of tokens.

    ``router`` takes states (B, T, D) and which are real (B, T), and gives logits and weights (B, T, E), 0 for experts that a
    token does not pass through. ``branch`` is applied to what experts give.
    """

    def __init__(self, router: nn.Module, experts: Iterable[nn.Module], branch: nn.Module | None = None) -> None:
        super().__init__()
        self.router, self.branch = router, nn.Identity() if branch is None else branch
        self.experts = nn.ModuleDict({f"expert_{number}": expert for number, expert in enumerate(experts)})

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        padding = None if ctx is None or ctx.padding is None else ctx.padding[:, -x.shape[1] :]
        logits, weights = self.router(x, padding)
        if ctx is not None and ctx.router_logits is not None:
            ctx.router_logits.append(logits)
        rows, out = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
        for expert, weight in zip(self.experts.values(), weights.flatten(0, 1).unbind(dim=1), strict=True):
            if torch.compiler.is_compiling():  # how many tokens choose it is known only when the values are
                out = out + (self.branch(expert(rows[None])[0]) * weight[:, None]).to(x.dtype)
            elif len(taken := weight.nonzero()[:, 0]) > 0:
                added = self.branch(expert(rows[None, taken])[0]) * weight[taken, None]
                out = out.index_add(0, taken, added.to(x.dtype))
        return out.view_as(x)


class SparseMLP(Linked):
    """A feed-forward layer in which a router chooses the experts of each token, beside ``shared`` ones that all tokens have.

    In training the tokens are multiplied by noise that is so far from one (``jitter``) at most; ``chunk_size`` is tokens at a
    time, 0 for all at once.
    """

    def __init__(
        self,
        router: Router,
        experts: SortedExperts,
        *,
        shared: nn.Module | None = None,
        jitter: float = 0.0,
        chunk_size: int = 0,
    ) -> None:
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared
        self.jitter, self.chunk_size = jitter, chunk_size

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = x.flatten(0, 1)
        if self.training and self.jitter > 0:
            rows = rows * torch.empty_like(rows).uniform_(1 - self.jitter, 1 + self.jitter)
        logits, weights, experts = self.router(rows)
        if ctx.router_logits is not None:
            ctx.router_logits.append(logits)
        out = apply_chunking_to_forward(self.experts, self.chunk_size, 0, rows, weights, experts).view_as(x)
        return out if self.shared is None else out + self.shared(x)
