"""Videos: frames out of arrays, lists of pictures, or files, and which of them a model looks at.

Shapes: F frames of a video, (F, H, W, C) or (F, C, H, W).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transept.errors import FormatError, InputError, InputTypeError
from transept.preprocess.features import as_numpy, needed
from transept.preprocess.image.arrays import MAX_PIXELS

MAX_FRAMES = 100_000  # of a file
USUAL_FPS = 24.0  # where nothing tells
Choice = Callable[["Metadata"], Sequence[int]]


@dataclass
class Metadata:
    """What is known of a video: its frames, how many of them are shown a second, and which were taken."""

    total_num_frames: int
    fps: float | None = None
    frames_indices: list[int] | None = None

    @property
    def sampled_fps(self) -> float:
        """How many of the taken frames are shown a second."""
        if self.fps is None or self.frames_indices is None:
            return self.fps or USUAL_FPS
        return len(self.frames_indices) / self.total_num_frames * self.fps


def videos_of(videos: Any) -> list[Any]:
    """A batch of videos, of one or of several: each an array, a list of pictures, or where a file is."""
    if _is_file(videos) or ((array := as_numpy(videos)) is not None and array.ndim == 4):
        return [videos]
    if not isinstance(videos, list | tuple) and getattr(videos, "ndim", 0) != 5:
        what = f"videos are arrays (F, H, W, C), lists of pictures or files, but this is {type(videos).__name__}."
        raise InputTypeError(what)
    if not len(videos):
        raise InputError("the batch holds no video.")
    first = as_numpy(videos[0])
    is_frame = hasattr(videos[0], "getbands") or (first is not None and first.ndim < 4)  # of PIL, or an array
    return [videos] if is_frame else list(videos)


def _is_file(source: Any) -> bool:
    return isinstance(source, str | bytes | os.PathLike)


def read_frames(video: Any, choose: Choice, told: Metadata | Mapping[str, Any] | None = None) -> tuple[list[Any], Metadata]:
    """Those frames of a video that are chosen, and what is known of it.

    Args:
        video: one of :func:`videos_of`.
        choose: gives the numbers of the frames to take.
        told: ``fps`` of a video that does not tell itself.

    Raises:
        InputError: a video without frames.
        FormatError: a file that is no video.
        MissingExtraError: a file, where PyAV is not installed.
    """
    if _is_file(video):
        return _decoded(video, choose)
    if not len(video):
        raise InputError("a video has no frames.")
    known = told if isinstance(told, Mapping) else vars(told) if told is not None else {}
    metadata = Metadata(len(video), known.get("fps"))
    metadata.frames_indices = list(choose(metadata))
    return [video[index] for index in metadata.frames_indices], metadata


def _decoded(source: Any, choose: Choice) -> tuple[list[Any], Metadata]:
    """The chosen frames of a file."""
    import io

    av = needed("av", "av", "video", "Reading videos")
    try:
        with av.open(io.BytesIO(source) if isinstance(source, bytes) else os.fspath(source)) as container:
            stream = container.streams.video[0]
            if stream.width * stream.height > MAX_PIXELS:
                raise FormatError(f"has frames of {stream.width} x {stream.height} pixels, more than {MAX_PIXELS}.")
            total = stream.frames or sum(1 for _ in container.decode(stream))
            if not 1 <= total <= MAX_FRAMES:
                raise FormatError(f"has {total} frames, but 1 to {MAX_FRAMES} are read.")
            metadata = Metadata(total, float(stream.average_rate or USUAL_FPS))
            metadata.frames_indices = list(choose(metadata))
            container.seek(0)
            wanted, frames = set(metadata.frames_indices), {}
            for number, frame in enumerate(container.decode(stream)):
                if number in wanted:
                    frames[number] = frame.to_ndarray(format="rgb24")
                if len(frames) == len(wanted):
                    break
    except (av.FFmpegError, IndexError, OSError) as error:
        path = None if isinstance(source, bytes) else str(source)
        raise FormatError("is corrupt, or no video that is read.", path=path) from error
    if not frames:
        raise FormatError("has no frames that can be decoded.")
    last = max(frames)
    return [frames.get(index, frames[last]) for index in metadata.frames_indices], metadata


def chosen(metadata: Metadata, *, fps: float | None, num_frames: int | None, least: int, most: int, step: int) -> Sequence[int]:
    """Numbers of frames, evenly over a video: ``num_frames``, or ``fps`` a second, ``least`` to ``most``, in ``step`` s.

    Raises:
        InputError: both, more than there are, or ``fps`` of a video that does not tell how fast it is shown.
    """
    total = metadata.total_num_frames
    if fps is not None and num_frames is not None:
        raise InputError("`fps` and `num_frames` exclude each other.", hint="Pass one of them.")
    if fps is not None and metadata.fps is None:
        raise InputError("`fps` was asked of a video that does not tell its own.", hint='Pass video_metadata=[{"fps": 24}].')
    if num_frames is not None:
        count = round(num_frames / step) * step
    elif fps is not None:
        wanted = total / float(metadata.fps or 1) * fps
        count = int(min(max(wanted, least), min(most, total) // step * step, total)) // step * step
    else:
        return range(total)
    if not 1 <= count <= total:
        raise InputError(f"{count} frames cannot be taken of a video of {total}.", hint="Ask for fewer, or for all.")
    return [int(each) for each in np.floor(np.arange(count) * (total / count))]
