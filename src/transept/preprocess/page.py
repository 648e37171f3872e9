"""Pages: words, and boxes that tell where they stand, whatever the size of the picture. Imports no torch."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError, InputTypeError

PAGE = 1000
"""The sides of a page: boxes are left, top, right and bottom from 0 to this."""
BOX_HINT = f"A box is left, top, right and bottom, whole numbers from 0 to {PAGE}: int({PAGE} * x / width)."


def check_box(box: Any, where: str) -> list[int]:
    """A box as four integers; an ``InputError`` says ``where`` one is that is none."""
    if hasattr(box, "tolist"):
        box = box.tolist()
    whole = isinstance(box, list | tuple) and all(isinstance(side, int) and not isinstance(side, bool) for side in box)
    if not whole or len(box) != 4:
        raise InputTypeError(f"the box of {where} is {box!r:.60}, but must be four whole numbers.", hint=BOX_HINT)
    left, top, right, bottom = box
    if min(box) < 0 or max(box) > PAGE:
        raise InputError(f"the box of {where}, {list(box)}, is not within the page.", hint=BOX_HINT)
    if right < left or bottom < top:
        raise InputError(
            f"the box of {where}, {list(box)}, has a negative {'width' if right < left else 'height'}.", hint=BOX_HINT
        )
    return [left, top, right, bottom]


def read_word_boxes(pairs: Any) -> tuple[list[str], list[Any]]:
    """The words and the boxes of ``(word, box)`` pairs; an ``InputTypeError`` where they are no such pairs."""
    hint = f'Pass [("word", [left, top, right, bottom]), ...], from 0 to {PAGE}.'
    if not isinstance(pairs, list | tuple):
        raise InputTypeError(f"`word_boxes` must be a list of pairs, but is {type(pairs).__name__}.", hint=hint)
    for place, one in enumerate(pairs):
        if not isinstance(one, list | tuple) or len(one) != 2 or not isinstance(one[0], str):
            raise InputTypeError(f"`word_boxes` has no word with its box at {place}, but {one!r:.60}.", hint=hint)
    return [word for word, _ in pairs], [box for _, box in pairs]


def on_page(box: tuple[float, float, float, float], width: int, height: int) -> list[int]:
    """A box in pixels (left, top, right, bottom) of a picture as one from 0 to 1000, cut off at the picture's edges."""
    shares = (side / length for side, length in zip(box, (width, height, width, height), strict=True))
    return [min(max(int(PAGE * share), 0), PAGE) for share in shares]
