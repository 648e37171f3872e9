"""Convolutions over time: their lengths, time-delay layers and statistics over time."""

from __future__ import annotations

import pytest
import torch

from transept.layers.conv import PositionalConv, TimeDelay, WaveEncoder, conv_length, receptive_field
from transept.layers.pool import mean_and_deviation


@pytest.mark.parametrize("sizes", [([10, 3, 3, 3, 3, 2, 2], [5, 2, 2, 2, 2, 2, 2]), ([4, 1], [3, 2]), ([1], [1])])
def test_lengths_are_those_of_the_convolutions(sizes: tuple[list[int], list[int]]) -> None:
    kernels, strides = sizes
    encoder = WaveEncoder([2] * len(kernels), kernels, strides, norm="layer", bias=True, act="gelu")
    field = receptive_field(kernels, strides)
    for samples in (field, field + 1, field + 57, 3 * field + 100):
        length = samples
        for kernel, stride in zip(kernels, strides, strict=True):
            length = conv_length(length, kernel, stride)
        assert encoder(torch.zeros(1, samples)).shape[2] == length
    with pytest.raises(RuntimeError, match="Kernel size"):
        encoder(torch.zeros(1, field - 1)) if field > 1 else encoder(torch.zeros(1, 0))


@pytest.mark.parametrize("kernel", [1, 4, 5])
def test_positions_keep_the_length_and_equal_pytorch(kernel: int) -> None:
    torch.manual_seed(0)
    layer = PositionalConv(8, kernel, 2, "gelu").double()
    conv = torch.nn.Conv1d(8, 8, kernel, padding=kernel // 2, groups=2).double()
    theirs = torch.nn.utils.parametrizations.weight_norm(conv, dim=2)
    with torch.no_grad():
        layer.gain.mul_(1.7)
        theirs.parametrizations.weight.original0.copy_(layer.gain)
        theirs.parametrizations.weight.original1.copy_(layer.direction)
        theirs.bias.copy_(layer.bias.normal_())
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    expected = torch.nn.functional.gelu(theirs(x.transpose(1, 2))[:, :, :7]).transpose(1, 2)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.reference
def test_time_delay_equals_the_reference() -> None:
    import transformers
    from transformers.models.wav2vec2.modeling_wav2vec2 import TDNNLayer

    config = transformers.Wav2Vec2Config(tdnn_dim=[6, 9], tdnn_kernel=[5, 3], tdnn_dilation=[1, 2])
    theirs, ours = TDNNLayer(config, 1), TimeDelay((6, 9), 3, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 12, 6)
    torch.testing.assert_close(ours(x.transpose(1, 2)).transpose(1, 2), theirs(x))


def test_statistics_over_real_positions() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 9, dtype=torch.float64)
    x[:, 0] = 2.0  # a channel that does not change
    x.requires_grad_()
    lengths = torch.tensor([9, 5, 1])
    found = mean_and_deviation(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        part = x[row, :, :length]
        torch.testing.assert_close(found[row, :4], part.mean(dim=1))
        deviation = part.std(dim=1) if length > 1 else torch.zeros(4, dtype=torch.float64)
        torch.testing.assert_close(found[row, 4:], deviation, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(mean_and_deviation(x, None)[:, 4:], x.std(dim=2), atol=1e-12, rtol=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.isfinite(gradient).all()
