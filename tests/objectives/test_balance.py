"""How evenly tokens are spread over experts."""

from __future__ import annotations

import pytest
import torch

from transept.objectives.classification import load_balance
from transept.objectives.terms import total


def test_even_choices_give_the_number_of_experts_a_token() -> None:
    even = torch.eye(4).repeat(5, 1) * 1e-4  # all but equal, and each is first equally often
    assert float(load_balance([even, even], 1, None, 1.0).mean) == pytest.approx(1.0, abs=1e-4)
    alone = torch.tensor([[9.0, 0.0, 0.0, 0.0]]).repeat(20, 1)
    assert float(load_balance([alone], 1, None, 1.0).mean) > 3.9


@pytest.mark.reference
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("top", [1, 3])
def test_equals_the_reference(padded: bool, top: int) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    logits = [torch.randn(3 * 7, 5, requires_grad=True) for _ in range(2)]
    mask = (torch.arange(7) < torch.tensor([[7], [4], [1]])).long() if padded else None
    term = load_balance(logits, top, mask, weight=0.5)
    expected = load_balancing_loss_func(tuple(logits), 5, top, mask)
    assert float(term.mean.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    mine = torch.autograd.grad(total({"load_balance": term}), logits)
    other = torch.autograd.grad(0.5 * expected, logits)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two)
    assert not term.additive
