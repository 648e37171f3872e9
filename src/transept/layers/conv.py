"""Convolutions over time: the encoder of waveforms, positions from a wide convolution, time-delay layers.

Shapes: B batch, C channels, S samples, T positions, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.activation import activation
from transept.layers.links import Linked

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

    ``channels``, ``kernels`` and ``strides`` are one for each convolution. The norm ``layer`` is over the channels after each
    convolution, ``group`` over all positions, padded ones too, of each channel after the first one only.
    """
    blocks: list[ConvBlock] = []
    for before, after, kernel, stride in zip((1, *channels[:-1]), channels, kernels, strides, strict=True):
        conv = nn.Conv1d(before, after, kernel, stride, bias=bias)
        first = nn.Identity() if blocks else nn.GroupNorm(after, after)
        blocks.append(ConvBlock(conv, ChannelNorm(after) if norm == "layer" else first, act))
    return nn.Sequential(*blocks)


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
