"""The media door: what it opens, and what it refuses before it costs anything."""

from __future__ import annotations

import base64
import io
import math
import os
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from PIL import Image, ImageFile, PngImagePlugin
from skimage import data as skimage_data

from tests.pace import PATIENCE, slowness, within
from transept.errors import (
    FileError,
    FormatError,
    InputError,
    InputTypeError,
    MissingExtraError,
    TranseptError,
    UnsupportedError,
)
from transept.preprocess import media
from transept.preprocess.audio import decode
from transept.preprocess.media import load_audio, load_image, open_image

ASTRONAUT = skimage_data.astronaut()
REPOSITORY = Path(__file__).resolve().parents[2]


def encoded(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def recorded(samples: np.ndarray, rate: int = 16000, format: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def tone(seconds: float = 0.5, rate: int = 16000) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def png_header(width: int, height: int) -> bytes:
    """A PNG of any size in a few bytes: one line of zeros, and no more."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    lines = zlib.compress(bytes(1 + 3 * min(width, 1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


# Images


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG"])
def test_image_sources_agree(tmp_path, format):
    image = Image.fromarray(ASTRONAUT[:64, :48])
    data = encoded(image, format, **({"lossless": True} if format == "WEBP" else {}))
    path = tmp_path / "picture"
    path.write_bytes(data)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    url = "data:image/any;base64," + base64.b64encode(data).decode()
    with path.open("rb") as file:
        for source in (path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data), file, url):
            assert np.array_equal(np.asarray(load_image(source)), expected)
    assert np.array_equal(np.asarray(load_image({"bytes": None, "path": str(path)})), expected)
    assert np.array_equal(np.asarray(load_image({"bytes": data, "path": "gone.png"})), expected)
    if format in ("PNG", "WEBP", "BMP", "TIFF"):
        assert np.array_equal(expected, ASTRONAUT[:64, :48])


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_arrays_in_either_order(kind):
    pixels = ASTRONAUT[:20, :30]
    first = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    for array in (pixels, first, pixels / 255.0, (first / 255).astype(np.float32), pixels.astype(np.int64)):
        assert np.array_equal(np.asarray(load_image(kind(array))), pixels)
    gray = pixels[:, :, 0].copy()
    for array in (gray, gray[None], gray[:, :, None]):
        assert np.array_equal(np.asarray(load_image(kind(array))), np.repeat(gray[:, :, None], 3, axis=2))


def test_bfloat16_tensor():
    image = load_image(torch.tensor([[[0.0]], [[0.5]], [[1.0]]], dtype=torch.bfloat16), input_data_format="channels_first")
    assert image.getpixel((0, 0)) == (0, 128, 255)


@pytest.mark.parametrize("shape", [(3, 4, 3), (1, 10, 3), (4, 7, 4), (3, 3, 3)])
def test_ambiguous_array_names_the_argument(shape):
    array = np.zeros(shape, np.uint8)
    with pytest.raises(InputError, match=r"ambiguous.*input_data_format"):
        load_image(array)
    last = load_image(array, input_data_format="channels_last")
    assert last.size == (shape[1], shape[0])
    first = load_image(array, input_data_format="channels_first")
    assert first.size == (shape[2], shape[1])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 5, 7)), "ambiguous"),
        (np.zeros(5), "not one picture"),
        (np.zeros((2, 3, 4, 3)), "not one picture"),
        (np.zeros((0, 5, 3)), "cannot be used"),
        (np.full((4, 4), 300, np.int32), "from 300 to 300"),
        (np.full((4, 4), 60000, np.uint16), "divide 16-bit levels by 257"),
        (np.full((4, 4), -0.5), "from -0.5"),
        (np.full((4, 4), np.nan), "nan"),
        (np.full((4, 4), np.inf), "inf"),
        (np.full((4, 4), 1.5), r"floats in \[0, 1\]"),
        (np.zeros((4, 4), bool), "type bool"),
        (np.zeros((4, 4), complex), "type complex128"),
        (np.full((4, 4), None), "type object"),
    ],
)
def test_arrays_that_are_no_pictures(array, message):
    with pytest.raises(InputError, match=message):
        load_image(array)


def test_input_data_format_is_checked():
    with pytest.raises(InputError, match="input_data_format is 'last'"):
        load_image(ASTRONAUT, input_data_format="last")
    with pytest.raises(InputError, match=r"5 channels|512 channels"):
        load_image(ASTRONAUT, input_data_format="channels_first")


def test_every_mode_becomes_rgb():
    rgb = Image.fromarray(ASTRONAUT[:32, :32])
    gray = rgb.convert("L")
    assert np.array_equal(np.asarray(load_image(gray)), np.asarray(gray.convert("RGB")))
    for mode in ("1", "P", "CMYK", "YCbCr", "HSV"):
        image = rgb.convert(mode)
        assert np.array_equal(np.asarray(load_image(image)), np.asarray(image.convert("RGB")))
    for mode in ("LAB", "RGBX", "RGBa", "La", "PA", "LA", "RGBA"):
        assert load_image(Image.new(mode, (5, 7))).mode == "RGB"


def test_sixteen_bits_are_scaled_and_not_clipped():
    ramp = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    expected = np.rint(ramp / 257).astype(np.uint8)
    for format in ("PNG", "TIFF"):
        image = load_image(encoded(Image.fromarray(ramp), format))
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image)[:, :, 1], expected)
    fractions = Image.fromarray((ramp / 65535).astype(np.float32))
    assert abs(np.asarray(load_image(fractions))[:, :, 0].astype(int) - expected).max() <= 1


def test_thirty_two_bit_integers_are_refused():
    with pytest.raises(UnsupportedError, match="32-bit"):
        load_image(Image.fromarray(np.full((4, 4), 70000, np.int32)))


@pytest.mark.filterwarnings("error")
def test_transparency_is_dropped_or_laid_over_white():
    pixels = np.zeros((6, 5, 4), np.uint8)
    pixels[:, :, 0], pixels[:, :, 3] = 200, 0
    rgba = Image.fromarray(pixels)
    palette = rgba.quantize(4)
    palette.info["transparency"] = bytes([0, 255, 255, 255])
    for image in (rgba, encoded(rgba, "PNG"), pixels, palette):
        assert load_image(image).getpixel((0, 0))[0] in (0, 200)
        assert load_image(image, transparency="white").getpixel((0, 0)) == (255, 255, 255)
    half = Image.new("LA", (1, 1), (100, 128))
    assert load_image(half).getpixel((0, 0)) == (100, 100, 100)
    assert load_image(half, transparency="white").getpixel((0, 0))[0] == pytest.approx(177, abs=1)
    with pytest.raises(InputError, match="transparency is 'black'"):
        load_image(rgba, transparency="black")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(orientation, format):
    stored = Image.fromarray(ASTRONAUT[:24, :40])
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {"quality": 95} if format == "JPEG" else {}
    data = encoded(stored, format, exif=exif, **options)
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    plain = np.asarray(Image.open(io.BytesIO(encoded(stored, format, **options))).convert("RGB"))
    assert np.array_equal(np.asarray(load_image(data)), turns[orientation](plain))
    assert np.array_equal(np.asarray(load_image(load_image(data))), turns[orientation](plain))
    assert np.array_equal(np.asarray(load_image(Image.open(io.BytesIO(data)))), turns[orientation](plain))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_loses_no_picture():
    data = encoded(Image.new("RGB", (4, 4), "red"), "JPEG", exif=b"Exif\0\0" + b"MM\0*" + b"\xff" * 20)
    assert load_image(data).size == (4, 4)


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
def test_cve_2026_22773_degenerate_sizes(size):
    for format in ("PNG", "JPEG", "BMP"):
        assert load_image(encoded(Image.new("RGB", size, "red"), format)).size == size


def test_decompression_bomb_png():
    for width, height in ((13_000, 13_000), (30_000, 30_000), (2**31 - 1, 2**31 - 1)):
        with within(1), pytest.raises(FormatError, match=r"(the image|bomb\.png).*has") as caught:
            load_image(png_header(width, height))
        assert "allowed" in str(caught.value)


def test_the_pixel_cap_can_be_moved():
    data = encoded(Image.new("RGB", (200, 100)), "PNG")
    with pytest.raises(FormatError, match="200 x 100 pixels, more than the 19999 allowed"):
        load_image(data, max_pixels=19_999)
    with pytest.raises(FormatError, match="more than the 19999 allowed"):
        load_image(Image.open(io.BytesIO(data)), max_pixels=19_999)
    assert load_image(data, max_pixels=20_000).size == (200, 100)
    assert load_image(Image.new("RGB", (200, 100)), max_pixels=1).size == (200, 100)  # is in memory already
    assert media.MAX_PIXELS == 64_000_000


def test_text_chunk_bomb_png():
    info = PngImagePlugin.PngInfo()
    info.add_text("bomb", "a" * (8 * 2**20), zip=True)
    data = encoded(Image.new("RGB", (4, 4)), "PNG", pnginfo=info)
    assert len(data) < 20_000
    with pytest.raises(FormatError, match="corrupt"):
        load_image(data)


def test_cve_2026_5497_many_frames():
    frames = [Image.new("L", (16, 16), index % 256) for index in range(500)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with within(0.2):
        image = load_image(data)
    assert image.size == (16, 16)
    assert np.asarray(image).max() == 0  # the first frame


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.01])
def test_truncated_image(tmp_path, format, share):
    data = encoded(Image.fromarray(ASTRONAUT), format)
    path = tmp_path / f"cut.{format.lower()}"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match=r"truncated|corrupt") as caught:
        load_image(path)
    assert str(path) in str(caught.value)
    with pytest.raises(FormatError, match="the image is"):
        load_image(path.read_bytes())


def test_a_truncated_photograph_says_so():
    data = encoded(Image.fromarray(ASTRONAUT), "JPEG")
    with pytest.raises(FormatError, match="the image is truncated or corrupt"):
        load_image(data[: len(data) // 2])
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_cve_2026_22778_no_addresses_in_messages():
    for data in (b"", b"not an image", encoded(Image.fromarray(ASTRONAUT), "PNG")[:1000]):
        with pytest.raises(FormatError) as caught:
            load_image(data)
        assert "0x" not in str(caught.value)
        with pytest.raises(TranseptError) as caught:
            load_audio(b"OggS" + data, 16000)
        assert "0x" not in str(caught.value)


def test_cve_2026_40192_rare_formats_are_not_tried(tmp_path):
    image = Image.fromarray(ASTRONAUT[:16, :16])
    for format in ("PPM", "ICO", "TGA", "PCX", "EPS", "PDF"):
        with pytest.raises(FormatError, match=r"format that is not read.*PNG, JPEG, WEBP, GIF, BMP, TIFF"):
            load_image(encoded(image, format))


def test_urls_are_not_fetched(tmp_path):
    for load in (load_image, lambda source: load_audio(source, 16000)):
        for url in (
            "http://localhost/x",
            "https://example.org/x.png",
            "HTTP://a/x",
            "ftp://a/x",
            "file:x.png",
            "cache:http://a/x",
        ):
            with pytest.raises(InputError, match=r"is a URL.*Download"):
                load(url)
        for url in ("data:image/png,abc", "data:image/png;base64", "data:;base64,***"):
            with pytest.raises(InputError, match="data: URL"):
                load(url)


def test_paths_that_are_no_files(tmp_path):
    for load in (load_image, lambda source: load_audio(source, 16000)):
        for path in (tmp_path / "gone", tmp_path, "/dev/zero", "a\0b", "x" * 100_000):
            with pytest.raises(FileError, match="no such") as caught:
                load(path)
            assert len(str(caught.value)) < 400


def test_pipes_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError):
        load_image(tmp_path / "pipe")


@pytest.mark.parametrize("source", [None, 5, 3.5, object(), {"a": 1}, {}, {"path": None}])
def test_things_that_are_no_media(source):
    with pytest.raises(InputTypeError, match=r"is not an image"):
        load_image(source)
    with pytest.raises(InputTypeError, match=r"is not an audio"):
        load_audio(source, 16000)


def test_files_open_as_text_or_too_large(tmp_path, monkeypatch):
    path = tmp_path / "picture.bmp"
    path.write_bytes(encoded(Image.new("RGB", (4, 4)), "BMP"))
    with path.open() as file, pytest.raises(InputTypeError, match="not open for bytes"):
        load_image(file)
    monkeypatch.setattr(media, "MAX_MEDIA_BYTES", 10)
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(FormatError, match="larger than the 10 bytes"):
            load_image(source)
    closed = path.open("rb")
    closed.close()
    with pytest.raises(FileError, match="closed"):
        load_image(closed)


def test_open_image_keeps_the_mode():
    assert open_image(encoded(Image.new("LA", (2, 3)), "PNG")).mode == "LA"
    assert open_image(np.zeros((3, 2), np.uint8)).mode == "L"


# Sound


@pytest.mark.parametrize(
    ("format", "subtype", "error"),
    [("WAV", "PCM_16", 1e-4), ("WAV", "FLOAT", 0), ("WAV", "PCM_U8", 1e-2), ("WAV", "ULAW", 2e-2), ("FLAC", "PCM_16", 1e-4),
     ("OGG", "VORBIS", 0.1), ("MP3", "MPEG_LAYER_III", 0.1)],
)  # fmt: skip
def test_audio_sources_agree(tmp_path, format, subtype, error):
    samples = tone()
    data = recorded(samples, 16000, format, subtype)
    path = tmp_path / "sound"
    path.write_bytes(data)
    expected = load_audio(path, 16000)
    assert expected.dtype == np.float32
    assert expected.shape == samples.shape
    assert abs(expected - samples).max() <= error
    url = "data:audio/any;base64," + base64.b64encode(data).decode()
    with path.open("rb") as file:
        for source in (str(path), data, bytearray(data), io.BytesIO(data), file, url):
            assert np.array_equal(load_audio(source, 16000), expected)
    assert np.array_equal(load_audio({"path": str(path)}, 16000), expected)
    assert np.array_equal(load_audio({"bytes": data, "path": "gone"}, 16000), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.uint8])
def test_arrays_of_samples(dtype):
    samples = tone(0.05)
    kind = np.dtype(dtype)
    top = 1 if kind.kind == "f" else 2.0 ** (8 * kind.itemsize - 1)
    array = (samples * top + (128 if kind == np.uint8 else 0)).astype(kind)
    step = 1e-3 if kind == np.float16 else 2 / top if kind.kind != "f" else 1e-7
    for source in ((array, 16000), (list(array), 16000) if kind.kind == "f" else (array, 16000)):
        assert abs(load_audio(source, 16000) - samples).max() <= step
    for key in ("array", "raw"):
        assert abs(load_audio({key: array, "sampling_rate": 16000, "path": None}, 16000) - samples).max() <= step


def test_channels_are_averaged():
    left, right = tone(), -0.5 * tone()
    mono = (left + right) / 2
    for array in (np.stack([left, right]), np.stack([left, right], axis=1)):
        assert np.array_equal(load_audio((array, 16000), 16000), mono)
        assert np.array_equal(load_audio((torch.from_numpy(array), 16000), 16000), mono)
    stereo = recorded(np.stack([left, right], axis=1), subtype="FLOAT")
    assert np.array_equal(load_audio(stereo, 16000), mono)
    five = np.stack([tone() * k for k in range(5)], axis=1)
    # five channels cannot be averaged exactly; single precision leaves some 1e-7
    assert np.allclose(load_audio(recorded(five, subtype="FLOAT"), 16000), five.mean(axis=1), atol=5e-7)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_resampling_is_soxr_at_high_quality(rate):
    samples = tone(0.3, rate)
    result = load_audio((samples, rate), 16000)
    assert result.shape == (math.ceil(samples.size * 16000 / rate),)
    expected = soxr.resample(samples, rate, 16000, quality="HQ")[: result.size]
    assert np.array_equal(result[: expected.size], expected)
    inner = slice(1000, 3800)  # away from the ends, a tone stays the same tone
    assert abs(result[inner] - tone(0.3)[inner]).max() < 1e-3
    assert np.array_equal(load_audio(recorded(samples, rate, subtype="FLOAT"), 16000), result)


@pytest.mark.parametrize("shape", [(decode.MAX_SAMPLES + 1,), (2, decode.MAX_SAMPLES // 2 + 1)])
def test_arrays_of_more_samples_than_a_file_may_have(shape):
    """They are refused before anything is copied: these hold one number."""
    array = np.broadcast_to(np.int16(0), shape)
    for source in ((array, 16000), {"array": array, "sampling_rate": 16000}):
        with pytest.raises(
            InputError, match=rf"holds {array.size} samples, more than the 350000000 allowed.* Cut it into pieces."
        ):
            load_audio(source, 16000)


def test_a_rate_is_never_guessed():
    for source in (tone(), torch.from_numpy(tone()), [0.1, 0.2], {"array": tone()}, {"raw": [0.1]}):
        with pytest.raises(InputError, match="does not tell its sampling rate"):
            load_audio(source, 16000)


@pytest.mark.parametrize("rate", [0, -16000, 999, 10**7, 16000.5, "16k", True, None])
def test_wrong_rates(rate):
    with pytest.raises(InputError, match=f"sampling rate must be .*{rate}"):
        load_audio((tone(), rate), 16000)
    with pytest.raises(InputError, match="sampling rate must be"):
        load_audio((tone(), 16000), rate)


def test_a_file_with_an_absurd_rate():
    data = bytearray(recorded(tone()))
    for rate in (1, 2**31 - 1):
        data[24:28] = rate.to_bytes(4, "little")
        with pytest.raises(FormatError, match=r"no recording has|corrupt"):
            load_audio(bytes(data), 16000)


@pytest.mark.parametrize("source", [(np.zeros(0), 16000), ([], 16000), (np.zeros((2, 0)), 16000), recorded(np.zeros(0))])
def test_empty_audio(source):
    with pytest.raises(InputError, match="audio is empty"):
        load_audio(source, 16000)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_no_numbers(value):
    samples = tone().astype(np.float64)
    samples[123] = value
    with pytest.raises(InputError, match=r"sample 123 of the audio is (nan|inf|-inf)"):
        load_audio((samples, 16000), 16000)
    if abs(value) != 1e300:
        with pytest.raises(InputError, match="sample 123"):
            load_audio(recorded(samples, subtype="FLOAT"), 16000)


def test_infinities_of_both_signs_and_very_large_samples():
    with pytest.raises(InputError, match="sample 1 "):
        load_audio((np.array([0, np.inf, -np.inf]), 16000), 16000)
    large = np.full(1000, 3e38, np.float32)  # their sum is too large for single precision; they are numbers
    assert np.array_equal(load_audio((large, 16000), 16000), large)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5, np.int64), "type int64 does not tell its full scale"),
        (np.zeros(5, bool), "type bool"),
        (np.zeros(5, complex), "type complex128"),
        (["a", "b"], "does not tell"),
        ([[0.1], [0.2, 0.3]], "unequal rows"),
        (np.zeros((2, 3, 4)), "not one sound"),
        (np.zeros((100, 200)), "not one sound"),
        (np.zeros((5, 5)), "not one sound"),
    ],
)
def test_arrays_that_are_no_sound(array, message):
    with pytest.raises(InputError, match=message):
        load_audio((array, 16000), 16000)


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_truncated_audio(share):
    for format, subtype in (("FLAC", "PCM_16"), ("OGG", "VORBIS")):
        data = recorded(tone(5), 16000, format, subtype)
        with pytest.raises((FormatError, InputError), match=r"truncated|corrupt|empty"):
            load_audio(data[: int(len(data) * share)], 16000)


WAVES = [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_16"), ("RF64", "PCM_16")]


@pytest.mark.parametrize(("format", "subtype", "order"), [*((*wave, "LITTLE") for wave in WAVES), ("WAV", "PCM_16", "BIG")])
def test_a_wave_file_that_was_cut_short(format, subtype, order, tmp_path):
    file = io.BytesIO()
    soundfile.write(file, tone(1.001), 16000, format=format, subtype=subtype, endian=order)
    data = file.getvalue()
    whole = load_audio(data, 16000)
    (tmp_path / "cut.wav").write_bytes(data[: len(data) // 2])
    with pytest.raises(
        FormatError, match=r"the audio is truncated: \d+ bytes of samples that its header announces are missing"
    ):
        load_audio(data[: len(data) // 2], 16000)
    with pytest.raises(FormatError, match=r"cut\.wav: is truncated: \d+ bytes"):
        load_audio(tmp_path / "cut.wav", 16000)
    assert np.array_equal(load_audio(data + b"rubbish behind it", 16000), whole)


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, "header"])
def test_a_wave_file_that_was_streamed_tells_no_size(size):
    data = recorded(tone())
    place = data.index(b"data") + 4
    told = int.from_bytes(data[place : place + 4], "little") + 44 if size == "header" else size
    streamed = bytearray(data)
    streamed[place : place + 4] = told.to_bytes(4, "little")
    if size != "header":
        streamed[4:8] = (size or 8).to_bytes(4, "little")
    assert np.array_equal(load_audio(streamed, 16000), load_audio(data, 16000))


def test_chunks_of_a_wave_file_end_somewhere():
    data = recorded(tone())
    many = b"RIFF\0\0\0\0WAVE" + bytes(8) * 2_000_000
    with within(1):
        assert decode.missing_bytes(many) == 0
    for content in (b"", b"RIFF", data[:12], data[:20], data[:40], b"RF64" + bytes(4) + b"WAVEds64", many[:30]):
        assert decode.missing_bytes(content) == 0
    odd = data[:36] + b"note" + (3).to_bytes(4, "little") + b"abc\0" + data[36:-100]
    assert decode.missing_bytes(odd) == 100


def test_only_the_listed_formats_reach_the_decoder(monkeypatch):
    data = recorded(tone(), format="AIFF")
    monkeypatch.setattr(soundfile, "SoundFile", pytest.fail)
    for content in (data, b"", b"\0" * 100, b"RIF", b"\xff\x00", b"MZ"):
        with pytest.raises(FormatError, match=r"format that is not read.*WAV, FLAC, MP3, OGG"):
            load_audio(content, 16000)


def test_cve_2026_54233_long_audio_in_few_bytes():
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 16000, 1, format="FLAC", subtype="PCM_16") as sound:
        for _ in range(61):
            sound.write(np.zeros(60 * 16000, np.int16))
    data = file.getvalue()
    assert len(data) < 200_000
    with within(0.5), pytest.raises(FormatError, match="the audio lasts longer than the 3600 seconds allowed"):
        load_audio(data, 16000)


def test_sound_is_counted_whatever_the_header_declares(monkeypatch):
    data = recorded(tone(20), subtype="FLOAT")
    with pytest.raises(FormatError, match="longer than the 10 seconds"):
        load_audio(data, 16000, max_seconds=10)
    monkeypatch.setattr(decode, "_BLOCK", 16000)
    monkeypatch.setattr(soundfile.SoundFile, "frames", property(lambda self: 2**63 - 1))
    read, calls = soundfile.SoundFile.read, []
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda self, *a, **k: calls.append(1) or read(self, *a, **k))
    with pytest.raises(FormatError, match="longer than the 10 seconds"):
        load_audio(data, 16000, max_seconds=10)
    assert len(calls) == 11  # and nothing of the rest was decoded
    assert load_audio(data, 16000, max_seconds=20).size == 20 * 16000


def flac(seconds: int, rate: int, channels: int) -> bytes:
    """Silence, in a few bytes."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, channels, format="FLAC", subtype="PCM_16") as sound:
        for _ in range(seconds):
            sound.write(np.zeros((rate, channels), np.int16))
    return file.getvalue()


def undeclared(data: bytes) -> bytes:
    """A FLAC file whose header leaves its length open, as streams do (the last 36 bits of 8 from byte 18 on)."""
    return data[:21] + bytes([data[21] & 0xF0, 0, 0, 0, 0]) + data[26:]


@pytest.mark.parametrize("declared", [True, False])
def test_many_samples_in_few_bytes_are_refused_soon(declared):
    """Within the seconds allowed, but decoded to gigabytes."""
    data = flac(60, 655_350, 8)
    assert len(data) < 500_000
    began = time.process_time()
    with pytest.raises(FormatError, match=r"holds more than the \d+ samples allowed for a file of \d+ bytes"):
        load_audio(data if declared else undeclared(data), 16000)
    assert time.process_time() - began < (0.1 if declared else 10) * slowness()


def tiled(width: int, height: int, tile: int) -> bytes:
    """A TIFF of one tile of black, deflated."""
    content = zlib.compress(bytes(min(tile * tile, 10**8)))
    values = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 0, 325: len(content)}
    head = b"II*\0" + (8).to_bytes(4, "little") + len(values).to_bytes(2, "little")
    values[324] = len(head) + 12 * len(values) + 4
    for tag, value in values.items():
        head += tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little")
    return head + bytes(4) + content


def test_tiles_far_larger_than_their_picture_are_refused():
    assert load_image(tiled(16, 16, 256)).size == (16, 16)
    began = time.process_time()
    with pytest.raises(FormatError, match="16 x 16 pixels, but tiles of 900000000"):
        load_image(tiled(16, 16, 30_000))
    assert time.process_time() - began < 2 * slowness()


@pytest.mark.parametrize("between", [b"", b"\xff\xff", b"\xff\xd0", b"\xff\xfe\0\x02"])
def test_thousands_of_scans_over_one_picture_are_refused(between):
    file = io.BytesIO()
    Image.new("RGB", (1000, 1000)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    start = data.rfind(b"\xff\xda")
    began = time.process_time()
    with pytest.raises(FormatError, match=r"\d{4} scans over 1000 x 1000 pixels"):
        load_image(data[:start] + (data[start:-2] + between) * 5000 + data[-2:])
    assert time.process_time() - began < 1 * slowness()
    assert load_image(data[:start] + (data[start:-2] + between) * 20 + data[-2:]).size == (1000, 1000)


def test_bytes_that_look_like_scans_are_none():
    """In a block of a color profile, or in what cameras write behind a picture."""
    file = io.BytesIO()
    Image.new("RGB", (6000, 6000)).save(file, "JPEG", progressive=True, icc_profile=b"\xff\xda" * 500)
    assert load_image(file.getvalue() + b"\xff\xda\0\x02" * 5000).size == (6000, 6000)


# What is imported, and when


def test_imports_are_lazy():
    code = (
        "import sys; import transept.preprocess.media, transept.preprocess.processor, transept.preprocess.image.vit;"
        "bad = {'torch', 'PIL', 'soundfile', 'soxr', 'tokenizers'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("missing", ["PIL", "soundfile", "soxr"])
def test_missing_extras_say_what_to_install(monkeypatch, missing):
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    extra, use = {
        "PIL": ("vision", lambda: load_image(ASTRONAUT)),
        "soundfile": ("audio", lambda: load_audio(b"RIFF", 16000)),
        "soxr": ("audio", lambda: load_audio((tone(), 8000), 16000)),
    }[missing]
    with pytest.raises(MissingExtraError, match=rf'pip install "transept\[{extra}\]"'):
        use()


def test_many_threads_may_open_at_once():
    data = encoded(Image.fromarray(ASTRONAUT), "JPEG")
    sound = recorded(tone(), format="OGG")
    found = []

    def run():
        found.extend((np.asarray(load_image(data)).sum(), load_audio(sound, 8000).sum()) for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len(set(found)) == 1
