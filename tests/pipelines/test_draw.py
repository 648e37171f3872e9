"""Answers over their images: what is drawn where, and what cannot be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from transept.errors import InputError
from transept.pipelines.draw import draw

GRAY = Image.new("RGB", (120, 80), (128, 128, 128))


def pixels(answers: Any) -> np.ndarray:
    return np.asarray(draw(GRAY, answers)).astype(int)


def changed(drawn: np.ndarray) -> np.ndarray:
    return (drawn != 128).any(-1)


def test_frames_are_where_the_boxes_are() -> None:
    box = {"xmin": 30, "ymin": 30, "xmax": 90, "ymax": 70}
    drawn = pixels([{"score": 0.9, "label": "cat", "box": box}])
    assert drawn.shape == (80, 120, 3)
    seen = changed(drawn)
    assert seen[30:71, 30].all()
    assert seen[70, 30:91].all()
    assert not seen[40:68, 35:85].any()
    assert not seen[:, :28].any()
    assert seen[12:30, 30:60].any()  # its label stands above


def test_classes_have_colours_of_their_own() -> None:
    places = [{"xmin": x, "ymin": 40, "xmax": x + 20, "ymax": 70} for x in (5, 45, 90)]
    drawn = pixels([{"score": 1.0, "label": label, "box": box} for label, box in zip("aba", places, strict=True)])
    colours = [tuple(drawn[69, box["xmin"] + 10]) for box in places]
    assert colours[0] == colours[2] != colours[1]


def test_masks_are_see_through_with_an_outline() -> None:
    mask = np.zeros((80, 120), np.uint8)
    mask[20:60, 10:110] = 255
    drawn = pixels([{"score": 0.5, "label": "sea", "mask": Image.fromarray(mask)}])
    assert (changed(drawn) == (mask > 0)).all()
    assert tuple(drawn[20, 50]) != tuple(drawn[22, 12]) != (128, 128, 128)
    empty = Image.fromarray(np.zeros((80, 120), np.uint8))
    assert not changed(pixels([{"score": None, "label": "sea", "mask": empty}])).any()


def test_depth_has_a_scale() -> None:
    values = np.tile(np.arange(120, dtype=np.float32), (80, 1))
    drawn = pixels({"predicted_depth": values, "depth": GRAY})
    assert drawn.shape[0] == 80
    assert drawn.shape[1] > 130
    assert drawn[40, :120].sum(-1)[0] < drawn[40, 60].sum() < drawn[40, 119].sum()
    flat = pixels({"predicted_depth": np.ones((80, 120), np.float32), "depth": GRAY})
    assert (flat[:, :120] == flat[0, 0]).all()


def test_bars_are_as_long_as_scores() -> None:
    drawn = pixels([{"score": 0.25, "label": ""}, {"score": 1.0, "label": ""}])
    below = drawn[80:]
    lengths = (below != 255).any(-1).sum(1)
    assert lengths.max() == 120
    assert (below[:, 40] != 255).any(-1).sum() == (lengths == 120).sum()


def test_nothing_found_is_the_image() -> None:
    assert not changed(pixels([])).any()


@pytest.mark.parametrize(
    "answers",
    ["cat", 5, [5], [{"text": "cat"}], [{"label": "a", "mask": np.ones((2, 2))}], {"predicted_depth": np.ones(3), "depth": 1}],
)
def test_what_cannot_be_drawn(answers: Any) -> None:
    with pytest.raises(InputError, match="cannot be drawn|a mask has"):
        draw(GRAY, answers)


WORDS = [("Total", [0, 0, 250, 250]), ("12.50", [500, 500, 750, 750]), ("EUR", [750, 500, 1000, 750])]


def test_words_of_a_page_are_marked() -> None:
    page = {"image": GRAY, "question": "How much?", "word_boxes": WORDS}
    answers = [{"score": 0.7, "answer": "12.50 EUR", "start": 1, "end": 2}, {"score": 0.2, "answer": "", "start": 0, "end": 0}]
    drawn = np.asarray(draw(page, answers)).astype(int)
    seen = changed(drawn[:80])
    assert seen[41:58, 61:118].all()
    assert not seen[:38].any()
    assert not seen[:, :58].any()
    assert drawn.shape[0] > 100  # the answers stand below
    assert tuple(drawn[50, 70]) != (128, 128, 128)
    other = [{"score": 0.9, "answer": "Total", "start": 0, "end": 0}, answers[0]]
    both = np.asarray(draw(page, other)).astype(int)
    assert tuple(both[10, 10]) != tuple(both[50, 70])


def test_pages_that_are_not_those_of_the_answers() -> None:
    answer = {"score": 0.7, "answer": "EUR", "start": 2, "end": 3}
    with pytest.raises(InputError, match="the words 2 to 3, but the page has 3"):
        draw({"image": GRAY, "word_boxes": WORDS}, [answer])
    with pytest.raises(InputError, match="not within the page"):
        draw({"image": GRAY, "word_boxes": [("EUR", [0, 0, 1001, 1])] * 4}, [answer])
