"""Biases that fall with distance (ALiBi)."""

from __future__ import annotations

import pytest
import torch

from transept.layers.positions import alibi, alibi_slopes


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(4, most=16.0).tolist() == [2.0 ** (-4 * n) for n in range(1, 5)]
    twelve = alibi_slopes(12)
    assert twelve[:8].tolist() == alibi_slopes(8).tolist()
    assert torch.allclose(twelve[8:], 2 ** -torch.tensor([0.5, 1.5, 2.5, 3.5]))


@pytest.mark.reference
def test_slopes_equal_the_reference() -> None:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    for heads in range(1, 130):
        theirs = _get_alibi_slopes(heads, torch.device("cpu"))
        # Theirs are powers of a rounded base, and the error grows with the exponent.
        assert torch.allclose(alibi_slopes(heads), theirs, rtol=1e-5, atol=0), heads
        exact = [2 ** (-8 * k / most) for most in [1 << (heads.bit_length() - 1)] for k in range(1, most + 1)]
        assert torch.allclose(alibi_slopes(heads)[: len(exact)].double(), torch.tensor(exact).double(), rtol=2e-7, atol=0)


@pytest.mark.reference
def test_bias_equals_the_reference() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 1, 0]])
    for dtype in (torch.float32, torch.bfloat16):
        found = alibi(6, 5, mask.bool(), torch.empty(0, dtype=dtype))
        assert torch.equal(found.flatten(0, 1), build_alibi_tensor(mask, 6, dtype))


def test_scores_fall_with_the_distance_from_the_query() -> None:
    slopes, scores = alibi_slopes(6), torch.randn(2, 6, 4, 9, generator=torch.Generator().manual_seed(0))
    distance = torch.arange(5, 9)[:, None] - torch.arange(9)
    causal = scores.masked_fill(distance < 0, -torch.inf)
    expected = (causal - slopes[:, None, None] * distance).softmax(dim=-1)
    found = (causal + alibi(6, 9, None, scores)).softmax(dim=-1)
    assert float((found - expected).abs().max()) < 1e-6  # sums with other numbers round otherwise


def test_unpadded_rows_need_no_mask() -> None:
    like = torch.empty(0)
    assert alibi(6, 9, None, like).shape == (1, 6, 1, 9)
    assert torch.equal(alibi(6, 9, torch.ones(2, 9, dtype=torch.bool), like), alibi(6, 9, None, like).expand(2, -1, -1, -1))
