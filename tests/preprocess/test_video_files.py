"""Video files: what is read of them, and what hostile ones cannot do."""

from __future__ import annotations

import base64
import os
import random
import signal
import socket
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from transept.errors import FileError, FormatError, InputError, TranseptError
from transept.preprocess.image import qwen2_vl
from transept.preprocess.image.qwen2_vl import Qwen2VLVideoProcessor
from transept.preprocess.video import open_frames
from transept.preprocess.video_file import open_video

SMALL = {"shortest_edge": 784, "longest_edge": 3136}
# An ending, FFmpeg's encoder and format, how pixels are stored, and frames between two others that are decoded after both.
KINDS = {
    "mp4": ("mpeg4", "mp4", "yuv420p", 2),
    "webm": ("libvpx-vp9", "webm", "yuv420p", 0),
    "mkv": ("mpeg4", "matroska", "yuv420p", 2),
    "avi": ("mjpeg", "avi", "yuvj420p", 0),
    "ts": ("mpeg2video", "mpegts", "yuv420p", 2),
    "gif": ("gif", "gif", "rgb8", 0),
}


def clip(path: Path, count: int = 20, width: int = 64, height: int = 48, **options: str) -> Path:
    """A video of moving squares, of the format that its ending names."""
    encoder, format, pixels, between = KINDS[path.suffix[1:]]
    squares = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    try:
        with av.open(str(path), "w", format=format, options=options) as container:
            stream = container.add_stream(encoder, rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, pixels
            stream.codec_context.gop_size, stream.codec_context.max_b_frames = 6, between
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(np.roll(squares, 3 * number, 1), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    except (ValueError, LookupError):
        pytest.skip(f"this PyAV has no encoder {encoder}")
    return path


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one video of each kind, `video.mp4` and so on."""
    folder = tmp_path_factory.mktemp("videos")
    for ending in KINDS:
        clip(folder / f"video.{ending}")
    return folder


# What is read


@pytest.mark.parametrize("ending", KINDS)
def test_frames_are_found_by_their_numbers(videos: Path, ending: str) -> None:
    """Those that are searched for are those of a decoder that starts at the first one."""
    path = videos / f"video.{ending}"
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for numbers in ([*range(20)], [3, 11, 19], [0, 17], [13, 2, 2]):
        with open_video(str(path)) as video:
            assert video.total == len(expected) == 20
            for number, frame in zip(numbers, video.frames(numbers), strict=True):
                np.testing.assert_array_equal(frame, expected[number])


def test_frames_come_one_at_a_time(tmp_path: Path) -> None:
    path = clip(tmp_path / "video.mp4", 60, 1280, 720)
    tracemalloc.start()
    with open_frames(path, lambda metadata: range(metadata.total_num_frames)) as (frames, metadata):
        assert sum(frame[0, 0, 0] >= 0 for frame in frames) == metadata.total_num_frames == 60
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 1280 * 720 * 3


def test_a_processor_reads_files(videos: Path, tmp_path: Path) -> None:
    ours = Qwen2VLVideoProcessor(size=SMALL)
    path = videos / "video.mp4"
    (tmp_path / "link.mp4").symlink_to(path)
    content = path.read_bytes()
    sources = [str(path), path, tmp_path / "link.mp4", content, f"data:video/mp4;base64,{base64.b64encode(content).decode()}"]
    options = {"do_sample_frames": True, "num_frames": 4, "return_metadata": True, "return_tensors": "np"}
    made = [ours(source, **options) for source in sources]
    assert {tuple(each["video_metadata"][0].frames_indices) for each in made} == {(0, 5, 10, 15)}
    assert {each["video_metadata"][0].fps for each in made} == {25.0}
    for each in made[1:]:
        np.testing.assert_array_equal(each["pixel_values_videos"], made[0]["pixel_values_videos"])
    with av.open(str(path)) as container:
        every = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    np.testing.assert_array_equal(ours(every[[0, 5, 10, 15]])["pixel_values_videos"], made[0]["pixel_values_videos"])


def test_too_many_pixels_are_refused(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen2_vl, "MAX_VIDEO_PIXELS", 20 * 56 * 56 - 1)
    with pytest.raises(
        InputError, match=r"a video of 20 frames of 56 x 56 has more than .*Take some of them: do_sample_frames=True"
    ):
        Qwen2VLVideoProcessor(size=SMALL)(videos / "video.mp4")
    Qwen2VLVideoProcessor(size=SMALL)(videos / "video.mp4", do_sample_frames=True, num_frames=4)


# What is not opened


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A socket that listens; `accept` raises where nobody has connected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


SCHEMES = ("http://", "HTTP://", "https://", "http:", "cache:http://", "async:http://", "httpproxy://", "rtmp://", "tcp://")


def test_addresses_are_refused(server: socket.socket) -> None:
    for scheme in SCHEMES:
        with pytest.raises(InputError, match=r"is a URL\. Download the video first"):
            Qwen2VLVideoProcessor()(f"{scheme}127.0.0.1:{server.getsockname()[1]}/video.mp4")
    with pytest.raises(BlockingIOError):
        server.accept()


def test_a_text_names_a_file_and_nothing_else(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(videos)
    for text in ("file:video.mp4", f"file://{videos}/video.mp4", "concat:video.ts|video.ts", "crypto:video.mp4"):
        with pytest.raises(InputError, match="is a URL"):
            Qwen2VLVideoProcessor()(text)
    os.mkfifo("pipe.mp4")
    for path in ("none.mp4", ".", "pipe.mp4", "/dev/zero", "video%d.mp4", "subfile,,start,0,end,0,,:video.mp4", "a\0b.mp4"):
        with pytest.raises(FileError, match="no such video file"):
            Qwen2VLVideoProcessor()(path)


LISTS = {
    "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n",
    "list.ffconcat": "ffconcat version 1.0\nfile '{}'\n",
    "list.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S">'
    '<Period><AdaptationSet mimeType="video/mp4"><Representation id="0" bandwidth="1"><BaseURL>{}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "list.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=x:{}\n",
}


@pytest.mark.parametrize("ending", ["", ".mp4"])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_other_files_are_not_read(videos: Path, monkeypatch: pytest.MonkeyPatch, name: str, ending: str) -> None:
    """The file that they name is a video, which would be read."""
    monkeypatch.chdir(videos)
    Path(name + ending).write_text(LISTS[name].format("video.ts"))
    with pytest.raises(FormatError, match=r"no video that is read\. Formats that are read: MP4"):
        Qwen2VLVideoProcessor()(name + ending)


# MP4 files: boxes of a size, a name and content


def boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    while len(content) >= 8:
        size = int.from_bytes(content[:4], "big")
        yield content[4:8], content[8:size]
        content = content[size:]


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + name + content


def replaced(content: bytes, changes: dict[bytes, bytes]) -> bytes:
    """An MP4 file whose boxes of these names hold something else."""
    outer = (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"stbl", b"edts", b"moof", b"traf")
    made = b""
    for name, inner in boxes(content):
        made += box(name, changes.get(name, replaced(inner, changes) if name in outer else inner))
    return made


def alias(path: Path) -> bytes:
    """A reference to another file as the Macintosh has them."""
    name, target = path.name.encode(), str(path).encode() + b"\0" * (len(str(path)) % 2)
    record = bytes(10) + b"\3" + b"vol".ljust(27, b"\0") + bytes(12) + bytes([len(name)]) + name.ljust(63, b"\0") + bytes(16)
    record += struct.pack(">HH", 1, 1) + bytes(16) + struct.pack(">HH", 2, len(target)) + target + struct.pack(">hH", -1, 0)
    return box(b"alis", bytes(4) + record)


def test_a_reference_to_another_file_is_not_followed(videos: Path, tmp_path: Path) -> None:
    """The named file would wait for a writer where it was opened."""
    os.mkfifo(tmp_path / "other.mov")
    entry = struct.pack(">II", 0, 1) + alias(tmp_path / "other.mov")
    path = tmp_path / "video.mp4"
    path.write_bytes(replaced((videos / "video.mp4").read_bytes(), {b"dref": entry}))
    with pytest.raises(FormatError):
        Qwen2VLVideoProcessor()(path)


def test_announced_samples_take_no_memory(videos: Path, tmp_path: Path) -> None:
    """Files of some kilobytes that would make a decoder take gigabytes: samples, and parts of them to show again and again."""
    plain = (videos / "video.mp4").read_bytes()
    many = struct.pack(">I", 85_000_000)
    samples = {b"stsz": bytes(4) + struct.pack(">I", 1) + many, b"stss": bytes(8)}
    samples |= {b"stsc": struct.pack(">IIII", 0, 1, 1, 85_000_000) + struct.pack(">I", 1)}
    edits = {b"elst": struct.pack(">II", 0, 20_000) + struct.pack(">III", 800, 0, 0x10000) * 20_000}
    fragments = clip(tmp_path / "fragments.mp4", movflags="frag_keyframe+empty_moov+default_base_moof").read_bytes()
    trun = struct.pack(">I", 1) + struct.pack(">I", 80_000_000) + bytes(4)
    hostile = {"samples": replaced(plain, samples), "edits": replaced(plain, edits)}
    hostile |= {"fragments": replaced(fragments, {b"trun": trun})}
    for name, content in hostile.items():
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"more than (2147483648 bytes of memory|100000 frames)|holds no frames|corrupt"):
            Qwen2VLVideoProcessor(size=SMALL)(path)


# What goes wrong in the decoder


def test_sizes_that_change(tmp_path: Path) -> None:
    large, small = clip(tmp_path / "a.ts", 8, 96, 64), clip(tmp_path / "b.ts", 8, 64, 96)
    path = tmp_path / "both.ts"
    path.write_bytes(large.read_bytes() + small.read_bytes())
    with pytest.raises(InputError, match="frames of different sizes"):
        Qwen2VLVideoProcessor(size=SMALL)(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_decoder_that_ends_is_an_error_of_the_file(videos: Path) -> None:
    ends = {signal.SIGSEGV: r"video.mp4: makes the decoder crash \(signal 11\)", signal.SIGXCPU: "takes more than 600 seconds"}
    for number, message in ends.items():
        with open_video(videos / "video.mp4") as video:
            video.process.send_signal(number)
            video.process.wait()
            with pytest.raises(FormatError, match=message):
                next(video.frames([0]))
    with open_video(videos / "video.mp4") as video:
        pass
    assert video.process.returncode == -signal.SIGKILL


def spoilt(content: bytes, noise: random.Random) -> bytes:
    """A file of which some bytes were changed, lost or doubled."""
    data, how = bytearray(content), noise.randrange(4)
    place = noise.randrange(len(data))
    if how == 0:
        del data[place:]
    elif how == 1:
        data[place:place] = data[noise.randrange(len(data)) :][: noise.randrange(300)]
    elif how == 2:
        data[place : place + 4] = noise.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
    for _ in range(noise.choice((1, 3, 10, 50)) if how == 3 else 3):
        if data:
            data[noise.randrange(min(len(data), 1500))] = noise.randrange(256)
    return bytes(data)


def test_spoilt_files_are_typed_errors(videos: Path) -> None:
    ours = Qwen2VLVideoProcessor(size=SMALL)
    for seed in range(16):
        noise = random.Random(seed)
        content = (videos / f"video.{noise.choice(['mp4', 'webm', 'avi'])}").read_bytes()
        options: dict[str, Any] = {"do_sample_frames": True, "num_frames": 4} if seed % 2 else {}
        try:
            made = ours(spoilt(content, noise), return_tensors="np", **options)
        except TranseptError as error:
            assert "0x" not in str(error)
        else:
            assert np.isfinite(made["pixel_values_videos"]).all()
