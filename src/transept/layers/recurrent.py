"""What layers without attention compute: causal convolutions, state spaces and the gated delta rule.

They read positions in order and keep a state of one size, which sums up all that came before. A prompt is read in chunks:
within a chunk positions are compared by products of matrices, and states go on from chunk to chunk. A decoding step updates the
state. Shapes: B batch, T positions, L positions of a chunk, H heads, C channels, K width of a convolution, G groups, N size of
a state, P size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.caches.layer import States
from transept.layers.context import Context
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.layers.moe import wide

# Positions whose factors are made at once: few enough for them to stay in the processor's cache.
_AT_ONCE = 16
# Positions of a chunk: comparing them costs about as much as what goes through the state.
_CHUNK = 64


def real_positions(x: Tensor, ctx: Context) -> Tensor | None:
    """(B, T, 1) of bool: which positions of (B, T, D) are no padding; ``None`` where there is none."""
    return None if ctx.padding is None else ctx.padding[:, -x.shape[1] :, None]


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A convolution (C, 1, K) of each channel of (B, C, T) with itself that sees no later positions.

    ``before`` (B, C, K - 1) is what came before ``x``; zeros when absent. Returns (B, C, T), and the last (B, C, K - 1) inputs.
    """
    width = weight.shape[2] - 1
    x = F.pad(x, (width, 0)) if before is None else torch.cat([before, x], dim=2)
    return F.conv1d(x, weight, bias, groups=x.shape[1]), x[:, :, x.shape[2] - width :]


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A linear recurrence whose step sizes, inputs and outputs depend on the position (Mamba, Gu and Dao 2023).

    ``state[t] = exp(step[t] * decay) * state[t - 1] + step[t] * x[t] * write[t]`` and ``y[t] = state[t] @ read[t]``, in float32
    at least, of which ``y`` and the last state are returned. All factors are made for many positions at once; what is left for
    each is one multiplication and addition. ``x`` and ``step`` are (B, T, C), ``decay`` (C, N), the others (B, T, N).
    """
    x, step, decay, write, read = (wide(part) for part in (x, step, decay, write, read))
    state = x.new_zeros(x.shape[0], *decay.shape) if state is None else state
    outputs = []
    blocks = (torch.split(part, _AT_ONCE, dim=1) for part in (x, step, write, read))
    for x_part, step_part, write_part, read_part in zip(*blocks, strict=True):
        factors = torch.exp(step_part[..., None] * decay)
        inputs = (step_part * x_part)[..., None] * write_part[:, :, None]
        states = []
        for factor, given in zip(factors.unbind(1), inputs.unbind(1), strict=True):
            state = torch.addcmul(given, factor, state)
            states.append(state)
        outputs.append((torch.stack(states, dim=1) @ read_part[..., None]).squeeze(-1))
    return torch.cat(outputs, dim=1), state


def state_space_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same recurrence with one decay for each head, by products of matrices (Mamba-2, Dao and Gu 2024).

    ``x`` is (B, T, H, P), ``step`` (B, T, H) and ``decay`` (H); heads of a group share ``write`` and ``read`` (B, T, G, N).
    Returns (B, T, H, P) and the last state (B, H, P, N), in float32 at least.
    """
    x, step, decay, write, read = (wide(part) for part in (x, step, decay, write, read))
    length, groups = x.shape[1], write.shape[2]
    if length == 1:
        return _stepped(x[:, 0], step[:, 0], decay, write[:, 0], read[:, 0], state)
    # (B, G, H / G, chunks, L, ...); positions that fill up the last chunk change no state, since their steps are zero.
    logs = _grouped(_chunks((step * decay).transpose(1, 2)), groups)
    inputs = _grouped(_chunks((x * step[..., None]).transpose(1, 2)), groups)
    write, read = (_chunks(part.transpose(1, 2))[:, :, None] for part in (write, read))
    decays = _decays(logs)
    y = (read @ write.mT * decays) @ inputs
    made = (inputs * decays[..., -1, :, None]).mT @ write
    before, state = _carried(made, logs, None if state is None else _grouped(state, groups))
    y = y + read @ before.mT * logs.cumsum(-1).exp()[..., None]
    return y.flatten(3, 4).flatten(1, 2).transpose(1, 2)[:, :length], state.flatten(1, 2)


def _stepped(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The scan of one position, which the tensors have no axis for."""
    shape, groups = x.shape, write.shape[1]
    made = (x * step[..., None]).view(shape[0], groups, -1, 1) * write[:, :, None]  # (B, G, H / G * P, N)
    if state is not None:
        made = made + (state * torch.exp(step * decay)[..., None, None]).view_as(made)
    return (made @ read[..., None]).view(shape)[:, None], made.view(*shape, -1)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(B, H, ...) -> (B, G, H / G, ...)."""
    return x.view(x.shape[0], groups, -1, *x.shape[2:])


def _chunks(x: Tensor, *, whole: bool = False) -> Tensor:
    """(B, H, T, ...) -> (B, H, chunks, L, ...), filled up with zeros; one chunk may be short where they need not be whole."""
    size = _CHUNK if whole else min(x.shape[2], _CHUNK)
    rest = -x.shape[2] % size
    x = F.pad(x, (0, 0) * (x.ndim - 3) + (0, rest))
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])


