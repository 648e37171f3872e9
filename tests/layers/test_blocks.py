"""Blocks of positions that see each other both ways: their masks, in every kernel, with padding, packed texts and caches."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from transept.errors import InputError, InputTypeError
from transept.layers.attention.kernels import eager
from transept.layers.caches.cache import Cache, DynamicCache, SlidingWindowCache
from transept.layers.caches.offloaded import OffloadedCache
from transept.layers.caches.static import StaticCache
from transept.layers.context import Context, Pattern, lower, mask_for
from transept.models.mamba import MambaConfig, MambaModel
from transept.models.mistral import MistralConfig, MistralForCausalLM

CPU = torch.device("cpu")
EXACT = 1e-12
WINDOW = 3
# Two pictures of a text, and a first part; both are wider than the window.
BLOCKS = torch.tensor([[-1, 0, 0, 0, 0, 0, -1, 1, 1, -1, -1], [2, 2, 2, 2, -1, -1, -1, -1, -1, -1, -1]])
TEXTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]])
PADDING = torch.tensor([[True] * 11, [False] * 1 + [True] * 10])
PATTERNS = [Pattern(causal, window, bounds) for causal, window, bounds in product((False, True), (None, 2, 3), (False, True))]
flex_warning = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def may(pattern: Pattern, blocks: Tensor, query: int, key: int) -> bool:
    """The rule in words, for the blocks (S) of one row."""
    together = bool(blocks[query] == blocks[key]) and int(blocks[query]) >= 0
    before = key <= query or not pattern.causal
    far = pattern.window is not None and (query - key if pattern.causal else abs(query - key)) >= pattern.window
    return (before or together) and not far if pattern.bounds_blocks else (before and not far) or together


def by_hand(pattern: Pattern, queries: int | None = None, padding: bool = False, texts: bool = False) -> Tensor:
    """(2, T, S) of bool: what the last queries may look at."""
    size, rows = BLOCKS.shape[1], range(len(BLOCKS))
    allowed = torch.tensor([[[may(pattern, BLOCKS[row], t, s) for s in range(size)] for t in range(size)] for row in rows])
    allowed = allowed & PADDING[:, None] if padding else allowed
    allowed = allowed & (TEXTS[:, :, None] == TEXTS[:, None]) if texts else allowed
    return allowed[:, -(queries or size) :]


@pytest.mark.parametrize("queries", [1, 2, 6, 11])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_lowered_blocks_equal_brute_force(pattern: Pattern, queries: int) -> None:
    keys = BLOCKS.shape[1]
    for padded, packed in product((False, True), repeat=2):
        more = {"blocks": BLOCKS, "texts": TEXTS if packed else None}
        expected = by_hand(pattern, queries, padded, packed)
        for past in (None, torch.tensor(keys - queries)):
            mask = lower(pattern, PADDING if padded else None, queries, keys, CPU, past, **more)
            found = torch.ones_like(expected) if mask is None else mask.expand(2, 1, queries, keys)[:, 0]
            assert torch.equal(found, expected)


def test_blocks_are_never_plain_causal_attention() -> None:
    like, causal = torch.zeros(1), Pattern(causal=True)
    assert mask_for(Context(kernel=eager), causal, 11, 11, like) == (None, True)
    ctx = Context(kernel=eager, blocks=BLOCKS)
    mask, plain = mask_for(ctx, causal, 11, 11, like)
    assert mask is not None
    assert not plain
    assert torch.equal(mask[:, 0], by_hand(causal))
    assert mask_for(ctx, causal, 11, 11, like)[0] is mask  # once in a pass
    assert mask_for(ctx, causal._replace(window=2), 11, 11, like)[0] is not mask
    ctx.full_mask, ctx.lowered = torch.ones(1, 1, 11, 11, dtype=torch.bool), {}
    assert mask_for(ctx, causal, 11, 11, like)[0] is ctx.full_mask


def decoder(bounds: bool = False, **more: Any) -> MistralForCausalLM:
    """All layers have one window, so that a mask by hand can stand for all."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 50, "pad_token_id": 0, "eos_token_id": None, "initializer_range": 0.3}
    model = MistralForCausalLM(MistralConfig(num_key_value_heads=2, sliding_window=WINDOW, **sizes, **ids | more))
    for layer in model.backbone.layers:
        layer.self_attn.pattern = Pattern(True, WINDOW, bounds)  # type: ignore[union-attr]
    return model.double().eval()


def prompt() -> Tensor:
    return torch.randint(3, 50, tuple(BLOCKS.shape), generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=0, atol=EXACT)


