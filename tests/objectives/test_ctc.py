"""CTC against PyTorch's and the reference's, with labels padded anyhow, in whole graphs, and in micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.ctc import Reduction, ctc
from transept.objectives.terms import total


def case(rows: int = 4, frames: int = 20, vocab: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, frames, vocab, generator=generator, dtype=dtype, requires_grad=True)
    labels = torch.randint(1, vocab, (rows, 6), generator=generator)
    labels[1, 3:] = -100
    labels[2, 0], labels[2, 4], labels[3, 2] = -100, -100, 0  # ignored ones and blanks at any place
    return logits, labels, torch.tensor([20, 17, 12, 9])


def expected(logits: Tensor, labels: Tensor, frames: Tensor, reduction: str, zero_infinity: bool = False) -> Tensor:
    """The same from a flat list of the real labels, as PyTorch takes it."""
    real = (labels != -100) & (labels != 0)
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probs, labels[real], frames, real.sum(1), 0, reduction, zero_infinity)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_equals_pytorch(reduction: Reduction) -> None:
    logits, labels, frames = case()
    mine = ctc(logits, labels, frames, blank=0, reduction=reduction).mean
    other = expected(logits, labels, frames, reduction)
    torch.testing.assert_close(mine, other, rtol=1e-12, atol=0)
    (a,) = torch.autograd.grad(mine, logits, retain_graph=True)
    (b,) = torch.autograd.grad(other, logits)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.reference
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_equals_the_reference(reduction: Reduction) -> None:
    from transformers.loss.loss_ctc import ForCTCLoss

    logits, labels, frames = case(dtype=torch.float32)
    mine = ctc(logits, labels, frames, blank=0, reduction=reduction).mean
    other = ForCTCLoss(logits, labels, frames, 0, reduction)
    torch.testing.assert_close(mine, other, rtol=1e-6, atol=0)


def test_the_blank_may_be_any_index() -> None:
    logits, labels, frames = case()
    swap = torch.tensor([7, 1, 2, 3, 4, 5, 6, 0])
    moved = torch.where(labels >= 0, swap[labels.clamp(min=0)], labels)
    mine = ctc(logits[:, :, swap], moved, frames, blank=7, reduction="sum").sum
    torch.testing.assert_close(mine, ctc(logits, labels, frames, blank=0, reduction="sum").sum)


@pytest.mark.parametrize("compiled", [False, True])
def test_too_few_frames(compiled: bool) -> None:
    logits, labels, frames = case()
    frames[0] = 3  # for six labels
    rule: Any = torch.compile(ctc, fullgraph=True, backend="eager") if compiled else ctc
    assert rule(logits, labels, frames, blank=0, reduction="sum").sum.isinf()
    kept = rule(logits, labels, frames, blank=0, reduction="mean", zero_infinity=True).mean
    torch.testing.assert_close(kept, expected(logits, labels, frames, "mean", True))
    (gradient,) = torch.autograd.grad(kept, logits)
    assert torch.isfinite(gradient).all()
    assert (gradient[0] == 0).all()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_whole_graphs_hold_it(reduction: Reduction) -> None:
    logits, labels, frames = case()

    class Loss(torch.nn.Module):
        def forward(self, logits: Tensor, labels: Tensor, frames: Tensor) -> Tensor:
            return ctc(logits, labels, frames, blank=0, reduction=reduction).mean

    alone = Loss()(logits, labels, frames)
    (wanted,) = torch.autograd.grad(alone, logits)
    torch._dynamo.reset()
    for backend in ("eager", "aot_eager"):
        whole = torch.compile(Loss(), fullgraph=True, backend=backend)(logits, labels, frames)
        torch.testing.assert_close(whole, alone, rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.autograd.grad(whole, logits)[0], wanted, rtol=1e-10, atol=1e-14)
    exported = torch.export.export(Loss(), (logits, labels, frames)).module()
    torch.testing.assert_close(exported(logits, labels, frames), alone, rtol=1e-12, atol=0)


def test_the_operators_are_sound() -> None:
    logits, labels, frames = case()
    targets, lengths = labels.clamp(min=1), torch.tensor([6, 3, 4, 5])
    log_probs = logits.detach().log_softmax(-1).transpose(0, 1).contiguous().requires_grad_()
    torch.library.opcheck(torch.ops.transept.ctc_loss.default, (log_probs, targets, frames, lengths, 0, False))


@pytest.mark.parametrize(("reduction", "items"), [("sum", 1), ("mean", 4)])
def test_micro_batches_add_up(reduction: Reduction, items: int) -> None:
    logits, labels, frames = case()
    whole = total({"ctc": ctc(logits, labels, frames, blank=0, reduction=reduction)})
    parts = [slice(0, 1), slice(1, 4)]
    terms = [ctc(logits[part], labels[part], frames[part], blank=0, reduction=reduction) for part in parts]
    torch.testing.assert_close(sum(total({"ctc": term}, items) for term in terms), whole, rtol=1e-12, atol=0)


def test_rows_without_labels_and_half_precision() -> None:
    logits, labels, frames = case(dtype=torch.float32)
    labels[0] = -100
    term = ctc(logits.to(torch.bfloat16), labels, frames, blank=0, reduction="mean")
    assert term.sum.dtype == torch.float32
    assert torch.isfinite(term.sum)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([[1, 8]] * 4), r"label 8 at \[0, 1\] is not one of the 8 classes"),
        (torch.tensor([[1, -1]] * 4), r"label -1 at \[0, 1\]"),
        (torch.tensor([1, 2, 3, 4]), r"must be \(4, labels\)"),
        (torch.tensor([[1, 2]]), r"must be \(4, labels\)"),
        (torch.ones(4, 2), "must be integers"),
    ],
)
def test_bad_labels_are_named(labels: Tensor, message: str) -> None:
    logits, _, frames = case()
    with pytest.raises(InputError, match=message):
        ctc(logits, labels, frames, blank=0, reduction="sum")


def test_no_blank_is_named() -> None:
    logits, labels, frames = case()
    with pytest.raises(InputError, match=r"CTC needs a blank.*pad_token_id"):
        ctc(logits, labels, frames, blank=None, reduction="sum")
