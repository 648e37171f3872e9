"""Spectrograms of files that are read window by window: the extractor's numbers, in memory that does not grow."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from transept.errors import FileError, FormatError, InputError
from transept.preprocess.audio.decode import audio_blocks
from transept.preprocess.audio.long_spectrogram import LongSpectrogram
from transept.preprocess.audio.whisper import WhisperFeatureExtractor
from transept.preprocess.media import load_audio

EXTRACTOR = WhisperFeatureExtractor()


def recorded(path: Path, seconds: float, rate: int = 16000, channels: int = 1) -> Path:
    """Noise that becomes louder, so that the loudest frame stands behind the first windows."""
    rng = np.random.default_rng(0)
    count = round(seconds * rate)
    noise = 0.2 * rng.standard_normal((count, channels)) * np.linspace(0.01, 1, count)[:, None]
    soundfile.write(path, noise.astype(np.float32), rate)
    return path


@pytest.mark.parametrize(("seconds", "rate", "channels"), [(41.237, 16000, 1), (33.01, 44100, 2), (31, 8000, 1)], ids=str)
def test_windows_are_those_of_the_whole_sound(tmp_path, seconds, rate, channels):
    """Bit for bit, wherever a window begins, and also where one before is asked for again."""
    path = recorded(tmp_path / "sound.wav", seconds, rate, channels)
    assert np.array_equal(np.concatenate([*audio_blocks(path, 16000)]), load_audio(path, 16000))
    whole = EXTRACTOR([path], truncation=False, padding="longest", return_tensors="np")["input_features"]
    lazy = LongSpectrogram(EXTRACTOR, path, 3600)
    assert lazy.shape == whole.shape
    assert lazy.samples == load_audio(path, 16000).size
    last = whole.shape[2]
    for start, stop in ((0, 3000), (0, 3000), (1023, 3023), (1024, 1025), (2999, last), (5, 3005), (last - 1, last)):
        assert np.array_equal(lazy.read(start, stop), whole[0, :, start:stop])


def test_memory_does_not_grow_with_the_length(tmp_path):
    path = recorded(tmp_path / "sound.wav", 600, 4000)
    tracemalloc.start()
    try:
        lazy = LongSpectrogram(EXTRACTOR, path, 3600)
        for start in range(0, lazy.shape[2] - 3000, 3000):
            lazy.read(start, start + 3000)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lazy.shape[2] == 60000
    assert most < 20 * 2**20  # the samples alone are 38 MB, the features 19 MB


def test_what_cannot_be_read_is_an_error(tmp_path):
    path = recorded(tmp_path / "sound.wav", 40)
    with pytest.raises(FormatError, match=r"sound\.wav: lasts longer than the 39 seconds allowed.*max_seconds"):
        LongSpectrogram(EXTRACTOR, path, 39)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(FormatError, match="is truncated"):
        LongSpectrogram(EXTRACTOR, path, 3600)
    with pytest.raises(FileError, match="none.wav"):
        LongSpectrogram(EXTRACTOR, tmp_path / "none.wav", 3600)
    noise = np.zeros(2**19, np.float32)
    noise[2**18 + 5] = np.inf
    soundfile.write(path, noise, 16000, subtype="FLOAT")
    with pytest.raises(InputError, match=f"sample {2**18 + 5} of the audio is inf"):
        LongSpectrogram(EXTRACTOR, path, 3600)


@pytest.mark.parametrize("samples", [0, 1, 150, 201, 500])
def test_sounds_without_a_window_have_their_length(tmp_path, samples):
    path = tmp_path / "sound.wav"
    soundfile.write(path, np.zeros(samples, np.float32), 16000)
    assert LongSpectrogram(EXTRACTOR, path, 3600).samples == samples
