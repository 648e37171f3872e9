"""The program that decodes one video: :mod:`transept.preprocess.video_file` runs it in a process of its own.

It reads the file that its argument names, or the bytes that come first on its standard input, and opens nothing else. It
answers on standard output: a line of JSON with what is known of the video, then for each frame that was asked for a line and
the pixels (H, stride), or a line with an ``error``.
"""

from __future__ import annotations

import io
import json
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from transept.errors import FormatError
from transept.storage.files import open_regular, parse_json

MAX_FRAMES = 100_000
MEMORY = 2 * 2**30  # bytes that decoding may take, beside a video that was passed as bytes
SECONDS = 600  # of the processor
# FFmpeg's names of the formats that are read: none of them is a list of other files. No protocol is allowed, so that what
# refers to another file or address all the same cannot open it.
FORMATS = ("mov", "matroska", "avi", "mpegts", "mpeg", "ogg", "flv", "asf", "gif")
_CLOSED = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}
_THREADS = 8  # each has a stack of its own


def main() -> None:
    """Answer what is known of the video, and then with the frames that are asked for."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    held = requests.read(int(requests.readline()))
    _limit(MEMORY + len(held))
    with ExitStack() as stack:
        file = io.BytesIO(held) if len(sys.argv) == 1 else stack.enter_context(open_regular(sys.argv[1]))
        try:
            video = Video(file)
            _answer(answers, **video.about)
            for frame in video.frames(parse_json(requests.readline().decode())):
                plane = frame.planes[0]
                _answer(answers, width=frame.width, height=frame.height, stride=plane.line_size)
                answers.write(memoryview(plane)[: frame.height * plane.line_size])
        except FormatError as error:
            _answer(answers, error=error.message)
        except MemoryError:
            _answer(answers, error=f"needs more than {MEMORY} bytes of memory to be decoded.")
        answers.flush()


def _answer(answers: BinaryIO, **values: Any) -> None:
    answers.write(json.dumps(values).encode() + b"\n")
    answers.flush()


def _limit(memory: int) -> None:
    """Let the system end this process where it takes more than it may."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    for kind, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


class Video:
    """The first stream of pictures of a file. A frame is found by the time at which it is shown, from the key frame before it.

    Frames are counted as packets of the file, without decoding them. Where packets do not tell their times, frames are counted
    while they are decoded, from the first one on.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._open()
        times: list[Any] = []
        keys: list[Any] = []
        for packet in self.container.demux(self.stream):
            if not packet.size or packet.is_discard:
                continue
            if len(times) == MAX_FRAMES:
                raise FormatError(f"has more than {MAX_FRAMES} frames.")
            times.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
        self.timed = None not in times and len(set(times)) == len(times)
        self.times = sorted(times) if self.timed else list(range(len(times)))
        self.keys = sorted(keys) if self.timed else []
        size = {"width": self.stream.width, "height": self.stream.height}
        self.about = {"frames": len(times), "fps": float(self.stream.average_rate or 0), **size}

    def frames(self, numbers: Sequence[int]) -> Iterator[Any]:
        """The frames of these numbers as RGB."""
        self._begin()
        for number in numbers:
            yield self._shown_at(self.times[number]).reformat(format="rgb24")

    def _open(self) -> None:
        """Open the file, at its start."""
        import av

        self.file.seek(0)
        self.container: Any = av.open(self.file, container_options=_CLOSED, metadata_errors="replace")
        if not self.container.streams.video:
            raise FormatError("holds no video.")
        self.stream: Any = self.container.streams.video[0]
        self.stream.codec_context.thread_count = min(_THREADS, os.cpu_count() or 1)

    def _shown_at(self, time: int) -> Any:
        """The first frame at this time or after it; the last one of the video where there is none."""
        key = self.keys[bisect_right(self.keys, time) - 1] if self.keys and self.keys[0] <= time else None
        if self.frame is None or time < self.time or (key is not None and key > self._following()):
            self._go_to(key)
        while (self.frame is None or self.time < time) and self._next():
            pass
        if self.frame is None:
            raise FormatError("has no frames that can be decoded.")
        return self.frame

    def _following(self) -> int:
        """The time of the frame behind the current one."""
        place = bisect_right(self.times, self.time)
        return self.times[min(place, len(self.times) - 1)]

    def _go_to(self, key: int | None) -> None:
        """Decode from this key frame on, or from the start."""
        if key is not None and key > self.keys[0]:
            if self._sought(key):
                return
            self.keys = []  # this file cannot be searched
        self._restart()

    def _sought(self, key: int) -> bool:
        """Whether the file can be searched for a key frame, from which it is then decoded on."""
        from av.error import FFmpegError

        with suppress(FFmpegError):
            self.container.seek(key, stream=self.stream)
            self._begin()
            return self._next() and self.time <= key
        return False

    def _restart(self) -> None:
        self.container.close()
        self._open()
        self._begin()

    def _begin(self) -> None:
        self.decoded = self.container.decode(self.stream)
        self.frame: Any = None
        self.time = -1

    def _next(self) -> bool:
        """Decode one more frame, and tell whether there is one."""
        frame = next(self.decoded, None)
        if frame is None:
            return False
        self.time = self.time + 1 if not self.timed else self.time if frame.pts is None else frame.pts
        self.frame = frame
        return True


if __name__ == "__main__":
    main()
