"""Video files, each decoded in a process of its own.

Decoders of video are large programs in C: what a file of a kilobyte announces can make them take gigabytes or hours, and what
it holds can make them crash. So they run in a process with limits of memory and time, which opens that file and nothing else,
and what goes wrong there is an error of that file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import FileError, FormatError
from transept.preprocess import video_decoder
from transept.preprocess.features import needed
from transept.preprocess.image.arrays import MAX_PIXELS
from transept.preprocess.media import bytes_or_path, format_error
from transept.storage.files import open_regular, parse_json, reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 4 * 2**30  # of a file, which is read while it is decoded
FORMATS = "MP4, MOV, WebM, MKV, AVI, MPEG, OGG, FLV, WMV, GIF"
_LINE = 2**16
_TIMED_OUT = 24  # the number of SIGXCPU


class VideoFile:
    """A video that a process decodes; ``total`` frames, of which ``fps`` are shown a second, 0 where that is not told."""

    def __init__(self, process: subprocess.Popen[bytes], path: str | None) -> None:
        self.process, self.path = process, path
        about = self._answer()
        self.total, self.fps = int(about["frames"]), float(about["fps"])
        if not self.total:
            raise format_error("video", "holds no frames.", path)
        self._check_size(about)

    def frames(self, numbers: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """The frames of these numbers (H, W, 3), each decoded when it is asked for (``FormatError``: one cannot be)."""
        _write(self.process, json.dumps([*map(int, numbers)]).encode() + b"\n")
        for _ in numbers:
            about = self._answer()
            height, width, stride = self._check_size(about), int(about["width"]), int(about["stride"])
            pixels = np.frombuffer(self._read(height * stride), np.uint8)
            yield pixels.reshape(height, stride)[:, : 3 * width].reshape(height, width, 3)

    def _check_size(self, about: dict[str, Any]) -> int:
        width, height = int(about["width"]), int(about["height"])
        if width * height > MAX_PIXELS:
            raise format_error("video", f"has frames of {width} x {height} pixels, more than {MAX_PIXELS}.", self.path)
        return height

    def _answer(self) -> dict[str, Any]:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline(_LINE)
        if not line.endswith(b"\n"):
            raise self._ended()
        answer: dict[str, Any] = parse_json(line.decode())
        if "error" in answer:
            raise format_error("video", answer["error"], self.path)
        return answer

    def _read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(size)
        if len(data) < size:
            raise self._ended()
        return data

    def _ended(self) -> FormatError:
        """Why the process ended before its work was done."""
        signal = -self.process.wait()
        if signal == _TIMED_OUT:
            seconds = video_decoder.SECONDS
            return format_error("video", f"takes more than {seconds} seconds of the processor to be decoded.", self.path)
        if signal > 0:
            return format_error("video", f"makes the decoder crash (signal {signal}).", self.path)
        return format_error("video", "is corrupt, or no video that is read.", self.path, f"Formats that are read: {FORMATS}.")


@contextmanager
def open_video(source: Any) -> Iterator[VideoFile]:
    """Open a video: a path, bytes or a ``data:`` URL.

    Raises:
        InputError: a URL; nothing is fetched.
        FileError: no regular file that can be read.
        FormatError: it is corrupt, too large, or takes more memory or time than is allowed.
        MissingExtraError: PyAV is not installed.
    """
    held = bytes_or_path(source, "video")
    needed("av", "av", "video", "Reading videos")
    path = held if isinstance(held, str) else None
    if path is not None:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise format_error("video", f"has {size} bytes, more than the {MAX_BYTES} allowed.", path)
    data = held if isinstance(held, bytes) else b""
    with _started([] if path is None else [path]) as process:
        _write(process, b"%d\n" % len(data), data)
        yield VideoFile(process, path)


@contextmanager
def _started(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The decoder's process, which ends with the block."""
    places = os.pathsep.join(place for place in sys.path if place)
    command = [sys.executable, "-P", "-m", video_decoder.__name__, *arguments]
    environment, pipe = {**os.environ, "PYTHONPATH": places}, subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 (our own program)
            command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise FileError(f"the process that decodes videos cannot be started ({reason(error)}).", path=sys.executable) from error
    with process:
        try:
            yield process
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()


def _write(process: subprocess.Popen[bytes], *parts: bytes) -> None:
    """Write to a process; one that has ended says why when it is read from."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        for part in parts:
            process.stdin.write(part)
        process.stdin.flush()