@flex_warning
@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_kernels_equal_a_mask_by_hand(kernel: str, bounds: bool) -> None:
    model, ids, pattern = decoder(bounds), prompt(), Pattern(True, WINDOW, bounds)
    positions = torch.arange(11)[None]
    with torch.no_grad():
        for padded, packed in product((False, True), repeat=2):
            model.set_attn_implementation("eager")
            mask = by_hand(pattern, None, padded, packed)
            expected = model(ids, mask, position_ids=positions).logits
            model.set_attn_implementation(kernel)
            more: dict[str, Any] = {"seq_idx": TEXTS, "use_cache": False} if packed else {}
            more |= {"position_ids": positions, "block_sequence_ids": BLOCKS}
            found = model(ids, PADDING.long() if padded else None, **more).logits
            real = PADDING if padded else torch.ones_like(PADDING)
            assert close(found[real], expected[real])
        plain = model(ids).logits
        assert torch.equal(model(ids, block_sequence_ids=torch.full_like(BLOCKS, -1)).logits, plain)
        assert not close(plain[:, 2:], found[:, 2:])


def test_gradients_equal_those_of_a_mask_by_hand() -> None:
    model, ids = decoder(), prompt()
    for more in ({"block_sequence_ids": BLOCKS}, {"attention_mask": by_hand(Pattern(True, WINDOW))}):
        model(ids, labels=ids, **more).loss.backward()
    both = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(ids, labels=ids, block_sequence_ids=BLOCKS).loss.backward()
    assert all(torch.allclose(2 * p.grad, g, rtol=0, atol=EXACT) for p, g in zip(model.parameters(), both))  # type: ignore[operator]


CACHES: dict[str, Any] = {
    "dynamic": DynamicCache,
    "sliding": SlidingWindowCache,
    "static": lambda: StaticCache(max_cache_len=30),
    "offloaded": OffloadedCache,
}


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("first", [11, 10, 4, 1])
@pytest.mark.parametrize("kind", CACHES)
def test_caches_know_the_blocks_of_what_they_hold(kind: str, first: int, bounds: bool) -> None:
    """A first part with blocks, then the rest, to which a block may reach from the first; then tokens without a block."""
    model, ids, pattern = decoder(bounds), prompt(), Pattern(True, WINDOW, bounds)
    more = torch.randint(3, 50, (2, 5), generator=torch.Generator().manual_seed(2))
    size, new = ids.shape[1], more.shape[1]
    allowed = torch.zeros(2, size + new, size + new, dtype=torch.bool)
    behind = lower(Pattern(True, WINDOW), None, new, size + new, CPU)
    assert behind is not None
    allowed[:, :size, :size], allowed[:, size:] = by_hand(pattern), behind[0, 0]
    allowed[:, :first, first:] = False  # what has been read has not seen what came later
    cache: Cache = CACHES[kind]()
    with torch.no_grad():
        expected = model(torch.cat([ids, more], dim=1), allowed).logits
        found = [model(ids[:, :first], past_key_values=cache, block_sequence_ids=BLOCKS[:, :first]).logits]
        if first < size:
            found.append(model(ids[:, first:], past_key_values=cache, block_sequence_ids=BLOCKS).logits)
        for place in range(new):
            told = {"block_sequence_ids": BLOCKS} if place % 2 else {}  # behind its end it says nothing
            found.append(model(more[:, place : place + 1], past_key_values=cache, **told).logits)
    assert close(torch.cat(found, dim=1), expected)


def test_cropped_copied_and_reordered_caches_go_on() -> None:
    model, ids = decoder(), prompt()
    with torch.no_grad():
        whole = model(ids, block_sequence_ids=BLOCKS)
        cache = model(ids, block_sequence_ids=BLOCKS, use_cache=True).past_key_values
        twin = copy.deepcopy(cache)
        cache.crop(8)
        again = model(ids[:, 8:], past_key_values=cache, block_sequence_ids=BLOCKS).logits
        assert close(again[1], whole.logits[1, 8:])  # the second row has no block there
        order = torch.tensor([1, 0, 1])
        twin.reorder_cache(order)
        after = model(ids[order, :1], past_key_values=twin).logits
        one = model(torch.cat([ids, ids[:, :1]], dim=1)[order], block_sequence_ids=BLOCKS[order]).logits[:, -1:]
        assert close(after, one)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "num_return_sequences": 2}, {"prefill_chunk_size": 4}], ids=str)
