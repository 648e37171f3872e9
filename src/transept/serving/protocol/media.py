"""Pictures and sounds that a request holds, opened within limits for all of them together."""

from __future__ import annotations

from typing import Any

from transept.errors import FileError, FormatError, InputError
from transept.preprocess.audio.decode import AUDIO_FORMATS
from transept.preprocess.image.arrays import MAX_PIXELS
from transept.preprocess.media import IMAGE_FORMATS, load_audio, open_image
from transept.serving.errors import FieldError

MAX_SECONDS = 1800.0
MAX_PIXELS_IN_ALL = 2 * MAX_PIXELS


class Media:
    """Opens the pictures and sounds of one request; more than it may hold are refused before they are decoded."""

    def __init__(self) -> None:
        self.pixels, self.seconds = MAX_PIXELS_IN_ALL, MAX_SECONDS

    def picture(self, url: Any, param: str) -> Any:
        """A picture, as it is in a ``data:`` URL (``FieldError``: a field that is none, or holds none)."""
        hint = f"Send {', '.join(IMAGE_FORMATS)}, of {MAX_PIXELS} pixels each and {MAX_PIXELS_IN_ALL} in all at most."
        try:
            found = open_image(checked(url, param), max_pixels=min(self.pixels, MAX_PIXELS))
        except (InputError, FormatError, FileError) as error:
            raise FieldError(param, error.message, hint=hint) from error
        self.pixels -= found.width * found.height
        return found

    def sound(self, source: Any, param: str, rate: int) -> dict[str, Any]:
        """A sound's samples at that rate, of a file's bytes or of a ``data:`` URL (``FieldError``: as for pictures)."""
        hint = f"Send {', '.join(AUDIO_FORMATS)}, of {MAX_SECONDS / 60:g} minutes in all at most."
        source = source if isinstance(source, bytes) else checked(source, param)
        try:
            samples = load_audio(source, rate, max_seconds=self.seconds)
        except (InputError, FormatError, FileError) as error:
            raise FieldError(param, error.message, hint=hint) from error
        self.seconds -= len(samples) / rate
        return {"array": samples, "sampling_rate": rate}


def checked(url: Any, param: str) -> str:
    """A ``data:`` URL (``FieldError`` for anything else)."""
    if not isinstance(url, str) or not url.startswith("data:"):
        what = "pictures and sounds must be `data:` URLs with base64: no path or address is opened."
        raise FieldError(param, what)
    return url
