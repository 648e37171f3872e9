"""Small GGUF files, written by the format's own library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Kind = gguf.GGMLQuantizationType
WORDS, LAYERS = 96, 2
Tensors = dict[str, NDArray[np.float32]]


def write(path: Path, architecture: str, settings: Mapping[str, Any], tensors: Tensors, kind: Kind | None = None) -> Path:
    """A file with these settings and tensors, of which the matrices are packed as ``kind`` where their rows are long enough."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in settings.items():
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    for name, numbers in tensors.items():
        array = np.ascontiguousarray(numbers, np.float32)
        if kind is not None and array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [f"t{index}" for index in range(WORDS)],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
}
"""Enough of a tokenizer for the reference to read the rest of a file."""


def settings(architecture: str, **values: Any) -> dict[str, Any]:
    """The settings of a small model, of which some may be others; ``_`` stands for a dot in their names."""
    usual = {"context_length": 1024, "embedding_length": 64, "block_count": LAYERS, "feed_forward_length": 96}
    usual |= {"attention.head_count": 4, "vocab_size": WORDS}
    return {f"{architecture}.{name}": value for name, value in (usual | values).items()} | TOKENS


def gated(architecture: str) -> tuple[dict[str, Any], Tensors]:
    """Settings and random tensors of a decoder like Llama."""
    noise, scale = np.random.default_rng(0), 0.03 if architecture.startswith("gemma") else 0.2
    # The reference takes the size of Qwen3's heads and of its experts for those of the released models.
    size, heads = (256, 2) if architecture.startswith("qwen3") else (64, 4)
    inner, shared = 768 if architecture == "qwen3moe" else 96, 2

    def draw(*shape: int) -> NDArray[np.float32]:
        return (noise.normal(size=shape) * scale).astype(np.float32)

    # Files do not say by what Gemma scales its scores; the reference takes the size of the released models' heads for it.
    each = 256 if architecture in ("gemma2", "gemma3") else size // heads
    tensors: Tensors = {"token_embd.weight": draw(WORDS, size), "output_norm.weight": 1 + draw(size)}
    for layer in range(LAYERS):
        block = {"attn_norm.weight": 1 + draw(size), "ffn_norm.weight": 1 + draw(size)}
        block |= {"attn_q.weight": draw(heads * each, size), "attn_output.weight": draw(size, heads * each)}
        block |= {f"attn_{name}.weight": draw(shared * each, size) for name in "kv"}
        if architecture == "qwen2":
            block |= {"attn_q.bias": draw(size), "attn_k.bias": draw(shared * each), "attn_v.bias": draw(shared * each)}
        if architecture.startswith("qwen3"):
            block |= {f"attn_{name}_norm.weight": 1 + draw(each) for name in "qk"}
        if architecture == "phi3":
            block = {
                name: tensor for name, tensor in block.items() if name.partition(".")[0] not in ("attn_q", "attn_k", "attn_v")
            }
            block["attn_qkv.weight"] = draw(size + 2 * shared * each, size)
        if architecture == "gemma3":
            block |= {f"attn_{name}_norm.weight": 1 + draw(each) for name in "qk"}
        if architecture in ("gemma2", "gemma3"):
            block |= {f"{name}.weight": 1 + draw(size) for name in ("post_attention_norm", "post_ffw_norm")}
        if architecture == "qwen3moe":
            block |= {f"ffn_{name}_exps.weight": draw(4, inner, size) for name in ("gate", "up")}
            block |= {"ffn_down_exps.weight": draw(4, size, inner), "ffn_gate_inp.weight": draw(4, size)}
        else:
            block |= {"ffn_gate.weight": draw(inner, size), "ffn_up.weight": draw(inner, size)}
            block["ffn_down.weight"] = draw(size, inner)
        if architecture == "phi3":
            block["ffn_up.weight"] = draw(2 * inner, size)
            del block["ffn_gate.weight"]
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    more: dict[str, Any] = {"attention.head_count": heads, "attention.head_count_kv": shared, "rope.dimension_count": each}
    more |= {"rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-5, "embedding_length": size}
    if architecture in ("gemma2", "gemma3", "qwen3", "qwen3moe"):
        more |= {"attention.key_length": each, "attention.sliding_window": 4096}
    if architecture == "qwen3moe":
        more |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": inner}
    return settings(architecture, **{"feed_forward_length": inner} | more), tensors


def fused(architecture: str) -> tuple[dict[str, Any], Tensors]:
    """Settings and random tensors of a decoder like GPT-2."""
    noise, size = np.random.default_rng(0), 64

    def draw(*shape: int) -> NDArray[np.float32]:
        return (noise.normal(size=shape) * 0.2).astype(np.float32)

    tensors: Tensors = {"token_embd.weight": draw(WORDS, size), "output_norm.weight": 1 + draw(size)}
    tensors["output_norm.bias"] = draw(size)
    if architecture == "gpt2":
        tensors["position_embd.weight"] = draw(1024, size)
    else:
        tensors |= {"token_embd_norm.weight": 1 + draw(size), "token_embd_norm.bias": draw(size)}
    for layer in range(LAYERS):
        for name, rows, columns in (("attn_qkv", 3, 1), ("attn_output", 1, 1), ("ffn_up", 4, 1), ("ffn_down", 1, 4)):
            tensors[f"blk.{layer}.{name}.weight"] = draw(rows * size, columns * size)
            tensors[f"blk.{layer}.{name}.bias"] = draw(rows * size)
        for name in ("attn_norm", "ffn_norm"):
            tensors |= {f"blk.{layer}.{name}.weight": 1 + draw(size), f"blk.{layer}.{name}.bias": draw(size)}
    tensors["output.weight"] = tensors["token_embd.weight"]
    return settings(architecture, **{"feed_forward_length": 4 * size, "attention.layer_norm_epsilon": 1e-5}), tensors
