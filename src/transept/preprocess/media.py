"""The door for pictures, sounds and videos: every such file, byte string, array or tensor comes in here.

What is opened is hostile until it is checked: few formats are tried, sizes are read off the header before anything is decoded,
of an animation only the first frame is, and sound is counted while it is decoded. Nothing is fetched from the network. Files of
videos are decoded by :mod:`transept.preprocess.video_file`.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import FileError, FormatError, InputError, InputTypeError, UnsupportedError
from transept.preprocess.audio.decode import MAX_CHANNELS, MAX_SAMPLES, MAX_SECONDS, check_finite, check_rate, decode, resampled
from transept.preprocess.features import as_numpy, needed
from transept.preprocess.image.arrays import MAX_PIXELS, image_from_array
from transept.storage.files import read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_MEDIA_BYTES = 512 * 2**20
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
HEIC = (".heic", ".heif")  # what telephones write, with a codec that Pillow lacks
_ORIENTATION = 0x0112  # tag of Exif 2.32
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # an orientation -> the number of Pillow's transposition that undoes it
# A tiled picture may be decoded into so many pixels, or so many times its own.
_FREE_PIXELS, _TILED = 2**24, 4
# A JPEG may have so many scans over all its pixels, or scans that visit so many pixels in all.
_FREE_SCANS, _SCANNED = 16, 2**29
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF 6.0
_SCAN, _END, _MOST_SEGMENTS = b"\xff\xda", b"\xff\xd9", 2**20
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # of a segment: no stuffed byte, restart or fill byte
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of a URL (RFC 3986); one letter alone is a drive
NUMBER = int | float | np.number
_UNREAD = "is corrupt, or of a format that is not read."


def load_image(
    source: Any, *, input_data_format: str | None = None, transparency: str = "drop", max_pixels: int = MAX_PIXELS
) -> Image:
    """Open a picture as an upright 8-bit RGB image.

    Args:
        source: path, bytes, binary file object, ``data:`` URL, PIL image, or an array or tensor of shape (H, W),
            (H, W, C) or (C, H, W) with 1, 3 or 4 channels, of integers in [0, 255] or floats in [0, 1].
        input_data_format: ``"channels_first"`` or ``"channels_last"`` for arrays; inferred when it is clear.
        transparency: ``"drop"`` ignores an alpha channel, ``"white"`` lays the picture over white.
        max_pixels: larger pictures are refused before they are decoded.

    Raises:
        FileError: the file is not there or cannot be read.
        FormatError: not one of ``IMAGE_FORMATS``, truncated or too large.
        InputError: a URL, or an array whose shape, type or values make no picture.
    """
    return to_rgb(open_image(source, input_data_format=input_data_format, max_pixels=max_pixels), transparency)


def open_image(source: Any, *, input_data_format: str | None = None, max_pixels: int = MAX_PIXELS) -> Image:
    """Like :func:`load_image`, in the mode that the picture has (``L``, ``LA``, ``RGBA``, ``P``, ``CMYK`` ...)."""
    pillow = needed("PIL.Image", "pillow", "vision", "Reading images")
    if isinstance(source, pillow.Image):
        return _decoded(source, b"", None, max_pixels)
    if (array := as_numpy(source)) is not None:
        return image_from_array(array, input_data_format)
    data, path = _content(source, "image")
    try:
        image = pillow.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise format_error("image", f"has more than the {max_pixels} pixels allowed.", path) from error
    except Exception as error:  # Pillow's readers raise many kinds, with texts that can hold addresses of memory
        phone = "Save it as JPEG, since HEIC is not read. " if str(path or "").lower().endswith(HEIC) else ""
        raise format_error("image", _UNREAD, path, f"{phone}Formats that are read: {', '.join(IMAGE_FORMATS)}.") from error
    return _decoded(image, data, path, max_pixels)


def to_rgb(image: Image, transparency: str = "drop") -> Image:
    """An image of any mode as 8-bit RGB; 16-bit levels are scaled, not clipped."""
    if transparency not in ("drop", "white"):
        raise InputError(f"transparency is {transparency!r}.", hint='Pass "drop" or "white".')
    if image.mode.startswith("I;16"):
        image = image_from_array(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        image = image_from_array(np.asarray(image))
    elif image.mode == "I":
        raise UnsupportedError("an image of 32-bit integers does not tell its full scale.", hint="Save it with 8 or 16 bits.")
    if image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        if transparency == "white":
            pillow = needed("PIL.Image", "pillow", "vision", "Reading images")
            image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _decoded(image: Image, data: bytes, path: str | None, max_pixels: int) -> Image:
    """Check an opened image's size and what decoding it takes, decode its first frame and turn it upright."""
    pixels, shape = image.width * image.height, f"has {image.width} x {image.height} pixels"
    if pixels < 1:
        raise format_error("image", f"{shape}.", path)
    if getattr(image, "tile", None):  # Pillow's list of what a file has still to be decoded into
        if pixels > max_pixels:
            hint = "Scale it down, or pass what load_image(source, max_pixels=...) of transept.preprocess.media reads."
            raise format_error("image", f"{shape}, more than the {max_pixels} allowed.", path, hint)
        if (tiled := _tiled_pixels(image)) > max(_FREE_PIXELS, _TILED * pixels):
            raise format_error("image", f"{shape}, but tiles of {tiled}.", path, "Save it anew.")
        if (scans := _scans(data)) > _FREE_SCANS and scans * pixels > _SCANNED:
            raise format_error("image", shape.replace("has", f"has {scans} scans over"), path, "Save it anew.")
    try:
        image.load()
    except Exception as error:  # see open_image
        raise format_error("image", "is truncated or corrupt: it cannot be decoded to its end.", path) from error
    try:
        operation = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # an unreadable Exif block tells no orientation, and the pixels are fine
        return image
    if operation is None:
        return image
    upright = image.transpose(operation)  # type: ignore[arg-type]
    upright.info.pop("exif", None)  # which Pillow copies: opened again, the picture would be turned again
    return upright


