"""Blocks that compute a step in one call, beside the same blocks by themselves."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from tests.quantized.test_grouped import INPUTS, OUTPUTS, SETS, build, weights
from transept.adapt.lora import LoraConfig
from transept.adapt.pack import pack
from transept.adapt.peft import get_peft_model
from transept.adapt.quantize import quantize
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.rows import RowCache, RowCaches
from transept.layers.caches.static import StaticCache
from transept.quantized import fused
from transept.quantized.fused import fuse
from transept.quantized.grouped import GroupedLinear

needs_compiler = pytest.mark.skipif(fused._kernel() is None, reason="there is no C++ compiler on this machine")
pytestmark = needs_compiler

SIZES = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transept.LlamaForCausalLM(transept.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True)),
    "qwen3": lambda: transept.Qwen3ForCausalLM(transept.Qwen3Config(**GROUPED, head_dim=32)),
    "mistral": lambda: transept.MistralForCausalLM(transept.MistralConfig(**GROUPED, sliding_window=5)),
    "gemma3": lambda: transept.Gemma3ForCausalLM(transept.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=5)),
    "glm": lambda: transept.GlmForCausalLM(transept.GlmConfig(**GROUPED, head_dim=16, pad_token_id=0, eos_token_id=1)),
}
IDS = torch.randint(3, 99, (3, 9), generator=torch.Generator().manual_seed(0))


def model_of(name: str = "llama", bits: int = 32) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    return model if bits == 32 else quantize(model, bits)


def chains(model: Any) -> list[tuple[int, int]]:
    """Which of the model's blocks have been computed by the kernel so far."""
    return [(chain.start, chain.stop) for chain in fused._CHAINS.get(model.model, [])]


@torch.no_grad()
def steps(model: Any, cache: Any, ids: torch.Tensor = IDS, **options: Any) -> list[torch.Tensor]:
    """The logits of a prompt and of the three steps that follow."""
    found = [model(input_ids=ids[:, :6], past_key_values=cache, **options).logits]
    return found + [model(input_ids=ids[:, at : at + 1], past_key_values=cache, **options).logits for at in (6, 7, 8)]


def assert_alike(ours: list[torch.Tensor], wanted: list[torch.Tensor], bits: int = 32) -> None:
    # Sums in another order differ in the last bits; with few bits, a number that is rounded the other way is one of 127 steps.
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6 if bits == 32 else 0.03)


