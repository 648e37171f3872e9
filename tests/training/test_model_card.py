"""The card of a trained model."""

from __future__ import annotations

import pytest

from transept.training.model_card import Answers, Card, wilson, write_card


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        (5, 10, 0.2366, 0.7634),  # Wilson's interval, as tabulated for 95 %
        (0, 20, 0.0, 0.1611),
        (20, 20, 0.8389, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(correct, n, low, high):
    assert wilson(correct, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(0, 0) == (0, 1)


def test_a_card(tmp_path):
    answers = Answers.of([0, 1, 1, 1, 2], [0, 0, 0, 1, 2], {0: "a|b", 1: "b", 2: "`c`"})
    assert (answers.correct, answers.n, answers.majority) == (3, 5, ("a|b", 0.6))
    assert answers.confusions == [("a|b", "b", 2)]
    card = Card(
        "A model for text-classification",
        "all-MiniLM-L6-v2",
        {"accuracy": 0.6, "loss": 1.25},
        {"learning_rate": 1e-4, "hub_token": "hf_secret"},
        {"pipeline_tag": "text-classification", "license": None},
        rows=5,
        answers=answers,
        data=["train.csv: 100 rows"],
        seconds=12.4,
        updates=30,
        versions={"transept": "0.1.0"},
        repeat="transept train text-classification --data train.csv",
    )
    (tmp_path / "plot.png").write_bytes(b"")
    text = write_card(card, tmp_path).read_text()
    for part in (
        "pipeline_tag: text-classification",
        "On 5 rows that it was not trained on",
        "| accuracy | 0.6000 |",
        "3 of 5 answers are right: 60.0 % (95 % interval 23.1 to 88.2 %, Wilson)",
        "the most frequent class, would be right in 60.0 %",
        r"| a\|b | b | 2 |",
        "30 updates in 12 seconds",
        "| learning_rate | 0.0001 |",
        "![loss, evaluation, learning rate and norm](plot.png)",
        "$ transept train text-classification --data train.csv",
    ):
        assert part in text
    assert "hf_secret" not in text
