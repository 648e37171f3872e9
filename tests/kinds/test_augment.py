"""Spans hidden in training: how many, where, how long, and that chance repeats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import InputError
from transept.kinds.augment import span_mask


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CASES: list[tuple[list[int], int, dict[str, Any]]] = [
    ([100, 100], 100, {"prob": 0.3, "span": 10}),
    ([100, 60, 25], 100, {"prob": 0.5, "span": 8, "least": 2}),
    ([50, 7, 3], 50, {"prob": 0.1, "span": 7, "least": 3}),
    ([40], 40, {"prob": 0.9, "span": 20}),
    ([30, 12], 30, {"prob": 0.05, "span": 10}),
]


@pytest.mark.reference
@pytest.mark.parametrize(("lengths", "size", "options"), CASES)
def test_covers_as_much_as_the_reference(lengths: list[int], size: int, options: dict[str, Any]) -> None:
    import numpy as np
    from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices

    np.random.seed(0)  # noqa: NPY002 (the reference draws from it)
    real = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    shape, names = (len(lengths), size), {"mask_prob": options["prob"], "mask_length": options["span"]}
    theirs = [
        _compute_mask_indices(shape, **names, attention_mask=real, min_masks=options.get("least", 0)) for _ in range(2000)
    ]
    generator = seeded(0)
    mine = [span_mask(torch.tensor(lengths), size, **options, generator=generator) for _ in range(2000)]
    # How often each position is covered, over 2000 draws: five standard deviations of the difference of two shares.
    expected, found = torch.tensor(np.stack(theirs)).double().mean(0), torch.stack(mine).double().mean(0)
    counted = real == 1  # the reference marks the last padded position of rows without a span
    assert float((expected - found).abs()[counted].max()) < 5 * (2 * 0.25 / 2000) ** 0.5
    # How many positions of a row are covered in one draw.
    covered = [(torch.tensor(np.stack(theirs)) * counted).sum(-1), torch.stack(mine).sum(-1)]
    for row in range(len(lengths)):
        quantiles = [draws[:, row].double().quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.double)) for draws in covered]
        torch.testing.assert_close(*quantiles, atol=1.0, rtol=0)


@pytest.mark.parametrize(("lengths", "size", "options"), CASES)
def test_spans_are_whole_and_inside(lengths: list[int], size: int, options: dict[str, Any]) -> None:
    for seed in range(50):
        mask = span_mask(torch.tensor(lengths), size, **options, generator=seeded(seed))
        assert mask.shape == (len(lengths), size)
        for row, length in enumerate(lengths):
            assert not mask[row, length:].any()
            runs = "".join("x" if hit else " " for hit in mask[row].tolist()).split()
            assert all(len(run) >= options["span"] for run in runs)
            if length < options["span"]:
                assert not runs


def test_at_least_so_many_spans_where_they_fit() -> None:
    mask = span_mask(torch.tensor([30, 30]), 30, prob=0.0, span=3, least=4, generator=seeded(0))
    assert (mask.sum(1) >= 3 + 3).all()  # four starts that are different cover six positions at least
    assert not span_mask(torch.tensor([2, 1]), 2, prob=1.0, span=5, least=4).any()


def test_repeats_with_a_generator_and_with_the_global_seed() -> None:
    lengths = torch.tensor([200, 150])
    draw = {"prob": 0.4, "span": 10}
    first, again, other = (span_mask(lengths, 200, **draw, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    one = span_mask(lengths, 200, **draw)
    torch.manual_seed(5)
    assert torch.equal(span_mask(lengths, 200, **draw), one)


def test_a_span_below_one_is_named() -> None:
    with pytest.raises(InputError, match="at least one position, but has 0"):
        span_mask(torch.tensor([5]), 5, prob=0.5, span=0)
