"""The spectrogram of a sound of any length, of which only the frames that are asked for are held.

Shapes: S samples, F mel bins, T frames.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from transept.preprocess.audio.decode import audio_blocks
from transept.preprocess.audio.mel import PRODUCT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transept.preprocess.audio.whisper import WhisperFeatureExtractor


class LongSpectrogram:
    """Features (1, F, T) of a sound file, with the numbers that the extractor has for the sound in one piece.

    The file is decoded twice: at once, for its length and its loudest frame, which all levels are relative to, and window by
    window. ``samples`` counts those at the extractor's rate.

    Args:
        extractor: whose features they are, without dither.
        path: the file, which is opened when it is read.
        max_seconds: longer files are refused.

    Raises:
        FileError, FormatError, InputError: as of :func:`transept.preprocess.media.load_audio`.
    """

    def __init__(self, extractor: WhisperFeatureExtractor, path: str | os.PathLike[str], max_seconds: float) -> None:
        self.extractor, self.path, self.max_seconds = extractor, path, max_seconds
        self.samples = 0
        loudest = max((logs.max() for logs in self._blocks()), default=np.float32(0))
        self.least = extractor.least(loudest)
        self.shape = 1, extractor.feature_size, self.samples // extractor.hop_length
        self._rewind()

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """The frames (F, ``stop - start``); what lies before ``start`` is forgotten, and decoded again if asked for."""
        if start < self.first:
            self._rewind()
        while self.first + sum(map(len, self.held)) < stop:
            self.held.append(next(self.rest))
            while self.held and self.first + len(self.held[0]) <= start:
                self.first += len(self.held.popleft())
        logs = np.concatenate(self.held)[start - self.first : stop - self.first]
        return self.extractor.levels(logs, self.least)

    def _rewind(self) -> None:
        self.rest, self.first = self._blocks(), 0
        self.held: deque[NDArray[np.float32]] = deque()

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """Logarithms (T, F), so many frames at a time as one product with the filters has."""
        hop, size, frames = self.extractor.hop_length, self.extractor.n_fft, 0
        held = np.zeros(0, np.float32)
        for part in self._mirrored(size // 2):
            held = np.concatenate([held, part])
            while len(held) >= (PRODUCT - 1) * hop + size:
                yield self.extractor.logs(held, PRODUCT)
                held, frames = held[PRODUCT * hop :], frames + PRODUCT
        if rest := self.samples // hop - frames:
            yield self.extractor.logs(held, rest)

    def _mirrored(self, half: int) -> Iterator[NDArray[np.float32]]:
        """The samples with so many mirrored at both ends, so that frames can stand there; they are counted."""
        count, begun, held = 0, False, np.zeros(0, np.float32)
        for block in audio_blocks(self.path, self.extractor.sampling_rate, max_seconds=self.max_seconds):
            count += len(block)
            held = np.concatenate([held, block])
            if len(held) > half:
                if not begun:
                    yield held[half:0:-1]
                begun = True
                yield held[: -half - 1]
                held = held[-half - 1 :]
        self.samples = count
        if begun:
            yield held
            yield held[-2 : -half - 2 : -1]
