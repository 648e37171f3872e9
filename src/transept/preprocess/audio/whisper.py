"""Whisper's feature extractor (Radford et al. 2022): logarithmic mel spectrograms of 30 seconds.

Shapes: B sounds, F mel bins, T frames.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from transept.config.fields import Count, Range
from transept.errors import InputError, UnsupportedError, refuse
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.audio.mel import hann, mel_filters, mel_power
from transept.preprocess.audio.wav2vec2 import normalize
from transept.preprocess.features import BatchFeature, check_tensor_type, row_lengths
from transept.preprocess.settings import MAX_VALUES, OFFSETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOOR = 1e-10
_OVERLAP = 16  # so many times longer than its values a frame may take to compute


class WhisperFeatureExtractor(SequenceFeatureExtractor):
    """Turns sounds into ``input_features`` (B, F, T).

    Args:
        feature_size: F.
        hop_length: samples from one frame to the next.
        chunk_length: seconds that sounds are padded or cut to.
        n_fft: samples a frame.
        dither: the deviation of normal noise that is added to the samples.
    """

    model_types = ("whisper",)
    model_input_names = ["input_features"]
    positional = (
        *("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft", "padding_value", "dither"),
        "return_attention_mask",
    )
    unread = SequenceFeatureExtractor.unread | {"mel_filters", "n_samples", "nb_max_frames"}

    feature_size: Annotated[int, Range(1, 1024)] = 80
    hop_length: Count = 160
    chunk_length: Annotated[int, Range(1, 3600)] = 30
    n_fft: Annotated[int, Range(2, 2**16)] = 400
    dither: Annotated[float, Range(0, OFFSETS.high)] = 0.0

    def validate(self) -> None:
        super().validate()
        if self.n_samples > MAX_VALUES:
            self.fail("chunk_length", f"must make at most {MAX_VALUES} samples at `sampling_rate` ({self.sampling_rate})")
        if self.nb_max_frames * max(self.feature_size, self.n_fft // _OVERLAP) > MAX_VALUES:
            sizes = f"`chunk_length` ({self.chunk_length}), `feature_size` ({self.feature_size}) and `n_fft` ({self.n_fft})"
            self.fail("hop_length", f"is too short for {sizes}")

    @property
    def n_samples(self) -> int:
        """Samples that sounds are padded or cut to."""
        return self.chunk_length * self.sampling_rate

    @property
    def nb_max_frames(self) -> int:
        """Frames that these samples make."""
        return self.n_samples // self.hop_length

    @property
    def mel_filters(self) -> NDArray[np.float64]:
        """Triangles (n_fft // 2 + 1, F) up to 8 kHz."""
        return mel_filters(self.feature_size, self.n_fft // 2 + 1, self.sampling_rate, 0.0, 8000.0, "slaney", area=True)

    def __call__(
        self,
        raw_speech: Any,
        truncation: bool = True,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        return_attention_mask: bool | None = None,
        padding: bool | str = "max_length",
        max_length: int | None = None,
        sampling_rate: int | None = None,
        do_normalize: bool | None = None,
        device: str = "cpu",
    ) -> BatchFeature:
        """Prepare one sound or many.

        Args:
            raw_speech: one sound as for :func:`transept.preprocess.media.load_audio`, a list of sounds, or an array
                (B, S). Sounds of another rate than the model's are resampled.
            padding, max_length, truncation, pad_to_multiple_of: see :func:`transept.preprocess.features.row_lengths`; lengths
                are in samples, ``n_samples`` when absent. For long sounds pass ``padding="longest", truncation=False``.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists of arrays.
            return_attention_mask: whether to return ``attention_mask`` (B, T), 1 for frames of sound, too; ``None`` for the
                setting of this name.
            sampling_rate: the rate of arrays that come without one, in Hz; the model's when absent, with a warning.
            do_normalize: whether each sound gets zero mean and unit variance first.
            device: ``"cpu"``, where this is computed.

        Raises:
            InputError, FileError, FormatError: a sound that cannot be used, with its place in the batch.
        """
        check_tensor_type(return_tensors)
        refuse(str(device) != "cpu", f"features are not computed on {device!r}.", 'Leave it out: "cpu".', UnsupportedError)
        sounds = self.load(raw_speech, sampling_rate)
        most = self.n_samples if max_length is None else max_length
        lengths = row_lengths([len(sound) for sound in sounds], padding, most, truncation, pad_to_multiple_of)
        for place, (_, total) in enumerate(lengths):
            if total < self.hop_length:
                what = f"sound {place} has {total} samples, but a frame needs at least {self.hop_length}."
                raise InputError(what, hint='Pad it with zeros, as padding="max_length" does.')
        rows = self.placed(sounds, lengths, self.padding_value, normalize if do_normalize else np.copyto)
        found: dict[str, Any] = {"input_features": [self.features(*each) for each in zip(rows, lengths, strict=True)]}
        if self.return_attention_mask if return_attention_mask is None else return_attention_mask:
            ones = np.ones(max(total for _, total in lengths), np.int32)
            masks = self.placed([ones[:kept] for kept, _ in lengths], lengths, 0)
            hop = self.hop_length
            found["attention_mask"] = [mask[::hop][: len(mask) // hop] for mask in masks]
        if return_tensors is not None and len({total for _, total in lengths}) == 1:
            found = {name: np.stack(values) for name, values in found.items()}
        return BatchFeature(found, return_tensors)

    def features(self, samples: NDArray[np.float32], length: tuple[int, int]) -> NDArray[np.float32]:
        """The spectrogram (F, T) of samples of which so many are real, and that are so many with padding."""
        kept, total = length
        frames, half = total // self.hop_length, self.n_fft // 2
        if self.dither:
            noise = np.random.default_rng().standard_normal(total, np.float32)
            samples = samples + np.float32(self.dither) * noise
        # Frames of nothing but zeros are known before.
        silent = self.padding_value == 0 and self.padding_side == "right" and not self.dither
        heard = min(frames, -(-(kept + half) // self.hop_length)) if silent else frames
        read = min(total, (heard - 1) * self.hop_length + self.n_fft)
        logs = self.logs(np.pad(samples[:read], (half, half if read == total else 0), mode="reflect"), heard)
        quiet = np.float32(0.25 * math.log10(_FLOOR))
        least = self.least(max(logs.max(), quiet if heard < frames else -np.inf))
        found = np.full((self.feature_size, frames), max(quiet, least) + 1, np.float32)
        found[:, :heard] = self.levels(logs, least)
        return found

    def logs(self, samples: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """A quarter of the logarithms to the base of ten of the power of the first frames of samples, (``count``, F)."""
        window, filters = (each.astype(np.float32) for each in (hann(self.n_fft), self.mel_filters))
        power = mel_power(samples, window, self.hop_length, filters, count)
        # NumPy's natural logarithm takes a fraction of the time of that to the base of ten.
        logs = np.log(np.maximum(power, np.float32(_FLOOR), out=power), out=power)
        logs *= np.float32(0.25 / math.log(10))
        return logs

    def least(self, loudest: Any) -> Any:
        """The lowest level that is told apart, by the highest one of the sound: 80 dB less."""
        return loudest - np.float32(2)

    def levels(self, logs: NDArray[np.float32], least: Any) -> NDArray[np.float32]:
        """Features (F, T) of logarithms (T, F), which are overwritten."""
        logs = np.maximum(logs, least, out=logs)
        return np.add(logs, np.float32(1), out=logs).T