def _tiled_pixels(image: Image) -> int:
    """Pixels that the tiles of a TIFF hold, which may reach far beyond the picture."""
    tags, pixels = getattr(image, "tag_v2", {}), 1
    for size, tag in zip(image.size, (_TILE_WIDTH, _TILE_LENGTH), strict=True):
        side = tags.get(tag)
        pixels *= -(-size // side) * side if isinstance(side, int) and side > 0 else size
    return pixels


def _scans(data: bytes) -> int:
    """How often a JPEG's decoder visits its pixels (ITU-T T.81, annex B). A handful of scans may be told as 0."""
    if not data.startswith(b"\xff\xd8") or data.count(_SCAN) <= _FREE_SCANS:
        return 0
    place, found = 2, 0
    for _ in range(_MOST_SEGMENTS):
        marker = _MARKER.search(data, place)
        if marker is None or marker[0] == _END:
            return found
        found += marker[0] == _SCAN
        place = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return _MOST_SEGMENTS


def load_audio(source: Any, sampling_rate: int, *, max_seconds: float = MAX_SECONDS) -> NDArray[np.float32]:
    """Open a sound as one channel of float32 samples (T,) at one rate; an array that is already like this is not copied.

    Args:
        source: path, bytes, binary file object, ``data:`` URL, ``(array, rate)``, or a mapping with ``array`` or
            ``raw`` and ``sampling_rate``, or with ``bytes`` or ``path``. Arrays and tensors have the shape (T,), (C, T)
            or (T, C); floats are taken as they are, uint8, int8, int16 and int32 are scaled to [-1, 1].
        sampling_rate: the rate wanted, in Hz; a sound of another rate is resampled (band-limited, soxr's HQ).
        max_seconds: longer files are refused while they are decoded; arrays, which are in memory already, are not.

    Raises:
        FileError: the file is not there or cannot be read.
        FormatError: not one of ``AUDIO_FORMATS``, corrupt, too long, or of more samples than a file of its size can hold.
        InputError: a URL, an array without a rate, a rate that cannot be, no samples, NaN or infinity.
    """
    check_rate(sampling_rate)
    samples, rate = _samples(source, max_seconds)
    if not samples.size:
        raise InputError("the audio is empty: it holds no samples.")
    check_finite(samples)
    return samples if rate == sampling_rate else resampled(samples, rate, sampling_rate)


def is_pair(value: Any) -> bool:
    """Whether this is ``(samples, rate)``."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], NUMBER) and not isinstance(value[0], NUMBER)


def _samples(source: Any, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    """A source's samples (T,) and their rate."""
    if isinstance(source, Mapping):  # as data sets give them
        array = next((source[name] for name in ("array", "raw") if source.get(name) is not None), None)
        if array is not None:
            source = (array, source["sampling_rate"]) if "sampling_rate" in source else np.asarray(array)
    if isinstance(source, tuple) and len(source) == 2 and not isinstance(source[0], NUMBER):
        check_rate(source[1])
        return _mono(source[0]), int(source[1])
    if as_numpy(source) is not None or isinstance(source, list | tuple):
        hint = 'Pass sampling_rate=, (array, rate) or {"array": array, "sampling_rate": rate}.'
        raise InputError("an array of samples does not tell its sampling rate.", hint=hint)
    return decode(*_content(source, "audio"), max_seconds)


def _mono(value: Any) -> NDArray[np.float32]:
    """Samples of any accepted type and shape as float32 (T,), channels averaged, integers divided by their full scale."""
    try:
        array = np.asarray(value) if (found := as_numpy(value)) is None else found
    except ValueError as error:
        raise InputTypeError("the audio is a list of unequal rows.", hint="Pass one sound at a time.") from error
    if array.size > MAX_SAMPLES:
        raise InputError(
            f"the audio holds {array.size} samples, more than the {MAX_SAMPLES} allowed.", hint="Cut it into pieces."
        )
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported with its place
            samples = array.astype(np.float32, copy=False)
    elif array.dtype in (np.uint8, np.int8, np.int16, np.int32):
        middle = 128 if array.dtype == np.uint8 else 0
        samples = (array.astype(np.float32) - middle) / np.float32(2 ** (8 * array.itemsize - 1))
    else:
        hint = "Pass floats in [-1, 1], or int16 or int32."
        raise InputTypeError(f"audio of type {array.dtype} does not tell its full scale.", hint=hint)
    if samples.ndim == 1 or samples.size == 0:
        return samples.reshape(-1)
    if samples.ndim != 2 or min(samples.shape) > MAX_CHANNELS or samples.shape[0] == samples.shape[1]:
        hint = "Pass (T,), (channels, T) or (T, channels)."
        raise InputError(f"an array of shape {samples.shape} is not one sound.", hint=hint)
    mono: NDArray[np.float32] = samples.mean(axis=int(samples.shape[1] < samples.shape[0]), dtype=np.float32)
    return mono


def _content(source: Any, noun: str) -> tuple[bytes, str | None]:
    """A source's bytes, and the path of the file that holds them, for messages."""
    held = bytes_or_path(source, noun)
    return (held, None) if isinstance(held, bytes) else (read_bytes(held, max_bytes=MAX_MEDIA_BYTES), held)


def bytes_or_path(source: Any, noun: str) -> bytes | str:
    """The bytes of a source, or the path of the file that holds them (``InputError``: a URL; ``FileError``: no such file)."""
    if isinstance(source, Mapping):
        source = next((source[key] for key in ("bytes", "path") if source.get(key) is not None), source)
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source.startswith("data:"):
        return _data_url(source)
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if os.path.isfile(path):
            return path
        if _SCHEME.match(path):
            raise InputError(f"{path[:80]!r} is a URL.", hint=f"Download the {noun} first and pass its path or its bytes.")
        raise FileError(f"there is no such {noun} file.", path=path[:200])
    if not callable(read := getattr(source, "read", None)):
        held = f" with the keys {sorted(map(str, source))}" if isinstance(source, Mapping) else ""
        hint = "Pass a path, bytes, a binary file object or an array."
        raise InputTypeError(f"{type(source).__name__}{held} is not an {noun}.", hint=hint)
    try:
        content = None if isinstance(source, io.TextIOBase) else read(MAX_MEDIA_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileError(f"the {noun} file object cannot be read ({error}).") from error
    if not isinstance(content, bytes):
        raise InputTypeError(f"the {noun} file is not open for bytes.", hint='Open it with mode "rb".')
    if len(content) > MAX_MEDIA_BYTES:
        raise format_error(noun, f"is larger than the {MAX_MEDIA_BYTES} bytes allowed for a media file.", None)
    return content


def _data_url(url: str) -> bytes:
    """The content of a base64 ``data:`` URL (RFC 2397)."""
    head, comma, text = url.partition(",")
    if not comma or not head.endswith(";base64"):
        hint = "It begins with data:<type>;base64, and a comma."
        raise InputError(f"{url[:40]!r} is not a base64 data: URL.", hint=hint)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InputError("a data: URL holds broken base64.") from error


def format_error(noun: str, fault: str, path: str | None, hint: str | None = None) -> FormatError:
    return FormatError(fault if path is not None else f"the {noun} {fault}", path=path, hint=hint)
