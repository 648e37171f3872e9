"""What state-space layers do along the positions: a short convolution, and a recurrence that the inputs steer.

Both go on from what they have read before, so that one step after another equals all steps at once.

Shapes: B batch, T positions, C channels, K width of the convolution, N size of the state.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Positions whose factors are made at once: few enough for them to stay in the processor's cache.
_BLOCK = 16


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A convolution of each channel with itself that sees no later positions.

    Args:
        x: (B, C, T).
        weight, bias: (C, 1, K) and (C).
        before: (B, C, K - 1), what came before ``x``; zeros when absent.

    Returns:
        (B, C, T), and the last (B, C, K - 1) inputs.
    """
    width = weight.shape[2] - 1
    x = F.pad(x, (width, 0)) if before is None else torch.cat([before, x], dim=2)
    return F.conv1d(x, weight, bias, groups=x.shape[1]), x[:, :, x.shape[2] - width :]


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A linear recurrence whose step sizes, inputs and outputs depend on the position (Gu and Dao 2023).

    ``state[t] = exp(step[t] * decay) * state[t - 1] + step[t] * x[t] * write[t]`` and ``y[t] = state[t] @ read[t]``, in float32
    at least. All factors are made for many positions at once; what is left for each is one multiplication and addition.

    Args:
        x, step: (B, T, C); steps are positive.
        decay: (C, N), negative.
        write, read: (B, T, N).
        state: (B, C, N) before the first position; zeros when absent.

    Returns:
        ``y`` (B, T, C) and the last state.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    x, step, decay, write, read = (part.float() if half else part for part in (x, step, decay, write, read))
    state = x.new_zeros(x.shape[0], *decay.shape) if state is None else state
    outputs = []
    blocks = (torch.split(part, _BLOCK, dim=1) for part in (x, step, write, read))
    for x_part, step_part, write_part, read_part in zip(*blocks, strict=True):
        factors = torch.exp(step_part[..., None] * decay)
        inputs = (step_part * x_part)[..., None] * write_part[:, :, None]
        states = []
        for factor, given in zip(factors.unbind(1), inputs.unbind(1), strict=True):
            state = torch.addcmul(given, factor, state)
            states.append(state)
        outputs.append((torch.stack(states, dim=1) @ read_part[..., None]).squeeze(-1))
    return torch.cat(outputs, dim=1), state
