"""Contrastive and diversity losses, and how negatives are drawn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transept.errors import InputError
from transept.models.wav2vec2.pretraining import contrastive, diversity, sample_negatives
from transept.objectives.terms import total


def test_loss_position_by_position() -> None:
    torch.manual_seed(0)
    states, targets = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    targets[0, 3] = targets[0, 1]  # a negative that is the right answer does not count against it
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]) == 1
    negatives = sample_negatives(mask, 6, torch.Generator().manual_seed(0))
    term = contrastive(states, targets, negatives, mask, 0.2)
    expected = torch.zeros((), dtype=torch.float64)
    for row, place in mask.nonzero().tolist():
        right = targets[row, place]
        wrong = [other for other in targets.flatten(0, 1)[negatives[row, place]] if not torch.equal(other, right)]
        scores = F.cosine_similarity(states[row, place], torch.stack([right, *wrong]), dim=-1) / 0.2
        expected += F.cross_entropy(scores[None], torch.tensor([0]), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert not term.additive


def test_diversity_is_zero_only_when_every_vector_is_used() -> None:
    mask = torch.tensor([[True, True, False]])
    assert diversity(torch.tensor(16.0), 16, mask, 0.1).sum == 0
    term = diversity(torch.tensor(4.0), 16, mask, 0.1)
    assert float(term.sum) == pytest.approx(2 * 12 / 16)
    assert float(total({"diversity": term}, num_items_in_batch=7)) == pytest.approx(0.1 * 2 * 12 / 16)


def test_negatives_are_the_other_masked_positions_of_the_row_alike() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 0, 0]]) == 1
    drawn = sample_negatives(mask, 30000, torch.Generator().manual_seed(0))
    for row, place in mask.nonzero().tolist():
        share = torch.bincount(drawn[row, place], minlength=12) / 30000
        others = [6 * row + other for other in mask[row].nonzero()[:, 0].tolist() if other != place]
        for index in range(12):
            wanted = 1 / len(others) if index in others else 0.0
            assert float(share[index]) == pytest.approx(wanted, abs=0.015)


@pytest.mark.reference
def test_negatives_are_drawn_as_the_reference_draws_them() -> None:
    from transformers.models.wav2vec2.modeling_wav2vec2 import _sample_negative_indices

    mask = torch.tensor([[1, 0, 1, 1, 1, 0]] * 2) == 1
    theirs = torch.tensor(_sample_negative_indices((2, 6), 20000, mask.numpy()))
    mine = sample_negatives(mask, 20000)
    assert theirs.shape == mine.shape
    for place in mask[1].nonzero()[:, 0].tolist():
        counts = [torch.bincount(drawn[1, place].long(), minlength=12) / 20000 for drawn in (mine, theirs)]
        torch.testing.assert_close(*counts, atol=0.02, rtol=0)


def test_negatives_repeat_with_a_generator() -> None:
    mask = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    first, second, third = (sample_negatives(mask, 8, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert ((first >= 0) & (first < 120)).all()


def test_a_row_with_nothing_to_draw_from_is_named() -> None:
    with pytest.raises(InputError, match="row 1 has 1 masked frames"):
        sample_negatives(torch.tensor([[True, True], [False, True]]), 3)


def test_shapes_that_do_not_fit_are_named() -> None:
    states, mask = torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(InputError, match=r"negatives \(2, 4, 3\) and mask \(2, 5\) must be for the \(2, 5\)"):
        contrastive(states, states, torch.zeros(2, 4, 3, dtype=torch.long), mask, 0.1)
