"""Masks: what positions allow, what callers pass, and rows that may attend to nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transept.errors import InputError
from transept.layers.attention.kernels import KERNELS, eager, sdpa
from transept.layers.context import Context, Pattern, lower, mask_for, read_mask
from transept.models.bert import BertConfig, BertModel
from transept.models.llama import LlamaConfig, LlamaModel
from transept.models.modernbert import ModernBertConfig, ModernBertModel

CPU = torch.device("cpu")
PATTERNS = [Pattern(causal, window) for causal in (False, True) for window in (None, 1, 2, 3, 20)]
flex_warning = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def may(pattern: Pattern, query: int, key: int) -> bool:
    """The rule in words: not behind the query when causal, and fewer than `window` positions away."""
    if pattern.causal and key > query:
        return False
    return pattern.window is None or abs(query - key) < pattern.window


def test_patterns_compare_and_hash() -> None:
    assert Pattern(causal=True, window=4) == Pattern(True, 4)
    assert len(set(PATTERNS)) == len(PATTERNS)
    assert {Pattern(True): 1}[Pattern(causal=True)] == 1
    assert Pattern() != Pattern(causal=True)


@pytest.mark.parametrize("past", [0, 1, 5])
@pytest.mark.parametrize("queries", [1, 2, 6])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_lowered_patterns_equal_brute_force(pattern: Pattern, queries: int, past: int) -> None:
    keys = past + queries
    padding = torch.rand(3, keys, generator=torch.Generator().manual_seed(0)) > 0.3
    expected = torch.tensor([[may(pattern, past + t, s) for s in range(keys)] for t in range(queries)])
    plain = lower(pattern, None, queries, keys, CPU)
    assert torch.equal(expected, torch.ones_like(expected) if plain is None else plain[0, 0])
    padded = lower(pattern, padding, queries, keys, CPU)
    assert padded is not None
    assert torch.equal(padded.expand(3, 1, queries, keys)[:, 0], expected & padding[:, None])


def test_layers_of_one_pattern_share_one_tensor() -> None:
    ctx = Context(kernel=eager, padding=torch.tensor([[True, True, False]]))
    like = torch.zeros(1)
    first, _ = mask_for(ctx, Pattern(causal=True), 3, 3, like)
    again, _ = mask_for(ctx, Pattern(causal=True), 3, 3, like)
    other, _ = mask_for(ctx, Pattern(window=2), 3, 3, like)
    assert first is again
    assert other is not first


def test_no_tensor_is_made_where_none_is_needed() -> None:
    ctx, like = Context(kernel=eager), torch.zeros(1)
    assert mask_for(ctx, Pattern(causal=True), 4, 4, like) == (None, True)
    assert mask_for(ctx, Pattern(), 4, 4, like) == (None, False)
    assert mask_for(ctx, Pattern(causal=True), 1, 7, like)[0] is None  # one new token may look at all cached ones
    for window in (7, 20):  # which reach as far as there are keys
        assert mask_for(ctx, Pattern(causal=True, window=window), 7, 7, like) == (None, True)
        assert mask_for(ctx, Pattern(causal=True, window=window), 1, 7, like)[0] is None
    assert mask_for(ctx, Pattern(causal=True, window=6), 7, 7, like)[0] is not None
    assert mask_for(ctx, Pattern(causal=True, window=6), 1, 7, like)[0] is not None


def test_a_mask_that_hides_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, *rest: float) -> Any:
        seen.append((mask is None, causal))
        return sdpa(q, k, v, mask, causal, *rest)

    monkeypatch.setitem(KERNELS, "sdpa", spy)
    ids = torch.randint(3, 50, (2, 6))
    with torch.no_grad():
        decoder()(ids, torch.ones(2, 6))
        encoder()(ids, torch.tensor([[1] * 6, [1] * 5 + [0]]))
    assert seen == [(True, True)] * 2 + [(False, False)] * 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.int32, torch.float32, torch.float16])
def test_padding_masks_of_any_type(dtype: torch.dtype) -> None:
    given = torch.tensor([[1, 1, 0], [0, 1, 1]]).to(dtype)
    padding, full = read_mask(given, 2, 3, 3)
    assert full is None
    assert padding is not None
    assert padding.tolist() == [[True, True, False], [False, True, True]]


def test_whole_masks_keep_their_kind() -> None:
    allowed = torch.rand(2, 3, 5) > 0.5
    for given in (allowed, allowed[:, None], allowed.long(), allowed[:, None].to(torch.uint8)):
        padding, full = read_mask(given, 2, 3, 5)
        assert padding is None
        assert full is not None
        assert torch.equal(full, allowed[:, None])
    added = torch.zeros(1, 4, 1, 5)
    assert read_mask(added, 2, 3, 5)[1] is added


WRONG = [(2, 4), (3, 5), (5,), (2, 5, 5), (2, 3, 4), (3, 1, 3, 5), (2, 1, 2, 5), (2, 1, 3, 4), (1, 2, 1, 3, 5)]


@pytest.mark.parametrize("shape", WRONG)
def test_wrong_shapes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as found:
        read_mask(torch.ones(shape), 2, 3, 5)
    assert str(shape) in str(found.value)
    assert "(2, 5)" in str(found.value)


def test_a_mask_for_the_new_tokens_alone_is_explained() -> None:
    with pytest.raises(InputError, match="covers cached positions as well as new ones"):
        read_mask(torch.ones(2, 3), 2, 3, 5)


def decoder(**more: Any) -> LlamaModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaModel(LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes, **more)).eval()


def encoder() -> ModernBertModel:
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4}
    return ModernBertModel(ModernBertConfig(vocab_size=50, local_attention=4, **sizes, **ids)).eval()


@flex_warning
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_all_forms_of_one_mask_agree(kernel: str) -> None:
    model = decoder()
    model.set_attn_implementation(kernel)
    ids = torch.randint(0, 50, (2, 6))
    padding = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    whole = torch.ones(6, 6, dtype=torch.bool).tril() & padding.bool()[:, None]
    lowest = torch.finfo(torch.float32).min
    forms = {
        "padding, bool": padding.bool(),
        "padding, float": padding.float(),
        "3-D": whole,
        "4-D": whole[:, None],
        "4-D, heads": whole[:, None].expand(2, 4, 6, 6),
        "added": torch.zeros(2, 1, 6, 6).masked_fill(~whole[:, None], lowest),
        "added, infinite": torch.zeros(2, 1, 6, 6).masked_fill(~whole[:, None], -torch.inf),
        "added, double": torch.zeros(2, 1, 6, 6).double().masked_fill(~whole[:, None], torch.finfo(torch.float64).min),
    }
    with torch.no_grad():
        expected = model(ids, padding).last_hidden_state
        for name, mask in forms.items():
            found = model(ids, attention_mask=mask).last_hidden_state
            assert torch.allclose(found, expected, atol=1e-5), name  # another kernel may run for another form


@flex_warning
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_rows_that_may_attend_to_nothing_stay_finite(kernel: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, heads, 5, 8, dtype=dtype) for heads in (4, 2, 2))
    allowed = torch.rand(2, 1, 5, 5) > 0.4
    allowed[0, 0, 2], allowed[1] = False, False
    ctx = Context(kernel=KERNELS[kernel])
    for given in (
        allowed,
        torch.zeros(2, 1, 5, 5).masked_fill(~allowed, -torch.inf),
        (~allowed) * -torch.finfo(torch.float32).max,
    ):
        ctx.full_mask, ctx.lowered = given, {}
        mask, causal = mask_for(ctx, Pattern(causal=True), 5, 5, q)
        trained = [x.clone().requires_grad_(kernel != "flex") for x in (q, k, v)]
        out, _ = KERNELS[kernel](*trained, mask, causal, 0.3, 0.0)
        assert torch.isfinite(out).all()
        if kernel != "flex":  # PyTorch's has no backward pass on the CPU
            out.sum().backward()
            assert all(torch.isfinite(x.grad).all() for x in trained if x.grad is not None)
            assert all(x.grad is not None for x in trained)


@flex_warning
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("make", [decoder, encoder])
def test_padding_cannot_reach_real_tokens(make: Any, kernel: str, side: str) -> None:
    model = make()
    model.set_attn_implementation(kernel)
    ids, mask = torch.randint(3, 50, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 3:] = 0  # farther from the real tokens than a window reaches
    mask = mask.flip(1) if side == "left" else mask

    def run(padding: int) -> Tensor:
        with torch.no_grad():
            states: Tensor = model(ids.masked_fill(mask == 0, padding), mask).last_hidden_state
        return states

    one, other = run(0), run(7)
    assert torch.isfinite(one).all()
    assert torch.equal(one[mask == 1], other[mask == 1])


@flex_warning
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_all_forms_of_an_encoders_mask_agree(kernel: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
    config = BertConfig(is_decoder=True, add_cross_attention=True, **sizes)
    model = BertModel(config).to(dtype).eval()
    model.set_attn_implementation(kernel)
    ids, states = torch.randint(3, 50, (2, 3)), torch.randn(2, 5, 16, dtype=dtype)
    padding = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
    whole = padding.bool()[:, None].expand(2, 3, 5)
    added = torch.zeros(2, 1, 3, 5).masked_fill(~whole[:, None], -torch.inf)
    with torch.no_grad():
        expected = model(ids, encoder_hidden_states=states, encoder_attention_mask=padding).last_hidden_state
        for mask in (whole, whole[:, None].expand(2, 4, 3, 5), added, added.double(), padding.float()):
            found = model(ids, encoder_hidden_states=states, encoder_attention_mask=mask).last_hidden_state
            assert torch.isfinite(found).all()
            assert torch.allclose(found[0], expected[0], atol=1e-5 if dtype is not torch.bfloat16 else 0.05)
        for wrong, message in (
            (torch.ones(2, 3, 3, 5), "for 3 heads, but the model has 4"),
            ([1], "must be a tensor, but is list"),
        ):
            with pytest.raises(InputError, match=f"`encoder_attention_mask`.*{message}"):
                model(ids, encoder_hidden_states=states, encoder_attention_mask=wrong)


@pytest.mark.parametrize("make", [decoder, encoder])
def test_gradients_of_padded_batches_are_finite(make: Any) -> None:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :9] = 0
    for kernel in ("eager", "sdpa"):
        model = make()
        model.set_attn_implementation(kernel)
        model(torch.randint(3, 50, (2, 12)), mask).last_hidden_state.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_kernels_agree_on_what_is_allowed() -> None:
    q, k, v = (torch.randn(2, heads, 6, 8) for heads in (4, 2, 2))
    mask = lower(Pattern(causal=True, window=3), torch.tensor([[True] * 6, [True] * 4 + [False] * 2]), 6, 6, CPU)
    assert torch.allclose(eager(q, k, v, mask, False, 0.3, 0.0)[0], sdpa(q, k, v, mask, False, 0.3, 0.0)[0], atol=1e-6)
    causal = lower(Pattern(causal=True), None, 6, 6, CPU)
    for kernel in (eager, sdpa):
        assert torch.allclose(kernel(q, k, v, causal, False, 0.3, 0.0)[0], kernel(q, k, v, None, True, 0.3, 0.0)[0], atol=1e-6)
