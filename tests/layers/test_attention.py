"""Attention against a loop over its definition, for every kernel and form."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from transept.errors import InputError, UnsupportedError
from transept.layers.attention import Attention
from transept.layers.attention.kernels import KERNELS, eager, flex, kernel_named, sdpa
from transept.layers.context import Context, Pattern
from transept.layers.norm import RMSNorm
from transept.layers.rotary import Rotary, rotate

flex_warning = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
MASKS = ["none", "causal", "bool", "heads", "added", "one row"]


@torch.no_grad()
def by_definition(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, added: Tensor, scale: float) -> Tensor:
    """Weighted means of values, one query at a time; `allowed` and `added` are (B, H, T, S)."""
    out, groups = torch.empty_like(q), q.shape[1] // k.shape[1]
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        keys = [s for s in range(k.shape[2]) if allowed[b, h, t, s]]
        scores = [float(q[b, h, t] @ k[b, h // groups, s]) * scale + float(added[b, h, t, s]) for s in keys]
        shares = [math.exp(score - max(scores)) for score in scores]
        out[b, h, t] = sum(share * v[b, h // groups, s] for share, s in zip(shares, keys, strict=True)) / sum(shares)
    return out


def masked(kind: str, shape: tuple[int, int, int, int]) -> tuple[Tensor | None, bool, Tensor, Tensor]:
    """A kernel's mask and `causal`, and what they mean: allowed pairs and added scores."""
    generator = torch.Generator().manual_seed(4)
    every, nothing = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64)
    first = torch.arange(shape[3]) == 0  # something to attend to in every row
    match kind:
        case "causal":
            return None, True, every.tril(), nothing
        case "bool":
            allowed = (torch.rand(shape[0], 1, *shape[2:], generator=generator) > 0.4) | first
            return allowed, False, allowed.expand(shape), nothing
        case "heads":
            allowed = (torch.rand(1, *shape[1:], generator=generator) > 0.4) | first
            return allowed, False, allowed.expand(shape), nothing
        case "one row":
            allowed = (torch.rand(shape[0], 1, 1, shape[3], generator=generator) > 0.4) | first
            return allowed, False, allowed.expand(shape), nothing
        case "added":
            added = torch.randn(1, *shape[1:], generator=generator, dtype=torch.float64)
            return added, False, every, added.expand(shape)
    return None, False, every, nothing


