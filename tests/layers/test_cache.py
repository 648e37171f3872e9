"""Caches: cached passes equal whole ones, rows move together, and nothing that belongs to others is written to."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.layers.caches.cache import Cache, DynamicCache
from transept.layers.caches.layer import KeyValues
from transept.models.bert import BertConfig, BertModel
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel, GPT2Model
from transept.models.llama import LlamaConfig, LlamaForCausalLM, LlamaModel

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
CLOSE = 1e-5  # float32: other shapes take other kernels


def llama(**more: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"intermediate_size": 20, "num_key_value_heads": 2, "initializer_range": 0.3} | more)
    return LlamaForCausalLM(config).eval()


def gpt2(**more: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**SIZES | {"n_positions": 64, "initializer_range": 0.3} | more)).eval()


def numbers(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(1))


def states(rows: int = 2, length: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4, length, 8), torch.randn(rows, 4, length, 8)


@pytest.fixture(params=[False, True], ids=["no_grad", "grad"])
def _gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled(request.param):
        yield


SPLITS = [(1,) * 11, (11,), (1, 10), (10, 1), (3, 3, 5), (4, 1, 1, 5), (2, 7, 2)]
PADDING = {
    "none": None,
    "left": torch.tensor([[1] * 11, [0] * 4 + [1] * 7]),
    "right": torch.tensor([[1] * 11, [1] * 7 + [0] * 4]),
    "holes": torch.tensor([[1, 0] * 5 + [1], [1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1]]),
}


@pytest.mark.usefixtures("_gradients")
@pytest.mark.parametrize("pad", PADDING)
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("make", [llama, gpt2])
def test_cached_equals_uncached(make: Any, split: tuple[int, ...], pad: str) -> None:
    model, ids, mask = make(), numbers(2, 11), PADDING[pad]
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        whole = model(ids, attention_mask=mask, use_cache=False)
        assert whole.past_key_values is None
        cache, parts, start = None, [], 0
        for size in split:
            end = start + size
            seen = None if mask is None else mask[:, :end]
            out = model(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True)
            cache, start = out.past_key_values, end
            assert cache.get_seq_length() == end
            parts.append(out.logits)
        together = torch.cat(parts, dim=1)
        real = slice(None) if mask is None else mask.bool()
        apart = (together - whole.logits)[real].detach().abs().max()
        assert float(apart) <= CLOSE * float(whole.logits.detach().abs().max())


@pytest.mark.parametrize("form", ["3-D", "4-D", "added"])
def test_whole_masks_reach_over_cached_positions(form: str) -> None:
    model, ids = llama(), numbers(2, 8)
    allowed = (torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(2)) > 0.3).tril() | torch.eye(8, dtype=torch.bool)
    mask = allowed if form == "3-D" else allowed[:, None]
    mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if form == "added" else mask
    with torch.no_grad():
        whole = model(ids, attention_mask=mask).logits
        first = model(ids[:, :5], attention_mask=mask[..., :5, :5])
        rest = model(ids[:, 5:], attention_mask=mask[..., 5:, :], past_key_values=first.past_key_values).logits
    assert torch.allclose(torch.cat([first.logits, rest], dim=1), whole, atol=CLOSE)


@torch.no_grad()
def test_given_positions_are_used() -> None:
    model, ids = gpt2(), numbers(2, 6)
    places = torch.tensor([[3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]])
    whole = model(ids, position_ids=places).logits
    first = model(ids[:, :4], position_ids=places[:, :4])
    rest = model(ids[:, 4:], position_ids=places[:, 4:], past_key_values=first.past_key_values).logits
    assert torch.allclose(torch.cat([first.logits, rest], dim=1), whole, atol=CLOSE)
    assert not torch.allclose(model(ids).logits, whole, atol=CLOSE)


@torch.no_grad()
def test_embeddings_may_follow_ids() -> None:
    model, ids = llama(), numbers(2, 6)
    first = model(ids[:, :4])
    given = model.get_input_embeddings()(ids[:, 4:])
    rest = model(inputs_embeds=given, past_key_values=first.past_key_values).logits
    assert torch.allclose(rest, model(ids).logits[:, 4:], atol=CLOSE)


@torch.no_grad()
def test_rows_are_picked_and_repeated() -> None:
    model, ids = llama(), numbers(3, 7)
    order = torch.tensor([2, 0, 0, 1])
    cache = model(ids[:, :5]).past_key_values
    cache.reorder_cache(order)
    out = model(ids[order, 5:6], past_key_values=cache)
    cache.reorder_cache(torch.tensor([3, 1]))
    last = model(ids[order][[3, 1], 6:], past_key_values=cache).logits
    assert torch.allclose(out.logits[:, 0], model(ids[order, :6]).logits[:, -1], atol=CLOSE)
    assert torch.allclose(last[:, 0], model(ids[order][[3, 1]]).logits[:, -1], atol=CLOSE)
    cache = model(ids[:, :5]).past_key_values
    cache.batch_repeat_interleave(2)
    rest = model(ids[:, 5:].repeat_interleave(2, 0), past_key_values=cache).logits
    assert torch.allclose(rest[::2], model(ids).logits[:, 5:], atol=CLOSE)
    assert torch.allclose(
        rest[::2], rest[1::2], atol=CLOSE
    )  # not bit for bit: matrix products of some processors tell rows apart


@torch.no_grad()
@pytest.mark.parametrize("length", [4, -3])
def test_cropped_positions_are_forgotten(length: int) -> None:
    model, ids = llama(), numbers(2, 7)
    whole = model(ids)
    cache = whole.past_key_values
    for _ in range(3):
        cache.crop(length if length > 0 else -(cache.get_seq_length() - 4))
        assert cache.get_seq_length() == 4
        again = model(ids[:, 4:], past_key_values=cache).logits
        assert torch.allclose(again, whole.logits[:, 4:], atol=CLOSE)
    cache.crop(100)
    assert cache.get_seq_length() == 7
    cache.crop(-100)
    assert cache.get_seq_length() == 0
    assert torch.allclose(model(ids, past_key_values=cache).logits, whole.logits, atol=CLOSE)


@torch.no_grad()
def test_a_copy_goes_its_own_way() -> None:
    model, ids = llama(), numbers(2, 8)
    cache = model(ids[:, :4]).past_key_values
    model(ids[:, 4:5], past_key_values=cache)
    twins = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    expected = model(ids[:, 5:6], past_key_values=copy.deepcopy(cache)).logits
    model(ids[:, 6:], past_key_values=cache)
    for twin in twins:
        assert twin.get_seq_length() == 5
        assert torch.equal(model(ids[:, 5:6], past_key_values=twin).logits, expected)


@pytest.mark.parametrize("recorded", [False, True])
def test_tensors_of_the_caller_are_never_written_to(recorded: bool) -> None:
    with torch.set_grad_enabled(recorded):
        base = torch.randn(2, 4, 10, 8)
        given = base[:, :, :3]
        kept = base.clone()
        layer = KeyValues()
        first = layer.append(given, given)
        for length in (1, 2, 5):
            layer.append(*states(length=length))
        assert torch.equal(base, kept)
        assert first[0] is given
        layer = KeyValues()
        layer.append(given, given)
        layer.crop(1)  # there is room behind the first position, but it is not the cache's
        layer.append(*states(length=2))
        layer.change(lambda tensor: tensor[:1])
        layer.crop(1)
        layer.append(*states(rows=1, length=1))
        assert torch.equal(base, kept)


def test_views_of_one_step_survive_the_next() -> None:
    layer = KeyValues()
    with torch.no_grad():
        layer.append(*states())
        seen, _ = layer.append(*states(length=1))
        kept = seen.clone()
        for _ in range(200):
            layer.append(*states(length=1))
    assert torch.equal(seen, kept)


def test_gradients_flow_through_cached_positions() -> None:
    model, ids = llama(), numbers(2, 8)
    names = [name for name, _ in model.named_parameters()]
    model(ids).logits.square().sum().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    cache, total = None, torch.zeros(())
    for start, end in ((0, 3), (3, 4), (4, 8)):
        out = model(ids[:, start:end], past_key_values=cache)
        cache, total = out.past_key_values, total + out.logits.square().sum()
    total.backward()
    for name in names:
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert float((grad - whole[name]).norm()) <= 1e-4 * float(whole[name].norm())


def test_gradients_of_queries_alone_survive_later_steps() -> None:
    # As with adapters on the queries: keys need no gradient themselves, but are kept for the queries'.
    model, ids = llama(), numbers(1, 6)
    model.requires_grad_(False)
    for layer in model.backbone.layers:
        layer.self_attn.q_proj.weight.requires_grad_(True)
    cache, total = None, torch.zeros(())
    for start, end in ((0, 3), (3, 4), (4, 5), (5, 6)):
        out = model(ids[:, start:end], past_key_values=cache)
        cache, total = out.past_key_values, total + out.logits.square().sum()
    total.backward()


def test_what_gradients_need_is_not_overwritten() -> None:
    model, ids = llama(), numbers(1, 6)
    out = model(ids[:, 3:5], past_key_values=model(ids[:, :3]).past_key_values)
    cache = out.past_key_values
    cache.crop(4)
    with torch.no_grad():
        model(ids[:, 5:], past_key_values=cache)
    out.logits.sum().backward()


@pytest.mark.parametrize("grad", [False, True])
def test_inference_mode_may_end_in_between(grad: bool) -> None:
    model, ids = llama(), numbers(2, 8)
    with torch.inference_mode():
        cache = model(ids[:, :4]).past_key_values
        model(ids[:, 4:5], past_key_values=cache)
    with torch.set_grad_enabled(grad):
        model.requires_grad_(False)
        part = model(ids[:, 5:6], past_key_values=cache).logits
    with torch.inference_mode():
        rest = model(ids[:, 6:], past_key_values=cache).logits
    assert torch.allclose(torch.cat([part, rest], dim=1), model(ids).logits[:, 5:], atol=CLOSE)


def test_growth_copies_in_linear_time() -> None:
    layer, moves = KeyValues(), 0
    with torch.no_grad():
        layer.append(*states(length=5))
        place = 0
        for _ in range(5000):
            keys, _ = layer.append(*states(rows=2, length=1))
            moves += keys.shape[2] if keys.data_ptr() != place else 0
            place = keys.data_ptr()
            if torch.rand(()) < 0.1:
                layer.crop(layer.length - 1)
    assert layer.length > 4000
    assert moves <= 4 * layer.length  # a geometric series; copying at each step would move millions
    buffers = [b for b in vars(layer).values() if isinstance(b, Tensor)]
    assert all(b.shape[2] <= 1.5 * 5005 + 65 for b in buffers)


WRONG = {
    "batch": (3, 4, 1, 8),
    "heads": (2, 2, 1, 8),
    "head size": (2, 4, 1, 6),
}


@pytest.mark.parametrize("what", WRONG)
def test_states_of_another_model_or_batch_are_named(what: str) -> None:
    layer = KeyValues()
    layer.append(*states())
    keys, values = states(length=1)
    for given in ((torch.randn(WRONG[what]), values), (keys, torch.randn(WRONG[what]))):
        with pytest.raises(InputError) as found:
            layer.append(*given)
        assert str((2, 4, 3, 8)) in str(found.value)
        assert str(WRONG[what]) in str(found.value)
    assert layer.length == 3


def test_states_of_another_type_are_not_cast() -> None:
    layer = KeyValues()
    layer.append(*states())
    keys, values = states(length=1)
    with pytest.raises(InputError, match="float64"):
        layer.append(keys.double(), values)


@torch.no_grad()
def test_models_refuse_a_cache_that_is_not_theirs() -> None:
    model, ids = llama(), numbers(2, 4)
    with pytest.raises(InputError, match=r"holds 3 layers.* has 2"):
        model(ids, past_key_values=llama(num_hidden_layers=3)(ids).past_key_values)
    with pytest.raises(InputError, match=r"\(3, 2, 4, 4\).*batch of 2"):
        model(ids, past_key_values=model(numbers(3, 4)).past_key_values)
    with pytest.raises(InputError, match=r"\(2, 4, 4, 4\).*\(2, 2, 4, 4\)"):
        model(ids, past_key_values=gpt2()(ids).past_key_values)
    for given in (((torch.zeros(1),),), [], {}):
        with pytest.raises(InputTypeError, match="past_key_values"):
            model(ids, past_key_values=given)
    with pytest.raises(InputError, match="covers cached positions"):
        model(ids, attention_mask=torch.ones(2, 4), past_key_values=model(ids).past_key_values)


def test_recomputed_layers_take_no_cache() -> None:
    model, ids = llama(), numbers(2, 4)
    cache = model(ids).past_key_values
    model.gradient_checkpointing_enable()
    assert model(ids, past_key_values=cache).past_key_values is cache  # evaluation recomputes nothing
    model.train()
    assert model(ids).past_key_values is None
    with pytest.raises(InputError, match="recomputed"):
        model(ids, past_key_values=DynamicCache())


def test_encoders_make_no_cache() -> None:
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES, intermediate_size=20)).eval()
    assert model(numbers(2, 4), use_cache=True).past_key_values is None


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2])
def test_an_encoders_keys_are_computed_once(rows: int) -> None:
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(**SIZES, n_positions=64, add_cross_attention=True, initializer_range=0.3)).eval()
    ids, encoded = numbers(rows, 6), torch.randn(rows, 5, 16)
    mask = torch.ones(rows, 5)
    mask[-1, 3:] = 0
    given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
    whole = model(ids, **given).last_hidden_state
    first = model(ids[:, :4], **given)
    cache = first.past_key_values
    assert cache.get_seq_length() == 4
    assert [layer.length for layer in cache.cross] == [5, 5]
    kept = [layer.keys for layer in cache.cross]
    rest = model(ids[:, 4:], past_key_values=cache, **given).last_hidden_state
    assert all(layer.keys is not None and torch.equal(layer.keys, k) for layer, k in zip(cache.cross, kept, strict=True))
    assert torch.allclose(torch.cat([first.last_hidden_state, rest], dim=1), whole, atol=CLOSE)
    cache.crop(4)
    assert [layer.length for layer in cache.cross] == [5, 5]
    cache.batch_repeat_interleave(2)
    assert cache.cross[0].keys.shape[0] == 2 * rows
    other, twice = {"encoder_hidden_states": torch.randn(2 * rows, 7, 16)}, ids[:, 4:].repeat_interleave(2, 0)
    with pytest.raises(InputError, match=r"5 positions.*7"):
        model(twice, past_key_values=cache, **other)


@torch.no_grad()
def test_takes_itself_apart_and_together() -> None:
    model, ids = llama(), numbers(2, 6)
    cache = model(ids[:, :5]).past_key_values
    leaves, spec = pytree.tree_flatten(cache)
    assert len(leaves) == 4
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is DynamicCache
    expected = model(ids[:, 5:], past_key_values=cache).logits
    assert torch.equal(model(ids[:, 5:], past_key_values=again).logits, expected)
    empty = pytree.tree_unflatten(*reversed(pytree.tree_flatten(DynamicCache())))
    assert len(empty) == empty.get_seq_length() == 0
    assert repr(again) == "DynamicCache(layers=2, positions=6)"


@torch.no_grad()
def test_compiled_steps_equal_plain_ones() -> None:
    model, ids = llama(), numbers(2, 8)
    torch._dynamo.reset()
    step = torch.compile(model, fullgraph=True, backend="eager")
    cache: Cache | None = None
    parts = []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 7), (7, 8)):
        out = step(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    assert torch.allclose(torch.cat(parts, dim=1), model(ids).logits, atol=CLOSE)


@torch.no_grad()
def test_exported_steps_take_and_give_caches() -> None:
    model, ids = LlamaModel(llama().config).eval(), numbers(2, 6)
    cache = model(ids[:, :4]).past_key_values
    step = torch.export.export(model, (ids[:, 4:5],), {"past_key_values": copy.deepcopy(cache)}).module()
    out = step(ids[:, 4:5], past_key_values=copy.deepcopy(cache))
    expected = model(ids[:, 4:5], past_key_values=cache)
    assert torch.allclose(out.last_hidden_state, expected.last_hidden_state, atol=CLOSE)
    assert out.past_key_values.get_seq_length() == 5


# --- interrupted passes ------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def interrupt(model: Any, layer: int, *args: Any, **kwargs: Any) -> None:
    """A forward pass that ends in an error behind the attention of one layer."""

    def stop(*_: Any) -> None:
        raise Stop

    handle = model.body.layers[layer].self_attn.register_forward_hook(stop)
    with pytest.raises(Stop):
        model(*args, **kwargs)
    handle.remove()


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_interrupted_pass_is_known_and_taken_back(layer: int) -> None:
    model, ids, cache = llama(num_hidden_layers=4), numbers(2, 9), DynamicCache()
    whole = model(ids).logits
    model(ids[:, :5], past_key_values=cache)
    for _ in range(2):
        interrupt(model, layer, ids[:, 5:], past_key_values=cache)
        with pytest.raises(InputError, match=r"interrupted: layers of the cache hold 5 to 9 positions.*rollback"):
            model(ids[:, 5:], past_key_values=cache)
        assert cache.rollback() == cache.get_seq_length() == 5
    assert torch.allclose(model(ids[:, 5:], past_key_values=cache).logits, whole[:, 5:], atol=CLOSE)
    assert cache.rollback() == 9  # nothing to take back


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("how", ["rollback", "crop", "reset"])
def test_an_interrupted_first_pass_is_known_and_taken_back(layer: int, how: str) -> None:
    model, ids, cache = llama(num_hidden_layers=4), numbers(2, 6), DynamicCache()
    interrupt(model, layer, ids, past_key_values=cache)
    with pytest.raises(InputError, match="hold 0 to 6 positions"):
        model(ids, past_key_values=cache)
    assert {"rollback": cache.rollback, "crop": lambda: cache.crop(0), "reset": cache.reset}[how]() in (0, None)
    assert torch.equal(model(ids, past_key_values=cache).logits, model(ids).logits)


# --- what other libraries call -------------------------------------------------------------------------------------------------


def test_updated_layer_by_layer() -> None:
    cache = DynamicCache(config=llama().config)
    assert (len(cache), cache.get_seq_length(), cache.batch_size, cache.is_initialized) == (0, 0, 0, False)
    assert cache.get_mask_sizes(4, 0) == (4, 0)
    pairs = [states() for _ in range(3)]
    for index, (keys, values) in enumerate(pairs):
        found = cache.update(keys, values, index, {"cache_position": torch.arange(3)})
        assert torch.equal(found[0], keys)
        assert torch.equal(found[1], values)
    more = states(length=2)
    assert cache.update(key_states=more[0], value_states=more[1], layer_idx=1)[0].shape[2] == 5
    assert [cache.get_seq_length(index) for index in range(4)] == [3, 5, 3, 0]
    assert (cache.get_max_cache_shape(), cache.get_max_length(), cache.get_max_cache_shape(1)) == (-1, -1, -1)
    assert (cache.batch_size, cache.is_initialized, cache.is_compileable) == (2, True, False)
    assert cache.get_mask_sizes(2, 1) == (7, 0)
    assert torch.equal(cache[0][0], pairs[0][0])
    assert torch.equal(cache[2][1], pairs[2][1])
    assert [keys.shape[2] for keys, _ in cache] == [3, 5, 3]
    with pytest.raises(IndexError):
        cache[3]


def test_made_of_what_another_holds() -> None:
    cache = DynamicCache([states(), states()])
    again = DynamicCache(ddp_cache_data=cache)
    assert all(torch.equal(a, b) for one, two in zip(cache, again, strict=True) for a, b in zip(one, two, strict=True))
    assert len(DynamicCache((*pair, None) for pair in cache)) == 2  # a third part tells of windows
    for wrong in (5, [torch.zeros(1)], [(None, None)], "ab"):
        with pytest.raises(InputTypeError, match="ddp_cache_data"):
            DynamicCache(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="OffloadedCache"):
        DynamicCache(offloading=True)
    cache.reorder_cache(beam_idx=torch.tensor([1]))
    assert cache.batch_size == 1
