"""Routing, products over groups of rows, and experts: against loops over tokens."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transept.layers.attention.kernels import eager
from transept.layers.context import Context
from transept.layers.mlp import GatedMLP
from transept.layers.moe import Experts, Router, SigmoidRouter, SparseMLP, grouped_linear

ENDS = torch.tensor([2, 2, 5, 6, 6])  # the second and the last group are empty


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(6, 4, generator=generator), torch.randn(5, 3, 4, generator=generator)
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def slow(x: Tensor, weight: Tensor) -> Tensor:
    owners = [0, 0, 2, 2, 2, 3]
    return torch.stack([weight[owner] @ row for row, owner in zip(x, owners, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_group_has_its_own_matrix(dtype: torch.dtype) -> None:
    x, weight = inputs(dtype)
    out = grouped_linear(x, weight, ENDS)
    assert out.dtype == dtype
    torch.testing.assert_close(out, slow(x, weight))


def test_gradients_are_those_of_the_loop() -> None:
    x, weight = inputs()
    assert torch.autograd.gradcheck(lambda x, weight: grouped_linear(x, weight, ENDS), (x, weight))
    grouped_linear(x, weight, ENDS).square().sum().backward()
    other_x, other_weight = inputs()
    slow(other_x, other_weight).square().sum().backward()
    torch.testing.assert_close(x.grad, other_x.grad)
    torch.testing.assert_close(weight.grad, other_weight.grad)
    assert weight.grad is not None
    assert not weight.grad[[1, 4]].any()


def test_the_operator_is_registered_as_pytorch_wants_it() -> None:
    torch.library.opcheck(grouped_linear, (*inputs(), ENDS))


def test_weights_nobody_chose_are_not_read() -> None:
    x, weight = inputs()
    with torch.no_grad():
        weight[[1, 4]] = torch.nan
    assert torch.isfinite(grouped_linear(x, weight, ENDS)).all()


def test_no_rows_give_no_rows() -> None:
    _, weight = inputs()
    assert grouped_linear(torch.empty(0, 4, dtype=torch.float64), weight, torch.zeros(5, dtype=torch.long)).shape == (0, 3)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_most_probable_are_chosen(normalize: bool, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0], [0.0, -1.0, 5.0, 4.0]], dtype=dtype)
    weights, experts = Router(3, 4, 2, normalize=normalize).choose(logits)
    assert experts.tolist() == [[1, 2], [2, 3]]
    assert weights.dtype == (torch.float32 if dtype is torch.bfloat16 else dtype)
    expected = F.softmax(logits.to(weights.dtype), dim=-1).gather(1, experts)
    torch.testing.assert_close(weights, expected / expected.sum(1, keepdim=True) if normalize else expected)
    torch.testing.assert_close(Router(3, 4, 2, normalize=normalize, scale=2.5).choose(logits)[0], 2.5 * weights)


def test_a_correction_changes_the_choice_and_no_weight() -> None:
    router = SigmoidRouter(3, 4, 2, normalize=False)
    router.correction_bias[0] = 1.0
    weights, experts = router.choose(torch.tensor([[-2.0, 3.0, 2.0, 0.0]]))
    assert experts.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, torch.tensor([[-2.0, 3.0]]).sigmoid())
    router.reset_parameters()
    assert not router.correction_bias.any()


def test_experts_are_of_the_best_groups() -> None:
    router = SigmoidRouter(3, 6, 2, groups=3, top_groups=1)
    weights, experts = router.choose(torch.tensor([[9.0, -9.0, 1.0, 2.0, 0.0, 0.5]]))
    assert experts.tolist() == [[3, 2]]  # the best expert is in a group whose two best have a smaller sum
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sigmoids_are_of_wide_logits(dtype: torch.dtype) -> None:
    router, x = SigmoidRouter(8, 4, 2).to(dtype), torch.randn(5, 8, dtype=dtype)
    logits, weights, _ = router(x)
    assert logits.dtype == weights.dtype == (torch.float32 if dtype is torch.bfloat16 else dtype)


def sparse(**more: Any) -> SparseMLP:
    torch.manual_seed(0)
    layer = SparseMLP(Router(8, 6, 3), Experts(6, 8, 5, "silu"), **more)
    layer.experts.reset_parameters(std=0.5)
    return layer.double().eval()


def one_by_one(layer: SparseMLP, x: Tensor) -> Tensor:
    rows = []
    for token in x.flatten(0, 1):
        _, weights, chosen = layer.router(token[None])
        e = layer.experts
        pairs = [(e.gate_up_proj[i] @ token).chunk(2) for i in chosen[0]]
        each = [e.down_proj[i] @ (F.silu(gate) * up) for i, (gate, up) in zip(chosen[0], pairs, strict=True)]
        rows.append(sum(weight * out for weight, out in zip(weights[0], each, strict=True)))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("tokens", [1, 2, 40])
@pytest.mark.parametrize("chunk_size", [0, 1, 7])
def test_experts_work_on_the_tokens_that_chose_them(tokens: int, chunk_size: int) -> None:
    layer, x = sparse(chunk_size=chunk_size), torch.randn(2, tokens, 8, dtype=torch.float64)
    ctx = Context(kernel=eager, router_logits=[])
    out = layer(x, ctx)
    torch.testing.assert_close(out, one_by_one(layer, x))
    assert ctx.router_logits is not None
    torch.testing.assert_close(ctx.router_logits[0], layer.router(x.flatten(0, 1))[0])


def test_shared_experts_work_on_all_tokens() -> None:
    layer, x, ctx = (
        sparse(shared=GatedMLP(8, 7, "silu").double()),
        torch.randn(2, 3, 8, dtype=torch.float64),
        Context(kernel=eager),
    )
    assert layer.shared is not None
    torch.testing.assert_close(layer(x, ctx), one_by_one(layer, x) + layer.shared(x))


def test_jitter_is_for_training() -> None:
    layer, x, ctx = sparse(jitter=0.3), torch.ones(1, 50, 8, dtype=torch.float64), Context(kernel=eager)
    torch.testing.assert_close(layer(x, ctx), one_by_one(layer, x))
    given = x.clone()
    noisy = layer.train()(x, ctx)
    assert torch.equal(x, given)
    assert noisy.std(dim=1).max() > 0


def test_compiled_and_exported_programs_group_anew_for_each_input() -> None:
    layer, ctx = sparse(), Context(kernel=eager)

    class Alone(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x, ctx)
            return out

    x, y = (torch.randn(1, 20, 8, dtype=torch.float64) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(Alone(), fullgraph=True, backend="eager")
    exported = torch.export.export(Alone(), (x,)).module()
    for given in (x, y):
        torch.testing.assert_close(compiled(given), layer(given, ctx))
        torch.testing.assert_close(exported(given), layer(given, ctx))


def test_layers_pickle_and_tell_their_sizes() -> None:
    layer, x, ctx = sparse(), torch.randn(1, 4, 8, dtype=torch.float64), Context(kernel=eager)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x, ctx), layer(x, ctx))
    assert "6 of 8 -> 5 -> 8" in repr(Experts(6, 8, 5, "silu"))
