"""Videos: frames out of arrays, lists of pictures, or files, and which of them a model looks at.

Shapes: F frames of a video, (F, H, W, C) or (F, C, H, W).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import as_numpy
from transept.preprocess.settings import is_number
from transept.preprocess.video_file import open_video

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


@contextmanager
def open_frames(
    video: Any, choose: Choice, told: Metadata | Mapping[str, Any] | None = None
) -> Iterator[tuple[Iterator[Any], Metadata]]:
    """Those frames of a video that are chosen, each decoded when it comes, and what is known of the video.

    Args:
        video: one of :func:`videos_of`.
        choose: gives the numbers of the frames to take.
        told: ``fps`` of a video that does not tell itself.

    Raises:
        InputError: a video without frames, or a URL.
        FileError, FormatError: a file that cannot be read, or is no video.
        MissingExtraError: a file, where PyAV is not installed.
    """
    if _is_file(video):
        with open_video(video) as file:
            metadata = _with_chosen(Metadata(file.total, file.fps or USUAL_FPS), choose)
            yield file.frames(metadata.frames_indices or ()), metadata
        return
    if not isinstance(video, list | tuple) and getattr(video, "ndim", 0) != 4:
        raise InputTypeError(f"a video is an array (F, H, W, C), a list of pictures or a file, but not {type(video).__name__}.")
    if not len(video):
        raise InputError("a video has no frames.")
    known: Any = vars(told) if isinstance(told, Metadata) else told or {}
    fps = known.get("fps") if isinstance(known, Mapping) else known
    if fps is not None and not (is_number(fps) and fps > 0):
        raise InputError(f"`video_metadata` of a video is {told!r:.80}.", hint='Pass video_metadata=[{"fps": 24}].')
    metadata = _with_chosen(Metadata(len(video), fps), choose)
    yield (video[index] for index in metadata.frames_indices or ()), metadata


def _with_chosen(metadata: Metadata, choose: Choice) -> Metadata:
    metadata.frames_indices = [int(index) for index in choose(metadata)]
    if not all(0 <= index < metadata.total_num_frames for index in metadata.frames_indices):
        raise InputError(f"frames {metadata.frames_indices!s:.80} were chosen of a video of {metadata.total_num_frames}.")
    return metadata


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
