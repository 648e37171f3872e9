"""Convolutions over time and over images, and what belongs to them.

Shapes: B batch, C channels, H height, W width, S samples, T positions, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.links import Linked
from transept.layers.mlp import activation

N = TypeVar("N", int, Tensor)


def conv_length(length: N, kernel: int, stride: int, padding: int = 0) -> N:
    """Positions after a convolution over ``length`` positions; an integer or a tensor of them."""
    return (length + 2 * padding - kernel) // stride + 1


def receptive_field(kernels: Iterable[int], strides: Iterable[int]) -> int:
    """Positions of the input that one output of a stack of convolutions sees."""
    field, step = 1, 1
    for kernel, stride in zip(kernels, strides, strict=True):
        field, step = field + (kernel - 1) * step, step * stride
    return field


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (B, C, T)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class ConvBlock(Linked):
    """A convolution over time that is not padded, a norm and an activation."""

    def __init__(self, conv: nn.Conv1d, norm: nn.Module, act: str) -> None:
        super().__init__()
        self.conv, self.norm, self.act = conv, norm, activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class WaveEncoder(nn.Module):
    """Convolutions that turn a waveform (B, S) into a sequence of features (B, C, T) (Baevski et al. 2020).

    ``channels``, ``kernels`` and ``strides`` are one for each convolution. The norm ``layer`` is over the channels after each
    convolution, ``group`` over all positions, padded ones too, of each channel after the first one only.
    """

    def __init__(
        self,
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        *,
        norm: Literal["group", "layer"],
        bias: bool,
        act: str,
    ) -> None:
        super().__init__()
        blocks: list[ConvBlock] = []
        for before, after, kernel, stride in zip((1, *channels[:-1]), channels, kernels, strides, strict=True):
            conv = nn.Conv1d(before, after, kernel, stride, bias=bias)
            first = nn.Identity() if blocks else nn.GroupNorm(after, after)
            blocks.append(ConvBlock(conv, ChannelNorm(after) if norm == "layer" else first, act))
        self.conv_layers = nn.Sequential(*blocks)

    def forward(self, input_values: Tensor) -> Tensor:
        features: Tensor = self.conv_layers(input_values[:, None])
        return features

    def _freeze_parameters(self) -> None:
        """Stop the training of the convolutions; the reference's name for that."""
        self.requires_grad_(False)


class PositionalConv(Linked):
    """Relative positions, made from the states around by a wide grouped convolution (Baevski et al. 2020).

    Its weight is a direction and a gain for each place of the kernel (weight normalisation, Salimans and Kingma 2016).
    """

    def __init__(self, dim: int, kernel: int, groups: int, act: str) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(1, 1, kernel))
        self.direction = nn.Parameter(torch.empty(dim, dim // groups, kernel))
        self.bias = nn.Parameter(torch.empty(dim))
        self.groups, self.act = groups, activation(act)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A normal distribution for the weight: the direction is drawn from it, the gain is its expected norm."""
        dim, part, kernel = self.direction.shape
        std = 2 / math.sqrt(dim * kernel)
        nn.init.normal_(self.direction, std=std)
        nn.init.constant_(self.gain, std * math.sqrt(dim * part))
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(self.direction, dim=(0, 1), keepdim=True)
        weight = self.direction * (self.gain / norm)
        padding = weight.shape[2] // 2
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=padding, groups=self.groups)
        return self.act(y[:, :, : x.shape[1]]).transpose(1, 2)  # an even kernel makes one position too many


class TimeDelay(nn.Module):
    """A dilated convolution over time, then ReLU (Peddinti et al. 2015); its weight is stored as a linear layer's."""

    def __init__(self, channels: tuple[int, int], kernel: int, dilation: int) -> None:
        super().__init__()
        self.kernel = nn.Linear(channels[0] * kernel, channels[1])
        self.size, self.dilation = kernel, dilation

    def forward(self, x: Tensor) -> Tensor:
        weight = self.kernel.weight.view(self.kernel.out_features, self.size, -1).transpose(1, 2)
        return F.relu(F.conv1d(x, weight, self.kernel.bias, dilation=self.dilation))


class FrozenBatchNorm(nn.Module):
    """A norm over the batch whose numbers are never trained nor counted anew, by channels of (B, C, H, W)."""

    eps = 1e-5
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
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


class ConvNormAct(Linked):
    """A convolution without bias, a norm over the batch and an activation; padded so that a stride of 1 keeps the size.

    A norm that does not look at the batch (in evaluation, or frozen) becomes part of the convolution's weight.
    """

    norm: Any  # over the batch, or a frozen one

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, act: str = "relu", dilation: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2 * dilation, dilation, bias=False)
        self.norm, self.act = nn.BatchNorm2d(outputs), activation(act)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W'), to which a map is ``added`` before the activation.

        A norm over one number a channel is an ``InputError`` in training.
        """
        conv, norm = self.conv, self.norm
        if _folds(conv, norm):
            weight, bias = _folded(conv, norm)
            if x.device.type == "cpu" and not torch.compiler.is_compiling() and torch._C._has_mkldnn:
                # oneDNN is faster with channels last; its result has that order too, and so have those of what follows.
                weight = weight.contiguous(memory_format=torch.channels_last)
                x = x.contiguous(memory_format=torch.channels_last)
            x = F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation)
        else:
            x = conv(x)
            if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1 and isinstance(norm, nn.BatchNorm2d):
                raise InputError("a norm over the batch cannot learn from one place.", hint="Train with more or larger images.")
            x = norm(x)
        return self.act(x if added is None else x + added)

    @property
    def folds(self) -> bool:
        """Whether the norm is a fixed factor and shift of each channel now, and nobody has replaced or watches a part."""
        return _folds(self.conv, self.norm)

    def folded(self) -> tuple[Tensor, Tensor]:
        """The weight (C', C, kernel, kernel) and bias (C') of the convolution and the norm together."""
        return _folded(self.conv, self.norm)


def _folds(conv: nn.Module, norm: nn.Module) -> bool:
    if type(conv) is not nn.Conv2d or conv._forward_hooks or norm._forward_hooks:
        return False
    return type(norm) is FrozenBatchNorm or (type(norm) is nn.BatchNorm2d and not norm.training)


def _folded(conv: nn.Conv2d, norm: Any) -> tuple[Tensor, Tensor]:
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


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


class LayerScale(Linked):
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
