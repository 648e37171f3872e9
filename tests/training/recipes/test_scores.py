"""What recipes measure: the figures of their metrics, of what models write and find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from transept import DetrImageProcessor
from transept.metrics import get_metric
from transept.training.evaluation import Gathered
from transept.training.recipes import recipe_named

WORDS = [*["<pad>", "</s>", "the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "it", "was", "here"]]
READER = SimpleNamespace(
    decode=lambda ids, skip_special_tokens: " ".join(WORDS[token] for token in ids if token > 1 or not skip_special_tokens)
)
SAID = [[2, 3, 4, 5, 6, 7, 1, 0, 0], [2, 10, 9, 11, 12, 13, 1, -100, -100]]
RIGHT = [[2, 3, 4, 5, 2, 7, 1, -100], [6, 10, 9, 11, 12, 13, 1, -100]]
TEXTS = (
    ["the cat sat on a mat", "the dog saw it was here"],
    ["the cat sat on the mat", "a dog saw it was here"],
)


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        ("translation", ("bleu", "chrf")),
        ("summarization", ("rouge",)),
        ("seq2seq", ("bleu", "chrf", "rouge")),
    ],
)
def test_what_is_written_is_measured(task: str, metrics: tuple[str, ...]) -> None:
    recipe: Any = recipe_named(task)()
    recipe.processor = READER
    found = recipe.compute_metrics(np.array(SAID), np.array(RIGHT))
    assert found == {name: value for metric in metrics for name, value in get_metric(metric)(*TEXTS).items()}
    assert all(value > 0 for value in found.values())


def test_what_is_written_has_the_figures_that_counting_gives() -> None:
    recipe: Any = recipe_named("seq2seq")()
    recipe.processor = READER
    found = recipe.compute_metrics(np.array(SAID), np.array(RIGHT))
    assert found["rouge1"] == pytest.approx(5 / 6)
    assert found["rouge2"] == pytest.approx((3 / 5 + 4 / 5) / 2)
    assert found["rougeL"] == pytest.approx(5 / 6)
    # 10 of 12 words, 7 of 10 pairs, 5 of 8 threes and 3 of 6 fours, of texts as long as their references
    assert found["bleu"] == pytest.approx(100 * (10 / 12 * 7 / 10 * 5 / 8 * 3 / 6) ** 0.25)


def logits_of(classes: list[int], size: int) -> torch.Tensor:
    """Logits (Q, K + 1) that are sure of these classes; the last says that there is nothing."""
    return 9.0 * torch.nn.functional.one_hot(torch.tensor(classes), size)


def test_boxes_are_measured_by_their_mean_average_precision() -> None:
    recipe: Any = recipe_named("object-detection")()
    recipe.processor = DetrImageProcessor()
    targets = [
        {"class_labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.4]])},
        {"class_labels": torch.tensor([1, 0]), "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.7, 0.6, 0.3, 0.2]])},
        {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.4, 0.6, 0.4, 0.4]])},
    ]
    nothing = torch.zeros(4)
    boxes = torch.stack(
        [
            torch.stack([targets[0]["boxes"][0], nothing]),
            targets[1]["boxes"],
            torch.stack([nothing, targets[2]["boxes"][0]]),
        ]
    )
    logits = torch.stack([logits_of([0, 2], 3), logits_of([1, 0], 3), logits_of([2, 1], 3)])
    logit_batches, label_batches = Gathered(None), Gathered(None)
    for first, last in ((0, 2), (2, 3)):  # batches of two sizes
        outputs = ({"loss_ce": torch.tensor(1.0)}, logits[first:last], boxes[first:last], torch.zeros(last - first, 2, 8))
        logit_batches.add(recipe.preprocess_logits(outputs, None))
        label_batches.add(targets[first:last])
    predicted, right = logit_batches.result(None, True), label_batches.result(None, True)
    found = recipe.compute_metrics(predicted, right)
    assert found == {"map": 1.0, "map_50": 1.0, "map_75": 1.0, "mar_100": 1.0}
    predicted[1][0, 0] += 0.2  # a box that no longer overlaps enough
    # Of class 0 the surest box is wrong and the next one right: half of the boxes are found, at a precision of a half.
    assert recipe.compute_metrics(predicted, right)["map_50"] == pytest.approx((51 / 101 / 2 + 1) / 2)


def test_rows_of_mappings_come_back_in_their_order() -> None:
    batches = Gathered(None)
    batches.add([{"boxes": torch.ones(1, 4)}, {"boxes": torch.zeros(2, 4)}])
    batches.add([{"boxes": torch.ones(3, 4)}])
    rows = batches.result(np.array([2, 0, 1]), True)
    assert [len(row["boxes"]) for row in rows] == [2, 3, 1]
