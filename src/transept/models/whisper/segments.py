"""A window's tokens as segments with times, and where the next window begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

# Frames of a spectrogram in one position of a time.
STRIDE = 2


@runtime_checkable
class LazyFeatures(Protocol):
    """A spectrogram (1, F, T') of a sound that is too long to hold: its frames are computed when they are read."""

    shape: tuple[int, int, int]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The frames (F, ``stop - start``); what lies before them is read no more, but by beginning anew."""
        ...


@dataclass
class Segment:
    """A piece of a transcript.

    Args:
        start, end: seconds in the sound; ``None`` for what was not written, such as a prompt.
        tokens: (N,) ids, times among them.
        place: where its tokens begin in what the window wrote, prompt included.
        times: (N,) seconds of the tokens in the sound.
        result: what the window's own writing gave.
    """

    tokens: Tensor
    start: float | None = None
    end: float | None = None
    place: int = 0
    times: Tensor | None = None
    result: Any = None

    def as_dict(self) -> dict[str, Any]:
        """With the names of the reference: ``start`` and ``end`` are tensors of one number."""
        start, end = (torch.tensor(seconds, dtype=torch.float64) for seconds in (self.start, self.end))
        idxs = self.place, self.place + len(self.tokens)
        timed = {} if self.times is None else {"token_timestamps": self.times}
        return {"start": start, "end": end, "tokens": self.tokens, "idxs": idxs, "result": self.result} | timed


def split(tokens: Tensor, first_time: int, frames: int, precision: float) -> tuple[list[tuple[int, int, float, float]], int]:
    """Cut a window's tokens (N,) between neighbouring times.

    Args:
        frames: of the window, at most; the window is consumed up to what is told.

    Returns:
        For each piece its first place and the one behind its last, and its start and end in seconds of the window; and how many
        frames are done. What follows the last pair of times is left for the next window, unless a single time ends it all. A
        window that would not move on is consumed as a whole.
    """
    ids = tokens.tolist()
    is_time = [index >= first_time for index in ids]
    cuts = [place for place in range(1, len(ids)) if is_time[place - 1] and is_time[place]]
    if not cuts:
        places = [index - first_time for index, timed in zip(ids, is_time, strict=True) if timed]
        last = places[-1] if places and places[-1] > 0 else int(frames / 100 / precision)
        return [(0, len(ids), 0.0, last * precision)], frames
    if single := is_time[-2:] == [False, True]:
        cuts.append(len(ids))
    else:
        cuts[-1] += 1  # the second of the last pair, too
    pieces, begin = [], 0
    for cut in cuts:
        end = cut - 1 if single or cut != cuts[-1] else cut - 2
        pieces.append((begin, cut, (ids[begin] - first_time) * precision, (ids[end] - first_time) * precision))
        begin = cut
    done = frames if single else (ids[cuts[-1] - 2] - first_time) * STRIDE
    return pieces, done if done > 0 else frames