def _decays(logs: Tensor) -> Tensor:
    """(..., L) logarithms of factors -> (..., L, L): the product of those behind one position up to another; 0 backwards."""
    size = logs.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=logs.device).tril()
    # Sums of what lies between, and not differences of sums, which would round away small factors beside large ones.
    between = logs[..., None].expand(*logs.shape, size).masked_fill(~later.tril(-1), 0).cumsum(-2)
    return between.masked_fill(~later, -torch.inf).exp()


def _behind(logs: Tensor) -> Tensor:
    """(..., L, N) logarithms of factors -> the product of those behind each position."""
    return F.pad(logs[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def _compared(query: Tensor, key: Tensor, logs: Tensor) -> Tensor:
    """Products (..., L, L) of queries with keys (..., L, N) that have decayed since, each channel by itself; 0 backwards.

    Two halves are compared over what lies on both sides of their border, so that no factor is above one; the halves are
    compared alike. L is a power of two.
    """
    blocks = (query * key).sum(-1)[..., None, None]
    while blocks.shape[-3] > 1:
        q, k, log = (part.reshape(*part.shape[:-2], -1, 2, blocks.shape[-1], part.shape[-1]) for part in (query, key, logs))
        across = (q[..., 1, :, :] * log[..., 1, :, :].cumsum(-2).exp()) @ (k[..., 0, :, :] * _behind(log[..., 0, :, :])).mT
        above = torch.cat([blocks[..., ::2, :, :], torch.zeros_like(across)], dim=-1)
        blocks = torch.cat([above, torch.cat([across, blocks[..., 1::2, :, :]], dim=-1)], dim=-2)
    return blocks[..., 0, :, :]


def _carried(made: Tensor, logs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The states before each chunk and behind the last, given what each chunk adds (..., chunks, P, N) and its logarithms."""
    state = torch.zeros_like(made[..., 0, :, :]) if state is None else state
    before = []
    for new, factor in zip(made.unbind(-3), logs.sum(-1).exp()[..., None, None].unbind(-3), strict=True):
        before.append(state)
        state = torch.addcmul(new, factor, state)
    return torch.stack(before, dim=-3), state


class GatedGroupNorm(nn.Module):
    """A root-mean-square norm over each of some groups of channels, of what a gate has let through."""

    def __init__(self, dim: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight, self.groups, self.eps = nn.Parameter(torch.empty(dim)), groups, eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """(..., dim) of each -> (..., dim)."""
        return self.normed(wide(x) * F.silu(wide(gate)), gate.dtype)

    def normed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        parts = x.reshape(*x.shape[:-1], self.groups, -1)
        return self.weight * F.rms_norm(parts, parts.shape[-1:], eps=self.eps).flatten(-2).to(dtype)


class StateSizes(NamedTuple):
    """Sizes of a Mamba-2 mixer: ``heads`` of ``head_dim`` channels, in ``groups`` that share what goes in and comes out.

    ``state`` is N and ``kernel`` is K.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim


class StateSpaceMixer(Linked):
    """The mixer of Mamba-2: a convolution, a state space with one decay a head, and a norm of what a gate lets through.

    ``bias`` is for the projections, ``conv_bias`` for the convolution; ``limit`` bounds the step sizes.
    """

    def __init__(
        self,
        dim: int,
        sizes: StateSizes,
        act: str,
        *,
        eps: float,
        bias: bool = False,
        conv_bias: bool = True,
        limit: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.sizes, self.limit = sizes, (0.0, float("inf")) if limit is None else (limit[0], limit[1])
        channels = sizes.inner + 2 * sizes.groups * sizes.state
        self.splits = (sizes.inner, channels, sizes.heads)
        self.in_proj = nn.Linear(dim, sum(self.splits), bias)
        self.conv1d = nn.Conv1d(channels, channels, sizes.kernel, groups=channels, bias=conv_bias)
        self.act = activation(act)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(sizes.heads)) for _ in range(3))
        self.norm = self.gated_norm(eps)
        self.out_proj = nn.Linear(sizes.inner, dim, bias)

    def gated_norm(self, eps: float) -> nn.Module:
        """What joins the outputs of heads and their gates."""
        return GatedGroupNorm(self.sizes.inner, self.sizes.groups, eps)

    def reset_parameters(self) -> None:
        """Decays of 1 to H, and outputs to which the inputs are added as they are."""
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1.0, len(self.A_log) + 1, device=self.A_log.device).log())
        nn.init.ones_(self.D)
        nn.init.ones_(self.dt_bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Gates (B, T, H * P), inputs of the convolution, and step sizes (B, T, H)."""
        return torch.split(self.in_proj(x), [*self.splits], dim=-1)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding leaves states as they are."""
        real, kept, (heads, head_dim, groups, size, _) = real_positions(x, ctx), ctx.kept(States), self.sizes
        gate, inner, step = self.project(x if real is None else x * real)
        inner, last = causal_conv(inner.mT, self.conv1d.weight, self.conv1d.bias, kept.get("conv") if kept else None)
        inner, step = self.act(inner.mT), F.softplus(wide(step) + wide(self.dt_bias)).clamp(*self.limit)
        if real is not None:
            inner, step = inner * real, step * real
        values, write, read = torch.split(inner, [self.sizes.inner, groups * size, groups * size], dim=-1)
        values = values.reshape(*x.shape[:2], heads, head_dim)
        write, read = (part.reshape(*x.shape[:2], groups, size) for part in (write, read))
        state = kept.get("recurrent") if kept else None
        y, state = state_space_scan(values, step, -wide(self.A_log).exp(), write, read, state)
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        y = (y + values * self.D[:, None]).flatten(2)
        return self.out_proj(self.norm(y, gate).to(x.dtype))


STATE_SPACE = {name: name for name in ("dt_bias", "A_log", "D", "conv1d", "in_proj", "norm", "out_proj")}
"""The names of the parts of a :class:`StateSpaceMixer`, which are the reference's."""


def gated_delta_scan(
    query: Tensor, key: Tensor, value: Tensor, logs: Tensor, share: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gated delta rule (Yang, Kautz and Hatamizadeh 2024): a state that forgets, and learns what a key should give.

    ``state[t] = exp(logs[t]) * state[t - 1]``, to which ``share[t] * key[t]`` times how much ``value[t]`` differs from
    ``key[t] @ state[t]`` is added, and ``y[t] = query[t] @ state[t]``. ``query`` and ``key`` are (B, T, G, N), each for H / G
    heads, ``value`` (B, T, H, P), the others (B, T, H); ``logs`` may be (B, T, H, N), one for each channel of keys (Kimi Team
    2025). Returns (B, T, H, P) and the last state (B, H, N, P), in float32 at least. Within a chunk the differences are the
    solution of a system of equations.
    """
    times, length, by_channel = value.shape[2] // key.shape[2], key.shape[1], logs.ndim == 4
    share, logs = share[..., None], logs if by_channel else logs[..., None]
    query, key, value, logs, share = (wide(part).transpose(1, 2) for part in (query, key, value, logs, share))
    query, key = (part.repeat_interleave(times, dim=1) if times > 1 else part for part in (query, key))
    state = value.new_zeros(*key.shape[:2], key.shape[3], value.shape[3]) if state is None else state
    if length == 1:
        state = state * logs.exp().mT
        state = state + key.mT @ ((value - key @ state) * share)
        return (query @ state).transpose(1, 2), state
    query, key, value, logs, share = (_chunks(part, whole=by_channel) for part in (query, key, value, logs, share))
    total, learned = logs.cumsum(-2).exp(), key * share
    if by_channel:
        among, within = _compared(learned, key, logs), _compared(query, key, logs)
    else:
        decays = _decays(logs[..., 0])
        among, within = learned @ key.mT * decays, query @ key.mT * decays
    given = torch.cat([value * share, learned * total], dim=-1)
    solved = torch.linalg.solve_triangular(among, given, upper=False, unitriangular=True)
    made, seen = torch.split(solved, [value.shape[-1], key.shape[-1]], dim=-1)
    reads, writes = query * total, (key * _behind(logs)).mT
    outputs = []
    for chunk in range(value.shape[2]):
        new = made[:, :, chunk] - seen[:, :, chunk] @ state
        outputs.append(reads[:, :, chunk] @ state + within[:, :, chunk] @ new)
        state = state * total[:, :, chunk, -1, :, None] + writes[:, :, chunk] @ new
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :length], state


def linear_scan(x: Tensor, factor: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``y[t] = factor[t] * y[t - 1] + x[t]`` for (B, T, C), beginning with ``state`` (B, C); ``y``, and its last position.

    Each pass joins what twice as many positions give, so that there are as many passes as T has binary digits.
    """
    x, factor, reach = wide(x), wide(factor), 1
    if state is not None:
        x = torch.cat([torch.addcmul(x[:, :1], factor[:, :1], state[:, None]), x[:, 1:]], dim=1)
    while reach < x.shape[1]:
        x = torch.cat([x[:, :reach], torch.addcmul(x[:, reach:], factor[:, reach:], x[:, :-reach])], dim=1)
        factor = torch.cat([factor[:, :reach], factor[:, reach:] * factor[:, :-reach]], dim=1)
        reach *= 2
    return x, x[:, -1]
