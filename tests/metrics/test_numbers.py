"""Figures of numbers and classes, against scikit-learn and scipy; the same however the data are cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.linear_model
import sklearn.metrics
import sklearn.neighbors
import torch

from transept.errors import InputError, InputTypeError
from transept.metrics import METRICS, get_metric
from transept.metrics.detection import MeanAveragePrecision, overlaps
from transept.metrics.embeddings import alignment, knn_accuracy, linear_probe, uniformity

TIGHT = {"rel": 1e-12, "abs": 1e-12}  # float64 sums in another order
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order_of_tests() -> None:
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


def streamed(name: str, predictions: Any, labels: Any, parts: int = 4, rel: float = 1e-12, **options: Any) -> dict[str, float]:
    """The figures of data in parts, which those of the whole must equal."""
    metric = get_metric(name, **options)
    for cut in np.array_split(np.arange(len(labels)), parts):
        metric.update(predictions[cut], labels[cut])
    found = metric.result()
    assert metric(predictions, labels) == pytest.approx(found, rel=rel, abs=rel)
    return found


def classes(count: int = 200, kinds: int = 5) -> tuple[Any, Any]:
    right = RANDOM.integers(0, kinds, count)
    return np.where(RANDOM.random(count) < 0.6, right, RANDOM.integers(0, kinds, count)), right


@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "binary"])
@pytest.mark.parametrize("kinds", [2, 5])
def test_precision_recall_f1(average: str, kinds: int) -> None:
    found, right = classes(kinds=kinds)
    if average == "binary":
        found, right = found == 1, right == 1
    theirs = sklearn.metrics.precision_recall_fscore_support(right, found, average=average, zero_division=0)
    ours = streamed("f1", found, right, average=average)
    assert [ours["precision"], ours["recall"], ours["f1"]] == pytest.approx(list(theirs[:3]), **TIGHT)


def test_f1_of_classes_that_are_missing() -> None:
    found, right = np.array([0, 0, 7]), np.array([0, 3, 3])
    theirs = sklearn.metrics.precision_recall_fscore_support(right, found, average="macro", zero_division=0)
    assert [*streamed("f1", found, right).values()] == pytest.approx(list(theirs[:3]), **TIGHT)
    assert streamed("f1", found, right, average="binary", positive=9) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_accuracy_and_matthews() -> None:
    found, right = classes()
    assert streamed("accuracy", found, right)["accuracy"] == pytest.approx(
        sklearn.metrics.accuracy_score(right, found), **TIGHT
    )
    theirs = sklearn.metrics.matthews_corrcoef(right, found)
    assert streamed("matthews_correlation", found, right)["matthews_correlation"] == pytest.approx(theirs, **TIGHT)
    assert streamed("matthews_correlation", np.zeros(4, int), np.arange(4))["matthews_correlation"] == 0


def test_logits_and_labels_that_are_ignored() -> None:
    logits = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 5, (3, 7))
    labels[0, :4] = -100
    kept = labels != -100
    expected = float((logits.argmax(-1) == labels)[kept].double().mean())
    assert get_metric("accuracy")(logits, labels)["accuracy"] == pytest.approx(expected, **TIGHT)
    assert get_metric("accuracy")(logits.bfloat16(), labels)["accuracy"] > 0
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found = get_metric("perplexity")(logits, labels)
    assert found["loss"] == pytest.approx(float(loss), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(float(loss)), rel=1e-6)
    shifted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert get_metric("perplexity", shift=True)(logits, labels)["loss"] == pytest.approx(float(shifted), rel=1e-6)


@pytest.mark.parametrize("kinds", [2, 4])
def test_area_under_the_curve(kinds: int) -> None:
    right = RANDOM.integers(0, kinds, 150)
    scores = RANDOM.random((150, kinds)).round(1) + np.eye(kinds)[right] * 0.3
    scores /= scores.sum(axis=1, keepdims=True)
    if kinds == 2:
        theirs = sklearn.metrics.roc_auc_score(right, scores[:, 1])
        assert streamed("roc_auc", scores[:, 1], right)["roc_auc"] == pytest.approx(theirs, **TIGHT)
    else:
        theirs = sklearn.metrics.roc_auc_score(right, scores, multi_class="ovr")
    assert streamed("roc_auc", scores, right)["roc_auc"] == pytest.approx(theirs, **TIGHT)


def test_intersection_over_union() -> None:
    found, right = RANDOM.integers(0, 6, (8, 5, 4)), RANDOM.integers(0, 6, (8, 5, 4))
    right[2, :, 1] = -100
    kept = right != -100
    ours = streamed("mean_iou", found, right)
    assert ours["mean_iou"] == pytest.approx(sklearn.metrics.jaccard_score(right[kept], found[kept], average="macro"), **TIGHT)
    assert ours["mean_accuracy"] == pytest.approx(sklearn.metrics.balanced_accuracy_score(right[kept], found[kept]), **TIGHT)
    assert ours["overall_accuracy"] == pytest.approx((right == found)[kept].mean(), **TIGHT)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_regression_and_correlations(offset: float) -> None:
    right = RANDOM.normal(size=120).round(1) + offset
    found = right + RANDOM.normal(size=120).round(1)
    ours = streamed("regression", found, right, rel=1e-9)
    assert ours["mse"] == pytest.approx(sklearn.metrics.mean_squared_error(right, found), rel=1e-9)
    assert ours["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(right, found), rel=1e-9)
    # One less a ratio near one: what numbers near 1e6 lose (1e-10 each) stays when the difference is small.
    assert ours["r2"] == pytest.approx(sklearn.metrics.r2_score(right, found), abs=1e-9)
    assert streamed("pearson", found, right, rel=1e-9)["pearson"] == pytest.approx(
        scipy.stats.pearsonr(found, right)[0], rel=1e-9
    )
    assert ours["pearson"] == pytest.approx(scipy.stats.pearsonr(found, right)[0], rel=1e-9)
    assert streamed("spearmanr", found, right)["spearmanr"] == pytest.approx(scipy.stats.spearmanr(found, right)[0], rel=1e-9)


# --- detection --------------------------------------------------------------------------------------------------------------

BOX = [0.0, 0.0, 10.0, 10.0]


def picture(boxes: list[Any], labels: list[int], scores: list[float] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"boxes": np.array(boxes, float).reshape(-1, 4), "labels": np.array(labels, int)}
    return found if scores is None else found | {"scores": np.array(scores)}


def test_overlaps() -> None:
    boxes = np.array([BOX, [5, 0, 15, 10], [20, 20, 30, 30], [3, 3, 3, 3]], float)
    expected = [[1, 1 / 3, 0, 0], [1 / 3, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert overlaps(boxes, boxes).tolist() == pytest.approx(np.array(expected), **TIGHT)


def test_average_precision_by_hand() -> None:
    """One class: a hit of overlap 0.8, a miss, a hit of overlap 1, for three right boxes."""
    right = picture([BOX, [20, 0, 30, 10], [40, 0, 50, 10]], [1, 1, 1])
    found = picture([[0, 0, 10, 8], [70, 0, 80, 10], [20, 0, 30, 10]], [1, 1, 1], [0.9, 0.8, 0.7])
    ours = MeanAveragePrecision()([found], [right])
    # Recalls 1/3, 1/3, 2/3; the best precision from there on 1, 2/3, 2/3: 34 and 33 of 101 points.
    loose = (34 * 1 + 33 * 2 / 3) / 101
    tight = 34 * (1 / 3) / 101  # from 0.85 on only the third box hits, at recall 1/3
    assert ours["map_50"] == ours["map_75"] == pytest.approx(loose, **TIGHT)
    assert ours["map"] == pytest.approx((7 * loose + 3 * tight) / 10, **TIGHT)
    assert ours["mar_100"] == pytest.approx((7 * 2 / 3 + 3 / 3) / 10, **TIGHT)


def test_average_precision_of_all_and_nothing() -> None:
    right = [picture([BOX], [0]), picture([[5, 5, 9, 9], BOX], [2, 0]), picture([], [])]
    same = [picture(one["boxes"], one["labels"], [1.0] * len(one["labels"])) for one in right]
    metric = MeanAveragePrecision()
    assert set(metric(same, right).values()) == {1.0}
    nothing = [picture([], [], [])] * 3
    assert set(metric(nothing, right).values()) == {0.0}
    twice = [picture([BOX, BOX], [0, 0], [0.9, 0.8]), *same[1:]]  # each right box is hit once
    assert metric(twice, right)["map_50"] == 1.0
    assert metric.hits[0][0].sum() == 10
    other = [picture([BOX], [5], [0.9]), *same[1:]]  # a class that is nowhere right does not count
    assert metric(other, right)["map_50"] == pytest.approx((51 / 101 + 1) / 2)
    metric.reset()
    for one, truth in zip(twice, right):
        metric.update([one], [truth])
    assert metric.result()["map_50"] == 1.0


# --- embeddings -------------------------------------------------------------------------------------------------------------


def test_probes_against_scikit_learn() -> None:
    centres = RANDOM.normal(size=(4, 6))
    y = RANDOM.integers(0, 4, 160)
    x = centres[y] + RANDOM.normal(size=(160, 6))
    model = sklearn.linear_model.LogisticRegression(C=0.5, tol=1e-10, max_iter=10000).fit(x[:100], y[:100])
    assert linear_probe(x[:100], y[:100], x[100:], y[100:], penalty=2.0) == pytest.approx(model.score(x[100:], y[100:]))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    near = sklearn.neighbors.KNeighborsClassifier(3).fit(unit[:100], y[:100])
    assert knn_accuracy(x[:100], y[:100], x[100:], y[100:], k=3) == pytest.approx(near.score(unit[100:], y[100:]))


def test_alignment_and_uniformity_by_definition() -> None:
    x, y = RANDOM.normal(size=(2, 20, 5))
    one, other = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, y))
    assert alignment(x, y) == pytest.approx(np.mean(((one - other) ** 2).sum(axis=1)), **TIGHT)
    apart = [((one[i] - one[j]) ** 2).sum() for i in range(20) for j in range(i)]
    assert uniformity(x) == pytest.approx(np.log(np.mean(np.exp(-2 * np.array(apart)))), **TIGHT)
    assert alignment(x, x) == 0
    assert uniformity(np.ones((3, 4))) == pytest.approx(0)


# --- what cannot be ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_nothing_is_not_a_number(name: str) -> None:
    metric = METRICS[name]()
    figures = metric.result()
    assert figures
    assert all(value != value or value == 0 for value in figures.values())
    with pytest.raises(InputError):
        metric.update("text", 3)


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "message"),
    [
        ("accuracy", [1, 2], [1, 2, 3], "predictions have the shape (2,), but labels (3,)"),
        ("accuracy", [0.5, 1], [0, 1], "`predictions` must be classes, but has fractions"),
        ("accuracy", ["a"], [1], "`predictions` must be numbers"),
        ("accuracy", [[1], [1, 2]], [[1], [1, 2]], "`labels` has rows of different lengths"),
        ("f1", [1], [-3], "class -3 is negative"),
        ("f1", [1], [60000], "class 60000 was met"),
        ("pearson", [1.0], [1.0, 2.0], "there are 1 predictions for 2 labels"),
        ("roc_auc", [[0.1, 0.9]], [1, 0], "scores must be (N) or (N, C) for labels (N)"),
        ("map", [{"boxes": []}], [], "there are 1 predictions for 0 labels"),
        ("map", [{"labels": []}], [{}], "picture 0 of the predictions has no boxes"),
    ],
)
def test_what_does_not_fit(name: str, predictions: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        get_metric(name).update(predictions, labels)
    assert message in str(caught.value)


def test_names_and_shapes() -> None:
    with pytest.raises(InputError, match="no metric is called 'accuracies'. Did you mean 'accuracy'"):
        get_metric("accuracies")
    with pytest.raises(InputError, match="`average` is 'mean'"):
        get_metric("f1", average="mean")
    for wrong in (
        lambda: linear_probe(np.ones((2, 2)), [0.5, 1.0], np.ones((2, 2)), [0, 1]),
        lambda: uniformity(np.ones((1, 2))),
    ):
        with pytest.raises(InputError):
            wrong()
    with pytest.raises(InputError, match="`k` is 9, but must be from 1 to the 2 rows"):
        knn_accuracy(np.ones((2, 2)), [0, 1], np.ones((2, 2)), [0, 1], k=9)
    with pytest.raises(InputTypeError):
        get_metric("bleu").update(["a"], [3])
