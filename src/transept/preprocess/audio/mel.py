"""Mel spectrograms: filters on three scales of pitch, overlapping frames, and their power in each filter.

Shapes: S samples, N samples a frame, T frames, K frequencies of the Fourier transform, F filters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scale = Literal["htk", "kaldi", "slaney"]
Real = TypeVar("Real", np.float32, np.float64)
Sum = TypeVar("Sum", np.float32, np.float64)
# Frames that are transformed at once, so that they stay in the cache and an hour of sound needs little memory.
_BLOCK = 64
# Frames of one product with the filters: its threads wait for each other at its end.
PRODUCT = 1024


def to_mel(hertz: Any, scale: Scale) -> Any:
    """Pitch in mel of frequencies in Hz; of Slaney's scale that is linear below 1 kHz and logarithmic above."""
    if scale == "htk":
        return 2595 * np.log10(1 + hertz / 700)
    if scale == "kaldi":
        return 1127 * np.log1p(hertz / 700)
    high = np.maximum(hertz, 1000)
    return np.where(hertz < 1000, 3 * hertz / 200, 15 + 27 * np.log(high / 1000) / np.log(6.4))


def to_hertz(mel: Any, scale: Scale) -> Any:
    """The inverse of :func:`to_mel`."""
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    if scale == "kaldi":
        return 700 * np.expm1(mel / 1127)
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(np.log(6.4) * (np.maximum(mel, 15) - 15) / 27))


@lru_cache(maxsize=16)
def mel_filters(
    count: int,
    frequencies: int,
    sampling_rate: int,
    low: float,
    high: float,
    scale: Scale = "htk",
    *,
    area: bool = False,
    straight_in_mel: bool = False,
) -> NDArray[np.float64]:
    """Triangles (F, K) between neighbouring centres, which are as far from each other in mel.

    Args:
        count, frequencies: K and F; these go from 0 Hz to half the sampling rate.
        low, high: where the first triangle begins and the last one ends, in Hz.
        area: whether each is divided by half its width (Slaney's norm); else its peak is one.
        straight_in_mel: whether the sides are straight lines over mel, and not over Hz.
    """
    first, last = to_mel(np.array([low, high]), scale)
    mel = np.linspace(first, last, count + 2)
    hertz = to_hertz(mel, scale)
    bins = np.linspace(0, sampling_rate // 2, frequencies)
    if straight_in_mel:
        bins = to_mel(np.arange(frequencies) * sampling_rate / (2 * (frequencies - 1)), scale)
    corners = mel if straight_in_mel else hertz
    widths = np.diff(corners)
    rising = (bins[:, None] - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - bins[:, None]) / widths[1:]
    triangles: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    triangles = triangles * (2 / (hertz[2:] - hertz[:-2])) if area else triangles
    triangles.flags.writeable = False  # shared by all who ask for them
    return triangles


def hann(size: int, *, periodic: bool = True) -> NDArray[np.float64]:
    """Hann's window (N), of which the periodic one has its end at the sample behind it."""
    angles = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(angles)
    return window


def mel_power(
    samples: NDArray[Real],
    window: NDArray[Real],
    hop: int,
    filters: NDArray[Sum],
    count: int,
    offsets: NDArray[Real] | None = None,
) -> NDArray[Sum]:
    """The power (T, F) of the first ``count`` frames of samples (S), a window each, every ``hop`` samples.

    ``offsets`` (T) are subtracted from frames before they are windowed. The Fourier transform has the type of the samples, and
    the size that the filters (K, F) are for; power is summed in the type of the filters.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, len(window))[::hop][:count]
    power = np.empty((len(frames), filters.shape[1]), filters.dtype)
    squares = np.empty((min(PRODUCT, len(frames)), len(filters)), filters.dtype)
    for first in range(0, len(frames), PRODUCT):
        last = min(first + PRODUCT, len(frames))
        for start in range(first, last, _BLOCK):  # a block takes a tenth of a millisecond, less than it costs to share
            places = slice(start, min(start + _BLOCK, last))
            block: Any = frames[places]
            if offsets is not None:
                block = block - offsets[places, None]
            spectrum = np.fft.rfft(block * window, n=2 * (len(filters) - 1), axis=1)
            parts = spectrum.view(samples.dtype)  # (T, 2 K): real and imaginary parts in turn, to square them in one piece
            np.square(parts, out=parts)
            np.add(parts[:, ::2], parts[:, 1::2], out=squares[start - first :][: len(parts)], casting="same_kind")
        np.matmul(squares[: last - first], filters, out=power[first:last])
    return power
