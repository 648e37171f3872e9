"""Words read off a picture, and where they stand on it, by Tesseract (Smith 2007) through the package pytesseract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transept.errors import UnsupportedError
from transept.preprocess.features import needed
from transept.preprocess.media import to_rgb
from transept.preprocess.page import on_page

if TYPE_CHECKING:
    from PIL.Image import Image


def read_words(image: Image, language: str | None = None, flags: str = "") -> tuple[list[str], list[list[int]]]:
    """The words of a picture, and of each its left, top, right and bottom, from 0 to 1000.

    Raises:
        MissingExtraError: pytesseract is not installed.
        UnsupportedError: Tesseract itself cannot be run, or not in this language or with these flags.
    """
    tesseract = needed("pytesseract", "pytesseract", "ocr", "Reading the words of a picture")
    picture = to_rgb(image, "white")
    try:
        data = tesseract.image_to_data(picture, lang=language, output_type="dict", config=flags)
    except OSError as error:  # its own error where there is no such program is one
        hint = "Install the program tesseract (its package is often called tesseract-ocr), or pass words and boxes."
        raise UnsupportedError(f"Tesseract cannot be run: {_reason(error)}.", hint=hint) from error
    except (RuntimeError, ValueError) as error:
        hint = "Check the language and the flags, or pass words and boxes."
        raise UnsupportedError(f"Tesseract cannot read the picture: {_reason(error)}.", hint=hint) from error
    sides = (data[name] for name in ("left", "top", "width", "height"))
    found = [(word, box) for word, *box in zip(data["text"], *sides, strict=True) if word.strip()]
    boxes = [on_page((x, y, x + width, y + height), picture.width, picture.height) for _, (x, y, width, height) in found]
    return [word for word, _ in found], boxes


def _reason(error: Exception) -> str:
    return str(getattr(error, "message", error))[:200].strip().rstrip(".")
