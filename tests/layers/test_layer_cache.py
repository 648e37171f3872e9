"""Layers of one model that keep things of several kinds: states, keys and values, and both."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from tests.layers.test_cache import CLOSE, numbers
from tests.layers.test_caches import MAKERS, near
from torch import Tensor, nn

from transept.errors import InputError, InputTypeError
from transept.heads.language import ForCausalLM
from transept.kinds.text import CausalBackbone
from transept.layers import Context
from transept.layers.attention.kernels import eager
from transept.layers.caches.cache import Cache, DynamicCache, Kinds
from transept.layers.caches.layer import KeyValues, LayerCache, States
from transept.layers.caches.static import StaticCache
from transept.models.llama import LlamaConfig, LlamaModel
from transept.models.mamba import MambaConfig, MambaModel

KINDS: list[tuple[type[LayerCache], ...]] = [(KeyValues,), (States,), (States,), (KeyValues,), (States, KeyValues)]


class Both(nn.Module):
    """Attention and a recurrence side by side."""

    def __init__(self, attention: nn.Module, recurrence: nn.Module) -> None:
        super().__init__()
        self.attention, self.recurrence = attention, recurrence

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mean: Tensor = (self.attention(x, ctx) + self.recurrence(x, ctx)) / 2
        return mean


class HybridModel(LlamaModel):
    """Layers of attention and of a state space in turn, and one of both."""

    keeps, ragged = (KeyValues, States), False

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        recurrent = MambaConfig(hidden_size=config.hidden_size, num_hidden_layers=1, state_size=3, time_step_rank=4)

        for layer, kinds in enumerate(KINDS):
            if States in kinds:
                recurrence = MambaModel(recurrent).layers[0]
                self.layers[layer] = Both(self.layers[layer], recurrence) if KeyValues in kinds else recurrence

    def layer_kinds(self) -> Kinds:
        return KINDS


class HybridForCausalLM(ForCausalLM[HybridModel]): ...


def hybrid() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = HybridForCausalLM(LlamaConfig(**sizes, num_hidden_layers=len(KINDS), initializer_range=0.3, eos_token_id=None))
    for part in model.parameters():
        nn.init.normal_(part, std=0.3)
    return model.eval()


@pytest.fixture(params=MAKERS)
def cache(request: pytest.FixtureRequest) -> Cache:
    made: Cache = MAKERS[request.param]()
    return made


@torch.no_grad()
def test_hybrids_go_on_where_they_stopped(cache: Cache) -> None:
    model, ids = hybrid(), numbers(2, 16)
    parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 3), (3, 4), (4, 11), (11, 12), (12, 16))]
    assert near(torch.cat(parts, dim=1), model(ids, use_cache=False).logits, cache)
    assert [layer.kinds for layer in cache.layers] == [tuple(kind.name for kind in kinds) for kinds in KINDS]
    assert [layer.length for layer in cache.layers] == [16] * len(KINDS)
    assert cache.get_memory_footprint() == sum(part.nbytes for layer in cache.layers for part in layer.parts) > 0


@torch.no_grad()
def test_padding_on_the_left_leaves_hybrids_as_they_are() -> None:
    model, ids = hybrid(), numbers(2, 9)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    first = model(ids[:, :6], attention_mask=mask[:, :6])
    rest = model(ids[:, 6:], attention_mask=mask, past_key_values=first.past_key_values).logits
    alone = model(ids[1:, 4:], position_ids=torch.arange(4, 9)[None]).logits
    assert torch.allclose(rest[1:], alone[:, 2:], atol=CLOSE * 10)


@torch.no_grad()
@pytest.mark.parametrize("kind", [None, "static", "sliding_window", "offloaded"])
def test_hybrids_write_greedily_and_with_beams(kind: str | None) -> None:
    model, ids = hybrid(), numbers(2, 6)
    for settings in ({"do_sample": False}, {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}):
        expected = model.generate(ids, max_new_tokens=8, use_cache=False, **settings)
        assert torch.equal(model.generate(ids, max_new_tokens=8, cache_implementation=kind, **settings), expected)


@torch.no_grad()
def test_copies_of_all_kinds_go_their_own_way(cache: Cache) -> None:
    model, ids = hybrid(), numbers(3, 12)
    model(ids[:, :9], past_key_values=cache)
    leaves, spec = pytree.tree_flatten(cache)
    twins = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), pytree.tree_unflatten(leaves, spec)]
    whole = model(ids).logits
    model(numbers(3, 3), past_key_values=cache)
    order = torch.tensor([2, 0])
    for twin in twins:
        assert type(twin) is type(cache)
        assert twin.get_seq_length() == 9
        twin.batch_select_indices(order)
        twin.batch_repeat_interleave(2)
        found = model(ids[order, 9:].repeat_interleave(2, 0), past_key_values=twin).logits
        assert near(found, whole[order, 9:].repeat_interleave(2, 0), cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert near(model(ids, past_key_values=cache).logits, whole, cache)


@torch.no_grad()
def test_hybrids_are_not_cropped(cache: Cache) -> None:
    model, ids = hybrid(), numbers(2, 9)
    model(ids[:, :7], past_key_values=cache)
    for length in (6, 0, -1):
        with pytest.raises(InputError, match=rf"states cannot be taken back from 7 to {length % 7} positions.*Copy the cache"):
            cache.crop(length)
    for length in (7, 9):
        cache.crop(length)
    assert [layer.length for layer in cache.layers] == [7] * len(KINDS)  # those with keys and values, too
    assert near(model(ids[:, 7:], past_key_values=cache).logits, model(ids).logits[:, 7:], cache)
    with pytest.raises(InputError, match="takes guesses back"):
        model.generate(ids[:1], prompt_lookup_num_tokens=2, max_new_tokens=4)


@torch.no_grad()
def test_one_row_serves_a_batch_of_one_length() -> None:
    model, ids = hybrid(), numbers(1, 9)
    kept = model(ids[:, :6]).past_key_values
    rows = torch.cat([ids, torch.cat([ids[:, :6], numbers(1, 3) + 1], dim=1)])
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(rows, past_key_values=kept, **settings), model.generate(rows, **settings))
    assert (kept.batch_size, kept.get_seq_length()) == (1, 6)
    mask = torch.ones_like(rows)
    mask[1, :2] = 0
    with pytest.raises(InputError, match="serves rows of one length"):
        model.generate(rows, attention_mask=mask, past_key_values=kept, **settings)


@torch.no_grad()
def test_hybrids_compile_once_for_all_lengths() -> None:
    model, ids, graphs = hybrid(), numbers(2, 12), list[Any]()

    def count(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    kept = StaticCache(max_cache_len=16)
    torch._dynamo.reset()
    whole, step = model(ids).logits, torch.compile(model, backend=count, fullgraph=True)
    found = [model(ids[:, :5], past_key_values=kept).logits]
    found += [step(ids[:, place : place + 1], past_key_values=kept).logits for place in range(5, 12)]
    torch._dynamo.reset()
    assert len(graphs) == 1
    assert torch.allclose(torch.cat(found, dim=1), whole, atol=1e-4)
    assert kept.get_seq_length() == 12


# --- states alone --------------------------------------------------------------------------------------------------------------


def filled() -> DynamicCache:
    cache = DynamicCache()
    cache.check([(States,)] * 2, 3)
    for layer in range(2):
        cache.part(layer, States).keep(7, conv=torch.randn(3, 5, 2), recurrent=torch.randn(3, 5, 4))
    return cache


def test_rows_of_states_are_picked_and_repeated() -> None:
    cache = filled()
    before = copy.deepcopy(cache)
    cache.reorder_cache(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    for layer in range(2):
        for name in ("conv", "recurrent"):
            old, new = (kept.part(layer, States).get(name) for kept in (before, cache))
            assert old is not None
            assert new is not None
            assert torch.equal(new, old[[2, 2, 0, 0]])
    assert cache.get_seq_length() == len(before) + 5 == 7
    assert repr(cache) == "DynamicCache(layers=2, positions=7)"
    assert cache[0] == (None, None)
    DynamicCache().reorder_cache(torch.tensor([0]))  # nothing to pick from yet


def test_states_are_of_one_size_and_may_be_forgotten_all_at_once() -> None:
    cache = filled()
    assert cache.get_memory_footprint() == cache.footprint_at(1000) == 2 * 3 * 5 * (2 + 4) * 4
    assert cache.batch_size == 3
    cache.reset()
    assert (cache.get_seq_length(), cache.get_memory_footprint(), cache.batch_size) == (0, 0, 0)


def test_states_are_taken_apart_and_put_together() -> None:
    cache = filled()
    cache.kinds = [(States,)] * 3
    cache.layer(2)  # not yet filled
    leaves, spec = pytree.tree_flatten(cache)
    again = pytree.tree_unflatten(leaves, spec)
    assert (type(again), len(again), again.get_seq_length()) == (DynamicCache, 3, 7)
    assert again.part(1, States).get("recurrent") is cache.part(1, States).get("recurrent")
    assert again.part(2, States).get("conv") is None
    assert [str(path[0]) for path, _ in pytree.tree_flatten_with_path(cache)[0]][:2] == ["[0]", "[1]"]


def test_other_kinds_are_refused() -> None:
    assert Context(kernel=eager).kept(States) is None
    with pytest.raises(InputTypeError, match="layer 0 of the cache holds keys and values, but the model keeps states"):
        Context(kernel=eager, cache=DynamicCache()).kept(States)
    with pytest.raises(InputTypeError, match="layer 0 of the cache holds states, but the model keeps keys and values"):
        Context(kernel=eager, cache=filled()).key_values()
    with pytest.raises(InputTypeError, match="holds states, but the model keeps states and keys and values"):
        filled().check([(States, KeyValues)] * 2, 3)


@pytest.mark.parametrize(("layers", "batch", "named"), [(3, 3, "2 layers, but the model has 3"), (2, 4, "a batch of 3")])
def test_states_of_another_model_or_batch_are_refused(layers: int, batch: int, named: str) -> None:
    filled().check([(States,)] * 2, 3)
    DynamicCache().check([(States,)] * 9, 9)
    with pytest.raises(InputError, match=named):
        filled().check([(States,)] * layers, batch)


def test_whether_layers_keep_states_follows_from_what_they_keep() -> None:
    assert HybridForCausalLM._is_stateful
    assert HybridModel._is_stateful
    assert not CausalBackbone._is_stateful
