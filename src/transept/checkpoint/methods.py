"""How methods of quantisation store a weight: which tensors it has, and how it follows from them.

Results are those of each method's own library, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from transept.checkpoint.blocks import floats_of_four_bits
from transept.checkpoint.layouts import Layout, Parts, Scaled, Settings, Stated, floats, integers, number, spread, stream, words
from transept.errors import FormatError, UnsupportedError
from transept.quantized.weights import GroupedWeight
from transept.storage.files import parse_json

MOST_TEXT = 10_000  # bytes of the settings of one weight
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word of AWQ's has its first, second ... column


def _gptq(settings: Settings) -> Layout:
    """GPTQ (Frantar et al. 2022): words along the inputs, a scale and a zero point for each group of inputs and output."""
    bits, is_second = number(settings, "bits", 4), settings.get("checkpoint_format") == "gptq_v2"

    def shape(parts: Parts) -> tuple[int, ...]:
        return parts[".qweight"].shape[1], parts[".qweight"].shape[0] * 32 // bits

    def codes(parts: Parts) -> Tensor:
        return stream(parts[".qweight"].T.contiguous(), bits, shape(parts)[1])

    def pieces(parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        outputs, inputs = shape(parts)
        zeros = stream(parts[".qzeros"], bits, outputs) + (0 if is_second else 1)
        size = number(settings, "group_size", -1)
        group = parts.get(".g_idx", torch.arange(inputs) // (size if size > 0 else inputs)).long()
        return parts[".scales"].T, zeros.T, group

    def unpack(parts: Parts) -> Tensor:
        scales, zeros, group = pieces(parts)
        return ((codes(parts) - zeros[:, group]).to(scales.dtype) * scales[:, group]).contiguous()

    def grouped(parts: Parts) -> GroupedWeight | None:
        return integers(shape(parts), bits, *pieces(parts), lambda: codes(parts))

    needed = (".qweight", ".qzeros", ".scales")
    return Layout((*needed, ".g_idx"), needed, shape, unpack, group=grouped)


def _awq(settings: Settings) -> Layout:
    """AWQ (Lin et al. 2023), in the order of its GEMM kernels: words along the outputs, of which eight are interleaved."""
    if (version := settings.get("version", "gemm")) != "gemm" or number(settings, "bits", 4) != 4:
        raise UnsupportedError(
            f"AWQ's layout {version!r:.40} of {settings.get('bits')} bits is not read: four bits of 'gemm' are."
        )

    def shape(parts: Parts) -> tuple[int, ...]:
        return parts[".qweight"].shape[1] * 8, parts[".qweight"].shape[0]

    def numbers(packed: Tensor) -> Tensor:
        found = words(packed, 4)
        return found[:, torch.arange(found.shape[1]).view(-1, 8)[:, _AWQ_ORDER].flatten()]

    def grouped(parts: Parts) -> GroupedWeight | None:
        zeros, scales = numbers(parts[".qzeros"]), parts[".scales"]
        return integers(shape(parts), 4, scales.T, zeros.T, None, lambda: numbers(parts[".qweight"]).T)

    def unpack(parts: Parts) -> Tensor:
        codes, zeros, scales = numbers(parts[".qweight"]), numbers(parts[".qzeros"]), parts[".scales"]
        size = len(codes) // len(zeros)
        codes = (codes - zeros.repeat_interleave(size, 0)).to(scales.dtype)
        return (codes * scales.repeat_interleave(size, 0)).T.contiguous()

    needed = (".qweight", ".qzeros", ".scales")
    return Layout(needed, needed, shape, unpack, group=grouped)


def _bitsandbytes(settings: Settings) -> Layout:
    return _eight_bits() if settings.get("load_in_8bit") else _four_bits()


def _eight_bits() -> Layout:
    """LLM.int8 (Dettmers et al. 2022): a scale for each row, of which 127 steps are the largest value."""

    def unpack(parts: Parts) -> Tensor:
        return parts[".weight"].float() * (parts[".SCB"].float()[:, None] * (1 / 127))

    ends = (".weight", ".SCB", ".weight_format")
    return Layout(ends, ends[:2], lambda parts: (*parts[".weight"].shape,), unpack)


def _four_bits() -> Layout:
    """NF4 and FP4 (Dettmers et al. 2023): codes of a table, and a scale for each block, which may be in eight bits itself."""
    states = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))

    def state(parts: Parts) -> dict[str, Any]:
        data = next(part for end, part in parts.items() if end in states)
        found = parse_json(bytes(data.tolist()).decode()) if data.numel() < MOST_TEXT else None
        if not isinstance(found, dict):
            raise FormatError("its settings are no JSON object")
        return found

    def shape(parts: Parts) -> tuple[int, ...]:
        sizes = tuple(int(size) for size in state(parts)["shape"])
        if min(sizes, default=0) < 1 or -(-math.prod(sizes) // 2) != parts[".weight"].numel():
            raise FormatError(f"it is said to be of {sizes}")
        return sizes

    def pieces(parts: Parts) -> tuple[Tensor, Tensor, int]:
        """Codes of the whole weight and scales of its blocks, each after the other, and how many codes a block has."""
        told, count, scale = state(parts), math.prod(shape(parts)), parts[".weight.absmax"]
        if ".weight.nested_absmax" in parts:
            steps = parts[".weight.nested_absmax"].repeat_interleave(int(told["nested_blocksize"]))[: scale.numel()]
            scale = parts[".weight.nested_quant_map"][scale.long()] * steps + float(told["nested_offset"])
        data = parts[".weight"].flatten()
        return torch.stack([data >> 4, data & 15], dim=-1).flatten()[:count], scale.float(), int(told["blocksize"])

    def unpack(parts: Parts) -> Tensor:
        codes, scale, block = pieces(parts)
        kind = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(state(parts)["dtype"], torch.float32)
        steps = scale.repeat_interleave(block)[: len(codes)]
        return (parts[".weight.quant_map"].float()[codes.int()] * steps).view(shape(parts)).to(kind)

    def grouped(parts: Parts) -> GroupedWeight | None:
        sizes, (codes, scale, block) = shape(parts), pieces(parts)
        size = math.gcd(sizes[-1], block)  # rows may begin within a block
        if len(sizes) != 2 or size % 8:
            return None
        scale = scale.repeat_interleave(block // size)[: len(codes) // size]
        return GroupedWeight(codes.view(sizes), size, scale.view(sizes[0], -1), table=parts[".weight.quant_map"].float())

    ends = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
    more = tuple(f".weight.{end}" for end in ends)
    needed = (".weight", ".weight.absmax", ".weight.quant_map")
    return Stated((".weight", *more, *states), needed, shape, unpack, group=grouped)


def _floats(settings: Settings) -> Layout:
    """Numbers of eight bits with a scale for each block (DeepSeek-V3, arXiv:2412.19437), row or matrix."""
    block = settings.get("weight_block_size")

    def pieces(parts: Parts) -> tuple[Tensor, Tensor]:
        scale = parts.get(".weight_scale_inv", parts.get(".weight_scale"))
        if scale is None:
            raise FormatError("there is no scale")
        return parts[".weight"], scale

    def unpack(parts: Parts) -> Tensor:
        weight, scale = pieces(parts)
        return weight.float() * spread(scale.float(), weight.shape, block)

    def grouped(parts: Parts) -> GroupedWeight | None:
        return floats(*pieces(parts), block)

    ends = (".weight", ".weight_scale_inv", ".weight_scale", ".activation_scale", ".input_scale")
    return Scaled(ends, (".weight",), lambda parts: (*parts[".weight"].shape,), unpack, group=grouped)


def _compressed(settings: Settings) -> Layout:
    """The formats of compressed-tensors: packed integers, integers and floats of eight bits."""
    _check_format(settings)
    block = _block(settings)

    def shape(parts: Parts) -> tuple[int, ...]:
        if ".weight_packed" not in parts:
            return (*parts[".weight"].shape,)
        return tuple(int(size) for size in parts[".weight_shape"].tolist())

    def bits_of(parts: Parts) -> int:
        packed = parts.get(".weight_packed")
        return 8 if packed is None else max(packed.shape[1] * 32 // shape(parts)[1], 1)

    def signed(parts: Parts, bits: int) -> Tensor:
        """The codes with a sign."""
        packed = parts.get(".weight_packed")
        return parts[".weight"] if packed is None else stream(packed, bits, shape(parts)[1]) - 2 ** (bits - 1)

    def zeros(parts: Parts, bits: int) -> Tensor | None:
        """The zero points with a sign."""
        zero = parts.get(".weight_zero_point")
        if zero is None or zero.dtype != torch.int32 or ".weight_packed" not in parts:
            return zero
        return torch.sub(stream(zero.T.contiguous(), bits, shape(parts)[0]).T, 2 ** (bits - 1))

    def grouped(parts: Parts) -> GroupedWeight | None:
        bits, group, sizes = bits_of(parts), parts.get(".weight_g_idx"), shape(parts)
        stored = parts[".weight_packed" if ".weight_packed" in parts else ".weight"]
        if stored.is_floating_point():
            return floats(stored, parts[".weight_scale"], block) if zeros(parts, bits) is None else None
        if len(sizes) != 2 or bits not in (2, 3, 4, 8):
            return None
        half, group = 2 ** (bits - 1), None if group is None or (group < 0).any() else group.long()
        zero = None if (found := zeros(parts, bits)) is None else found.int() + half
        return integers(sizes, bits, parts[".weight_scale"], zero, group, lambda: signed(parts, bits).int() + half)

    def unpack(parts: Parts) -> Tensor:
        scale, sizes, bits = parts[".weight_scale"], shape(parts), bits_of(parts)
        codes, zero = signed(parts, bits), zeros(parts, bits)
        group = parts.get(".weight_g_idx")

        def at_entries(each: Tensor) -> Tensor:
            return spread(each, sizes, block) if group is None or (group < 0).any() else each[:, group.long()]

        codes = codes.to(scale.dtype)
        return (codes if zero is None else codes - at_entries(zero.to(scale.dtype))) * at_entries(scale)

    ends = ("_packed", "", "_scale", "_zero_point", "_shape", "_g_idx")
    names = (*(f".weight{end}" for end in ends), ".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point")
    return Scaled(names, (".weight_scale",), shape, unpack, group=grouped)


def _check_format(settings: Settings) -> None:
    kinds = {settings.get("format")} | {group.get("format") for group in _schemes(settings)} - {None}
    if unknown := kinds - {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision"}:
        raise UnsupportedError(f"the format {', '.join(map(str, unknown))!r:.80} of compressed-tensors is not read.")


def _block(settings: Settings) -> tuple[int, ...] | None:
    """The sides of blocks that have one scale, where all weights have the same."""
    found = ((group.get("weights") or {}).get("block_structure") for group in _schemes(settings))
    blocks = {tuple(block) for block in found if isinstance(block, list)}
    return next(iter(blocks)) if len(blocks) == 1 else None


def _schemes(settings: Settings) -> list[Mapping[str, Any]]:
    groups = settings.get("config_groups") or {}
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _mxfp4(settings: Settings) -> Layout:
    """Experts of gpt_oss: floats of four bits in blocks of 32 with a power of two (OCP's MX, 2023), with the inputs last."""

    def shape(parts: Parts) -> tuple[int, ...]:
        experts, outputs, groups, _ = parts["_blocks"].shape
        return experts, groups * 32, outputs

    def grouped(parts: Parts) -> GroupedWeight:
        """The rows of one expert after those of another."""
        blocks = parts["_blocks"].flatten(0, 1)
        codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(1)
        return GroupedWeight(codes, 32, parts["_scales"].flatten(0, 1), table=floats_of_four_bits())

    def unpack(parts: Parts) -> Tensor:
        experts, inputs, outputs = shape(parts)
        return grouped(parts).dequantized().view(experts, outputs, inputs).transpose(1, 2).contiguous()

    return Layout(("_blocks", "_scales"), ("_blocks", "_scales"), shape, unpack, weight="", group=grouped)


def _torchao(settings: Settings) -> Layout:
    """Torchao's safetensors: integers or floats of eight bits with a scale, and a zero point, for each group of a row."""

    def unpack(parts: Parts) -> Tensor:
        codes, zero = parts["._weight_qdata"], parts.get("._weight_zero_point")
        if codes.dtype == torch.uint8:
            raise FormatError("its integers of four bits are in an order of kernels of GPUs, which is not read")
        numbers = codes.float() if zero is None else codes.float() - spread(zero.float(), codes.shape)
        return numbers * spread(parts["._weight_scale"].float(), codes.shape)

    ends = tuple(f"._weight_{name}" for name in ("qdata", "scale", "zero_point", "act_pre_scale"))
    return Layout(ends, ends[:2], lambda parts: (*parts["._weight_qdata"].shape,), unpack)


def _hqq(settings: Settings) -> Layout:
    """HQQ (Badri & Shaji 2023): codes of groups, whose matrix is cut into as many parts as a byte holds codes."""

    def shape(parts: Parts) -> tuple[int, ...]:
        return tuple(int(size) for size in parts[".shape"].tolist())

    def unpack(parts: Parts) -> Tensor:
        data, bits, scale = parts[".W_q"], int(parts[".nbits"]), parts[".scale"]
        if data.dtype == torch.uint8:
            shifts: Iterable[int] = range(8 - bits, -1, -bits)
        else:  # ten codes of three bits in a word
            shifts = range(27, -1, -3)
        codes = torch.cat([(data >> shift) & (2**bits - 1) for shift in shifts])
        count = math.prod(shape(parts))
        codes = codes[: count // codes.shape[1]].to(scale.dtype)
        return ((codes - parts[".zero"]) * scale).reshape(shape(parts))

    told = "nbits group_size axis packing unpack_view_dtype view_as_float quant_scale quant_zero compute_dtype offload_meta"
    told += " encoded_state_dict stores_quant_config channel_wise optimize round_zero"
    needed = (".W_q", ".scale", ".zero", ".shape", ".nbits")
    return Layout((*needed, *(f".{name}" for name in told.split() if name != "nbits")), needed, shape, unpack)


METHODS: dict[str, Callable[[Settings], Layout]] = {
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _floats,
    "fbgemm_fp8": _floats,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
    "torchao": _torchao,
    "hqq": _hqq,
}
