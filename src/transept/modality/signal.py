"""Backbones over pixels and over waveforms: what they accept, and how their inputs become positions.

Shapes: B batch, C channels, H height, W width, S samples, T positions (patches or frames), D hidden size.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, TypedDict

import torch
from torch import Tensor, nn

from transept.backbone import Backbone
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.layers.conv import N, conv_length, receptive_field
from transept.layers.mask import within
from transept.layers.patch import pair


class Recorded(TypedDict, total=False):
    """What else a caller may ask to see; the config's settings when absent."""

    output_attentions: bool | None
    output_hidden_states: bool | None


class RecordOptions(Recorded, total=False):
    """What image and audio backbones accept beside their inputs; ``return_dict=False`` asks for a tuple."""

    return_dict: bool | None


class ImageInputs(Recorded, total=False):
    """What task heads for images pass on to their backbone."""

    interpolate_pos_encoding: bool | None
    attention_mask: Tensor | None


class AudioInputs(Recorded, total=False):
    """What task heads for audio pass on to their backbone."""

    mask_time_indices: Tensor | None


class ImageBackbone(Backbone):
    """A network over patches of images; its config has ``image_size``, ``patch_size`` and ``num_channels``.

    ``prefix_tokens`` is the number of positions before the patches, such as a class token.
    """

    prefix_tokens: ClassVar[int] = 1

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model was made for."""
        return pair(self.config.image_size)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return pair(self.config.patch_size)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in an image."""
        return height // self.patch_size[0], width // self.patch_size[1]

    def check_pixels(self, pixels: Tensor | None, any_size: bool) -> Tensor:
        """Images (B, C, H, W) in the model's type, checked.

        Args:
            pixels: what the caller passed as ``pixel_values``.
            any_size: whether images may be of another size than the model's.

        Raises:
            InputError, InputTypeError: naming what does not fit.
        """
        hint = 'Use the image processor of this model: processor(images, return_tensors="pt").'
        if not isinstance(pixels, Tensor):
            raise InputTypeError(f"`pixel_values` must be a tensor, but is {type(pixels).__name__}.", hint=hint)
        if pixels.ndim != 4 or not pixels.is_floating_point():
            raise InputError(
                f"`pixel_values` must be (batch, channels, height, width) of floats, but is {tuple(pixels.shape)} of "
                f"{pixels.dtype}.",
                hint=hint,
            )
        channels, height, width = pixels.shape[1:]
        if channels != self.config.num_channels:
            raise InputError(
                f"`pixel_values` has {channels} channels, but the model takes {self.config.num_channels}.", hint=hint
            )
        if not any_size and (height, width) != self.image_size:
            raise InputError(
                f"`pixel_values` are images of {height} x {width} pixels, but the model is made for "
                f"{self.image_size[0]} x {self.image_size[1]}.",
                hint="Resize them, or pass interpolate_pos_encoding=True.",
            )
        if 0 in self.grid(height, width):
            raise InputError(f"images of {height} x {width} pixels hold no patch of {self.patch_size}.", hint="Enlarge them.")
        check_finite(pixels, "pixel_values")
        return pixels.to(self.dtype)


class AudioBackbone(Backbone):
    """A network over frames of waveforms; its config has ``conv_kernel`` and ``conv_stride``.

    ``feature_encoder`` are the convolutions that make frames.
    """

    feature_encoder: nn.Module

    @property
    def adapted(self) -> bool:
        """Whether the states are fewer than the frames, and may have another size, since an adapter follows the layers."""
        return False

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
        """Numbers of states made of so many samples; fewer than frames where an adapter follows the layers."""
        return self.feature_lengths(samples)

    def state_mask(self, mask: Tensor, size: int) -> Tensor:
        """(B, size) of bool, true for states of real samples, from a mask (B, S) over samples."""
        return within(self.state_lengths((mask != 0).sum(dim=1)), size)

    def freeze_feature_encoder(self) -> None:
        """Keep the convolutions as they are while training."""
        self.feature_encoder.requires_grad_(False)

    def check_samples(self, values: Tensor | None, mask: Tensor | None) -> Tensor:
        """Waveforms (B, S) in the model's type, checked together with their mask (B, S).

        Raises:
            InputError, InputTypeError: naming what does not fit.
        """
        hint = 'Use the feature extractor of this model: extractor(waves, sampling_rate=..., return_tensors="pt").'
        if not isinstance(values, Tensor):
            raise InputTypeError(f"`input_values` must be a tensor, but is {type(values).__name__}.", hint=hint)
        if values.ndim != 2 or not values.is_floating_point():
            raise InputError(
                f"`input_values` must be (batch, samples) of floats, but is {tuple(values.shape)} of {values.dtype}.", hint=hint
            )
        if values.shape[1] < self.receptive_field:
            raise InputError(
                f"`input_values` has {values.shape[1]} samples, but {type(self).__name__} needs at least "
                f"{self.receptive_field} for one frame.",
                hint="Pad it with zeros, or leave it out.",
            )
        if mask is not None:
            self._check_mask(mask, values)
        check_finite(values, "input_values")
        return values.to(self.dtype)

    def _check_mask(self, mask: Tensor, values: Tensor) -> None:
        if mask.shape != values.shape:
            raise InputError(
                f"`attention_mask` has the shape {tuple(mask.shape)}, but `input_values` has {tuple(values.shape)}."
            )
        if torch.compiler.is_compiling() or mask.device.type != "cpu":
            return
        lengths = (mask != 0).sum(dim=1)
        if (short := lengths < self.receptive_field).any():
            row = int(short.nonzero()[0])
            raise InputError(
                f"row {row} of `input_values` has {int(lengths[row])} real samples, but {type(self).__name__} needs at least "
                f"{self.receptive_field} for one frame.",
                hint="Leave it out of the batch.",
            )
        if not torch.equal(mask != 0, within(lengths, mask.shape[1])):
            warnings.warn(
                "`attention_mask` marks padding before real samples, but only the number of real samples counts: the first "
                "ones of each row are taken as real. Pad audio on the right.",
                TranseptWarning,
                stacklevel=5,
            )


def check_finite(values: Tensor, name: str) -> None:
    """Refuse infinite values and those that are not numbers; skipped while compiling or exporting, and off the CPU.

    Raises:
        InputError: naming the place of the first one.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return
    if not (finite := values.isfinite()).all():
        place = (~finite).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {float(values[tuple(place)])} at {place}.", hint="Check the file it was read from.")
