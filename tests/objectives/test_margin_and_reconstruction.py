"""Additive-margin softmax and the loss over masked pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transept.errors import InputError
from transept.heads.image import masked_l1
from transept.objectives.classification import additive_margin


@pytest.mark.reference
def test_margin_equals_the_reference() -> None:
    from transformers.models.wav2vec2.modeling_wav2vec2 import AMSoftmaxLoss

    torch.manual_seed(0)
    theirs = AMSoftmaxLoss(6, 4).double()
    embeddings, labels = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2])
    term = additive_margin(embeddings, theirs.weight, labels)
    torch.testing.assert_close(term.mean, theirs(embeddings, labels))
    assert int(term.count) == 5
    half = additive_margin(embeddings.half(), theirs.weight.half(), labels)
    torch.testing.assert_close(half.mean.double(), term.mean, rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(torch.tensor([0, 4]), r"label 4 at \[1\] is not one of the 4"), (torch.tensor([0, 1, 2]), "`labels` has the shape")],
)
def test_bad_labels_are_named(labels: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        additive_margin(torch.randn(2, 6), torch.randn(6, 4), labels)


def test_masked_pixels_by_hand() -> None:
    pixels, painted = torch.zeros(1, 2, 2, 2), torch.arange(8.0).view(1, 2, 2, 2)
    masked = torch.tensor([[[True, False], [False, True]]])
    term = masked_l1(painted, pixels, masked)
    assert float(term.sum) == 0 + 3 + 4 + 7
    assert float(term.mean) == pytest.approx(14 / 4, rel=1e-5)
    assert float(masked_l1(painted, pixels, torch.zeros_like(masked)).mean) == 0.0
    broken = painted.clone()
    broken[0, 0, 0, 1] = torch.nan  # what is not masked does not count
    assert torch.equal(masked_l1(broken, pixels, masked).sum, term.sum)


def test_images_of_another_size_are_named() -> None:
    with pytest.raises(InputError, match=r"paints images of \(3, 16, 16\), but was given \(3, 18, 16\)"):
        masked_l1(torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 18, 16), torch.ones(1, 18, 16, dtype=torch.bool))
