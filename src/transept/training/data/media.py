"""Pictures and sounds that rows name by their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transept.errors import TranseptError
from transept.files import safe_join
from transept.preprocess.media import load_audio, open_image


def resolved(value: Any, data: str | None) -> Any:
    """A media value of a row; a relative path is one beside the file that named it, and does not leave its folder.

    Args:
        value: a path, or a picture or sound as data sets hold it.
        data: the file or folder that the rows were read from.

    Raises:
        FormatError: a path that leads out of the folder.
    """
    if isinstance(value, str) and data is not None and not value.startswith(("data:", "http:", "https:")):
        if os.path.isdir(data):
            return value  # the folder was walked here
        return str(safe_join(Path(data).parent, value))
    return value


def opened(value: Any, place: str) -> Any:
    """A picture of a row (``TranseptError``, with the row's place: it cannot be read)."""
    try:
        return open_image(value)
    except TranseptError as error:
        error.message = f"{error.message} (of {place})"
        raise


def heard(value: Any, rate: int, place: str) -> Any:
    """The samples (T,) of a sound of a row at a rate in Hz (``TranseptError``, with the row's place: it cannot be read)."""
    try:
        return load_audio(value, rate)
    except TranseptError as error:
        error.message = f"{error.message} (of {place})"
        raise
