"""Weights of eight bits: nearly the same answers, and nothing that is lost in silence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from tests.adapt.test_pack import make, output, relative
from tests.pipelines.text_models import long_text, save
from tests.thorough import in_turn
from transept.adapt.quantize import quantize
from transept.errors import InputError
from transept.generation.compiled import compiled_step
from transept.generation.config import GenerationConfig
from transept.layers.caches.static import StaticCache
from transept.layers.moe import Router
from transept.pipelines import pipeline
from transept.quantized.eight_bits import (
    QuantizedForManyRows,
    QuantizedForMatrixUnits,
    can_quantize,
    has_matrix_units,
)
from transept.quantized.grouped import GroupedLinear
from transept.quantized.linear import QuantizedLinear, few_bits

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this processor does not multiply integers")
DATA = Path(__file__).parents[3] / "shared/data"


ONE_ROW = GroupedLinear.of_eight_bits
KINDS = pytest.mark.parametrize("make", [ONE_ROW, QuantizedForManyRows, QuantizedForMatrixUnits])


def layer(inputs: int = 64, outputs: int = 48) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs).requires_grad_(False)


@pytest.mark.parametrize("name", ["BertModel", "BertForSequenceClassification", "LlamaForCausalLM", "GPT2LMHeadModel"])
def test_answers_are_nearly_the_same(name: str) -> None:
    plain = make(name)
    rounded = quantize(copy.deepcopy(plain))
    assert not any(isinstance(module, nn.Linear) for module in rounded.modules())
    assert 0 < relative(output(rounded), output(plain)) < 0.1  # weights of 0.2 make these small models sensitive


@pytest.mark.parametrize("make", [ONE_ROW, QuantizedForManyRows])
def test_rows_in_company_are_those_alone(make: Callable[[Any], QuantizedLinear]) -> None:
    """Whatever the sizes of the others: their sums are of integers, so that they are equal to the last bit."""
    rounded, x = make(layer()), torch.randn(9, 64) * torch.logspace(-8, 4, 9)[:, None]
    assert torch.equal(rounded(x), torch.cat([rounded(row[None]) for row in x]))


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (1, 1, 64), (5, 64), (2, 3, 64), (0, 64)], ids=str)
def test_shapes_and_types(make: Callable[[Any], QuantizedLinear], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plain, x = layer(), torch.randn(shape).to(dtype)
    found = make(plain)(x)
    assert (found.shape, found.dtype) == ((*shape[:-1], 48), dtype)
    if found.numel():
        assert relative(found, plain(x.float())) < 0.02


@KINDS
def test_a_row_of_small_values_beside_one_of_large_ones_is_not_lost(make: Callable[[Any], QuantizedLinear]) -> None:
    plain = layer()
    x = torch.randn(4, 64) * torch.tensor([[1e-4], [1.0], [1e4], [0.0]])
    found, expected = make(plain)(x), plain(x)
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 0.02
    assert torch.allclose(found[3], plain.bias)


@KINDS
@pytest.mark.parametrize("size", [1e-8, 1e-5, 1e-3, 1e4])
def test_inputs_of_any_size_are_rounded_alike(make: Callable[[Any], QuantizedLinear], size: float) -> None:
    """Also one row alone, as a model that writes has it at each step."""
    torch.manual_seed(0)
    layer, row = torch.nn.Linear(256, 64, bias=False), torch.randn(1, 256)
    made = make(layer)
    for rows in (row, row.repeat(3, 1)):
        found, expected = made(rows * size).float(), layer(rows * size)
        assert (found - expected).norm() < 0.02 * expected.norm()


@KINDS
def test_a_row_of_zeros_in_a_weight(make: Callable[[Any], QuantizedLinear]) -> None:
    plain = layer()
    plain.weight[7] = 0
    found = make(plain)(torch.ones(2, 64))
    assert torch.allclose(found[:, 7], plain.bias[7].expand(2))
    assert found.isfinite().all()


def test_a_mixture_keeps_its_routers() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 60}
    sizes |= {"num_key_value_heads": 2}
    model = quantize(transept.MixtralForCausalLM(transept.MixtralConfig(**sizes)).eval())
    kinds = {name.rsplit(".", 1)[-1]: type(module) for name, module in model.named_modules()}
    assert (kinds["gate"], kinds["qkv_proj"], kinds["lm_head"]) == (Router, GroupedLinear, GroupedLinear)


def test_it_takes_a_fourth_of_the_memory() -> None:
    plain = make("LlamaForCausalLM", hidden_size=256, intermediate_size=1024)
    rounded = quantize(copy.deepcopy(plain))
    table = plain.get_input_embeddings().weight.nbytes
    assert rounded.get_memory_footprint() - table < 0.3 * plain.get_memory_footprint()


def test_weights_that_are_gone_are_not_read_loaded_or_moved() -> None:
    model = quantize(make("LlamaForCausalLM"))
    for attempt in (
        model.state_dict,
        lambda: model.load_state_dict(make("LlamaForCausalLM").state_dict()),
        lambda: model.lm_head.weight,
        lambda: model.resize_token_embeddings(70),
    ):
        with pytest.raises(InputError, match="rounded to few bits.*model.dequantize"):
            attempt()
    with pytest.raises(InputError, match="cannot be moved to 'meta'"):
        model.to("meta")


def test_models_of_few_bits_become_plain_again(tmp_path: Path) -> None:
    model = quantize(make("LlamaForCausalLM"))
    model.save_pretrained(tmp_path)
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert few_bits(again).keys() == few_bits(model).keys() != set()
    wanted = model.dequantize().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.dequantize().state_dict().items())
    assert not few_bits(model)


def test_rows_are_the_same_alone_and_in_company() -> None:
    rounded, x = QuantizedForManyRows(layer()), torch.randn(9, 64)
    assert torch.equal(rounded(x), torch.cat([rounded(row[None]) for row in x]))


@KINDS
def test_numbers_that_are_none_show(make: Callable[[Any], QuantizedLinear]) -> None:
    x = torch.randn(3, 64)
    x[1, 5] = math.nan
    found = make(layer())(x)
    assert not found[1].isfinite().any()
    assert found[[0, 2]].isfinite().all()


def test_the_product_is_chosen_by_use_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for units, kind in ((True, QuantizedForMatrixUnits), (False, QuantizedForManyRows)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda units=units: units)
        assert has_matrix_units() == units
        plain = make("BertModel")
        rounded = quantize(copy.deepcopy(plain))
        assert {type(module) for module in rounded.modules() if isinstance(module, QuantizedLinear)} == {kind}
        assert relative(output(rounded), output(plain)) < 0.1
        assert torch.equal(output(copy.deepcopy(rounded)), output(rounded))
        writer = quantize(make("LlamaForCausalLM"))
        assert {type(module) for module in writer.modules() if isinstance(module, QuantizedLinear)} == {GroupedLinear}


def test_what_cannot_be_rounded_is_refused() -> None:
    with pytest.raises(InputError, match="training mode"):
        quantize(make("BertModel").train())
    with pytest.raises(InputError, match="'meta'"):
        quantize(make("BertModel").to("meta"))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertModel"])
def test_copies_and_a_second_time(name: str) -> None:
    model = quantize(make(name))
    assert torch.equal(output(copy.deepcopy(model)), output(model))
    assert torch.equal(output(quantize(copy.deepcopy(model))), output(model))


def test_a_pipeline_loads_it(tmp_path: Path) -> None:
    save(tmp_path, "BertForSequenceClassification", num_labels=3)
    texts = [long_text(words) for words in (3, 9, 20)]
    rounded = pipeline("text-classification", model=tmp_path, dtype="int8", device="cpu")
    assert any(isinstance(module, QuantizedLinear) for module in rounded.model.modules())
    for one, other in zip(rounded(texts), pipeline("text-classification", model=tmp_path)(texts), strict=True):
        assert one["label"] == other["label"]
        assert 0 < abs(one["score"] - other["score"]) < 0.05


def perplexity(model: Any, ids: Tensor, how: str = "at once") -> float:
    """Of (1, T) ids, all at once or one by one, by steps as they are or compiled."""
    with torch.inference_mode():
        if how == "at once":
            return math.exp(float(model(ids, labels=ids).loss))
        step, total = model, 0.0
        cache: Any = StaticCache(model.config, ids.shape[1])
        if how == "compiled":
            model(ids[:, :1], past_key_values=cache)  # buffers are made
            cache.reset()
            step = compiled_step(model, GenerationConfig(compile_config={"options": {}}), cache)
        for place in range(ids.shape[1] - 1):
            out = step(input_ids=ids[:, place : place + 1].clone(), past_key_values=cache)
            total += float(nn.functional.cross_entropy(out.logits[0], ids[0, place + 1 : place + 2]))
    return math.exp(total / (ids.shape[1] - 1))


# A program of five layers takes half a minute; `test_compiled` has one of one layer.
@pytest.mark.parametrize("how", in_turn(["at once", "one by one", "compiled"], 0.25, whole=["at once", "one by one"]))
@pytest.mark.real_data
def test_perplexity_of_stories260k(how: str) -> None:
    path = DATA / "weights/stories260K/hf"
    if not path.exists():
        pytest.skip("shared/data/weights/stories260K is missing")
    plain = transept.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transept.AutoTokenizer.from_pretrained(path)
    torch.manual_seed(0)
    start = torch.tensor([tokenizer("Once upon a time")["input_ids"]])
    ids = plain.generate(start, do_sample=True, max_new_tokens=400, eos_token_id=None)
    rounded, exact = quantize(copy.deepcopy(plain)), perplexity(plain, ids)
    assert 0 < abs(perplexity(rounded, ids, how) / exact - 1) < 0.005


@pytest.mark.real_data
def test_perplexity_of_a_small_gpt_trained_on_shakespeare() -> None:
    path = DATA / "datasets/tinyshakespeare/input.txt"
    if not path.exists():
        pytest.skip("shared/data/datasets/tinyshakespeare is missing")
    text = path.read_bytes()
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 128}
    model = transept.GPT2LMHeadModel(transept.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        starts = torch.randint(len(ids) - 5000, (12,))
        batch = torch.stack([ids[start : start + 96] for start in starts])
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    held = ids[-4096:].view(-1, 128)
    exact = perplexity(model, held)
    assert exact < 20  # it has learned something that rounding could spoil
    assert abs(perplexity(quantize(copy.deepcopy(model)), held) / exact - 1) < 0.005
