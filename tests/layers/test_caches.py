"""Kinds of caches: each keeps what it promises, in the memory that it promises, and says what it cannot do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from tests.layers.test_cache import CLOSE, SIZES, Stop, gpt2, interrupt, llama, numbers, states

from transept.errors import InputError, UnsupportedError
from transept.layers.caches import offloaded
from transept.layers.caches.cache import Cache, DynamicCache, SlidingWindowCache
from transept.layers.caches.layer import KeyValues, SlidingKeyValues
from transept.layers.caches.offloaded import OffloadedCache, OffloadedKeyValues
from transept.layers.caches.quantized import QuantizedCache, QuantizedKeyValues, quantize
from transept.layers.caches.static import StaticCache, StaticKeyValues
from transept.models.gpt2 import GPT2Config, GPT2Model
from transept.models.mamba import MambaConfig, MambaForCausalLM, MambaModel
from transept.models.mistral import MistralConfig, MistralModel


def static() -> StaticCache:
    return StaticCache(max_cache_len=32)


def quantized() -> QuantizedCache:
    return QuantizedCache(nbits=8, q_group_size=4, residual_length=2)


MAKERS: dict[str, Any] = {
    "dynamic": DynamicCache,
    "static": static,
    "sliding window": SlidingWindowCache,
    "offloaded": OffloadedCache,
    "quantized": quantized,
}
ROUNDED = 0.05  # of the largest logit, where keys and values have 8 bits


@pytest.fixture(params=MAKERS)
def cache(request: pytest.FixtureRequest) -> Cache:
    made: Cache = MAKERS[request.param]()
    return made


def near(given: torch.Tensor, expected: torch.Tensor, kind: Cache) -> bool:
    """Equal, but for what few bits lose."""
    share = ROUNDED if isinstance(kind, QuantizedCache) else 1e-5
    return float((given - expected).abs().max()) <= share * float(expected.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("make", [llama, gpt2])
def test_cached_equals_uncached(cache: Cache, make: Any) -> None:
    model, ids = make(), numbers(2, 16)
    parts = [
        model(ids[:, start:end], past_key_values=cache).logits
        for start, end in ((0, 3), (3, 4), (4, 5), (5, 11), (11, 12), (12, 16))
    ]
    assert near(torch.cat(parts, dim=1), model(ids).logits, cache)
    assert cache.get_seq_length() == 16
    assert len(cache) == 2


@torch.no_grad()
def test_rows_are_picked_and_repeated(cache: Cache) -> None:
    model, ids = llama(), numbers(3, 12)
    whole = model(ids).logits
    model(ids[:, :9], past_key_values=cache)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_select_indices(torch.tensor([1, 0]))
    out = model(ids[[0, 2], 9:10], past_key_values=cache).logits
    assert near(out[:, 0], whole[[0, 2], 9], cache)
    cache.batch_repeat_interleave(2)
    out = model(ids[[0, 0, 2, 2], 10:], past_key_values=cache).logits
    assert near(out, whole[[0, 0, 2, 2], 10:], cache)


@torch.no_grad()
def test_positions_are_forgotten(cache: Cache) -> None:
    model, ids = llama(), numbers(2, 14)
    whole = model(ids).logits
    for length in (12, 9, -3, 6, 3, 2):
        start = cache.get_seq_length()
        model(ids[:, start:], past_key_values=cache)
        cache.crop(length)
        kept = cache.get_seq_length()
        assert kept == (length if length > 0 else 14 + length)
        assert near(model(ids[:, kept:], past_key_values=cache).logits, whole[:, kept:], cache)
        cache.crop(kept)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert near(model(ids, past_key_values=cache).logits, whole, cache)


@torch.no_grad()
def test_copies_go_their_own_way(cache: Cache) -> None:
    model, ids = llama(), numbers(2, 12)
    model(ids[:, :9], past_key_values=cache)
    leaves, spec = pytree.tree_flatten(cache)
    twins = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), pytree.tree_unflatten(leaves, spec)]
    whole = model(ids).logits
    model(numbers(2, 4), past_key_values=cache)
    for twin in twins:
        assert type(twin) is type(cache)
        assert twin.get_seq_length() == 9
        assert near(model(ids[:, 9:], past_key_values=twin).logits, whole[:, 9:], cache)


@torch.no_grad()
def test_an_encoders_part_is_kept_whole(cache: Cache) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = SIZES | {"n_positions": 64, "add_cross_attention": True, "initializer_range": 0.3}
    model = GPT2Model(GPT2Config(**sizes)).eval()
    ids, given = numbers(2, 12), {"encoder_hidden_states": torch.randn(2, 5, 16)}
    whole = model(ids, **given).last_hidden_state
    model(ids[:, :9], past_key_values=cache, **given)
    cache.crop(7)
    assert [layer.length for layer in cache.cross] == [5, 5]
    assert near(model(ids[:, 7:], past_key_values=cache, **given).last_hidden_state, whole[:, 7:], cache)
    cache.crop(11)
    cache.reorder_cache(torch.tensor([1, 0, 1]))
    more = {"encoder_hidden_states": given["encoder_hidden_states"][[1, 0, 1]]}
    out = model(ids[[1, 0, 1], 11:], past_key_values=cache, **more).last_hidden_state
    assert near(out, whole[[1, 0, 1], 11:], cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    other, three = {"encoder_hidden_states": torch.randn(3, 7, 16)}, numbers(3, 12)  # another encoder's may follow now
    out = model(three, past_key_values=cache, **other).last_hidden_state
    assert near(out, model(three, **other).last_hidden_state, cache)


@torch.no_grad()
def test_caches_of_others_are_refused(cache: Cache) -> None:
    model, ids = llama(), numbers(2, 4)
    model(ids, past_key_values=cache)
    with pytest.raises(InputError, match=r"holds 2 layers.* has 3"):
        llama(num_hidden_layers=3)(ids, past_key_values=cache)
    with pytest.raises(InputError, match=r"batch of 3"):
        model(numbers(3, 4), past_key_values=cache)
    with pytest.raises(InputError, match=r"\(2, 2, \d+, 4\).*\(2, 4, 4, 4\)"):
        gpt2()(ids, past_key_values=cache)
    with pytest.raises(InputError, match=r"\(2, 2, \d+, 4\).*\(2, 2, 4, 8\)"):
        llama(head_dim=8)(ids, past_key_values=cache)
    with pytest.raises(InputError, match="float64"):
        llama().double()(ids, past_key_values=cache)
    assert cache.get_seq_length() == 4


LAYERS: dict[str, Any] = {
    "dynamic": KeyValues,
    "static": lambda: StaticKeyValues(300),
    "sliding window": SlidingKeyValues,
    "offloaded": OffloadedKeyValues,
    "quantized": lambda: QuantizedKeyValues(4, 8, 16),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", LAYERS)
def test_bytes_are_those_of_all_tensors(kind: str) -> None:
    def found(value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        parts = value if isinstance(value, tuple) else vars(value).values() if hasattr(value, "__dict__") else ()
        return [tensor for part in parts for tensor in found(part)]

    layer = LAYERS[kind]()
    assert layer.nbytes == 0
    for length in (70, 1, 1, 30):
        layer.append(*states(length=length), window=20)
        assert layer.nbytes == sum(tensor.nbytes for tensor in found(layer)) > 0


@torch.no_grad()
def test_states_are_counted_and_forgotten() -> None:
    torch.manual_seed(0)
    model: Any = MambaModel(MambaConfig(vocab_size=50, hidden_size=8, num_hidden_layers=2, state_size=3, conv_kernel=4)).eval()
    first = model(numbers(2, 6))
    cache = first.past_key_values
    size = cache.get_memory_footprint()
    assert size == 2 * 2 * 16 * (3 + 3) * 4  # layers, rows, channels, inputs of the convolution and state, bytes
    model(numbers(2, 30), past_key_values=cache)
    assert cache.get_memory_footprint() == size
    cache.reset()
    assert (cache.get_seq_length(), cache.get_memory_footprint()) == (0, 0)
    again = model(numbers(2, 6), past_key_values=cache).last_hidden_state
    assert torch.equal(again, first.last_hidden_state)


# -- of one size


@torch.no_grad()
def test_static_buffers_are_made_once() -> None:
    model, ids, cache = llama(), numbers(2, 12), static()
    model(ids[:, :4], past_key_values=cache)
    places = [layer.buffers[0].data_ptr() for layer in cache.layers]  # type: ignore[union-attr]
    size = cache.get_memory_footprint()
    assert size == 2 * (2 * 2 * 2 * 32 * 4 * 4 + 8)
    model(ids[:, 4:], past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.crop(3)
    cache.reset()
    model(ids, past_key_values=cache)
    assert [layer.buffers[0].data_ptr() for layer in cache.layers] == places  # type: ignore[union-attr]
    assert cache.get_memory_footprint() == size
    assert (cache.get_max_length(), DynamicCache().get_max_length()) == (32, -1)


@torch.no_grad()
def test_too_small_a_cache_is_told_before_anything_is_written() -> None:
    model, ids, cache = llama(), numbers(2, 12), StaticCache(llama().config, 8)
    with pytest.raises(InputError, match="room for 8 positions, but 0 are cached and 12 are new"):
        model(ids, past_key_values=cache)
    model(ids[:, :6], past_key_values=cache)
    with pytest.raises(InputError, match="room for 8 positions, but 6 are cached and 3 are new"):
        model(ids[:, 6:9], past_key_values=cache)
    assert torch.allclose(model(ids[:, 6:8], past_key_values=cache).logits, model(ids[:, :8]).logits[:, 6:], atol=CLOSE)
    layer = StaticKeyValues(4)
    with pytest.raises(InputError, match="room for 4 positions, but the sequence has 5"):
        layer.append(*states(length=5))
    layer.append(*states(length=3))
    with pytest.raises(InputError, match="room for 4 positions, but the sequence has 5"):
        layer.append(*states(length=2))
    assert layer.length == 3


def test_static_caches_outlive_inference_mode() -> None:
    model, ids, cache = llama(), numbers(2, 8), static()
    with torch.inference_mode():
        model(ids[:, :4], past_key_values=cache)
    with torch.no_grad():
        rest = model(ids[:, 4:], past_key_values=cache).logits
    assert torch.allclose(rest, model(ids).logits[:, 4:], atol=CLOSE)


@pytest.mark.parametrize("size", [None, 0, -1, 2.0, True, "8"])
def test_sizes_that_cannot_be_are_named(size: Any) -> None:
    with pytest.raises(InputError, match="`max_cache_len`"):
        StaticCache(max_cache_len=size)


def test_what_static_caches_lack_is_told() -> None:
    with pytest.raises(UnsupportedError, match="offloaded"):
        StaticCache(max_cache_len=4, offloading=True)
    with pytest.raises(InputError, match="how many layers"):
        static().early_initialization(1, 2, 4, torch.float32, "cpu")


# -- of windows


def sliding_mistral(**more: Any) -> MistralModel:
    torch.manual_seed(0)
    sizes = SIZES | {"intermediate_size": 20, "num_key_value_heads": 2, "initializer_range": 0.3}
    return MistralModel(MistralConfig(**sizes | {"sliding_window": 8} | more)).eval()


@torch.no_grad()
def test_windows_hold_no_more_than_they_need() -> None:
    model, ids, cache = sliding_mistral(), numbers(2, 60), SlidingWindowCache()
    whole = model(ids).last_hidden_state
    model(ids[:, :20], past_key_values=cache)
    assert [(layer.held, layer.dropped) for layer in cache.layers] == [(7, 13)] * 2
    assert cache.get_memory_footprint() == 2 * 2 * (2 * 2 * 7 * 4) * 4
    for at in range(20, 60):
        out = model(ids[:, at : at + 1], past_key_values=cache).last_hidden_state
        assert torch.allclose(out[:, 0], whole[:, at], atol=CLOSE)
        assert all(7 <= layer.held <= 9 for layer in cache.layers)
    assert cache.get_seq_length() == 60
    twin = pytree.tree_unflatten(*reversed(pytree.tree_flatten(cache)))
    assert twin.get_seq_length() == 60


@torch.no_grad()
def test_what_was_dropped_cannot_be_cropped() -> None:
    model, ids, cache = sliding_mistral(), numbers(2, 20), SlidingWindowCache()
    model(ids[:, :6], past_key_values=cache)
    cache.crop(4)
    model(ids[:, 4:], past_key_values=cache)
    for length in (18, -1, 0):
        with pytest.raises(InputError, match=r"from 20 to \d+ positions: it has dropped the first 13"):
            cache.crop(length)
    cache.crop(20)
    assert cache.get_seq_length() == 20
    cache.reset()
    assert torch.allclose(model(ids, past_key_values=cache).last_hidden_state, model(ids).last_hidden_state, atol=CLOSE)


def test_gradients_flow_through_windows() -> None:
    model, ids, share = sliding_mistral(), numbers(2, 20), torch.randn(2, 8, 16)
    (model(ids).last_hidden_state[:, 12:] * share).sum().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    cache = SlidingWindowCache()
    model(ids[:, :12], past_key_values=cache)
    (model(ids[:, 12:], past_key_values=cache).last_hidden_state * share).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert float((parameter.grad - whole[name]).norm()) <= 1e-4 * float(whole[name].norm())


# -- on another device


@torch.no_grad()
def test_offloaded_layers_are_fetched_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    # Main memory stands for another device: all that differs is that copies take time.
    monkeypatch.setattr(offloaded, "is_home", lambda device: False)
    model, ids, cache = llama(num_hidden_layers=3), numbers(2, 12), OffloadedCache()
    whole = model(ids).logits
    parts = [model(ids[:, :5], past_key_values=cache).logits]
    fetched = []
    original = OffloadedCache.layer

    def seen(self: OffloadedCache, index: int) -> KeyValues:
        found = original(self, index)
        fetched.append([layer._ahead is not None for layer in self.layers])
        return found

    monkeypatch.setattr(OffloadedCache, "layer", seen)
    parts.append(model(ids[:, 5:6], past_key_values=cache).logits)
    assert fetched == [[True, True, False], [False, True, True], [True, False, True]]
    cache.reorder_cache(torch.tensor([0, 1]))
    parts += [model(ids[:, at : at + 1], past_key_values=cache).logits for at in range(6, 12)]
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=CLOSE)
    cache.crop(7)
    assert torch.allclose(model(ids[:, 7:], past_key_values=cache).logits, whole[:, 7:], atol=CLOSE)
    cache.reset()
    assert torch.allclose(model(ids, past_key_values=cache).logits, whole, atol=CLOSE)


@torch.no_grad()
def test_main_memory_needs_no_fetching() -> None:
    model, ids, cache = llama(), numbers(2, 6), OffloadedCache()
    for start, end in ((0, 4), (4, 5), (5, 6)):
        model(ids[:, start:end], past_key_values=cache)
        assert all(layer._ahead is None for layer in cache.layers)


# -- of few bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("along", ["positions", "head"])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_are_within_half_a_step(bits: int, along: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    numbers_ = (torch.randn(2, 3, 32, 24) * torch.logspace(-3, 2, 24) + torch.randn(24)).to(dtype)
    found = quantize(numbers_, bits, 16, along)
    again = found.numbers()
    assert again.shape == numbers_.shape
    assert again.dtype == dtype
    scale = found.scale.float().expand(*found.scale.shape[:3], 16, *found.codes.shape[4:])
    step = scale.flatten(2, 3).flatten(3)
    # Half a step, and what the type's own rounding of the step (255 of them), the range's start and the sum adds.
    slack = 0.0 if dtype == torch.float32 else (2**bits) * torch.finfo(dtype).eps / 2
    bound = step * (0.5 + slack) + 2 * torch.finfo(dtype).eps * numbers_.float().abs() + 1e-6
    own = 2 * torch.finfo(dtype).eps * step * 2**bits
    assert bool(((again.float() - numbers_.float()).abs() <= bound + own).all())
    assert found.codes.nbytes == numbers_.numel() * bits // 8


def test_equal_numbers_have_codes() -> None:
    for dtype in (torch.float32, torch.float16):
        numbers_ = torch.full((1, 1, 4, 4), 3.0, dtype=dtype)
        assert torch.equal(quantize(numbers_, 4, 4, "positions").numbers(), numbers_)


@torch.no_grad()
@pytest.mark.parametrize("bits", [4, 8])
def test_newest_positions_stay_as_they_are(bits: int) -> None:
    layer, given = QuantizedKeyValues(bits, 8, 10), []
    for length in (40, 1, 1, 7, 30, 1):
        given.append(states(length=length))
        keys, values = layer.append(*given[-1])
        assert torch.equal(keys[:, :, -length:], given[-1][0])
        assert torch.equal(values[:, :, -length:], given[-1][1])
        assert 10 <= layer.held < 18
        assert layer.length == sum(pair[0].shape[2] for pair in given) == keys.shape[2]
    whole = torch.cat([pair[0] for pair in given], dim=2)
    kept = layer.keys
    assert kept is not None
    assert torch.equal(kept[:, :, -10:], whole[:, :, -10:])
    step = (whole.max() - whole.min()) / (2**bits - 1)
    assert float((kept - whole).abs().max()) <= 0.5 * float(step) * 1.01
    assert not torch.equal(kept, whole)


@torch.no_grad()
def test_few_bits_take_little_memory() -> None:
    keys, values = torch.randn(1, 8, 1152, 128), torch.randn(1, 8, 1152, 128)
    full = keys.nbytes + values.nbytes
    sizes = {}
    for bits in (4, 8):
        layer = QuantizedKeyValues(bits, 64, 128)
        layer.append(keys, values)
        coded = 1024 * 8 * 128 * 2
        assert layer.coded == 1024
        assert layer.nbytes == 128 * 8 * 128 * 2 * 4 + coded * bits // 8 + coded // 64 * 2 * 4
        sizes[bits] = layer.nbytes / full
    assert sizes[4] < 0.27
    assert sizes[8] < 0.39


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "fp8"}, "`backend`"),
        ({"nbits": 2}, "`nbits`"),
        ({"q_group_size": 7}, "`q_group_size`"),
        ({"q_group_size": 0}, "`q_group_size`"),
        ({"residual_length": -1}, "`residual_length`"),
    ],
)
def test_settings_of_few_bits_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        QuantizedCache(**given)
    assert QuantizedCache("HQQ", llama().config, nbits=8).nbits == 8


@torch.no_grad()
def test_interrupted_passes_are_known_and_taken_back(cache: Cache) -> None:
    model, ids = llama(num_hidden_layers=3), numbers(2, 9)
    model(ids[:, :5], past_key_values=cache)
    interrupt(model, 1, ids[:, 5:8], past_key_values=cache)
    with pytest.raises(InputError, match="interrupted: layers of the cache hold 5 to 8 positions"):
        model(ids[:, 5:], past_key_values=cache)
    assert cache.rollback() == 5
    assert near(model(ids[:, 5:], past_key_values=cache).logits, model(ids).logits[:, 5:], cache)


@torch.no_grad()
def test_what_a_window_has_dropped_cannot_be_taken_back() -> None:
    torch.manual_seed(0)
    model = MistralModel(MistralConfig(**SIZES, intermediate_size=20, num_key_value_heads=2, sliding_window=4)).eval()
    ids, cache = numbers(1, 30), SlidingWindowCache()
    model(ids[:, :10], past_key_values=cache)
    interrupt(model, 0, ids[:, 10:20], past_key_values=cache)
    with pytest.raises(InputError, match="interrupted"):
        model(ids[:, 20:], past_key_values=cache)
    with pytest.raises(InputError, match="cannot be cropped"):
        cache.rollback()
    cache.reset()
    assert torch.allclose(model(ids, past_key_values=cache).last_hidden_state, model(ids).last_hidden_state, atol=CLOSE)


@torch.no_grad()
def test_states_that_were_left_half_read_are_known() -> None:
    torch.manual_seed(0)
    model = MambaModel(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=3, state_size=4)).eval()
    ids = numbers(2, 8)
    cache = model(ids[:, :4]).past_key_values
    assert cache.rollback() == 4
    assert (cache.batch_size, cache.get_max_cache_shape()) == (2, -1)

    def stop(*_: Any) -> None:
        raise Stop

    handle = model.layers[1].register_forward_hook(stop)
    with pytest.raises(Stop):
        model(ids[:, 4:], past_key_values=cache)
    handle.remove()
    with pytest.raises(InputError, match="interrupted: layers of the cache hold 4 to 8 positions"):
        model(ids[:, 4:], past_key_values=cache)
    with pytest.raises(InputError, match=r"states cannot be taken back from 8 to 4 positions.*reset"):
        cache.rollback()
    cache.reset()
    assert torch.allclose(model(ids, past_key_values=cache).last_hidden_state, model(ids).last_hidden_state, atol=CLOSE)


def test_static_caches_tell_their_size() -> None:
    cache = static()
    assert (cache.get_max_length(), cache.get_max_cache_shape(), cache.get_max_cache_shape(1)) == (32, 32, 32)
    assert cache.is_compileable
    cache.update(*states(), 0)
    assert (cache.get_seq_length(), cache.batch_size) == (3, 2)
    assert cache[0][0].shape[2] == 3


# --- threads -----------------------------------------------------------------------------------------------------------------


def elsewhere(action: Callable[[], Any]) -> Any:
    """What an action gives in another thread, or the error that it raises there."""
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        return pool.submit(torch.no_grad()(action)).exception()


@torch.no_grad()
@pytest.mark.parametrize("kind", [*MAKERS, "states"])
def test_a_cache_serves_one_thread_at_a_time(kind: str) -> None:
    if kind == "states":
        config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
        model: Any = MambaForCausalLM(config).eval()
    else:
        model = llama()
    cache = DynamicCache() if kind == "states" else MAKERS[kind]()
    ids, told = numbers(2, 9), list[Any]()
    expected = model(ids[:, :4], past_key_values=copy.deepcopy(cache)).logits

    def disturb(*_: Any) -> None:
        for action in (
            lambda: model(ids[:, :1], past_key_values=cache),
            lambda: model.generate(ids, past_key_values=cache, max_new_tokens=1),
            lambda: cache.crop(1),
            cache.reset,
            lambda: cache.reorder_cache(torch.tensor([0, 0])),
        ):
            told.append(elsewhere(action))

    handle = model.body.layers[1].register_forward_hook(disturb)
    found = model(ids[:, :4], past_key_values=cache).logits
    handle.remove()
    assert torch.equal(found, expected)
    assert len(told) == 5
    for error in told:
        assert isinstance(error, InputError)
        assert "used by a forward pass in another thread" in str(error)
        assert "copy.deepcopy(cache)" in str(error)
    assert elsewhere(lambda: model(ids[:, 4:6], past_key_values=cache)) is None  # afterwards any thread may go on


@torch.no_grad()
def test_a_failed_pass_lets_other_threads_go_on() -> None:
    model, ids, cache = llama(), numbers(2, 9), DynamicCache()
    interrupt(model, 0, ids, past_key_values=cache)
    assert elsewhere(cache.rollback) is None
    assert elsewhere(lambda: model(ids, past_key_values=cache)) is None
    assert cache.get_seq_length() == 9


@torch.no_grad()
@pytest.mark.parametrize("make", [DynamicCache, static], ids=["dynamic", "static"])
def test_a_text_is_not_written_with_a_cache_that_others_use(make: Any) -> None:
    model, ids, cache = llama(), numbers(1, 9), make()
    model.generation_config.eos_token_id = None
    run = model._run(ids, None, {"max_new_tokens": 5, "past_key_values": cache})
    steps = run.steps()
    next(steps)
    model(ids[:, :1], past_key_values=cache)
    with pytest.raises(InputError, match=r"used by others while a text was written with it.*of its own"):
        next(steps)


@torch.no_grad()
def test_threads_with_caches_of_their_own_write_the_same() -> None:
    model, ids = llama(), numbers(1, 9)
    model.generation_config.eos_token_id = None
    cache = DynamicCache()
    model(ids[:, :6], past_key_values=cache)
    expected = model.generate(ids, max_new_tokens=5)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(model.generate, ids, max_new_tokens=5, past_key_values=copy.deepcopy(cache)) for _ in range(8)]
    assert all(torch.equal(run.result(), expected) for run in runs)
