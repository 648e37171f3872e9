"""The picture of a transcript: a sound's wave form, and below it what is said when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError
from transept.preprocess.features import needed
from transept.preprocess.media import load_audio

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

_RATE = 16000
_PER_SECOND, _LEAST, _MOST = 120, 640, 1600  # pixels
_WAVE, _LINE, _MARGIN = 90, 22, 8
_SHADES = ((222, 235, 247), (198, 219, 239))
_BLUE, _GRAY = (33, 113, 181), (110, 110, 110)


def draw_waveform(sound: Any, answers: Mapping[str, Any]) -> Image:
    """Rows of a sound's wave form, each with a scale of seconds and a strip of the pieces or words that are said.

    Args:
        sound: as for :func:`transept.preprocess.media.load_audio`.
        answers: ``"chunks"``, each a ``"text"`` and its ``"timestamp"`` (start, end) in seconds.

    Raises:
        InputError: answers without times.
    """
    samples = load_audio(sound, _RATE)
    spoken = [_span(chunk, len(samples) / _RATE) for chunk in answers["chunks"]]
    seconds = len(samples) / _RATE
    width = int(min(max(seconds * _PER_SECOND, _LEAST), _MOST))
    each = width / _PER_SECOND  # seconds a row
    rows = max(1, int(np.ceil(seconds / each - 1e-9)))
    height = _WAVE + 3 * _LINE
    pillow, pen_of = (needed(f"PIL.{name}", "pillow", "vision", "Drawing") for name in ("Image", "ImageDraw"))
    image: Image = pillow.new("RGB", (width + 2 * _MARGIN, rows * height + _MARGIN), "white")
    font = needed("PIL.ImageFont", "pillow", "vision", "Drawing").load_default(size=13)
    small = needed("PIL.ImageFont", "pillow", "vision", "Drawing").load_default(size=10)
    pen, loudest = pen_of.Draw(image), float(np.abs(samples).max()) or 1.0
    for row in range(rows):
        begin, top = row * each, _MARGIN + row * height
        part = samples[int(begin * _RATE) : int((begin + each) * _RATE)] / loudest
        _wave(pen, part, top, width)
        for second in range(int(np.ceil(begin)), int(min(begin + each, seconds)) + 1):
            x = _MARGIN + (second - begin) * _PER_SECOND
            pen.line((x, top + _WAVE, x, top + _WAVE + 5), fill=_GRAY)
            pen.text((x + 3, top + _WAVE + 1), f"{second} s", fill=_GRAY, font=small)
        _strip(pen, font, spoken, (begin, begin + each), top + _WAVE + 16)
    return image


def _span(chunk: Any, seconds: float) -> tuple[str, float, float]:
    """A piece's text, its start and its end; one without an end goes on to that of the sound."""
    times = chunk.get("timestamp") if isinstance(chunk, Mapping) else None
    if not isinstance(times, Sequence) or len(times) != 2 or times[0] is None:
        raise InputError(f"a piece has no times: {str(chunk)[:80]!r}.", hint="Ask the pipeline for return_timestamps.")
    start, end = float(times[0]), seconds if times[1] is None else float(times[1])
    return str(chunk["text"]).strip(), start, max(start, end)


def _wave(pen: Any, samples: NDArray[np.float32], top: int, width: int) -> None:
    """The lowest and the highest sample of each column of pixels, as a line."""
    middle, half = top + _WAVE / 2, _WAVE / 2 - 4
    pen.line((_MARGIN, middle, _MARGIN + width, middle), fill=_SHADES[1])
    for x in range(width):
        column = samples[int(x * _RATE / _PER_SECOND) : int((x + 1) * _RATE / _PER_SECOND)]
        if len(column):
            low, high = float(column.min()), float(column.max())
            pen.line((_MARGIN + x, middle - high * half, _MARGIN + x, middle - low * half), fill=_BLUE)


def _strip(pen: Any, font: Any, spoken: Sequence[tuple[str, float, float]], span: tuple[float, float], top: int) -> None:
    """What is said in a span of seconds, on shades that take turns; texts without room stand one line lower."""
    shown = [each for each in spoken if each[1] < span[1] and (each[2] > span[0] or each[1] >= span[0])]
    edges = [[_MARGIN + (min(max(each, span[0]), span[1]) - span[0]) * _PER_SECOND for each in one[1:]] for one in shown]
    for place, (left, right) in enumerate(edges):
        pen.rectangle((left, top, max(right, left + 1), top + _LINE - 2), fill=_SHADES[place % 2])
    free = [0.0, 0.0]  # to where each of the two lines is written
    for (text, start, _), (left, right) in zip(shown, edges, strict=True):
        size = pen.textlength(text, font=font)
        line = 0 if left + 2 >= free[0] and size <= max(right - left, 12) + 6 else 1
        if start >= span[0] and left + 2 >= free[line]:
            pen.line((left, top, left, top + _LINE * (line + 1) - 4), fill=_BLUE)
            pen.text((left + 3, top + 3 + line * (_LINE - 2)), text, fill="black", font=font)
            free[line] = left + size + 6
