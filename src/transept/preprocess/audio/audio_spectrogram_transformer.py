"""AST's feature extractor (Gong et al. 2021): logarithmic mel spectrograms as Kaldi computes them, of one length.

Shapes: B sounds, T frames, F mel bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from transept.config.fields import Count, Range
from transept.errors import InputError
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.audio.mel import hann, mel_filters, mel_power
from transept.preprocess.features import BatchFeature, check_tensor_type
from transept.preprocess.settings import MAX_VALUES, Factor, Offset

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE, _HOP, _TRANSFORM = 400, 160, 512
_EMPHASIS = 0.97
_FLOOR = np.float32(2.0**-23)  # the smallest difference to one of float32


class ASTFeatureExtractor(SequenceFeatureExtractor):
    """Turns sounds into ``input_values`` (B, T, F).

    Args:
        num_mel_bins: F.
        max_length: T, to which spectrograms are cut, or padded with zeros before they are normalised.
        do_normalize: whether ``mean`` is subtracted and the rest divided by twice ``std``.
    """

    model_types = ("audio-spectrogram-transformer",)
    positional = (
        *("feature_size", "sampling_rate", "num_mel_bins", "max_length", "padding_value", "do_normalize", "mean", "std"),
        "return_attention_mask",
    )

    num_mel_bins: Annotated[int, Range(1, 1024)] = 128
    max_length: Count = 1024
    do_normalize: bool = True
    mean: Offset = -4.2677393
    std: Factor = 4.5689974

    def validate(self) -> None:
        super().validate()
        if self.max_length * self.num_mel_bins > MAX_VALUES:
            self.fail("max_length", f"must make at most {MAX_VALUES} values with `num_mel_bins` ({self.num_mel_bins})")

    @property
    def mel_filters(self) -> NDArray[np.float64]:
        """Triangles over mel (257, F) from 20 Hz on."""
        sizes = self.num_mel_bins, _TRANSFORM // 2 + 1, self.sampling_rate
        return mel_filters(*sizes, 20, self.sampling_rate // 2, "kaldi", straight_in_mel=True)

    def __call__(self, raw_speech: Any, sampling_rate: int | None = None, return_tensors: str | None = None) -> BatchFeature:
        """Prepare one sound or many.

        Args:
            raw_speech: one sound as for :func:`transept.preprocess.media.load_audio`, a list of sounds, or an array
                (B, S). Sounds of another rate than the model's are resampled.
            sampling_rate: the rate of arrays that come without one, in Hz; the model's when absent, with a warning.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for a list of arrays.

        Raises:
            InputError, FileError, FormatError: a sound that cannot be used, with its place in the batch.
        """
        check_tensor_type(return_tensors)
        rows = [self.features(sound, place) for place, sound in enumerate(self.load(raw_speech, sampling_rate))]
        return BatchFeature({"input_values": rows if return_tensors is None else np.stack(rows)}, return_tensors)

    def features(self, samples: NDArray[np.float32], place: int = 0) -> NDArray[np.float32]:
        """The spectrogram (T, F) of one sound."""
        if len(samples) < _SIZE:
            what = f"sound {place} has {len(samples)} samples, but a frame needs {_SIZE}."
            raise InputError(what, hint="Pad it with zeros, or leave it out.")
        heard = samples[: _SIZE + (self.max_length - 1) * _HOP].astype(np.float64)  # differences of float32 lose too much
        # Each frame loses its mean, then each of its samples most of the one before. Frames share all of that but their means,
        # and their first samples, which have none before them, but are where the window is zero.
        means = np.lib.stride_tricks.sliding_window_view(heard, _SIZE)[::_HOP].mean(axis=1)
        heard[1:] -= _EMPHASIS * heard[:-1]
        filters = self.mel_filters.astype(np.float32)
        power = mel_power(heard, hann(_SIZE, periodic=False), _HOP, filters, self.max_length, (1 - _EMPHASIS) * means)
        found = np.zeros((self.max_length, self.num_mel_bins), np.float32)
        found[: len(power)] = np.log(np.maximum(power, _FLOOR))
        if self.do_normalize:
            found -= np.float32(self.mean)
            found /= np.float32(2 * self.std)
        return found
