"""Convolutions over time: the encoder of waveforms, positions from a wide convolution, time-delay layers.

Shapes: B batch, C channels, S samples, T positions, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.activation import activation

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
        """(B, C, T) -> (B, C, T)."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class EachChannelNorm(nn.GroupNorm):
    """Group norm with a group for each channel: over all of its positions, padded ones too."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)


class ConvBlock(nn.Module):
    """Convolution over time, norm, activation.

    Args:
        channels: C before and after.
        kernel, stride: of the convolution, which is not padded.
        bias: whether the convolution has one.
        norm: the norm's class, made with the number of channels; none when absent.
        act: name of the activation.
    """

    def __init__(
        self, channels: tuple[int, int], kernel: int, stride: int, *, bias: bool, norm: type[nn.Module] | None, act: str
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(*channels, kernel, stride, bias=bias)
        self.norm = nn.Identity() if norm is None else norm(channels[1])
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T')."""
        return self.act(self.norm(self.conv(x)))


def wave_encoder(
    channels: Sequence[int],
    kernels: Sequence[int],
    strides: Sequence[int],
    *,
    norm: Literal["group", "layer"],
    bias: bool,
    act: str,
) -> nn.Sequential:
    """Convolutions that turn a waveform into a sequence of features (Baevski et al. 2020): (B, 1, S) -> (B, C, T).

    Args:
        channels, kernels, strides: one for each convolution.
        norm: ``layer`` norms the channels after each convolution, ``group`` each channel after the first one only.
        bias: whether the convolutions have biases.
        act: name of the activation.
    """
    first, rest = (ChannelNorm, ChannelNorm) if norm == "layer" else (EachChannelNorm, None)
    block = partial(ConvBlock, bias=bias, act=act)
    pairs = zip((1, *channels[:-1]), channels, strict=True)
    return nn.Sequential(
        *(
            block(pair, kernel, stride, norm=first if index == 0 else rest)
            for index, (pair, kernel, stride) in enumerate(zip(pairs, kernels, strides, strict=True))
        )
    )


class PositionalConv(nn.Module):
    """Relative positions, made from the states around by a wide grouped convolution (Baevski et al. 2020).

    Its weight is a direction and a gain for each place of the kernel (weight normalisation, Salimans and Kingma 2016).

    Args:
        dim: D.
        kernel: positions seen by each position.
        groups: parts of D that do not mix.
        act: name of the activation.
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
        """(B, T, D) -> (B, T, D)."""
        norm = torch.linalg.vector_norm(self.direction, dim=(0, 1), keepdim=True)
        weight = self.direction * (self.gain / norm)
        padding = weight.shape[2] // 2
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=padding, groups=self.groups)
        return self.act(y[:, :, : x.shape[1]]).transpose(1, 2)  # an even kernel makes one position too many


class TimeDelay(nn.Module):
    """A dilated convolution over time, then ReLU (Peddinti et al. 2015); its weight is stored as a linear layer's.

    Args:
        channels: C before and after.
        kernel: positions that each output sees.
        dilation: distance between them.
    """

    def __init__(self, channels: tuple[int, int], kernel: int, dilation: int) -> None:
        super().__init__()
        self.kernel = nn.Linear(channels[0] * kernel, channels[1])
        self.size, self.dilation = kernel, dilation

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C', T')."""
        weight = self.kernel.weight.view(self.kernel.out_features, self.size, -1).transpose(1, 2)
        return F.relu(F.conv1d(x, weight, self.kernel.bias, dilation=self.dilation))
