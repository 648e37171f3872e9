"""Steps as compiled graphs for the CPU, with the weights as constants."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.generation.test_caches import ids, llama
from tests.thorough import in_turn
from transept import T5Config, T5ForConditionalGeneration
from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.errors import ConfigError, UnsupportedError
from transept.generation import compiled
from transept.layers.linear import Packed
from transept.quantized.eight_bits import can_quantize

PROMPT = ids(2, 9)
MASK = torch.ones_like(PROMPT)
MASK[0, :3] = 0
# Without the search for the fastest loops, which takes some seconds for each size of a weight.
PLAIN: dict[str, Any] = {"options": {}}


def write(model: Any, how: dict[str, Any] | None = None, **more: Any) -> Tensor:
    """20 ids behind two prompts, one of them padded."""
    given = {"max_new_tokens": 20, "min_new_tokens": 20, "attention_mask": MASK} | more
    settings = {} if how is None else {"cache_implementation": "static", "compile_config": how}
    found: Tensor = model.generate(PROMPT, **given, **settings)
    return found


def shallow() -> Any:
    """A model of one layer: a program takes a second and more for each."""
    return llama(num_hidden_layers=1)


def graphs(model: Any) -> list[Any]:
    """Those that are kept."""
    return list(compiled._STEPS[model].graphs.values())


@pytest.mark.long
def test_the_fastest_graphs_write_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    # The fastest loops are looked for once for each size of a weight, of which there are few here.
    model = llama(num_hidden_layers=1, intermediate_size=32, num_key_value_heads=4, vocab_size=96)
    assert torch.equal(write(model, {}), write(model))
    kept = graphs(model)
    assert torch.equal(write(model, {}, do_sample=True, seed=3), write(model, do_sample=True, seed=3))
    assert graphs(model) == kept
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_changed_weights_are_seen() -> None:
    model = shallow()
    before = write(model, PLAIN)

    def in_place() -> None:
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)

    def behind_its_back() -> None:
        model.backbone.norm.weight.data.mul_(-2)

    def replaced() -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.roll(3, 0))

    for change in (in_place, behind_its_back, replaced):
        change()
        after = write(model, PLAIN)
        assert not torch.equal(after, before), change
        assert torch.equal(after, write(model)), change
        before = after
    kept = graphs(model)
    assert torch.equal(write(model, PLAIN), before)
    assert graphs(model) == kept


def test_every_graph_holds_the_weights() -> None:
    from torch._dynamo.utils import counters

    model, plain = shallow(), write(shallow())
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            before = counters["stats"]["unique_graphs"]
            assert torch.equal(write(model, PLAIN), plain)
            assert torch.equal(write(model, PLAIN), plain)
            assert counters["stats"]["unique_graphs"] == before + 1
    assert len(graphs(model)) == 2


def test_models_of_one_form_have_graphs_of_their_own() -> None:
    one, other = shallow(), shallow()
    with torch.no_grad():
        other.lm_head.weight.copy_(other.lm_head.weight.roll(3, 0))
    for model in (one, other, one):
        assert torch.equal(write(model, PLAIN), write(model))
    assert not torch.equal(write(one), write(other))
    gone = weakref.ref(one)
    del one, model
    gc.collect()
    assert gone() is None


@pytest.mark.long
@pytest.mark.parametrize("how", in_turn([{"options": {"cpp_wrapper": True}}, PLAIN], 1))
def test_graphs_are_freed_with_their_weights(how: dict[str, Any]) -> None:
    def copies() -> int:
        for _ in range(2):  # a graph that ends in the first collection lets go of what it was compiled from
            gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # looking at an object may import it
            return sum(type(each) in (Tensor, torch.nn.Parameter) and each.numel() == 60 * 32 for each in gc.get_objects())

    model = llama(tie_word_embeddings=False, num_hidden_layers=1)
    alone = copies()
    write(model, how)
    assert copies() > alone
    compiled._STEPS[model].graphs.clear()
    assert copies() == alone
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    write(model, how)
    del model
    assert copies() == alone - 2


@pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
def test_packed_models() -> None:
    model = shallow()
    packed = pack(copy.deepcopy(model))
    assert torch.equal(write(packed, PLAIN), write(model))
    assert all(module.plain is None for module in packed.modules() if isinstance(module, Packed))
    name = "model.layers.0.mlp.down_proj.weight"
    for seed in (1, 2):
        other = {name: torch.randn(32, 40, generator=torch.Generator().manual_seed(seed))}
        model.load_state_dict(other, strict=False)
        packed.load_state_dict(other, strict=False)
        assert torch.equal(write(packed, PLAIN), write(model)), seed


@pytest.mark.skipif(not can_quantize(), reason="this processor does not multiply integers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_models(dtype: torch.dtype) -> None:
    model = shallow().to(dtype)
    whole = model(PROMPT).logits.float()
    rounded = quantize(copy.deepcopy(model))
    found = rounded.generate(
        PROMPT,
        max_new_tokens=1,
        output_logits=True,
        return_dict_in_generate=True,
        cache_implementation="static",
        compile_config=PLAIN,
    )
    step = compiled.compiled_step(rounded, rounded.generation_config.__class__(compile_config=PLAIN), found.past_key_values)
    assert step is not None
    found.past_key_values.crop(PROMPT.shape[1] - 1)
    with torch.inference_mode():
        last = step(input_ids=PROMPT[:, -1:].clone(), past_key_values=found.past_key_values).logits[:, -1].float()
    assert last.dtype == torch.float32
    assert 0 < (last - whole[:, -1]).abs().max() / whole.abs().max() < 0.05


def test_encoder_decoders() -> None:
    sizes = {"d_model": 32, "d_ff": 40, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 60}
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    assert torch.equal(write(model, PLAIN), write(model))
    assert len(graphs(model)) == 1


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is passed to the compiler, which does nothing."""
    seen: list[dict[str, Any]] = []

    def compiler(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
        seen.append(given)
        return lambda *arguments, **inputs: function(*arguments, **inputs)

    monkeypatch.setattr(torch, "compile", compiler)
    return seen


def test_settings_reach_the_compiler(forms: list[dict[str, Any]]) -> None:
    model = shallow()
    for given in (
        {},
        {"fullgraph": True},
        {"mode": "max-autotune"},
        {"options": {"max_autotune": False}},
        {"backend": "eager"},
    ):
        write(model, given, attention_mask=None)
    fastest, whole, mode, own, eager = forms
    assert fastest["options"]["max_autotune_gemm_backends"] == "CPP,ATEN"
    assert fastest["options"].items() <= whole["options"].items()
    assert whole["fullgraph"] is True
    assert (mode["mode"], mode["options"]["max_autotune"]) == (None, True)
    assert own["options"].keys() == {"max_autotune", "freezing", "guard_filter_fn"}
    assert eager == {"backend": "eager"}
    assert all(each["options"]["freezing"] for each in (fastest, whole, mode, own))


def test_a_few_graphs_are_kept(forms: list[dict[str, Any]]) -> None:
    model = shallow()
    for rows in (1, 2, 3, 3, 2, 1):
        model.generate(ids(rows, 5), max_new_tokens=4, min_new_tokens=4, cache_implementation="static", compile_config={})
    assert len(forms) == 4  # one row was forgotten when three came
    assert len(graphs(model)) == 2


def test_rows_that_are_done_stay(forms: list[dict[str, Any]]) -> None:
    model = shallow()
    end = int(write(model, attention_mask=None)[0, 13])
    given = {"attention_mask": None, "min_new_tokens": 0, "eos_token_id": end}
    plain = write(model, **given)
    assert int((plain[0] == end).nonzero()[0, 0]) <= 13
    assert torch.equal(write(model, {}, **given), plain)
    assert len(forms) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": "fast"}, "cannot be used: Unrecognized mode=fast, should be one of: default"),
    ({"options": {"max_autotun": True}}, "cannot be used: Unexpected optimization option max_autotun.$"),
    ({"options": {"max_autotune": "x"}}, "cannot be used: Unexpected type of attr max_autotune, got str should be bool"),
    ({"backend": "inducto"}, "cannot be used: Invalid backend: 'inducto'"),
    ({"backend": 3}, "has 'backend' of type int: 3"),
    ({"options": 3}, "has 'options' of type int: 3"),
    ({"dynamic": "x"}, "has 'dynamic' of type str: 'x'"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda value: str(value)[:30])
def test_what_the_compiler_does_not_know(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write(shallow(), given)


def test_hooks_are_seen() -> None:
    model, seen = shallow(), []
    before = write(model, PLAIN)
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(1) or -output)
    assert torch.equal(write(model, PLAIN), write(model))
    assert not torch.equal(write(model, PLAIN), before)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    said = r"compiled by a C\+\+ compiler, and there is none. Install one, such as g\+\+"
    with config.patch({"cpp.cxx": (None, str(tmp_path / "none"))}), pytest.raises(UnsupportedError, match=said):
        write(shallow(), PLAIN)
