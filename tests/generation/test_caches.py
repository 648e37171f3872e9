"""Kinds of caches in generation: what models write is the same, whatever keeps their keys and values."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests import memory
from tests.document_tables import written as with_table
from tests.generation.test_generate import WRITERS, inputs, ready, written
from tests.models.families import Family
from tests.models.harness import USED
from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import ConfigError, InputError, InputTypeError
from transept.generation.compiled import CACHES, make_cache
from transept.generation.config import CompileConfig, GenerationConfig
from transept.layers.caches.cache import Cache, DynamicCache, SlidingWindowCache
from transept.layers.caches.offloaded import OffloadedCache
from transept.layers.caches.quantized import QuantizedCache
from transept.layers.caches.static import StaticCache
from transept.models.gemma2 import Gemma2Config, Gemma2ForCausalLM
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.mamba import MambaConfig, MambaForCausalLM
from transept.models.mistral import MistralConfig, MistralForCausalLM
from transept.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transept.models.t5 import T5Config, T5ForConditionalGeneration

STORIES = Path(__file__).parents[3] / "shared/data/weights/stories260K/hf"
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "head_dim": 8,
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING: dict[str, Any] = {
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 5}),
    "mistral, of one": (MistralForCausalLM, MistralConfig, {"sliding_window": 1}),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"sliding_window": 5, "query_pre_attn_scalar": 8}),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
    ),
}


def tiny(cls: Any, config: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(config(**SIZES | more)).eval()


def llama(**more: Any) -> Any:
    return tiny(LlamaForCausalLM, LlamaConfig, **more)


def ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(1))


CASES: list[Any] = WRITERS
STATELESS = [
    case for case in CASES if not case.values[1]._is_stateful and case.values[0].model_type not in ("reformer", "xlnet")
]


KINDS_AND_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("left", {"prefill_chunk_size": 4}),
    "sliding_window": ("left", {}),
    "offloaded": ("none", {"num_beams": 2}),
}


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(STATELESS, 25, whole=USED))
def test_every_family_writes_the_same(family: Family, cls: type[Model]) -> None:
    model, _ = ready(family, cls)
    for kind, (pad, settings) in KINDS_AND_SETTINGS.items():
        given = inputs(family, cls, pad)
        assert torch.equal(written(model, given, cache_implementation=kind, **settings), written(model, given, **settings))


SEQ2SEQ = [
    case for case in STATELESS if case.values[0].modality == "seq2seq" and not case.values[1].__name__.endswith("CausalLM")
]
DECODERS = [case for case in STATELESS if case not in SEQ2SEQ]


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(DECODERS, 10))
def test_every_decoder_compiles_once(family: Family, cls: type[Model]) -> None:
    model, _ = ready(family, cls)
    found = torch.randint(4, 50, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(found).logits
        torch._dynamo.reset()
        cache, counted = StaticCache(model.config, 24), CompileCounter()
        step = torch.compile(model, fullgraph=True, backend=counted)
        parts = [model(found[:, :5], past_key_values=cache).logits]
        parts += [step(found[:, at : at + 1], past_key_values=cache).logits for at in range(5, 16)]
    assert counted.frame_count == 1
    # float32: other shapes take other kernels
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(SEQ2SEQ, 2))
def test_every_encoder_decoder_compiles_once(family: Family, cls: type[Model]) -> None:
    model, _ = ready(family, cls)
    source, found = ids(2, 7) % 40 + 4, ids(2, 12) % 40 + 4
    with torch.no_grad():
        states = model.get_encoder()(source)
        whole = model(encoder_outputs=states, decoder_input_ids=found).logits
        torch._dynamo.reset()
        cache, counted = StaticCache(model.config, 16), CompileCounter()
        step = torch.compile(model, fullgraph=True, backend=counted)
        parts = [model(encoder_outputs=states, decoder_input_ids=found[:, :3], past_key_values=cache).logits]
        for at in range(3, 12):
            given = {"encoder_outputs": states, "decoder_input_ids": found[:, at : at + 1]}
            parts.append(step(**given, past_key_values=cache).logits)
    assert counted.frame_count == 1
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize("how", ["greedy", "sampled", "beams", "padded", "encoder-decoder"])
def test_generate_compiles_its_steps_once(how: str) -> None:
    sampled = {"do_sample": True, "seed": 5} if how == "sampled" else {}
    more: dict[str, Any] = {"num_beams": 3} if how == "beams" else sampled
    model, mask = llama(), torch.ones(2, 9, dtype=torch.long)
    if how == "encoder-decoder":
        sizes = {"d_model": 32, "d_ff": 40, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 60}
        model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    if how == "padded":
        mask[0, :3] = 0
    torch._dynamo.reset()
    counted = CompileCounter()
    compiled = {"cache_implementation": "static", "compile_config": {"backend": counted, "fullgraph": True}}
    for length in (12, 12, 20):  # texts of about one length share the program
        settings = {"max_new_tokens": length, "min_new_tokens": length, "attention_mask": mask, **more}
        found = model.generate(ids(2, 9), **settings, **compiled)
        assert torch.equal(found, model.generate(ids(2, 9), **settings))
    assert counted.frame_count == 1
    without = model.generate(ids(2, 9), **settings, **compiled, disable_compile=True)
    assert torch.equal(without, found)
    assert counted.frame_count == 1


def test_a_position_of_embeddings_is_not_compiled() -> None:
    model, prompt = llama(), ids(1, 6)
    embeds, counted = model.get_input_embeddings()(prompt), CompileCounter()
    torch._dynamo.reset()
    kept = StaticCache(model.config, 16)
    with torch.no_grad():
        model(prompt[:, :5], past_key_values=kept)
    settings = CompileConfig(backend=counted)
    assert settings == {"backend": counted, "fullgraph": False}
    found = model.generate(inputs_embeds=embeds, cache=kept, max_new_tokens=5, compile_config=settings)
    assert torch.equal(found, model.generate(prompt, max_new_tokens=5)[:, 6:])
    assert counted.frame_count == 1


def test_a_cache_has_two_names() -> None:
    model, prompt, kept = llama(), ids(1, 6), DynamicCache()
    first = model.generate(prompt, cache=kept, max_new_tokens=3)
    assert kept.get_seq_length() == 8
    assert torch.equal(model.generate(first, cache=kept, max_new_tokens=3), model.generate(prompt, max_new_tokens=6))
    with pytest.raises(InputError, match="the cache was passed twice.*Pass one of them"):
        model.generate(first, cache=kept, past_key_values=kept)


def test_compiled_steps_need_a_cache_of_one_size() -> None:
    for kind in ({}, {"cache_implementation": "quantized"}, {"use_cache": False}):
        with pytest.raises(InputError, match='`compile_config` needs a cache of one size.*cache_implementation="static"'):
            llama().generate(ids(1, 4), compile_config={"backend": "eager"}, **kind)


@pytest.mark.parametrize("kind", ["full", "padded", "prefilled", "stepped by two"])
@torch.no_grad()
def test_compiled_steps_of_static_caches(kind: str) -> None:
    model, found = llama(), ids(2, 16)
    mask = torch.ones(2, 20, dtype=torch.long)
    if kind == "padded":
        mask[1, :3] = 0
    given = {"attention_mask": mask} if kind == "padded" else {}
    whole = model(found, **({"attention_mask": mask[:, :16]} if given else {})).logits
    torch._dynamo.reset()
    cache, counted = StaticCache(model.config, 20), CompileCounter()
    step = torch.compile(model, fullgraph=True, backend=counted)
    if kind == "prefilled":
        cache.early_initialization(2, 2, 8, torch.float32, "cpu")
    first = step if kind == "prefilled" else model
    parts = [first(found[:, :4], past_key_values=cache, **({"attention_mask": mask[:, :4]} if given else {})).logits]
    size = 2 if kind == "stepped by two" else 1
    parts += [step(found[:, at : at + size], past_key_values=cache, **given).logits for at in range(4, 16, size)]
    assert counted.frame_count == (2 if kind == "prefilled" else 1)
    apart = (torch.cat(parts, dim=1) - whole).abs()
    assert float(apart[mask[:, :16].bool()].max()) <= 1e-4 * float(whole.abs().max())
    # What follows may be eager again, and what is cropped is written over by the same program.
    assert cache.get_seq_length() == 16
    cache.crop(10)
    again = [step(found[:, 10:11] if size == 1 else found[:, 10:12], past_key_values=cache, **given).logits[:, :1]]
    assert cache.get_seq_length() == 10 + size
    cache.crop(11)
    more = {"attention_mask": mask[:, :16]} if given else {}
    again.append(model(found[:, 11:], past_key_values=cache, **more).logits)
    assert counted.frame_count == (2 if kind == "prefilled" else 1)
    assert torch.allclose(torch.cat(again, dim=1), whole[:, 10:], atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize("name", SLIDING)
def test_windows_write_the_same(name: str) -> None:
    cls, config, more = SLIDING[name]
    model, found, padded = tiny(cls, config, **more), ids(), torch.ones(2, 9, dtype=torch.long)
    padded[0, :4] = 0
    for mask in (None, padded):
        settings = {"attention_mask": mask, "max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
        expected = model.generate(found, **settings)
        for chunk in (None, 2):
            kept = model.generate(
                found,
                cache_implementation="sliding_window",
                return_dict_in_generate=True,
                prefill_chunk_size=chunk,
                **settings,
            )
            assert torch.equal(kept.sequences, expected)
            assert torch.equal(model.generate(found, cache_implementation="static", **settings), expected)
            for index, layer in enumerate(kept.past_key_values.layers):
                window = model.config.window(index)
                assert layer.length == 38
                assert layer.held == 38 if window is None else window - 1 <= layer.held <= window - 1 + window // 4


@torch.no_grad()
def test_cached_windows_give_the_same_numbers() -> None:
    cls, config, more = SLIDING["gemma2"]
    model, found = tiny(cls, config, **more), ids(2, 24)
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, :8] = 0
    whole, cache = model(found, attention_mask=mask).logits, SlidingWindowCache()
    parts = [
        model(found[:, start:end], mask[:, :end], past_key_values=cache).logits
        for start, end in ((0, 3), (3, 12), (12, 13), (13, 14), (14, 20), (20, 24))
    ]
    assert torch.allclose(torch.cat(parts, dim=1)[mask.bool()], whole[mask.bool()], atol=1e-4 * float(whole.abs().max()))
    full = torch.ones(24, 24, dtype=torch.bool).tril().expand(2, 24, 24)  # a whole mask is cut to what is kept, too
    whole, cache = model(found, full).logits, SlidingWindowCache()
    model(found[:, :20], full[:, :20, :20], past_key_values=cache)
    assert cache.layers[0].held < 20
    dynamic = DynamicCache()
    model(found[:, :20], full[:, :20, :20], past_key_values=dynamic)
    for layer, other in zip(cache.layers, dynamic.layers, strict=True):
        kept = layer.keys
        assert kept is not None
        assert other.keys is not None
        assert torch.equal(kept, other.keys[:, :, -layer.held :])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["static", "sliding_window", "offloaded", "quantized", "dynamic"])
def test_prefixes_are_forked_and_reused(kind: str) -> None:
    model, found = llama(), ids(1, 12)
    settings = GenerationConfig(cache_implementation=kind, cache_config={"nbits": 8} if kind == "quantized" else None)
    prefix = make_cache(settings, model.config, 40) or DynamicCache()
    model(found[:, :8], past_key_values=prefix)
    for end in (10, 12):
        expected = model.generate(found[:, :end], max_new_tokens=6, do_sample=False)
        fork = copy.deepcopy(prefix)
        assert torch.equal(model.generate(found[:, :end], past_key_values=fork, max_new_tokens=6, do_sample=False), expected)
        assert (prefix.get_seq_length(), fork.get_seq_length()) == (8, expected.shape[1] - 1)
        fork.crop(8)
        assert torch.equal(model.generate(found[:, :end], past_key_values=fork, max_new_tokens=6, do_sample=False), expected)


def test_kinds_are_made_as_the_settings_say() -> None:
    config = llama().config

    def made(length: int | None = 9, **settings: Any) -> Cache | None:
        return make_cache(GenerationConfig(**settings), config, length)

    assert made() is made(cache_implementation="dynamic") is None
    static = made(cache_implementation="static")
    assert isinstance(static, StaticCache)
    assert static.max_cache_len == 9
    larger = made(cache_implementation="static", max_cache_len=32)
    assert isinstance(larger, StaticCache)
    assert larger.max_cache_len == 32
    assert isinstance(made(cache_implementation="sliding_window"), SlidingWindowCache)
    assert isinstance(made(cache_implementation="hybrid"), SlidingWindowCache)
    assert isinstance(made(cache_implementation="offloaded"), OffloadedCache)
    coarse = made(cache_implementation="quantized", cache_config={"backend": "quanto", "nbits": 8, "residual_length": 4})
    assert isinstance(coarse, QuantizedCache)
    assert (coarse.nbits, coarse.q_group_size, coarse.residual_length) == (8, 64, 4)


WRONG: list[tuple[dict[str, Any], int | None, str]] = [
    ({"cache_implementation": "offloaded_static"}, 9, "`cache_implementation` is 'offloaded_static', .* dynamic, static"),
    ({"cache_implementation": "static"}, None, "needs a size"),
    ({"cache_implementation": "static", "max_cache_len": 4}, 9, "`max_cache_len` is 4, but 9 positions"),
    ({"cache_implementation": "quantized", "cache_config": {"nbit": 8}}, 9, "no setting 'nbit': .*nbits"),
    ({"cache_implementation": "quantized", "cache_config": {"nbits": 3}}, 9, "`nbits` must be 4 or 8, but is 3"),
    ({"cache_implementation": "offloaded", "cache_config": {"nbits": 4}}, 9, "'offloaded' has none"),
    ({"cache_config": {"nbits": 4}}, 9, "`cache_config` has no setting 'nbits'"),
]


@pytest.mark.parametrize(("settings", "length", "message"), WRONG, ids=str)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], length: int | None, message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        make_cache(GenerationConfig(**settings), llama().config, length)


def test_caches_that_cannot_serve_are_named() -> None:
    model, found = llama(), ids()
    with pytest.raises(InputError, match="`past_key_values` was passed, and `cache_implementation` is 'static'"):
        model.generate(found, past_key_values=DynamicCache(), cache_implementation="static", max_new_tokens=2)
    with pytest.raises(InputError, match="room for 10 positions, but 10 are cached and 1 are new"):
        model.generate(found, past_key_values=StaticCache(max_cache_len=10), max_new_tokens=9)
    mamba: Any = MambaForCausalLM(MambaConfig(vocab_size=60, hidden_size=8, num_hidden_layers=1, state_size=2)).eval()
    with pytest.raises(InputTypeError, match="layer 0 of the cache holds states, but the model keeps keys and values"):
        llama(num_hidden_layers=1).generate(
            found, past_key_values=mamba(found[:, :-1], use_cache=True).past_key_values, max_new_tokens=2
        )


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("settings", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_every_cache_keeps_states(kind: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=60, hidden_size=8, num_hidden_layers=2, state_size=2, eos_token_id=None, initializer_range=0.5
    )
    model: Any = MambaForCausalLM(config).eval()
    settings |= {"max_new_tokens": 12, "return_dict_in_generate": True}
    expected = model.generate(ids(), **settings, use_cache=False).sequences
    written = model.generate(ids(), **settings, cache_implementation=kind)
    assert torch.equal(written.sequences, expected)
    assert {layer.kinds for layer in written.past_key_values.layers} == {("states",)}


@pytest.mark.parametrize("kind", [name for name in CACHES if name != "quantized"])
def test_guesses_are_taken_back(kind: str) -> None:
    model, found = llama(), ids(1).repeat(1, 3)
    settings = {"max_new_tokens": 20, "do_sample": False}
    expected = model.generate(found, **settings)
    assert torch.equal(model.generate(found, prompt_lookup_num_tokens=4, cache_implementation=kind, **settings), expected)


def test_windows_that_were_left_take_no_guesses_back() -> None:
    cls, config, more = SLIDING["mistral"]
    model = tiny(cls, config, **more)
    settings = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "prompt_lookup_num_tokens": 4}
    with pytest.raises(InputError, match="cannot be cropped from .* Use a DynamicCache"):
        model.generate(torch.tensor([[3, 4, 5] * 5]), cache_implementation="sliding_window", **settings)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("family", "cls"), in_turn([case for case in STATELESS if case.values[1].__name__ != "EncoderDecoderModel"], 30)
)
def test_the_formula_for_memory_holds(family: Family, cls: type[Model]) -> None:
    model, _ = ready(family, cls)
    given = {"input_ids": ids(3, 7) % 40 + 4}
    tokens = 7
    if (family, cls) in [case.values for case in SEQ2SEQ]:
        given["decoder_input_ids"] = ids(3, 5) % 40 + 4
        tokens = 7 + 5
    with torch.no_grad():
        cache = model(**given, use_cache=True).past_key_values
    assert cache.get_memory_footprint() == 3 * tokens * memory.cache_bytes(getattr(model.config, "decoder", model.config), 4)


def test_the_page_on_caches_has_the_table() -> None:
    text = memory.PAGE.read_text(encoding="utf-8")
    assert text == with_table(memory.PAGE, "memory", memory.memory()), "run: python -m tests.memory"


@pytest.mark.real_data
def test_a_story_survives_quantization() -> None:
    if not STORIES.exists():
        pytest.skip(f"a trained Llama of 260,000 parameters is missing: {STORIES}")
    model: Any = LlamaForCausalLM.from_pretrained(STORIES)
    settings = {"max_new_tokens": 200, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    start = torch.tensor([[1]])
    full = model.generate(start, **settings)
    text, shares = full.sequences[0], {}
    with torch.no_grad():
        sure = model(full.sequences).logits[0, :-1]
    for bits, group in ((8, 32), (4, 32)):
        asked = {"nbits": bits, "q_group_size": group, "residual_length": 32}
        out = model.generate(start, cache_implementation="quantized", cache_config=asked, **settings)
        shares[bits] = out.past_key_values.get_memory_footprint() / full.past_key_values.get_memory_footprint()
        same = int((out.sequences[0] == text).cumprod(0).sum())
        if same < len(text):  # the first token that differs was nearly as likely
            two = sure[same - 1].log_softmax(-1)
            assert two[text[same]] - two[out.sequences[0, same]] < (0.1 if bits == 8 else 1.0)
        assert same >= (100 if bits == 8 else 30)
    assert shares[8] < 0.6
    assert shares[4] < 0.6
