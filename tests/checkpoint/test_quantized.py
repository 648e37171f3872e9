"""Checkpoints in few bits: weights equal those that each method's own library unpacks, bit for bit, and models load with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transept import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transept.errors import FormatError, UnsupportedError
from transept.quantized.linear import few_bits

SIZES = {"vocab_size": 64, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
IDS = torch.arange(3, 12)[None]
Pack = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]  # a weight -> its parts by the ends of their names, and its values


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("plain")
    LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=384, initializer_range=0.1)).save_pretrained(path)
    return path


def quantised(plain: Path, target: Path, pack: Pack, settings: dict[str, Any], dtype: str = "float32") -> dict[str, Tensor]:
    """Write the checkpoint with the weights of layers in parts; returns the weights that it stands for."""
    state, wanted = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(plain / "model.safetensors").items():
        if "_proj." in name:
            parts, wanted[name] = pack(tensor)
            state |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in parts.items()}
        else:
            state[name] = wanted[name] = tensor
    save_file(state, target / "model.safetensors")
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": settings, "dtype": dtype}
    (target / "config.json").write_text(json.dumps(config))
    return wanted


def check(
    plain: Path, target: Path, pack: Pack, settings: dict[str, Any], dtype: str = "float32", *, kept: bool = False
) -> None:
    """Load such a checkpoint, perhaps into layers that keep its bits, save it and load what was saved."""
    wanted = quantised(plain, target, pack, settings, dtype)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert bool(few_bits(model)) == kept
    assert model.dtype == getattr(torch, dtype)
    logits = model(input_ids=IDS).logits
    assert torch.isfinite(logits).all()
    model.save_pretrained(target / "again")
    assert ("quantization_config" in json.loads((target / "again" / "config.json").read_text())) == kept
    again = AutoModelForCausalLM.from_pretrained(target / "again")
    assert few_bits(again).keys() == few_bits(model).keys()
    for found in (model, again):
        state = found.dequantize().state_dict()
        assert state.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(state[name], tensor.to(found.dtype)), name
    if kept:  # inputs are rounded to eight bits; the large random weights make more of it, and wrong products would give 1.4
        assert (model(input_ids=IDS).logits - logits).norm() < 0.2 * logits.norm()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bitsandbytes_in_four_bits(plain: Path, tmp_path: Path, kind: str, nested: bool, dtype: torch.dtype) -> None:
    from bitsandbytes import functional

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        data, state = functional.quantize_4bit(weight.to(dtype), quant_type=kind, compress_statistics=nested, blocksize=64)
        parts = {f".weight.{end}": part for end, part in state.as_dict(packed=True).items()}
        return {".weight": data, **parts}, functional.dequantize_4bit(data, state)

    name = str(dtype).removeprefix("torch.")
    check(
        plain,
        tmp_path,
        pack,
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind},
        name,
        kept=True,
    )


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_what_is_saved_in_four_bits_is_read_by_bitsandbytes(plain: Path, tmp_path: Path, kind: str) -> None:
    from bitsandbytes import functional

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        data, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=True, blocksize=64)
        return {".weight": data, **{f".weight.{end}": part for end, part in state.as_dict(packed=True).items()}}, weight

    quantised(plain, tmp_path, pack, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "again")
    told = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    assert (told["bnb_4bit_quant_type"], told["llm_int8_skip_modules"]) == (kind, ["lm_head"])
    stored, unpacked = load_file(tmp_path / "again" / "model.safetensors"), model.dequantize().state_dict()
    for name in [name for name in unpacked if "_proj." in name]:
        parts = {end.removeprefix(f"{name}."): part for end, part in stored.items() if end.startswith(f"{name}.")}
        state = functional.QuantState.from_dict(parts, device=torch.device("cpu"))
        assert torch.equal(functional.dequantize_4bit(stored[name], state), unpacked[name]), name


@pytest.mark.parametrize(("sizes", "group"), [((6, 96), 32), ((4, 128), 64), ((4, 60), None)])
def test_blocks_may_begin_within_rows(sizes: tuple[int, int], group: int | None) -> None:
    from bitsandbytes import functional

    from transept.checkpoint.methods import METHODS

    data, state = functional.quantize_4bit(torch.randn(sizes), quant_type="nf4", blocksize=64)
    parts = {".weight": data, **{f".weight.{end}": part for end, part in state.as_dict(packed=True).items()}}
    weight = (layout := METHODS["bitsandbytes"]({})).group(parts)
    assert (weight and weight.group) == group
    assert weight is None or torch.equal(weight.dequantized(), layout.unpack(parts))


def test_bitsandbytes_in_eight_bits(plain: Path, tmp_path: Path) -> None:
    from bitsandbytes import functional

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        data, scale, _ = functional.int8_vectorwise_quant(weight.half())
        parts = {".weight": data, ".SCB": scale, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
        return parts, functional.int8_vectorwise_dequant(data, scale)

    check(plain, tmp_path, pack, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "float16")


def in_words(codes: Tensor, bits: int) -> Tensor:
    """(rows, n) numbers as (rows, n * bits / 32) words, bit by bit."""
    flat = ((codes[..., None] >> torch.arange(bits)) & 1).reshape(len(codes), -1, 32)
    words = (flat.long() << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("ordered", [True, False])
def test_gptq(plain: Path, tmp_path: Path, bits: int, form: str, ordered: bool) -> None:
    noise = torch.Generator().manual_seed(bits)

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        codes = torch.randint(0, 2**bits, (inputs, outputs), generator=noise)
        zeros = torch.randint(1, 2**bits, (inputs // 128, outputs), generator=noise)
        scales = torch.rand(inputs // 128, outputs, generator=noise).half() * 0.01
        groups = torch.arange(inputs) // 128
        groups = groups if ordered else groups[torch.randperm(inputs, generator=noise)]
        parts = {".qweight": in_words(codes.T, bits).T, ".scales": scales, ".g_idx": groups.int()}
        parts[".qzeros"] = in_words(zeros - int(form == "gptq"), bits)
        return parts, (scales[groups] * (codes - zeros[groups]).half()).T

    settings = {"quant_method": "gptq", "bits": bits, "group_size": 128, "desc_act": not ordered, "checkpoint_format": form}
    check(plain, tmp_path, pack, settings, "float16", kept=True)


def test_awq(plain: Path, tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(0)

    def interleaved(codes: Tensor) -> Tensor:
        return in_words(codes.reshape(len(codes), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        codes, zeros = (torch.randint(0, 16, (rows, outputs), generator=noise) for rows in (inputs, inputs // 64))
        scales = torch.rand(inputs // 64, outputs, generator=noise).half() * 0.01
        groups = torch.arange(inputs) // 64
        parts = {".qweight": interleaved(codes), ".qzeros": interleaved(zeros), ".scales": scales}
        return parts, ((codes - zeros[groups]).half() * scales[groups]).T

    check(plain, tmp_path, pack, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, "float16", kept=True)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_integers(plain: Path, tmp_path: Path, bits: int, symmetric: bool) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    noise, low = torch.Generator().manual_seed(bits), 2 ** (bits - 1)
    scheme = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 128}

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        codes = torch.randint(-low, low, (outputs, inputs), generator=noise).to(torch.int8)
        scale = torch.rand(outputs, inputs // 128, generator=noise).bfloat16() * 0.01
        zero = torch.randint(-low, low, scale.shape, generator=noise).to(torch.int8)
        parts = {".weight_packed": pack_to_int32(codes, bits), ".weight_scale": scale}
        parts[".weight_shape"] = torch.tensor(weight.shape)
        if not symmetric:
            parts[".weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0)
        return parts, dequantize(codes, scale, None if symmetric else zero, QuantizationArgs(**scheme))

    groups = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    check(plain, tmp_path, pack, settings, "bfloat16", kept=True)


@pytest.mark.parametrize("kind", ["int", "channel", "tensor", "block"])
def test_compressed_numbers_of_eight_bits(plain: Path, tmp_path: Path, kind: str) -> None:
    noise, block = torch.Generator().manual_seed(0), [128, 128] if kind == "block" else None

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight.shape
        shapes = {"tensor": (1,), "block": (outputs // 128, inputs // 128)}
        scale = torch.rand(shapes.get(kind, (outputs, 1)), generator=noise) * 0.01
        codes = torch.randn(weight.shape, generator=noise) * 100
        codes = codes.clamp(-127, 127).to(torch.int8) if kind == "int" else codes.to(torch.float8_e4m3fn)
        whole = scale.repeat_interleave(128, 0).repeat_interleave(128, 1) if kind == "block" else scale
        return {".weight": codes, ".weight_scale": scale}, codes.float() * whole

    scheme = {"num_bits": 8, "type": "int" if kind == "int" else "float", "block_structure": block}
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    form = "int-quantized" if kind == "int" else "float-quantized"
    settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
    check(plain, tmp_path, pack, settings, "float32", kept=True)


def test_floats_by_blocks(plain: Path, tmp_path: Path) -> None:
    """Matrices whose sides are no multiples of the blocks, too."""
    noise = torch.Generator().manual_seed(0)

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = torch.rand([-(-size // 96) for size in weight.shape], generator=noise) * 0.01
        codes = (torch.randn(weight.shape, generator=noise) * 100).to(torch.float8_e4m3fn)
        whole = scale.repeat_interleave(96, 0)[: len(weight)].repeat_interleave(96, 1)[:, : weight.shape[1]]
        return {".weight": codes, ".weight_scale_inv": scale}, codes.float() * whole

    check(plain, tmp_path, pack, {"quant_method": "fp8", "weight_block_size": [96, 96]}, "bfloat16", kept=True)


def test_what_is_no_float_of_eight_bits_that_is_multiplied_is_unpacked() -> None:
    from transept.checkpoint.layouts import floats

    weight, scale = torch.randn(16, 40).to(torch.float8_e4m3fn), torch.rand(2, 3)
    assert floats(weight, scale, [8, 16]) is not None
    assert floats(weight, scale[0, 0], None) is not None
    assert floats(weight, scale, [8, 20]) is None
    assert floats(weight.float().to(torch.float8_e5m2), scale, [8, 16]) is None
    broken = weight.view(torch.uint8).clone()
    broken[3, 5] = 255
    assert floats(broken.view(torch.float8_e4m3fn), scale, [8, 16]) is None


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_hqq(plain: Path, tmp_path: Path, bits: int, axis: int) -> None:
    noise, size = torch.Generator().manual_seed(bits), 64

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes = torch.randint(
            0, 2**bits, (size, weight.numel() // size) if axis == 0 else (weight.numel() // size, size), generator=noise
        )
        scale, zero = (torch.rand(codes.sum(axis, keepdim=True).shape, generator=noise).half() for _ in range(2))
        scale, zero = scale * 0.1 / 2**bits, zero + 2 ** (bits - 1)
        each = 10 if bits == 3 else 8 // bits
        rows = torch.nn.functional.pad(codes, (0, 0, 0, -len(codes) % each)).chunk(each)
        packed = sum(part << (bits * (each - 1 - place)) for place, part in enumerate(rows))
        assert isinstance(packed, Tensor)
        parts = {".W_q": packed.to(torch.int32 if bits == 3 else torch.uint8), ".scale": scale, ".zero": zero}
        numbers = {"nbits": bits, "group_size": size, "axis": axis, "view_as_float": 0}
        parts |= {f".{name}": torch.tensor(number, dtype=torch.int32) for name, number in numbers.items()}
        parts |= {".shape": torch.tensor(weight.shape), ".packing": torch.tensor([*b"4bit_u8"], dtype=torch.uint8)}
        return parts, ((codes.half() - zero) * scale).reshape(weight.shape)

    check(plain, tmp_path, pack, {"quant_method": "hqq"}, "float16")


@pytest.mark.parametrize("kind", ["int8", "float8", "intx4", "intx8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchao(plain: Path, tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    from torchao import quantization as ao
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    configs = {"int8": ao.Int8WeightOnlyConfig(), "float8": ao.Float8WeightOnlyConfig()}
    configs["intx4"] = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32))
    configs["intx8"] = ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=ao.PerAxis(0))

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight.to(dtype))
        ao.quantize_(whole := nn.ModuleDict({"m": layer}), configs[kind])
        parts = flatten_tensor_state_dict(whole.state_dict())[0]
        values: Any = layer.weight
        return {name.removeprefix("m"): part for name, part in parts.items()}, values.dequantize()

    check(plain, tmp_path, pack, {"quant_method": "torchao"}, str(dtype).removeprefix("torch."))


def test_experts_of_gpt_oss() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    from transept.checkpoint.methods import METHODS

    noise = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 40, 2, 16), generator=noise).to(torch.uint8)
    scales = torch.randint(100, 150, (3, 40, 2), generator=noise).to(torch.uint8)
    layout = METHODS["mxfp4"]({})
    parts = {"_blocks": blocks, "_scales": scales}
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(layout.unpack(parts), theirs)
    assert layout.shape(parts) == theirs.shape
    assert layout.groups(["a.down_proj_blocks", "a.down_proj_scales", "a.down_proj_bias"]).keys() == {"a.down_proj"}


def test_what_does_not_fit_is_said(plain: Path, tmp_path: Path) -> None:
    def awry(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts = {".qweight": torch.zeros(weight.shape[1] // 8, weight.shape[0], dtype=torch.int32)}
        parts |= {".qzeros": torch.zeros(2, 8, dtype=torch.int32), ".scales": torch.ones(2, 64).half()}
        return parts | {".g_idx": torch.full((weight.shape[1],), 77, dtype=torch.int32)}, weight

    quantised(plain, tmp_path, awry, {"quant_method": "gptq", "bits": 4, "group_size": 128})
    with pytest.raises(FormatError, match=r"down_proj.weight.*cannot be unpacked .index 77"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    for settings, kind, message in (
        ({"quant_method": "starfish"}, UnsupportedError, "starfish"),
        ({"bits": 4}, UnsupportedError, "None"),
        ([], UnsupportedError, "None"),
        ({"quant_method": "gptq", "bits": 5}, FormatError, "bits"),
        ({"quant_method": "awq", "version": "marlin"}, UnsupportedError, "marlin"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, UnsupportedError, "marlin-24"),
    ):
        config = json.loads((plain / "config.json").read_text()) | {"quantization_config": settings}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(kind, match=message):
            AutoModelForCausalLM.from_pretrained(tmp_path)


def test_what_is_not_kept_is_unpacked_once(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of four columns, for which there is no product."""

    def small(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts = {".weight": torch.ones(weight.shape, dtype=torch.int8)}
        scale = torch.full((weight.shape[0], weight.shape[1] // 4), 0.5)
        return parts | {".weight_scale": scale}, torch.full(weight.shape, 0.5)

    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "group_size": 4}}}
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups}
    quantised(plain, tmp_path, small, settings)
    monkeypatch.setattr("transept.checkpoint.layouts.GroupedWeight", None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not few_bits(model)
    assert model.model.layers[0].mlp.up_proj.weight.eq(0.5).all()


def test_a_layer_that_is_not_quantised_stays(plain: Path, tmp_path: Path) -> None:
    """What a method leaves alone has no parts."""
    quantised(plain, tmp_path, lambda weight: ({".weight": weight}, weight), {"quant_method": "gptq", "bits": 4})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(model.model.layers[0].mlp.up_proj, nn.Linear)
