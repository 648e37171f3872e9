"""Pictures of answers: boxes, masks, depth, classes and words of a page over the image, spoken words below a wave form."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError
from transept.pipelines.waveform import draw_waveform
from transept.preprocess.features import needed
from transept.preprocess.media import load_image
from transept.preprocess.ocr import read_words
from transept.preprocess.page import PAGE, check_box, read_word_boxes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

# Eight colours of viridis (Smith and van der Walt 2015), dark to bright, of equal steps to the eye.
_DEPTH = ("440154", "46327e", "365c8d", "277f8e", "1fa187", "4ac16d", "a0da39", "fde725")
_GOLDEN = 0.618034  # steps of this share of the colour circle keep neighbours apart
_MOST_BARS = 10


def draw(image: Any, answers: Any) -> Image:
    """The image with what a pipeline found in it; the answers' form decides how it is drawn.

    Args:
        image: as for :func:`transept.preprocess.media.load_image`; the sound that was transcribed; or the input of
            ``document-question-answering``, whose words are read off the picture again where it has no ``word_boxes``.
        answers: those of one image, from ``object-detection``, ``image-segmentation``, ``depth-estimation``,
            ``image-classification`` or their zero-shot kin, or ``document-question-answering``; or of one sound, from
            ``automatic-speech-recognition`` with times.

    Raises:
        InputError: answers of no form that is drawn.
    """
    if isinstance(answers, Mapping) and isinstance(answers.get("chunks"), Sequence):
        return draw_waveform(image, answers)
    page = image if isinstance(image, Mapping) and "image" in image else {"image": image}
    picture = load_image(page["image"]).copy()  # the caller keeps theirs as it is
    if isinstance(answers, Mapping) and "depth" in answers:
        return _depth(answers)
    rows = list(answers) if isinstance(answers, Sequence) and not isinstance(answers, str) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"these answers cannot be drawn: {str(answers)[:80]!r}.", hint="Pass the answers about one image.")
    if not rows:
        return picture
    if all("box" in row for row in rows):
        return _boxes(picture, rows)
    if all("mask" in row for row in rows):
        return _masks(picture, rows)
    if all({"score", "answer", "start", "end"} <= row.keys() for row in rows):
        return _words(picture, rows, page.get("word_boxes"))
    if all("label" in row and row.get("score") is not None for row in rows):
        return _bars(picture, rows)
    hint = "Answers with boxes, masks, depth, words of a page, or labels and scores can be drawn."
    raise InputError(f"these answers cannot be drawn: they hold {', '.join(map(repr, rows[0]))}.", hint=hint)


def _colors(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """A colour for each label, in the order in which they come."""
    labels = dict.fromkeys(str(row.get("label")) for row in rows)
    shades = (colorsys.hsv_to_rgb((place * _GOLDEN) % 1, 0.75, 0.95) for place in range(len(labels)))
    return {label: (int(r * 255), int(g * 255), int(b * 255)) for label, (r, g, b) in zip(labels, shades)}


def _title(row: Mapping[str, Any]) -> str:
    score = row.get("score")
    return str(row.get("label")) if score is None else f"{row.get('label')}: {score:.0%}"


def _boxes(picture: Image, rows: Sequence[Mapping[str, Any]]) -> Image:
    """Frames, the largest first, each with its label in a corner."""
    canvas = needed("PIL.ImageDraw", "pillow", "vision", "Drawing").Draw(picture)
    colors = _colors(rows)
    line = max(2, round(max(picture.size) / 300))
    sides = [tuple(row["box"][name] for name in ("xmin", "ymin", "xmax", "ymax")) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (sides[i][0] - sides[i][2]) * (sides[i][3] - sides[i][1]))
    for index in order:
        box, color = sides[index], colors[str(rows[index].get("label"))]
        left, top, right, bottom = min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])
        canvas.rectangle((left, top, right, bottom), outline=color, width=line)
    for index in order:
        _label(canvas, picture, _title(rows[index]), sides[index][0], sides[index][1], colors[str(rows[index].get("label"))])
    return picture


def _words(picture: Image, rows: Sequence[Mapping[str, Any]], known: Any) -> Image:
    """The words of answers as if marked by a pen, and below the page a bar for each answer."""
    boxes = read_words(picture)[1] if known is None else read_word_boxes(known)[1]
    rows = sorted(rows, key=lambda row: -row["score"])
    named = [{"label": row["answer"] or "no answer", "score": row["score"]} for row in rows]
    colors, marks = _colors(named), np.ones((picture.height, picture.width, 3), np.float32)
    for row, name in reversed(list(zip(rows, named, strict=True))):
        begin, end = row["start"], row["end"]
        if row["answer"] and not 0 <= begin <= end < len(boxes):
            what = f"an answer is of the words {begin} to {end}, but the page has {len(boxes)}."
            raise InputError(what, hint='Pass the page that was asked about: draw({"image": ..., "word_boxes": ...}, answers).')
        for box in boxes[begin : end + 1] if row["answer"] else ():
            left, top, right, bottom = _in_pixels(box, picture)
            marks[top : bottom + 1, left : right + 1] = (1 + np.array(colors[name["label"]], np.float32) / 255) / 2
    pixels = (np.asarray(picture) * marks).round().astype(np.uint8)  # ink stays dark
    return _bars(needed("PIL.Image", "pillow", "vision", "Drawing").fromarray(pixels), named)


def _in_pixels(box: Any, picture: Image) -> tuple[int, int, int, int]:
    """A box from 0 to 1000 as left, top, right and bottom in a picture."""
    left, top, right, bottom = check_box(box, "a word")
    across, down = (picture.width - 1) / PAGE, (picture.height - 1) / PAGE
    return round(left * across), round(top * down), round(right * across), round(bottom * down)


def _label(canvas: Any, picture: Image, text: str, x: float, y: float, color: tuple[int, int, int]) -> None:
    """A text on its colour, above a place where there is room, else below it."""
    font = _font(picture)
    left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = min(max(x, 0), max(picture.width - width, 0))
    y = y - height if y >= height else max(y, 0)
    canvas.rectangle((x, y, x + width, y + height), fill=color)
    bright = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    canvas.text((x + 3 - left, y + 3 - top), text, fill="black" if bright > 128 else "white", font=font)


def _font(picture: Image) -> Any:
    return needed("PIL.ImageFont", "pillow", "vision", "Drawing").load_default(size=max(11, round(max(picture.size) / 50)))


def _masks(picture: Image, rows: Sequence[Mapping[str, Any]]) -> Image:
    """Masks at half strength with outlines, and each label in the middle of its mask."""
    colors = _colors(rows)
    pixels = np.asarray(picture).astype(np.float32)
    places = []
    for row in rows:
        mask = np.asarray(row["mask"]) > 0
        if mask.shape != pixels.shape[:2]:
            raise InputError(f"a mask has the shape {mask.shape}, but the image {pixels.shape[:2]}.")
        color = np.array(colors[str(row.get("label"))], np.float32)
        pixels[mask] = (pixels[mask] + color) / 2
        pixels[_outline(mask)] = color
        places.append(_middle(mask))
    image = needed("PIL.Image", "pillow", "vision", "Drawing").fromarray(pixels.round().astype(np.uint8))
    canvas = needed("PIL.ImageDraw", "pillow", "vision", "Drawing").Draw(image)
    for row, place in zip(rows, places, strict=True):
        if place is not None:
            _label(canvas, image, _title(row), *place, colors[str(row.get("label"))])
    drawn: Image = image
    return drawn


def _outline(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask that have a neighbour outside."""
    padded = np.pad(mask, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & ~inside


def _middle(mask: NDArray[np.bool_]) -> tuple[float, float] | None:
    """A place (x, y) in a mask that is near its middle."""
    rows, columns = np.nonzero(mask)
    if not len(rows):
        return None
    nearest = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
    return float(columns[nearest]), float(rows[nearest])


def _depth(answers: Mapping[str, Any]) -> Image:
    """The depth in colours, with a scale of what it ranges over."""
    values = np.asarray(answers.get("predicted_depth", answers["depth"]), dtype=np.float32).squeeze()
    if values.ndim != 2 or not np.isfinite(values).all():
        raise InputError(f"a map of depth of shape {values.shape} cannot be drawn.", hint="Pass the answer about one image.")
    low, high = float(values.min()), float(values.max())
    shares = (values - low) / max(high - low, 1e-12)
    height, width = values.shape
    bar, gap = max(10, width // 30), max(4, width // 100)
    scale = np.repeat(np.linspace(1, 0, height, dtype=np.float32)[:, None], bar, axis=1)
    pillow = needed("PIL.Image", "pillow", "vision", "Drawing")
    font_of = pillow.new("RGB", (width, height))
    canvas = needed("PIL.ImageDraw", "pillow", "vision", "Drawing")
    font, ends = _font(font_of), [f"{high:.4g}", f"{low:.4g}"]
    room = max(int(canvas.Draw(font_of).textlength(text, font=font)) for text in ends) + 2 * gap
    image = pillow.new("RGB", (width + gap + bar + room, height), "white")
    image.paste(pillow.fromarray(_colored(shares)), (0, 0))
    image.paste(pillow.fromarray(_colored(scale)), (width + gap, 0))
    pen = canvas.Draw(image)
    pen.text((width + 2 * gap + bar, 0), ends[0], fill="black", font=font)
    pen.text((width + 2 * gap + bar, height), ends[1], fill="black", font=font, anchor="ld")
    drawn: Image = image
    return drawn


def _colored(shares: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Numbers (H, W) from 0 to 1 as colours (H, W, 3)."""
    stops = np.array([[int(color[i : i + 2], 16) for i in (0, 2, 4)] for color in _DEPTH], np.float32)
    places = np.linspace(0, 1, len(stops))
    channels = [np.interp(shares, places, stops[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _bars(picture: Image, rows: Sequence[Mapping[str, Any]]) -> Image:
    """The image, and below it a bar for each of the likeliest classes."""
    rows = sorted(rows, key=lambda row: -row["score"])[:_MOST_BARS]
    font, colors = _font(picture), _colors(rows)
    line = round(font.size * 1.5)
    pillow = needed("PIL.Image", "pillow", "vision", "Drawing")
    width = max(picture.width, *(round(font.getlength(_title(row))) + 8 for row in rows))  # labels stay whole
    image = pillow.new("RGB", (width, picture.height + line * len(rows) + line // 2), "white")
    image.paste(picture, (0, 0))
    pen = needed("PIL.ImageDraw", "pillow", "vision", "Drawing").Draw(image)
    for place, row in enumerate(rows):
        top = picture.height + line // 4 + place * line
        length = max(1, round(width * min(max(float(row["score"]), 0), 1)))
        color = tuple(255 - (255 - level) // 2 for level in colors[str(row["label"])])
        pen.rectangle((0, top + 1, length, top + line - 2), fill=color)
        pen.text((4, top + line / 2), _title(row), fill="black", font=font, anchor="lm")
    drawn: Image = image
    return drawn
