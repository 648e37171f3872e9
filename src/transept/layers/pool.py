"""One state of a sequence of them: picked or made.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.context import within
from transept.layers.links import Linked
from transept.layers.mlp import activation

POOLED_ALONE = ContextVar("pooled_alone", default=False)


@contextmanager
def pooled_alone(alone: bool = True) -> Iterator[None]:
    """Within it, backbones may leave out states of the last layer that their ``pooler_output`` is not made of.

    That is the same, and for a network of twelve layers takes up to a twelfth less time. Where states are left out,
    ``last_hidden_state`` has just the others; hidden states and attentions that are asked for are always whole.
    """
    token = POOLED_ALONE.set(alone)
    try:
        yield
    finally:
        POOLED_ALONE.reset(token)


class Pooler(Linked):
    """A dense layer with an activation over the first position, as pretraining trained it.

    It takes that position alone, (B, D), or all, (B, T, D), and gives (B, D or ``out``).
    """

    def __init__(self, dim: int, out: int | None = None, act: str = "tanh") -> None:
        super().__init__()
        self.dense, self.act = nn.Linear(dim, out or dim), activation(act)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.act(self.dense(hidden_states[:, 0] if hidden_states.ndim == 3 else hidden_states))


def summary(hidden: Tensor, kind: str) -> Tensor:
    """(B, T, D) -> (B, D): the ``first`` state, the ``mean`` or the last one; padding counts as well, as it did in training."""
    if kind == "first":
        return hidden[:, 0]
    return hidden.mean(dim=1) if kind == "mean" else hidden[:, -1]


def mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """(B, T, D) -> (B, D): the mean over real positions; ``mask`` (B, T) has 1 for them."""
    if mask is None:
        return hidden.mean(dim=1)
    if mask.shape != hidden.shape[:2]:
        raise InputError(f"a mean over positions needs a mask of {tuple(hidden.shape[:2])}, but it is {tuple(mask.shape)}.")
    weights = mask.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def last(hidden: Tensor, ids: Tensor | None, mask: Tensor | None, pad: int | None) -> Tensor:
    """(B, T, D) -> (B, D): the last position that is not padding, on whichever side the padding is.

    Real is what differs from ``pad`` in the ids (B, T), or without ids what the ``mask`` (B, T) says.
    """
    if ids is not None and pad is not None:
        real = ids != pad
    elif mask is not None and mask.ndim == 2:
        real = mask != 0
    elif hidden.shape[0] == 1 or ids is None:
        return hidden[:, -1]
    else:
        needed = "`pad_token_id` in the config, or an `attention_mask`, to find the last token of each row"
        hint = "Set model.config.pad_token_id to the tokenizer's."
        raise InputError(f"a batch of {hidden.shape[0]} needs {needed}.", hint=hint)
    return _at_last(hidden, real[:, -hidden.shape[1] :])


def last_marked(hidden: Tensor, marked: Tensor) -> Tensor:
    """(B, T, D) -> (B, D): the state at the last mark of each row; ``marked`` (B, T) is bool."""
    if marked.shape != hidden.shape[:2]:
        raise InputError(f"marks of the shape {tuple(marked.shape)} were given for states of {tuple(hidden.shape[:2])}.")
    if not torch.compiler.is_compiling() and marked.device.type == "cpu" and not bool(marked.any(dim=1).all()):
        row = int((~marked.any(dim=1)).nonzero()[0])
        raise InputError(f"row {row} has no token that its sequence is classified by.", hint="End each sequence with EOS.")
    return _at_last(hidden, marked)


def _at_last(hidden: Tensor, marked: Tensor) -> Tensor:
    end = (torch.arange(hidden.shape[1], device=hidden.device) * marked.to(hidden.device)).argmax(dim=-1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), end]


def mean_and_deviation(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, C, T) -> (B, 2C): the mean and standard deviation of each channel over the first ``lengths`` (B) positions.

    The deviation is that of a sample (divided by one less than the number), zero for a single position.
    """
    if lengths is None:
        lengths = torch.full((x.shape[0],), x.shape[2], device=x.device)
    real = within(lengths, x.shape[2])[:, None]
    count = lengths[:, None].to(x.dtype)
    average = x.masked_fill(~real, 0.0).sum(dim=2) / count
    variance = (x - average[:, :, None]).square().masked_fill(~real, 0.0).sum(dim=2) / (count - 1).clamp(min=1)
    # The root has no gradient at zero, where a channel does not change.
    deviation = variance.clamp(min=torch.finfo(x.dtype).tiny).sqrt()
    return torch.cat([average, deviation], dim=1)