def test_written_texts_go_on_from_blocks(settings: dict[str, Any]) -> None:
    model, ids, mask = decoder(), prompt(), PADDING.long()
    blocks = BLOCKS.clone()
    blocks[:, 8:] = torch.tensor([1, 1, -1])  # so near to the end that it matters
    fixed: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, **settings}
    told = {"attention_mask": mask, "block_sequence_ids": blocks}
    cached = model.generate(ids, **told, **fixed)
    assert torch.equal(cached, model.generate(ids, **told, **fixed, use_cache=False))
    same = {"block_sequence_ids": blocks[:1]}
    shared = model.generate(ids[:1].expand(2, -1), **same, **fixed)
    assert torch.equal(shared[: len(shared) // 2], model.generate(ids[:1], **same, **fixed))
    shown = {"output_logits": True, "return_dict_in_generate": True, "num_return_sequences": 1}
    with torch.no_grad():
        expected = model(ids, **told).logits[:, -1].float()
        found = model.generate(ids, **told, **fixed | shown).logits[0][:: fixed.get("num_beams", 1)]
        assert torch.allclose(found, expected, atol=1e-6)
        assert not torch.allclose(model(ids, mask).logits[:, -1].float(), expected, atol=1e-2)


def test_compiled_graphs_hold_blocks() -> None:
    model, ids = decoder().backbone, prompt()
    graph = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        packed = {"attention_mask": PADDING, "seq_idx": TEXTS, "block_sequence_ids": BLOCKS, "use_cache": False}
        expected, found = (run(ids, **packed).last_hidden_state for run in (model, graph))
        assert close(found[PADDING], expected[PADDING])
        caches = [StaticCache(max_cache_len=20) for _ in range(2)]
        for start, end in ((0, 4), (4, 11)):
            part, told = ids[:, start:end], {"block_sequence_ids": BLOCKS[:, :end]}
            one, other = (run(part, past_key_values=cache, **told) for run, cache in zip((model, graph), caches))
            assert close(one.last_hidden_state, other.last_hidden_state)


def test_exported_programs_hold_blocks() -> None:
    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = decoder().backbone

        def forward(self, ids: Tensor, mask: Tensor, blocks: Tensor) -> Tensor:
            states: Tensor = self.model(ids, mask, block_sequence_ids=blocks, use_cache=False).last_hidden_state
            return states

    model, sizes = States(), {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=64)}
    program = torch.export.export(model, (prompt(), PADDING.long(), BLOCKS), dynamic_shapes=(sizes,) * 3).module()
    ids = torch.randint(3, 50, (3, 20), generator=torch.Generator().manual_seed(3))
    blocks = torch.full((3, 20), -1)
    blocks[:, 4:13] = 0
    with torch.no_grad():
        assert close(program(ids, torch.ones_like(ids), blocks), model(ids, torch.ones_like(ids), blocks))


def test_compiled_steps_go_on_from_blocks() -> None:
    model, counted = decoder(), CompileCounter()
    torch._dynamo.reset()
    told: dict[str, Any] = {"attention_mask": PADDING.long(), "block_sequence_ids": BLOCKS, "max_new_tokens": 5}
    static = {"cache_implementation": "static", "compile_config": {"backend": counted, "fullgraph": True}}
    assert torch.equal(model.generate(prompt(), **told, **static), model.generate(prompt(), **told))
    assert counted.frame_count == 1


@pytest.mark.parametrize("kind", CACHES)
def test_a_later_turn_brings_a_block(kind: str) -> None:
    """When a cache of windows has dropped positions already."""
    model, ids = decoder(), prompt()
    blocks, cache = torch.full((2, 22), -1), CACHES[kind]()
    blocks[:, 13:19] = 0
    both = torch.cat([ids, ids.flip(1)], dim=1)
    with torch.no_grad():
        expected = model(both, block_sequence_ids=blocks).logits
        parts = [model(both[:, :9], past_key_values=cache).logits]
        parts += [model(both[:, place : place + 1], past_key_values=cache).logits for place in range(9, 12)]
        parts += [model(both[:, 12:], past_key_values=cache, block_sequence_ids=blocks).logits]
    assert close(torch.cat(parts, dim=1), expected)


def test_what_blocks_cannot_be_for_is_refused() -> None:
    model, ids = decoder(), prompt()
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"block_sequence_ids": BLOCKS, "attention_mask": by_hand(Pattern(True))},
            "`block_sequence_ids` and .* exclude each other",
        ),
        ({"block_sequence_ids": torch.zeros(2, 12).long()}, r"has the shape \(2, 12\), but the batch needs \(2, 11\)"),
        ({"block_sequence_ids": torch.zeros(3, 11).long()}, r"has the shape \(3, 11\), but the batch needs \(2, 11\)"),
        ({"block_sequence_ids": BLOCKS.double()}, r"`block_sequence_ids` must be \(batch, positions\) of int64"),
    ]
    for given, message in wrong:
        with pytest.raises(InputError, match=message):
            model(ids, **given)
    with pytest.raises(InputError, match="`lengths` and `block_sequence_ids` exclude each other"):
        model.backbone(ids.view(1, -1), lengths=[11, 11], block_sequence_ids=BLOCKS.view(1, -1))
    with pytest.raises(InputError, match=r"`block_sequence_ids` must be \(2, 11\) as the prompt is, but is \(2, 4\)"):
        model.generate(ids, block_sequence_ids=BLOCKS[:, :4], max_new_tokens=1)
    mamba = MambaModel(MambaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, state_size=4))
    with pytest.raises(InputTypeError, match="MambaModel takes no input `block_sequence_ids`"):
        mamba(ids, block_sequence_ids=BLOCKS)
