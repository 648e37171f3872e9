"""Experts whose weights have few bits: they are kept, computed with, saved and unpacked as linear layers are."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoint.gguf_files import gated, write
from transept import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, MixtralConfig, MixtralForCausalLM, Mxfp4Config
from transept.adapt.gguf import save_gguf
from transept.errors import InputError
from transept.layers.moe import Experts, grouped_linear
from transept.quantized.experts import GroupedExperts
from transept.quantized.linear import few_bits
from transept.quantized.weights import GroupedWeight, rounded_to_four_bits

IDS = torch.arange(3, 12)[None]
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MORE = {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}


def expert_names(model: Any) -> set[str]:
    return {f"model.layers.{layer}.mlp.experts.{name}_proj" for layer in range(2) for name in ("gate_up", "down")}


def check(model: Any, plain: Any, tolerance: float = 0.05) -> None:
    """The experts have few bits, answers are those of plain ones nearly, and unpacked they are those."""
    assert few_bits(model).keys() >= expert_names(model)
    assert not few_bits(plain)
    with torch.no_grad():
        found, wanted = model(input_ids=IDS).logits, plain(input_ids=IDS).logits
    assert (found - wanted).norm() < tolerance * wanted.norm()
    same, state = copy.deepcopy(model).dequantize().state_dict(), plain.state_dict()
    assert [*same] == [*state]
    assert all(torch.equal(same[name], tensor) for name, tensor in state.items())


@pytest.fixture(scope="module")
def floats_of_four_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gpt-oss with experts as its publisher stores them."""
    torch.manual_seed(0)
    path, state = tmp_path_factory.mktemp("experts"), dict[str, Tensor]()
    GptOssForCausalLM(GptOssConfig(**SIZES, **MORE)).save_pretrained(path)
    for name, tensor in load_file(path / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = tensor.shape
            state[f"{name}_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16)).to(torch.uint8)
            state[f"{name}_scales"] = torch.randint(119, 124, (experts, outputs, inputs // 32)).to(torch.uint8)
        else:
            state[name] = tensor
    save_file(state, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_floats_of_four_bits_stay(floats_of_four_bits: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(floats_of_four_bits)
    plain = AutoModelForCausalLM.from_pretrained(floats_of_four_bits, quantization_config=Mxfp4Config(dequantize=True))
    check(model, plain)
    packed = sum(module.packed_bytes for module in model.modules() if isinstance(module, GroupedExperts))
    count = sum(plain.get_parameter(name).numel() for name in expert_names(model))
    assert packed < count * 4.26 / 8  # but for tables
    model.save_pretrained(tmp_path)
    stored = load_file(floats_of_four_bits / "model.safetensors")
    again = load_file(tmp_path / "model.safetensors")
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in stored.items())
    check(AutoModelForCausalLM.from_pretrained(tmp_path), plain)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "MXFP4"])
def test_experts_of_files_stay(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "qwen3moe", *gated("qwen3moe"), gguf.GGMLQuantizationType[kind])
    model = AutoModelForCausalLM.from_pretrained(path)
    plain = AutoModelForCausalLM.from_pretrained(path, quantization_config=Mxfp4Config(dequantize=True))
    check(model, plain, 0.1)
    model.save_pretrained(tmp_path / "again")  # one by one, or unpacked where the format has no such weights
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert (few_bits(again).keys() >= expert_names(model)) is (kind in ("Q4_0", "Q8_0"))
    state = again.dequantize().state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())
    save_gguf(model, tmp_path / "written.gguf", "f32")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "written.gguf").state_dict()
    assert all(torch.equal(written[name], tensor) for name, tensor in plain.state_dict().items())


def test_pieces_of_files_that_take_turns_stay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_gguf(GptOssForCausalLM(GptOssConfig(**SIZES, **MORE)), tmp_path / "model.gguf", "q8_0")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf")
    check(
        model, AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf", quantization_config=Mxfp4Config(dequantize=True))
    )


def test_experts_in_floats_of_eight_bits_stay(tmp_path: Path) -> None:
    """One by one in the file, with a scale for each block: they are multiplied as they are."""
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(**SIZES, **MORE)).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for name in [name for name in state if ".experts." in name]:
        scale = torch.rand(4, 2) * 0.01
        state[f"{name}_scale_inv"] = scale
        state[name] = (state[name] / scale.repeat_interleave(16, 0).repeat_interleave(32, 1)).to(torch.float8_e4m3fn)
    save_file(state, tmp_path / "model.safetensors")
    told = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}}
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | told))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=Mxfp4Config(dequantize=True))
    check(model, plain, 1e-5)
    model.save_pretrained(tmp_path / "again")
    check(AutoModelForCausalLM.from_pretrained(tmp_path / "again"), plain, 1e-5)


def experts() -> tuple[Experts, GroupedExperts, Tensor]:
    """Some with few bits in one weight, that weight, and the plain one."""
    torch.manual_seed(0)
    module = Experts(3, 64, 40, "silu").eval()
    weights = [rounded_to_four_bits(weight.detach()) for weight in module.gate_up_proj]
    product = GroupedExperts.of(weights, module.gate_up_proj.shape, inputs_first=False)
    assert product is not None
    product.replace(module, "gate_up_proj")
    return module, product, torch.stack([weight.dequantized() for weight in weights])


def test_gradients_reach_what_experts_read() -> None:
    _, product, plain = experts()
    ends, one, other = torch.tensor([2, 2, 7]), *torch.randn(7, 64).repeat(2, 1, 1).unbind()
    product(one.requires_grad_(), ends).square().sum().backward()
    out = grouped_linear(other.requires_grad_(), plain, ends)
    out.backward(2 * product(other.detach(), ends))
    torch.testing.assert_close(one.grad, other.grad)


def test_experts_are_copied_and_compiled() -> None:
    module, _, _ = experts()
    x, weights, chosen = torch.randn(5, 64), torch.rand(5, 2), torch.tensor([[0, 2], [1, 2], [0, 1], [2, 1], [2, 0]])
    with torch.no_grad():
        out = module(x, weights, chosen)
        assert torch.equal(copy.deepcopy(module)(x, weights, chosen), out)
        assert torch.equal(pickle.loads(pickle.dumps(module))(x, weights, chosen), out)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, weights, chosen), out)
    module.reset_parameters()  # of those that are plain
    assert isinstance(module.gate_up_proj, GroupedExperts)
    for access in (module.state_dict, lambda: module.load_state_dict({}), lambda: module.to("meta")):
        with pytest.raises(InputError, match="few bits"):
            access()


def test_experts_of_several_kinds_are_unpacked() -> None:
    module, _, plain = experts()
    one = [rounded_to_four_bits(weight) for weight in plain]
    other: list[GroupedWeight | None] = [rounded_to_four_bits(weight, 64) for weight in plain]
    for weights in ([*one[:2], other[2]], [*one[:2], None], one[:2], [*one, one[0]]):
        assert GroupedExperts.of(weights, plain.shape, inputs_first=False) is None
    assert GroupedExperts.of(one, plain.mT.shape, inputs_first=True) is not None
    assert GroupedExperts.of(one, plain.mT.shape, inputs_first=False) is None
    assert "3 of in_features=64, out_features=80" in repr(module)
