"""Spectrograms by the reference's functions: windows, filters, one transform, and decibels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError, nearest, refuse
from transept.preprocess.audio.mel import mel_filters as _filters
from transept.preprocess.audio.mel import to_hertz, to_mel

Samples = NDArray[Any]
_SCALES = ("htk", "kaldi", "slaney")
_WINDOWS: dict[str, Any] = {
    "boxcar": np.ones,
    "hamming": np.hamming,
    "hann": np.hanning,
    "povey": lambda size: np.hanning(size) ** 0.85,
}


def _scale(name: str) -> Any:
    refuse(name not in _SCALES, f"there is no mel_scale {name!r}.", nearest(name, _SCALES))
    return name


def _plain(value: Any) -> Any:
    return value.item() if np.ndim(value) == 0 and isinstance(value, np.ndarray) else value


def hertz_to_mel(freq: Any, mel_scale: str = "htk") -> Any:
    """Pitch in mel of frequencies."""
    return _plain(to_mel(freq, _scale(mel_scale)))


def mel_to_hertz(mels: Any, mel_scale: str = "htk") -> Any:
    """Frequencies of a pitch in mel."""
    return _plain(to_hertz(mels, _scale(mel_scale)))


def mel_filter_bank(
    num_frequency_bins: int,
    num_mel_filters: int,
    min_frequency: float,
    max_frequency: float,
    sampling_rate: int,
    norm: str | None = None,
    mel_scale: str = "htk",
    triangularize_in_mel_space: bool = False,
) -> NDArray[np.float64]:
    """Triangular filters (bins, filters) between two frequencies; ``norm="slaney"`` divides them by half their width."""
    refuse(norm not in (None, "slaney"), f"norm is {norm!r}.", 'Pass "slaney" or None.')
    refuse(num_frequency_bins < 2, f"num_frequency_bins is {num_frequency_bins}.", "Pass at least 2.")
    refuse(min_frequency > max_frequency, f"min_frequency {min_frequency} is above max_frequency {max_frequency}.")
    shape = (num_mel_filters, num_frequency_bins, sampling_rate, min_frequency, max_frequency)
    named: Any = {"area": norm == "slaney", "straight_in_mel": triangularize_in_mel_space}
    return _filters(*shape, _scale(mel_scale), **named).copy()


def window_function(
    window_length: int, name: str = "hann", periodic: bool = True, frame_length: int | None = None, center: bool = True
) -> NDArray[np.float64]:
    """A window, with zeros around it (or, without ``center``, after it) where a frame is longer."""
    kind = name.removesuffix("_window")
    refuse(kind not in _WINDOWS, f"there is no window {name!r}.", nearest(name, _WINDOWS))
    window = np.asarray(_WINDOWS[kind](window_length + periodic), dtype=np.float64)[:window_length]
    missing = (window_length if frame_length is None else frame_length) - window_length
    refuse(missing < 0, f"a window of {window_length} samples is longer than a frame of {frame_length}.")
    before = missing // 2 if center else 0
    return np.pad(window, (before, missing - before))


def spectrogram(
    waveform: Samples,
    window: Samples,
    frame_length: int,
    hop_length: int,
    fft_length: int | None = None,
    power: float | None = 1.0,
    center: bool = True,
    pad_mode: str = "reflect",
    onesided: bool = True,
    dither: float = 0.0,
    preemphasis: float | None = None,
    mel_filters: Samples | None = None,
    mel_floor: float = 1e-10,
    log_mel: str | None = None,
    reference: float = 1.0,
    min_value: float = 1e-10,
    db_range: float | None = None,
    remove_dc_offset: bool = False,
    dtype: Any = np.float32,
) -> Samples:
    """The spectrogram (bins or filters, frames) of one sound.

    ``power`` is 1 for amplitudes, 2 for energies and ``None`` for complex numbers; ``log_mel`` is ``"log"``, ``"log10"`` or
    ``"dB"``. The sound is mirrored at its ends with ``center``. ``InputError``: lengths that do not fit each other.
    """
    size = frame_length if fft_length is None else fft_length
    refuse(frame_length > size, f"frame_length {frame_length} is longer than fft_length {size}.")
    refuse(len(window) != frame_length, f"the window has {len(window)} samples, but a frame has {frame_length}.")
    refuse(hop_length <= 0, f"hop_length is {hop_length}.", "Pass a positive number.")
    refuse(waveform.ndim != 1 or np.iscomplexobj(waveform), f"a sound of shape {waveform.shape} is not one of real samples.")
    refuse(power is None and mel_filters is not None, "mel_filters need a power.", "Pass power=1.0 or 2.0.")
    samples = np.pad(waveform, frame_length // 2, mode=pad_mode) if center else waveform  # type: ignore[call-overload]
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), frame_length)[::hop_length].copy()
    if dither:
        frames += dither * np.random.randn(*frames.shape)  # noqa: NPY002 (as set_seed sets it)
    if remove_dc_offset:
        frames -= frames.mean(axis=1, keepdims=True)
    if preemphasis is not None:
        frames[:, 1:] -= preemphasis * frames[:, :-1].copy()
        frames[:, 0] *= 1 - preemphasis
    transform: Any = np.fft.rfft if onesided else np.fft.fft
    bins = transform(frames * window.astype(np.float64), n=size).astype(np.complex64).T
    if power is None:
        return bins  # type: ignore[no-any-return]
    values = np.abs(bins).astype(np.float64) ** power
    if mel_filters is not None:
        values = np.maximum(mel_floor, mel_filters.T @ values)
    if log_mel is None:
        return values  # type: ignore[no-any-return]
    decibels = {1.0: amplitude_to_db, 2.0: power_to_db}.get(power)
    if log_mel == "dB" and decibels is not None:
        return np.asarray(decibels(values, reference, min_value, db_range), dtype)
    logarithm: Any = {"log": np.log, "log10": np.log10}.get(log_mel)
    refuse(
        logarithm is None,
        f"log_mel is {log_mel!r} and power is {power}.",
        'Pass "log", "log10", or "dB" and a power of 1 or 2.',
    )
    return np.asarray(logarithm(values), dtype)


def power_to_db(
    spectrogram: Samples, reference: float = 1.0, min_value: float = 1e-10, db_range: float | None = None
) -> Samples:
    """Energies in decibels over ``reference``, none less than ``db_range`` below the largest."""
    return _decibels(10.0, spectrogram, reference, min_value, db_range)


def amplitude_to_db(
    spectrogram: Samples, reference: float = 1.0, min_value: float = 1e-5, db_range: float | None = None
) -> Samples:
    """Amplitudes in decibels over ``reference``, none less than ``db_range`` below the largest."""
    return _decibels(20.0, spectrogram, reference, min_value, db_range)


def _decibels(factor: float, values: Samples, reference: float, least: float, db_range: float | None) -> Samples:
    for name, value in (("reference", reference), ("min_value", least), ("db_range", 1 if db_range is None else db_range)):
        if value <= 0:
            raise InputError(f"{name} is {value}.", hint="Pass a positive number.")
    decibels: Samples = factor * (np.log10(np.maximum(values, least)) - np.log10(max(least, reference)))
    return decibels if db_range is None else np.maximum(decibels, decibels.max() - db_range)
