"""Sound files, decoded block by block, so that what they hold is counted and memory need not grow with their length."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from transept.errors import FormatError, InputError, InputTypeError
from transept.preprocess.features import needed
from transept.storage.files import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SECONDS = 3600.0  # of sound decoded by default, 230 MB at 16 kHz
MAX_SAMPLES = 350_000_000  # of a sound, decoded or given, over all channels: one hour of stereo at 48 kHz
MIN_RATE, MAX_RATE = 1_000, 768_000
MAX_CHANNELS = 64
AUDIO_FORMATS = ("WAV", "FLAC", "MP3", "OGG")
_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"ID3")
_BLOCK = 2**18  # values decoded at a time
# A file may hold so many samples, and so many more a byte; codecs need more bytes for whatever is no silence.
_FREE_SAMPLES, _SAMPLES_PER_BYTE = 2**26, 256
MAX_CHUNKS = 1000  # that are looked at; the samples come after a handful of others
# What writers put in that cannot go back to the header: nothing, or the largest number that they dare.
_LEAST_PLACEHOLDER = 0x7FFF_F000
_HEADER = 44  # which some writers count as samples
_UNKNOWN = 2**62  # libsndfile declares its largest number of frames where the file tells none


def check_rate(rate: Any) -> None:
    """Raise ``InputError`` unless ``rate`` is a whole number of samples per second that a recording can have."""
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise InputTypeError(f"a sampling rate must be a whole number in Hz, but is {rate!r:.80}.")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InputError(f"a sampling rate must be between {MIN_RATE} and {MAX_RATE} Hz, but is {rate}.")


def check_finite(samples: NDArray[np.float32], first: int = 0) -> None:
    """Raise ``InputError`` where one of the samples is no number; ``first`` is the place of the first one in the sound."""
    with np.errstate(all="ignore"):
        total = samples.sum()
    if not math.isfinite(total) and (bad := ~np.isfinite(samples)).any():
        place = int(bad.argmax())
        raise InputError(f"sample {first + place} of the audio is {samples[place]}.", hint="Samples must be finite numbers.")


def decode(content: bytes, path: str | None, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    """The samples (T,) of a file's content, channels averaged, and their rate; ``path`` is for messages."""
    _check_head(content, path)
    with _opened(io.BytesIO(content), len(content), path, max_seconds, MAX_SAMPLES) as (rate, blocks):
        held = [*blocks] or [np.zeros(0, np.float32)]
    return held[0] if len(held) == 1 else np.concatenate(held), rate


def audio_blocks(
    path: str | os.PathLike[str], sampling_rate: int, *, max_seconds: float = MAX_SECONDS
) -> Iterator[NDArray[np.float32]]:
    """The samples of a file as :func:`transept.preprocess.media.load_audio` gives them, in blocks; see there for errors."""
    check_rate(sampling_rate)
    count = given = 0
    with open_regular(path) as file:
        content, name = _FileBytes(file), os.fspath(path)
        _check_head(content, name)
        with _opened(file, len(content), name, max_seconds, math.inf) as (rate, blocks):
            resampler = None
            if rate != sampling_rate:  # by the same filter as a sound in one piece, bit for bit
                resampler = _soxr(rate, sampling_rate).ResampleStream(rate, sampling_rate, 1, dtype="float32", quality="HQ")
            for block in blocks:
                check_finite(block, count)
                count += len(block)
                ready = block if resampler is None else resampler.resample_chunk(block)
                given += len(ready)
                yield ready
            if resampler is not None and count:
                length = resampled_length(count, rate, sampling_rate) - given
                rest = resampler.resample_chunk(np.zeros(0, np.float32), last=True)[:length]
                yield np.pad(rest, (0, length - len(rest)))


