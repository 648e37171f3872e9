"""The scale-invariant loss of depths against a plain computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transept.errors import InputError
from transept.objectives.depth import LEAST, scale_invariant


def plainly(predicted: Tensor, labels: Tensor, share: float) -> float:
    """One pixel after the other."""
    apart = []
    for guess, label in zip(predicted.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if label > 0 and label < math.inf:
            apart.append(math.log(label) - math.log(max(guess, LEAST)))
    mean = sum(apart) / len(apart)
    return math.sqrt(sum(each**2 for each in apart) / len(apart) - share * mean**2)


def depths(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5 + 0.1


@pytest.mark.parametrize("share", [0.0, 0.5, 0.85])
def test_it_equals_a_plain_computation(share: float) -> None:
    predicted, labels = depths(3, 5, 7), depths(3, 5, 7, seed=1)
    labels[0, 0], labels[1, 2, 3], labels[2, 4, 6], labels[2, 0, 0] = 0.0, -1.0, math.inf, math.nan
    predicted[2, 1, 1] = 0.0
    term = scale_invariant(predicted, labels, share)
    assert float(term.mean) == pytest.approx(plainly(predicted, labels, share), rel=1e-12)
    assert int(term.count) == 3 * 5 * 7 - 7 - 3
    assert not term.additive


def test_predictions_are_resized_to_labels() -> None:
    predicted, labels = depths(2, 4, 6), depths(2, 9, 5, seed=1)
    resized = torch.nn.functional.interpolate(predicted[:, None], size=(9, 5), mode="bilinear")[:, 0]
    assert float(scale_invariant(predicted, labels).mean) == pytest.approx(plainly(resized, labels, 0.5), rel=1e-12)


def test_with_a_share_of_one_scale_does_not_matter() -> None:
    predicted, labels = depths(2, 4, 6), depths(2, 4, 6, seed=1)
    one, other = scale_invariant(predicted, labels, 1.0).mean, scale_invariant(7 * predicted, labels, 1.0).mean
    assert float(one) == pytest.approx(float(other), rel=1e-9)


def test_gradients() -> None:
    predicted, labels = depths(2, 3, 4).requires_grad_(), depths(2, 6, 5, seed=1)
    assert torch.autograd.gradcheck(lambda x: scale_invariant(x, labels).mean, (predicted,))
    same = labels.clone().requires_grad_()
    scale_invariant(same, labels).mean.backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()
    broken = depths(1, 2, 2)
    broken[0, 0, 0] = math.nan  # where nothing is known, nothing is compared
    broken.requires_grad_()
    loss = scale_invariant(broken, torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])).mean
    loss.backward()
    assert broken.grad is not None
    assert loss.isfinite()
    assert broken.grad.isfinite().all()


def test_half_precision_is_widened() -> None:
    predicted, labels = depths(2, 4, 6), depths(2, 4, 6, seed=1)
    found = scale_invariant(predicted.bfloat16(), labels.float()).mean
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(scale_invariant(predicted.bfloat16().double(), labels).mean), rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 4), (3, 4, 6), (2, 1, 4, 6)])
def test_labels_of_another_shape_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"must be \(2, height, width\)"):
        scale_invariant(depths(2, 4, 6), torch.ones(shape))
