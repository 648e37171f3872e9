"""Wav2Vec2's feature extractor (Baevski et al. 2020, arXiv:2006.11477): samples, normalised sound by sound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.features import BatchFeature, check_tensor_type, pads, row_lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 2**14
_EPSILON = 1e-7


class Wav2Vec2FeatureExtractor(SequenceFeatureExtractor):
    """Turns sounds into ``input_values`` (B, T).

    Args:
        do_normalize: whether each sound gets zero mean and unit variance. Where rows are padded and no mask is
            returned, the padding counts as silence within the sound, as in the reference.
    """

    model_types = ("hubert", "wav2vec2", "wavlm")
    positional = (*SequenceFeatureExtractor.positional, "do_normalize")

    do_normalize: bool | None = True

    def validate(self) -> None:
        super().validate()
        if self.feature_size != 1:
            self.fail("feature_size", "must be 1, as samples are")

    def __call__(
        self,
        raw_speech: Any,
        padding: bool | str = False,
        max_length: int | None = None,
        truncation: bool = False,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        sampling_rate: int | None = None,
    ) -> BatchFeature:
        """Prepare one sound or many.

        Args:
            raw_speech: one sound as for :func:`transept.preprocess.media.load_audio`, a list of sounds, or an array
                (B, T). Sounds of another rate than the model's are resampled.
            padding, max_length, truncation, pad_to_multiple_of: see :func:`transept.preprocess.features.row_lengths`.
            return_attention_mask: whether to return ``attention_mask`` (B, T) too; ``None`` for the setting of this name.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists of arrays.
            sampling_rate: the rate of arrays that come without one, in Hz; the model's when absent, with a warning.

        Raises:
            InputError, FileError, FormatError: a sound that cannot be used, with its place in the batch.
        """
        check_tensor_type(return_tensors)
        sounds = self.load(raw_speech, sampling_rate)
        lengths = row_lengths([len(sound) for sound in sounds], padding, max_length, truncation, pad_to_multiple_of)
        masked = self.return_attention_mask if return_attention_mask is None else return_attention_mask
        padding_counts = pads(padding) and not masked  # as a part of the sound
        write = normalize if self.do_normalize and not padding_counts else np.copyto
        rows = self.placed(sounds, lengths, self.padding_value, write)
        if self.do_normalize and padding_counts:
            for row in rows:
                normalize(row, row)
        return self._features({"input_values": rows}, lengths, masked, return_tensors)


def normalize(out: NDArray[np.float32], samples: NDArray[np.float32]) -> None:
    """Write samples (T,) with zero mean and unit variance to ``out``, in blocks that stay in the cache and keep sums exact."""
    mean, total = samples.mean(), 0.0
    for start in range(0, samples.size, _BLOCK):
        block = out[start : start + _BLOCK]
        np.subtract(samples[start : start + _BLOCK], mean, out=block)
        exact = block.astype(np.float64)  # thousands of equal squares, as padding gives, round the same way in float32
        total += float(np.dot(exact, exact))
    out /= np.float32(math.sqrt(total / samples.size + _EPSILON))