@pytest.mark.parametrize("bits", [32, 8, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_what_the_block_makes_by_itself(name: str, bits: int) -> None:
    model = model_of(name, bits)
    wanted, by_itself = steps(model, DynamicCache()), steps(model, StaticCache(max_cache_len=12))
    fuse(model)
    assert_alike(steps(model, DynamicCache()), wanted, bits)
    assert chains(model) == [(0, 2)]
    assert_alike(steps(model, StaticCache(max_cache_len=12)), by_itself, bits)


@pytest.mark.parametrize("bits", [32, 4])
def test_a_row_in_company_has_the_bits_of_the_row_alone(bits: int) -> None:
    model = model_of(bits=bits)
    fuse(model)
    caches = [RowCache() for _ in IDS]
    lengths = [3, 9, 5]
    alone = []
    with torch.inference_mode():
        for row, length, cache in zip(IDS, lengths, caches, strict=True):
            model(input_ids=row[None, :length], past_key_values=cache)
            own = copy.deepcopy(cache)
            alone.append(model(input_ids=row[None, :1], past_key_values=RowCaches([own]), lengths=[1]).logits)
        together = model(input_ids=IDS[:, 0][None], past_key_values=RowCaches(caches), lengths=[1, 1, 1]).logits
    assert chains(model) == [(0, 2)]
    assert torch.equal(together, torch.cat(alone, dim=1))


def test_what_asks_for_more_is_computed_by_the_block() -> None:
    model = model_of()
    fuse(model)
    steps(model, DynamicCache())
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        cache = model(input_ids=IDS, use_cache=True).past_key_values
        plain = model(input_ids=IDS[:, :1], past_key_values=copy.deepcopy(cache)).logits
        handle = model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: seen.append(out))
        assert_alike([model(input_ids=IDS[:, :1], past_key_values=copy.deepcopy(cache)).logits], [plain])
        assert len(seen) == 1
        handle.remove()
        model.set_attn_implementation("eager")
        shown = model(input_ids=IDS[:, :1], past_key_values=copy.deepcopy(cache), output_attentions=True)
        assert shown.attentions[0].shape == (3, 4, 1, 10)
        assert_alike([shown.logits], [plain])
    model.set_attn_implementation("sdpa")
    logits = model(input_ids=IDS[:, :1], past_key_values=copy.deepcopy(cache)).logits
    logits.sum().backward()  # with gradients
    assert model.model.layers[0].mlp.up_proj.weight.grad is not None
    padded = torch.ones(3, 10, dtype=torch.long)
    padded[0, :4] = 0
    with torch.no_grad():
        hidden = model(input_ids=IDS[:, :1], attention_mask=padded, past_key_values=copy.deepcopy(cache)).logits
    assert not torch.allclose(hidden[0], plain[0], atol=1e-4)
    assert_alike([hidden[1:]], [plain[1:]])


@pytest.mark.parametrize("kind", [*weights()])
def test_kinds_of_weights(kind: str) -> None:
    torch.manual_seed(0)
    sizes = GROUPED | {"hidden_size": INPUTS, "intermediate_size": INPUTS}
    model = transept.LlamaForCausalLM(transept.LlamaConfig(**sizes)).eval()
    weight = weights()[kind].map_rows(lambda part: part[torch.arange(INPUTS) % OUTPUTS])
    for block in model.model.layers:
        for owner, name in ((block.self_attn, "o_proj"), (block.mlp, "up_proj"), (block.mlp, "down_proj")):
            setattr(owner, name, GroupedLinear(torch.nn.Linear(INPUTS, INPUTS, bias=False), weight))
    wanted = steps(model, DynamicCache())
    fuse(model)
    found = steps(model, DynamicCache())
    assert chains(model) == ([] if kind == "order" else [(0, 2)])
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 0.05 * other.abs().max()


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernels are built by g++, which is missing")
@pytest.mark.parametrize("name", SETS)
def test_every_set_of_instructions_gives_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "avx2" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX2")
    built = build(fused.BLOCK, name, tmp_path / "block.so")
    for kind in ("llama", "gemma3", "glm"):
        for bits in (32, 8, 4):
            model = model_of(kind, bits)
            wanted = steps(model, DynamicCache())
            fuse(model)
            with monkeypatch.context() as patch:
                patch.setattr(fused, "_kernel", lambda: fused.declared(built))
                assert_alike(steps(model, DynamicCache()), wanted, bits)
            assert chains(model) == [(0, 2)]


CHANGES: dict[str, Callable[[Any], None]] = {
    "a weight in place": lambda block: block.mlp.up_proj.weight.data.mul_(3),
    "a weight's memory": lambda block: setattr(block.mlp.up_proj.weight, "data", block.mlp.up_proj.weight.data * 3),
    "a weight": lambda block: setattr(block.self_attn_norm, "weight", torch.nn.Parameter(torch.full((64,), 3.0))),
    "a layer": lambda block: setattr(block.mlp, "down_proj", torch.nn.Linear(96, 64)),
    "a layer of another kind": lambda block: setattr(block.mlp, "down_proj", torch.nn.Sequential(torch.nn.Linear(96, 64))),
    "a forward": lambda block: setattr(block.mlp, "forward", lambda x, ctx=None: x),
    "a norm": lambda block: setattr(block, "mlp_norm", torch.nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parts_are_seen(change: str) -> None:
    model = model_of()
    fuse(model)
    before = steps(model, DynamicCache())
    CHANGES[change](model.model.layers[1])
    after = steps(model, DynamicCache())
    assert not torch.allclose(after[1], before[1], atol=1e-3)
    del model.model.layers_step
    assert_alike(after, steps(model, DynamicCache()))


def test_adapters_and_other_types_are_seen() -> None:
    model = model_of()
    fuse(model)
    before = steps(model, DynamicCache())
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    after = steps(model.eval(), DynamicCache())
    assert not torch.allclose(after[1], before[1], atol=1e-4)
    assert steps(model_of().to(torch.bfloat16), DynamicCache())[1].dtype == torch.bfloat16
    wide = model_of()
    fuse(wide)
    assert_alike([each.float() for each in steps(wide.double(), DynamicCache())], before)


def test_copies_compute_by_their_own_weights() -> None:
    model = model_of()
    fuse(model)
    before = steps(model, DynamicCache())
    twin, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for parameter in model.parameters():
        parameter.data.zero_()
    assert_alike(steps(twin, DynamicCache()), before)
    assert_alike(steps(again, DynamicCache()), before)


def test_what_is_no_number_stays_so() -> None:
    model = model_of()
    fuse(model)
    model.model.layers[0].mlp.up_proj.weight.data[5, 5] = torch.nan
    assert steps(model, DynamicCache())[1].isnan().all()


def test_a_model_that_is_gone_leaves_nothing() -> None:
    model = model_of()
    fuse(model)
    gc.collect()
    before = len(fused._CHAINS)
    steps(model, DynamicCache())
    assert len(fused._CHAINS) == before + 1
    del model
    gc.collect()
    assert len(fused._CHAINS) == before


def test_a_packed_model_that_writes_keeps_its_weights() -> None:
    model = model_of()
    names = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    wanted = model.generate(IDS[:1], max_new_tokens=9, do_sample=False)
    pack(model)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == names
    assert torch.equal(model.generate(IDS[:1], max_new_tokens=9, do_sample=False), wanted)


def test_without_a_compiler_blocks_compute_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_kernel", lambda: None)
    model = model_of()
    wanted = steps(model, DynamicCache())
    fuse(model)
    assert all(torch.equal(one, other) for one, other in zip(steps(model, DynamicCache()), wanted, strict=True))
