"""Backbones over waveforms: what they accept, and how samples become frames.

Shapes: B batch, S samples, T positions (frames), D hidden size.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.errors import InputError, TranseptWarning
from transept.layers.context import within
from transept.layers.conv import N, conv_length, receptive_field


class SoundBackbone(Backbone):
    """A network over sound, be it waveforms or spectrograms."""

    @property
    def adapted(self) -> bool:
        """Whether an adapter follows the layers, so that the states are fewer than the frames and may have another size."""
        return False

    def state_lengths(self, samples: N) -> N:
        """Numbers of states made of so many samples, or frames of a spectrogram."""
        raise NotImplementedError

    def state_mask(self, mask: Tensor, size: int) -> Tensor:
        """(B, size) of bool, true for states of real samples, from a mask (B, S) over samples."""
        return within(self.state_lengths((mask != 0).sum(dim=1)), size)

    def freeze_feature_encoder(self) -> None:
        """Keep the convolutions before the layers as they are while training."""
        raise NotImplementedError


class AudioBackbone(SoundBackbone):
    """A network over frames of waveforms, which ``feature_encoder`` makes as ``conv_kernel`` and ``conv_stride`` say."""

    feature_encoder: nn.Module

    @property
    def receptive_field(self) -> int:
        """Samples that one frame is made of, the fewest that can be passed."""
        return receptive_field(self.config.conv_kernel, self.config.conv_stride)

    def feature_lengths(self, samples: N) -> N:
        """Numbers of frames made of so many samples."""
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride, strict=True):
            samples = conv_length(samples, kernel, stride)
        return samples

    def state_lengths(self, samples: N) -> N:
        return self.feature_lengths(samples)

    def freeze_feature_encoder(self) -> None:
        self.feature_encoder.requires_grad_(False)

    def check_samples(self, values: Tensor | None, mask: Tensor | None) -> Tensor:
        """Waveforms (B, S) in the model's type, checked together with their mask (B, S)."""
        hint = 'Use the feature extractor of this model: extractor(waves, sampling_rate=..., return_tensors="pt").'
        values = check_tensor("input_values", values, (), "(batch, samples)", hint)
        needs = f"{type(self).__name__} needs at least {self.receptive_field} for one frame"
        if values.shape[1] < self.receptive_field:
            what = f"`input_values` has {values.shape[1]} samples, but {needs}."
            raise InputError(what, hint="Pad it with zeros, or leave it out.")
        if mask is not None:
            self._check_mask(mask, values, needs)
        check_finite(values, "input_values")
        return values.to(self.dtype)

    def _check_mask(self, mask: Tensor, values: Tensor, needs: str) -> None:
        if mask.shape != values.shape:
            shapes = tuple(mask.shape), tuple(values.shape)
            raise InputError(f"`attention_mask` has the shape {shapes[0]}, but `input_values` has {shapes[1]}.")
        if torch.compiler.is_compiling() or mask.device.type != "cpu":
            return
        lengths = (mask != 0).sum(dim=1)
        if (short := lengths < self.receptive_field).any():
            row = int(short.nonzero()[0])
            what = f"row {row} of `input_values` has {int(lengths[row])} real samples, but {needs}."
            raise InputError(what, hint="Leave it out of the batch.")
        if not torch.equal(mask != 0, within(lengths, mask.shape[1])):
            what = "`attention_mask` marks padding before real samples, but their number alone counts: a row's first are taken."
            warnings.warn(f"{what} Pad audio on the right.", TranseptWarning, stacklevel=5)