@contextmanager
def _opened(
    file: BinaryIO, size: int, path: str | None, max_seconds: float, most: float
) -> Iterator[tuple[int, Iterator[NDArray[np.float32]]]]:
    """An open file's rate and its samples in blocks, of which there may be so many seconds, and so many values."""
    soundfile = needed("soundfile", "soundfile", "audio", "Reading audio files")
    most = min(most, _FREE_SAMPLES + _SAMPLES_PER_BYTE * size)
    try:
        with soundfile.SoundFile(file) as sound:
            rate, channels = sound.samplerate, sound.channels
            if not MIN_RATE <= rate <= MAX_RATE or channels > MAX_CHANNELS:
                raise _refused(f"declares {channels} channels at {rate} Hz, which no recording has.", path)
            limit = min(int(max_seconds * rate), int(most // channels))
            what = f"lasts longer than the {max_seconds:g} seconds allowed."
            if limit >= most // channels:
                what = f"holds more than the {most} samples allowed for a file of {size} bytes."
            hint = "Cut it into pieces, or raise `max_seconds`, as in load_audio(source, rate, max_seconds=7200)."
            yield rate, _blocks(sound, limit, _refused(what, path, hint))
    except soundfile.SoundFileError as error:
        raise _refused("is truncated or corrupt: it cannot be decoded.", path) from error


def _blocks(sound: Any, limit: int, too_long: FormatError) -> Iterator[NDArray[np.float32]]:
    """The samples of an open file, channels averaged; ``too_long`` is raised where it declares or has more than ``limit``."""
    declared = sound.frames if sound.frames < _UNKNOWN else None
    weights = np.full(sound.channels, 1 / sound.channels, np.float32)
    count = declared if declared is not None and declared > limit else 0
    while count <= limit and count != declared:
        block = sound.read(_BLOCK // sound.channels, dtype="float32", always_2d=True)
        if not len(block):
            return
        count += len(block)
        if count <= limit:
            yield block @ weights if sound.channels > 1 else block[:, 0]
    if count > limit:
        raise too_long


class _FileBytes:
    """The bytes of an open file, read where they are asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        self.file.seek(start)
        found = self.file.read(max(stop - start, 0))
        self.file.seek(0)
        return found


def _check_head(content: bytes | _FileBytes, path: str | None) -> None:
    """Let only the listed formats reach the decoder, which knows many more, and no WAVE file that was cut short."""
    head = content[:4]
    mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    if not mpeg and not head.startswith(_MAGIC):
        hint = f"Formats that are read: {', '.join(AUDIO_FORMATS)}."
        raise _refused("is corrupt, or of a format that is not read.", path, hint)
    if (lacking := missing_bytes(content)) > 0:
        fault = f"is truncated: {lacking} bytes of samples that its header announces are missing."
        raise _refused(fault, path, "Fetch or record it again.")


def missing_bytes(content: bytes | _FileBytes) -> int:
    """Bytes of samples that a file's header announces and the file lacks; 0 where none is missing, or it is no WAVE file."""
    form, place, wide = content[:4], 12, 0
    if form not in (b"RIFF", b"RIFX", b"RF64") or content[8:12] != b"WAVE":
        return 0
    order: Any = "big" if form == b"RIFX" else "little"
    for _ in range(MAX_CHUNKS):
        name, announced = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], order)
        place += 8
        if name == b"ds64":
            wide = int.from_bytes(content[place + 8 : place + 16], "little")
        if name == b"data":
            announced = wide if form == b"RF64" and announced == 0xFFFF_FFFF else announced
            lacking = place + announced - len(content)
            told = form == b"RF64" or announced < _LEAST_PLACEHOLDER
            return lacking if told and lacking > _HEADER else 0
        place += announced + announced % 2
        if place >= len(content):
            break
    return 0


def resampled_length(samples: int, rate: int, wanted: int) -> int:
    """How many samples so many become at another rate."""
    return math.ceil(samples * wanted / rate)


def resampled(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Samples (T,) at another rate (band-limited, soxr's HQ)."""
    length = resampled_length(samples.size, rate, wanted)
    if length > MAX_SAMPLES:
        what = f"the audio has {samples.size} samples at {rate} Hz, which are {length} at {wanted} Hz, more than {MAX_SAMPLES}."
        raise InputError(what, hint="Cut it into pieces.")
    result: NDArray[np.float32] = _soxr(rate, wanted).resample(samples, rate, wanted, quality="HQ")[:length]
    return np.pad(result, (0, length - result.size))


def _soxr(rate: int, wanted: int) -> Any:
    return needed("soxr", "soxr", "audio", f"Resampling audio from {rate} to {wanted} Hz")


def _refused(fault: str, path: str | None, hint: str | None = None) -> FormatError:
    return FormatError(fault if path is not None else f"the audio {fault}", path=path, hint=hint)
