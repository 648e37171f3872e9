"""Answers and what they belong to as JSON on one line, and messages as text that can be printed."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from transept.errors import TranseptError

_ADDRESS = re.compile(r"( object)? at 0x[0-9a-fA-F]+")


def cleaned(message: str) -> str:
    """A message on one line, without the addresses of objects in memory and in characters that can be printed."""
    return " ".join(plain(_ADDRESS.sub("", message)).split())


def plain(text: str) -> str:
    """A text without characters that would move a terminal's cursor; surrogates and bytes are escaped."""
    if text.isprintable():
        return text
    # Surrogates are how Python keeps bytes of arguments and file names that are no UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode().replace("\\udc", "\\x")
    return "".join(char if char.isprintable() else " " for char in text)


def encode(answer: Any) -> str:
    """An answer as JSON on one line, in which what is no number is null; an error is that of :func:`error_of`."""
    answer = error_of(answer) if isinstance(answer, TranseptError) else answer
    try:
        return json.dumps(answer, ensure_ascii=False, default=_listed, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(answer), ensure_ascii=False, default=lambda value: _finite(_listed(value)))


def error_of(error: TranseptError) -> dict[str, Any]:
    """``{"error": {"code": ..., "message": ...}}``."""
    return {"error": {"code": error.code, "message": cleaned(str(error))}}


def _listed(value: Any) -> Any:
    """An array or a tensor as nested lists; an image as a URL that holds it as PNG; anything else as text."""
    if is_image(value):
        data = io.BytesIO()
        value.save(data, "PNG")
        return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_image(value: Any) -> bool:
    """Whether it is an image of Pillow's, which need not be there."""
    return hasattr(value, "getbands") and hasattr(value, "save")
