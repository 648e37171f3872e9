"""Backbones over waveforms: what they accept, and how samples become frames.

Shapes: B batch, S samples, T positions (frames), D hidden size.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from transept.config.fields import Count, Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.errors import InputError, TranseptWarning
from transept.layers.context import within
from transept.layers.conv import N, conv_length, receptive_field


class WaveConfig(Config):
    """What families over waveforms have in common; each adds the settings of its own."""

    vocab_size: int | None = 32
    hidden_size: Annotated[int, Multiple("num_attention_heads"), Multiple("num_conv_pos_embedding_groups")] = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout: Share = 0.1
    activation_dropout: Share = 0.1
    attention_dropout: Share = 0.1
    feat_proj_dropout: Share = 0.0
    final_dropout: Share = 0.1
    layerdrop: Share = 0.1
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-5
    feat_extract_norm: Literal["group", "layer"] = "group"
    feat_extract_activation: str = "gelu"
    conv_dim: list[Count] = field(default_factory=lambda: [512] * 7)
    conv_stride: list[Count] = field(default_factory=lambda: [5, 2, 2, 2, 2, 2, 2])
    conv_kernel: list[Count] = field(default_factory=lambda: [10, 3, 3, 3, 3, 2, 2])
    conv_bias: bool = False
    num_conv_pos_embeddings: Count = 128
    num_conv_pos_embedding_groups: int = 16
    do_stable_layer_norm: bool = False
    apply_spec_augment: bool = True
    mask_time_prob: float = 0.05
    mask_time_length: Count = 10
    mask_time_min_masks: int = 2
    mask_feature_prob: float = 0.0
    mask_feature_length: int = 10
    mask_feature_min_masks: int = 0
    ctc_loss_reduction: Literal["sum", "mean"] = "sum"
    ctc_zero_infinity: bool = False
    use_weighted_layer_sum: bool = False
    classifier_proj_size: int = 256
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    add_adapter = False  # a setting in the families that have adapters

    def validate(self) -> None:
        super().validate()
        self.check_equally_many("conv_dim", "conv_stride", "conv_kernel")

    def check_equally_many(self, kind: str, *names: str) -> None:
        """Refuse lists (``ConfigError``) that do not hold as many numbers as the first."""
        for name in (kind, *names):
            if not len(getattr(self, name)) == len(getattr(self, kind)) >= 1:
                self.fail(name, f"must hold as many positive numbers as `{kind}`, at least one")

    @property
    def num_feat_extract_layers(self) -> int:
        return len(self.conv_dim)

    @property
    def inputs_to_logits_ratio(self) -> int:
        return math.prod(self.conv_stride)


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
    """A network over frames of waveforms, which ``feature_extractor`` makes as ``conv_kernel`` and ``conv_stride`` say."""

    feature_extractor: nn.Module

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
        self.feature_extractor.requires_grad_(False)

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
