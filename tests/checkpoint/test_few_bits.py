"""Plain checkpoints that are rounded to few bits while they are loaded, by the reference's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import transept
from tests.adapt.test_pack import make
from transept import BitsAndBytesConfig, HqqConfig, QuantoConfig, TorchAoConfig
from transept.adapt.quantize import quantize
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.quantized import settings as settings_room
from transept.quantized.grouped import GroupedLinear
from transept.quantized.linear import QuantizedLinear, few_bits

IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain")
    make("LlamaForCausalLM", hidden_size=64, intermediate_size=96).save_pretrained(path)
    return path


class Int4WeightOnlyConfig:
    """What torchao's class of this name tells."""

    group_size = 32


FOUR: list[Any] = [
    BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16),
    BitsAndBytesConfig(load_in_4bit=True).to_dict(),
    TorchAoConfig("int4_weight_only", group_size=32),
    TorchAoConfig(Int4WeightOnlyConfig()),
    HqqConfig(nbits=4, group_size=32),
    QuantoConfig("int4"),
]


@pytest.mark.parametrize("settings", FOUR, ids=[type(each).__name__ for each in FOUR])
def test_four_bits(plain: Path, settings: Any) -> None:
    model = transept.AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings)
    assert isinstance(model.lm_head, nn.Linear)  # which keeps its weight, as in the reference
    same = quantize(transept.AutoModelForCausalLM.from_pretrained(plain), 4)
    wanted, found = few_bits(same), few_bits(model)
    assert found.keys() == wanted.keys() - {"lm_head.weight"}
    for name, weight in found.items():
        assert torch.equal(weight.dequantized(), wanted[name].dequantized()), name
    assert model.get_memory_footprint() < 0.5 * transept.AutoModelForCausalLM.from_pretrained(plain).get_memory_footprint()


@pytest.mark.parametrize("settings", [{"load_in_8bit": True}, {"quantization_config": TorchAoConfig("int8_weight_only")}])
def test_eight_bits(plain: Path, tmp_path: Path, settings: Any) -> None:
    model = transept.AutoModelForCausalLM.from_pretrained(plain, **settings)
    logits = model(input_ids=IDS).logits
    wanted = transept.AutoModelForCausalLM.from_pretrained(plain)(input_ids=IDS).logits
    assert 0 < (logits - wanted).norm() < 0.1 * wanted.norm()
    model.save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert told["ignore"] == ["lm_head"]
    assert told["config_groups"]["group_0"]["weights"]["num_bits"] == 8


def test_four_bits_need_no_engine_for_eight(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_room, "can_quantize", lambda: False)
    assert few_bits(transept.AutoModelForCausalLM.from_pretrained(plain, load_in_4bit=True))
    with pytest.raises(InputError, match="no engine"):
        transept.AutoModelForCausalLM.from_pretrained(plain, load_in_8bit=True)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_cannot_be_changed_stays_whole(plain: Path, bits: int) -> None:
    model = quantize(transept.AutoModelForCausalLM.from_pretrained(plain), bits)
    rows, logits = model.config.vocab_size, model(input_ids=IDS).logits
    with pytest.raises(InputError, match="dequantize"):
        model.resize_token_embeddings(rows + 8)
    assert (model.config.vocab_size, model.get_input_embeddings().num_embeddings) == (rows, rows)
    with pytest.raises(InputError, match="moved to 'meta'"):
        model.to("meta")
    assert torch.equal(model(input_ids=IDS).logits, logits)
    assert model.dequantize().resize_token_embeddings(rows + 8).num_embeddings == rows + 8


def test_a_shared_product_is_unpacked_once(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = quantize(transept.AutoModelForCausalLM.from_pretrained(plain), 4), list[GroupedLinear]()
    grouped = GroupedLinear.grouped
    monkeypatch.setattr(GroupedLinear, "grouped", lambda layer: [seen.append(layer), grouped(layer)][1])
    layers = [module for module in model.modules() if isinstance(module, GroupedLinear)]
    assert len(few_bits(model)) > len(layers)
    assert sorted(map(id, seen)) == sorted(map(id, layers))
    seen.clear()
    model.dequantize()
    assert sorted(map(id, seen)) == sorted(map(id, layers))
    weight = model.model.layers[0].self_attn.k_proj.weight
    assert weight.untyped_storage().nbytes() == weight.nbytes


def test_layers_can_be_left_out(plain: Path) -> None:
    settings = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["down_proj", "model.layers.0.self_attn"])
    model = transept.AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings)
    first, second = model.model.layers
    rounded = {name for name, module in first.named_modules() if isinstance(module, QuantizedLinear)}
    assert rounded == {"mlp.gate_up_proj"}  # one product of both
    assert not isinstance(second.mlp.down_proj, QuantizedLinear)
    assert isinstance(second.self_attn.qkv_proj, QuantizedLinear)


def test_adapters_train_on_top(plain: Path) -> None:
    model = transept.AutoModelForCausalLM.from_pretrained(plain, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    adapted = transept.get_peft_model(model, transept.LoraConfig(target_modules=["q_proj", "v_proj"]))
    adapted(input_ids=IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for name, p in adapted.named_parameters() if p.requires_grad)
    assert any(p.requires_grad for p in adapted.parameters())


def test_a_quantised_checkpoint_says_itself_how_it_is_read(plain: Path, tmp_path: Path) -> None:
    quantize(transept.AutoModelForCausalLM.from_pretrained(plain), 4).save_pretrained(tmp_path)
    same = transept.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=transept.GPTQConfig(bits=4))
    assert few_bits(same)
    unpacked = transept.CompressedTensorsConfig(dequantize=True)
    model = transept.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=unpacked)
    assert not few_bits(model)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in same.dequantize().state_dict().items())


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_with_inputs_first_are_saved_so(tmp_path: Path, bits: int) -> None:
    """GPT-2 has some of as many inputs as outputs, in which nothing but the numbers tells one axis from the other."""
    model = quantize(make("GPT2LMHeadModel"), bits)
    model.save_pretrained(tmp_path)
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path).dequantize().state_dict()
    state = model.dequantize().state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("settings", "error", "what"),
    [
        (transept.GPTQConfig(bits=4), UnsupportedError, "cannot be rounded by GPTQConfig"),
        (TorchAoConfig("float8_weight_only"), UnsupportedError, "float8_weight_only"),
        (BitsAndBytesConfig(), InputError, "load_in_4bit"),
        (HqqConfig(nbits=3), InputError, "4 or 8 bits, not 3"),
        (HqqConfig(nbits=4, group_size=12), InputError, "12 numbers"),
        (QuantoConfig("float8"), UnsupportedError, "float8"),
        ({"bits": 4}, InputError, "quantization_config"),
        ("nf4", InputTypeError, "BitsAndBytesConfig"),
    ],
)
def test_what_cannot_be_is_said(plain: Path, settings: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        transept.AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings)


def test_bits_are_asked_for_once(plain: Path) -> None:
    with pytest.raises(InputError, match="not by both"):
        transept.AutoModelForCausalLM.from_pretrained(plain, load_in_4bit=True, quantization_config=QuantoConfig())
    with pytest.raises(InputError, match="not both"):
        BitsAndBytesConfig(load_in_4bit=True, load_in_8bit=True)
    with pytest.raises(InputTypeError, match="load_in_4bit"):
        BitsAndBytesConfig(load_in_4bit="yes")  # type: ignore[arg-type]