@flex_warning
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ["eager", "sdpa", "flex"])
def test_kernels_equal_the_definition(name: str, kind: str, kv_heads: int) -> None:
    keys = 5 if kind == "causal" else 7
    q, k, v = (
        torch.randn(2, heads, length, 8, dtype=torch.float64) for heads, length in ((4, 5), (kv_heads, keys), (kv_heads, keys))
    )
    mask, causal, allowed, added = masked(kind, (2, 4, 5, keys))
    with torch.no_grad():
        out, weights = KERNELS[name](q, k, v, mask, causal, 0.3, 0.0)
    assert float((out - by_definition(q, k, v, allowed, added, 0.3)).abs().max()) <= 1e-12
    assert (weights is None) == (name != "eager")
    if weights is not None:
        assert torch.allclose(weights.sum(-1), torch.ones(()).double())
        assert not weights[~allowed].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_lengths_that_fill_no_step_equal_the_step_by_step_kernel(kind: str, kv_heads: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    for length in range(1, 36):
        q, k, v = (torch.randn(3, heads, length, 8, dtype=dtype, generator=draw) for heads in (4, kv_heads, kv_heads))
        real = torch.arange(length) < torch.tensor([[length], [length // 2 + 1], [1]])
        padding = real[:, None, None, :]
        added = torch.where(padding, torch.randn(3, 1, 1, length, dtype=dtype, generator=draw), torch.finfo(dtype).min)
        mask = {"bool": padding, "added": added}.get(kind)
        inputs = (q, k, v, mask, kind == "causal", 0.4, 0.0)
        with torch.inference_mode():
            torch.testing.assert_close(sdpa(*inputs)[0], eager(*inputs)[0])


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_gradients_equal_those_of_finite_differences(name: str) -> None:
    q, k, v = (torch.randn(1, heads, 3, 4, dtype=torch.float64, requires_grad=True) for heads in (2, 1, 1))
    mask = masked("bool", (1, 2, 3, 3))[0]
    assert torch.autograd.gradcheck(lambda *x: KERNELS[name](*x, mask, False, 0.5, 0.0)[0], (q, k, v))


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_dropped_weights_keep_the_mean(name: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    whole = KERNELS[name](q, k, v, None, False, 0.3, 0.0)[0]
    mean = torch.stack([KERNELS[name](q, k, v, None, False, 0.3, 0.5)[0] for _ in range(4000)]).mean(0)
    assert not torch.equal(KERNELS[name](q, k, v, None, False, 0.3, 0.5)[0], whole)
    assert float((mean - whole).abs().max()) <= 0.1


def test_half_precision_is_summed_wide() -> None:
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    exact = eager(q.double(), k.double(), v.double(), None, True, 0.3, 0.0)[0]
    for kernel in (eager, sdpa):
        half = kernel(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, True, 0.3, 0.0)[0]
        assert half.dtype == torch.bfloat16
        assert float((half.double() - exact).abs().max()) <= 0.05  # inputs and weights of 8 bits


def test_kernels_are_chosen_by_name() -> None:
    assert kernel_named("sdpa") is sdpa
    assert kernel_named("flex_attention") is kernel_named("flex") is flex
    with pytest.raises(InputError, match="'sdpa'"):
        kernel_named("spda")


def test_flex_says_what_it_cannot_do() -> None:
    q = torch.randn(1, 1, 3, 8, requires_grad=True)
    with pytest.raises(InputError, match="dropout"):
        flex(q, q, q, None, False, 1.0, 0.1)
    with pytest.raises(InputError, match="no gradient on the CPU"):
        flex(q, q, q, None, False, 1.0, 0.0)


def test_flash_attention_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU in the tests: the kernel is a stand-in that keeps what it is called with."""
    calls: list[tuple[torch.Size, dict[str, Any]]] = []

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        calls.append((q.shape, options))
        return q

    with pytest.raises(UnsupportedError, match=r"flash-attn.*sdpa"):
        kernel_named("flash_attention_2")
    package = ModuleType("flash_attn")
    package.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    flash = kernel_named("flash_attention_2")
    q = torch.randn(1, 4, 5, 8)
    assert torch.equal(flash(q, q, q, None, True, 0.5, 0.0)[0], sdpa(q, q, q, None, True, 0.5, 0.0)[0])
    assert not calls
    with FakeTensorMode():
        q = torch.empty(2, 4, 5, 8, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 2, 5, 8, device="cuda", dtype=torch.bfloat16)
        assert flash(q, k, k, None, True, 0.5, 0.1)[0].shape == q.shape
        flash(q, k, k, torch.ones(2, 1, 5, 5, dtype=torch.bool, device="cuda"), False, 0.5, 0.0)
    assert calls == [((2, 5, 4, 8), {"dropout_p": 0.1, "softmax_scale": 0.5, "causal": True})]


def test_grouped_heads_read_their_own_keys() -> None:
    torch.manual_seed(0)
    few = Attention(16, 4, kv_heads=2, pattern=Pattern(causal=True)).double()
    many = Attention(16, 4, pattern=Pattern(causal=True)).double()
    with torch.no_grad():
        for name, part in many.named_parameters():
            given = few.get_parameter(name)
            if name.startswith(("k_proj", "v_proj")):  # each of the two is read by two heads
                given = given.unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1)
            part.copy_(given)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    assert torch.allclose(few(x, Context(kernel=sdpa))[0], many(x, Context(kernel=sdpa))[0])


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "bias but not last": {"out_bias": False},
    "wide heads": {"head_dim": 12, "kv_heads": 1},
    "other scale": {"scale": 0.9},
    "normed": {"qk_norm": RMSNorm},
    "window": {"pattern": Pattern(causal=True, window=2)},
}


@pytest.mark.parametrize("form", FORMS)
def test_layers_equal_the_definition(form: str) -> None:
    torch.manual_seed(0)
    given = {"kv_heads": 2, "pattern": Pattern(causal=True)} | FORMS[form]
    layer = Attention(16, 4, rotary="default", **given).double()
    size, kv = given.get("head_dim", 4), given["kv_heads"]
    assert (layer.q_proj.bias is None, layer.o_proj.bias is None) == {
        "no bias": (True, True),
        "bias but not last": (False, True),
    }.get(form, (False, False))
    rotary = Rotary(size, {"rope_theta": 100.0, "partial_rotary_factor": 0.5})
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    tables = rotary(torch.arange(5)[None], x.dtype)
    q, k, v = (
        linear(x).view(2, 5, heads, size).transpose(1, 2)
        for linear, heads in ((layer.q_proj, 4), (layer.k_proj, kv), (layer.v_proj, kv))
    )
    if form == "normed":
        q, k = (nn.functional.rms_norm(part, (size,), eps=1e-6) for part in (q, k))
    allowed = torch.tensor([[s <= t and (form != "window" or t - s < 2) for s in range(5)] for t in range(5)])
    q, k = rotate(q, *tables), rotate(k, *tables)
    scale = 0.9 if form == "other scale" else size**-0.5
    out = by_definition(q, k, v, allowed.expand(2, 4, 5, 5), torch.zeros(2, 4, 5, 5), scale)
    expected = layer.o_proj(out.transpose(1, 2).flatten(2))
    for kernel in (eager, sdpa):
        assert torch.allclose(layer(x, Context(kernel=kernel, rotary={"default": tables}))[0], expected)


def test_layers_turn_by_the_table_of_their_kind() -> None:
    layer, x = Attention(16, 4, rotary="local"), torch.randn(1, 5, 16)
    table = Rotary(4, {"rope_theta": 100.0})(torch.arange(5)[None], x.dtype)
    without, _ = layer(x, Context(kernel=sdpa))
    assert torch.equal(layer(x, Context(kernel=sdpa, rotary={"default": table}))[0], without)
    assert not torch.allclose(layer(x, Context(kernel=sdpa, rotary={"local": table}))[0], without)


def test_cross_attention_reads_the_encoder() -> None:
    layer, x = Attention(16, 4, cross=True), torch.randn(2, 3, 16)
    encoded, mask = torch.randn(2, 5, 16), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    ctx = Context(kernel=eager, encoder_states=encoded, encoder_mask=mask[:, None, None], cross_attentions=[], attentions=[])
    out, weights = layer(x, ctx)
    assert weights is ctx.cross_attentions[0]  # type: ignore[index]
    assert ctx.attentions == []
    assert ctx.cross_attentions is not None
    assert ctx.cross_attentions[0].shape == (2, 4, 3, 5)
    assert not ctx.cross_attentions[0][1, :, :, 2:].any()
    alone = Context(kernel=eager, encoder_states=encoded[1:, :2])
    assert torch.allclose(layer(x[1:], alone)[0], out[1:], atol=1e-6)
    with pytest.raises(InputError, match="encoder_hidden_states"):
        layer(x, Context(kernel=eager))


def test_dropout_is_for_training() -> None:
    layer, x = Attention(16, 4, dropout=0.5), torch.randn(1, 6, 16)
    assert not torch.equal(layer(x, Context(kernel=sdpa))[0], layer(x, Context(kernel=sdpa))[0])
    layer.eval()
    assert torch.equal(layer(x, Context(kernel=sdpa))[0], layer(x, Context(kernel=sdpa))[0])


@torch.no_grad()
@pytest.mark.parametrize("capability", ["AVX2", "AVX512", "DEFAULT"])
def test_lengths_that_kernels_compute_in_other_ways(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """Short lengths in three calls, and long rests of keys filled up, give the same numbers, alone and in company."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(0)
    for length in range(1, 65):
        q, k, v = torch.randn(3, 2, length, 4, 8).transpose(2, 3)
        found = sdpa(q, k, v, None, False, 0.35, 0.0)[0]
        torch.testing.assert_close(found, eager(q, k, v, None, False, 0.35, 0.0)[0], rtol=0, atol=2e-6)
        assert torch.equal(found[:1], sdpa(q[:1], k[:1], v[:1], None, False, 0.35, 0.0)[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tracing() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, None, False, 0.5, 0.0)[0]

    q, k, v = torch.randn(3, 2, 4, 5, 8)
    for keys, values in ((k, v), (k[:, :2], v[:, :2])):
        traced = torch.jit.trace(attend, (q, keys, values))  # type: ignore[no-untyped-call]
        torch.testing.assert_close(traced(q, keys, values), attend(q, keys, values))
