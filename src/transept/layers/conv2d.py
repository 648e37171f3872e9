"""Convolutions over images, and what belongs to them.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.activation import activation


class ConvNormAct(nn.Module):
    """A convolution without bias, a norm and an activation; padded so that a stride of 1 keeps the size."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        act: str = "relu",
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2 * dilation, dilation, bias=False)
        self.norm, self.act = norm(outputs), activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'); a norm over one number a channel is an ``InputError`` in training."""
        x = self.conv(x)
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1 and isinstance(self.norm, nn.BatchNorm2d):
            raise InputError("a norm over the batch cannot learn from one place.", hint="Train with more or larger images.")
        return self.act(self.norm(x))


class FrozenBatchNorm(nn.Module):
    """A norm over the batch whose numbers are never trained nor counted anew, by channels of (B, C, H, W)."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.empty(channels))

    def reset_parameters(self) -> None:
        for name, buffer in self.named_buffers():
            nn.init.constant_(buffer, float(name in ("weight", "running_var")))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


def freeze_norms(module: nn.Module) -> None:
    """Put frozen norms in the place of all norms over the batch below a module."""
    for inner in module.modules():
        for name, child in inner.named_children():
            if isinstance(child, nn.BatchNorm2d):
                frozen = FrozenBatchNorm(child.num_features)
                frozen.load_state_dict({key: value for key, value in child.state_dict().items() if value.ndim})
                setattr(inner, name, frozen)


class ChannelsFirstNorm(nn.LayerNorm):
    """Layer norm over the channels of (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LayerScale(nn.Module):
    """A learned factor for each channel, the last axis (Touvron et al. 2021); without one where ``start`` is 0."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.scale = nn.Parameter(torch.empty(dim)) if start > 0 else None

    def reset_parameters(self) -> None:
        if self.scale is not None:
            nn.init.constant_(self.scale, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.scale is None else self.scale * x


class StochasticDepth(nn.Module):
    """In training, leaves a branch out for some rows, (B, ...) -> (B, ...); the others are scaled up (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = torch.rand(x.shape[:1] + (1,) * (x.ndim - 1), device=x.device) >= self.rate
        return x * kept.to(x.dtype) / ((1 - self.rate) or 1.0)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class ScaledBranch(LayerScale):
    """What a branch of a block goes through before it is added: dropout, layer scale and stochastic depth."""

    def __init__(self, dim: int, start: float, *, dropout: float = 0.0, rate: float = 0.0) -> None:
        super().__init__(dim, start)
        self.dropout, self.depth = nn.Dropout(dropout), StochasticDepth(rate)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.depth(super().forward(self.dropout(x)))
        return out


def depth_rates(most: float, depths: Sequence[int]) -> list[list[float]]:
    """The rates of stochastic depth of each stage's layers, from 0 to ``most`` in equal steps over all layers."""
    places = iter(range(sum(depths)))
    return [[most * next(places) / max(sum(depths) - 1, 1) for _ in range(depth)] for depth in depths]
