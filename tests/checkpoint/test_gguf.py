"""GGUF files: what the format's own library writes and unpacks, and what the reference reads, is read the same here."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import transept
from tests.checkpoint.gguf_files import LAYERS, WORDS, Kind, fused, gated, settings, write
from transept.checkpoint.blocks import decode, grouped
from transept.errors import FileError, FormatError, UnsupportedError
from transept.quantized.grouped import GroupedLinear
from transept.quantized.linear import few_bits
from transept.storage.gguf import read_gguf
from transept.storage.gguf_encodings import ENCODINGS

IDS = torch.randint(3, WORDS, (2, 9), generator=torch.Generator().manual_seed(0))
# Both round in float32 at every step.
SINGLE = 1e-5


@pytest.mark.parametrize(("number", "encoding"), ENCODINGS.items(), ids=[kind.name for kind in ENCODINGS.values()])
def test_blocks_are_unpacked_bit_for_bit(number: int, encoding: Any) -> None:
    """Random bytes have scales of every size, among them infinities and what is no number."""
    data = np.random.default_rng(number).integers(0, 256, (512, encoding.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(data, Kind(number))
    ours = decode(encoding.name, torch.from_numpy(data)).numpy()
    assert ours.shape == theirs.shape == (512, encoding.block)
    real = ~np.isnan(theirs)
    assert (np.isnan(ours) == ~real).all()
    assert (ours.view(np.uint32)[real] == theirs.view(np.uint32)[real]).all()
    assert gguf.GGML_QUANT_SIZES[Kind(number)] == (encoding.block, encoding.size)


MODELS = {
    "llama": gated,
    "qwen2": gated,
    "qwen3": gated,
    "gemma2": gated,
    "gemma3": gated,
    "phi3": gated,
    "qwen3moe": gated,
    "gpt2": fused,
    "bloom": fused,
}
CASES = [(name, None) for name in MODELS] + [("llama", Kind.Q8_0), ("qwen2", Kind.Q4_0), ("qwen3moe", Kind.Q5_1)]


@pytest.mark.reference
@pytest.mark.parametrize(("architecture", "kind"), CASES, ids=[f"{name}-{kind and kind.name}" for name, kind in CASES])
def test_models_equal_those_of_the_reference(architecture: str, kind: Kind | None, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = write(tmp_path / "model.gguf", architecture, *MODELS[architecture](architecture), kind)
    ours = transept.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").dequantize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        one, other = ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits
    assert (one - other).abs().max() <= SINGLE * other.abs().max()
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())


def test_the_path_of_a_file_is_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llama", *gated("llama"))
    config = transept.AutoConfig.from_pretrained(path)
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", LAYERS, WORDS)
    assert config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_id, config.head_dim) == (1, 2, 16)
    by_class = transept.LlamaForCausalLM.from_pretrained(path)
    by_subfolder = transept.AutoModel.from_pretrained(tmp_path.parent, subfolder=tmp_path.name, gguf_file=path.name)
    assert torch.equal(by_class.model.norm.weight, by_subfolder.norm.weight)
    assert transept.AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16").dtype == torch.bfloat16


def test_files_without_the_ending_are_known_by_their_beginning(tmp_path: Path) -> None:
    path = write(tmp_path / "model", "llama", *gated("llama"))
    assert transept.AutoConfig.from_pretrained(path).num_hidden_layers == LAYERS
    assert transept.AutoModelForCausalLM.from_pretrained(path).config.vocab_size == WORDS


def test_what_is_loaded_is_saved_as_any_model(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "qwen3moe", *gated("qwen3moe"), Kind.Q8_0)
    model = transept.AutoModelForCausalLM.from_pretrained(path)
    model.save_pretrained(tmp_path / "saved")
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.config.num_experts_per_tok == 2
    assert few_bits(model).keys() == {*few_bits(again), "lm_head.weight"}  # which is tied to embeddings, and not saved
    wanted = model.dequantize().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.dequantize().state_dict().items())


def test_what_integers_with_scales_cannot_say_is_saved_unpacked(tmp_path: Path) -> None:
    """The lowest numbers of groups, which compressed-tensors has not."""
    model = transept.AutoModelForCausalLM.from_pretrained(write(tmp_path / "m.gguf", "llama", *gated("llama"), Kind.Q4_1))
    assert few_bits(model)
    model.save_pretrained(tmp_path / "saved")
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert not few_bits(again)
    wanted = model.dequantize().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("encoding", [kind for kind in ENCODINGS.values() if kind.name[:3] not in ("F32", "F16", "BF1")])
def test_layers_multiply_by_the_bits_of_the_file(encoding: Any) -> None:
    """Their inputs are rounded to eight bits: by a share of 1 / 254 of the largest of a group at most."""
    # Bytes below 64, so that scales are numbers from 0 to 2.
    data = np.random.default_rng(0).integers(0, 64, (64 * 512 // encoding.block, encoding.size), dtype=np.uint8)
    blocks = torch.from_numpy(data)
    weight = grouped(encoding.name, blocks, 64)
    assert weight is not None
    plain = decode(encoding.name, blocks).view(64, 512)
    assert torch.equal(weight.dequantized(), plain)
    layer, x = GroupedLinear(torch.nn.Linear(512, 64, bias=False), weight), torch.randn(5, 512)
    assert (layer(x) - x @ plain.T).abs().max() < 0.02 * (x @ plain.T).abs().max()


def test_types_of_half_the_size_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llama", *gated("llama"), Kind.BF16)
    model = transept.AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.bfloat16
    assert model.model.norm.weight.dtype == torch.bfloat16


def test_factors_of_the_rotary_frequencies_count(tmp_path: Path) -> None:
    """Llama 3.1's files hold them as a tensor, which the reference leaves out: its angles are those of Llama 3.0."""
    values, tensors = gated("llama")
    factors = np.array([1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0], np.float32)
    path = write(tmp_path / "model.gguf", "llama", values, {"rope_freqs.weight": factors} | tensors)
    config = transept.AutoConfig.from_pretrained(path)
    model = transept.AutoModelForCausalLM.from_pretrained(path)
    assert config.rope_parameters["rope_type"] == "longrope"
    cosines = model.model.rotary_emb(torch.zeros(1), torch.arange(5)[None])[0]
    angles = torch.arange(5)[:, None] * (10000.0 ** -(torch.arange(0, 16, 2) / 16) / torch.from_numpy(factors))
    assert torch.allclose(cosines[0, :, :8], angles.cos(), atol=1e-6)


def test_factors_for_short_and_long_texts_count(tmp_path: Path) -> None:
    """Phi-3's files hold them without the name of their scaling."""
    values, tensors = gated("phi3")
    values |= {"phi3.rope.scaling.attn_factor": 1.25, "phi3.rope.scaling.original_context_length": 256}
    factors = {f"rope_factors_{name}.weight": np.full(8, number, np.float32) for name, number in (("long", 4), ("short", 2))}
    config = transept.AutoConfig.from_pretrained(write(tmp_path / "model.gguf", "phi3", values, factors | tensors))
    wanted = {"rope_type": "longrope", "attention_factor": 1.25, "original_max_position_embeddings": 256}
    assert config.rope_parameters.items() >= wanted.items()
    assert (config.rope_parameters["long_factor"], config.rope_parameters["short_factor"]) == ([4.0] * 8, [2.0] * 8)


def test_scaled_rotary_positions(tmp_path: Path) -> None:
    values, tensors = gated("llama")
    values |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    values["llama.rope.scaling.original_context_length"] = 256
    config = transept.AutoConfig.from_pretrained(write(tmp_path / "model.gguf", "llama", values, tensors))
    wanted = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
    assert config.rope_parameters.items() >= wanted.items()


def test_split_files(tmp_path: Path) -> None:
    values, tensors = gated("llama")
    first = dict(list(tensors.items())[:5])
    rest = {name: tensor for name, tensor in tensors.items() if name not in first}
    count = {"split.tensors.count": len(tensors)}
    write(tmp_path / "m-00001-of-00002.gguf", "llama", values | count, first)
    write(tmp_path / "m-00002-of-00002.gguf", "llama", count, rest)
    whole = transept.LlamaForCausalLM.from_pretrained(write(tmp_path / "whole.gguf", "llama", values, tensors))
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        parts = transept.LlamaForCausalLM.from_pretrained(tmp_path / name)
        assert all(torch.equal(tensor, parts.state_dict()[key]) for key, tensor in whole.state_dict().items())
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(FileError, match="m-00002-of-00002"):
        transept.LlamaForCausalLM.from_pretrained(tmp_path / "m-00001-of-00002.gguf")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llama", *gated("llama"))
    with pytest.raises(FileError, match="gguf_file='model.gguf'"):
        transept.AutoConfig.from_pretrained(tmp_path)
    whole = path.read_bytes()
    for data, message in (
        (b"GGML" + whole[4:], "other letters"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1"),
        (whole[:4] + struct.pack(">I", 3) + whole[8:], "big-endian"),
        (whole[:20], "20 bytes"),
        (whole[:300], "within its head"),
        (whole[:-64], "truncated"),
        (whole[:8] + struct.pack("<Q", 2**40) + whole[16:], "claims"),
    ):
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            read_gguf(path)
    path = write(tmp_path / "other.gguf", "starfish", settings("starfish"), {"token_embd.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(UnsupportedError, match="starfish"):
        transept.AutoModel.from_pretrained(path)
    values, tensors = gated("llama")
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(transept.errors.CheckpointError, match=r"layers.1.mlp.up_proj.weight"):
        transept.AutoModelForCausalLM.from_pretrained(write(tmp_path / "less.gguf", "llama", values, tensors))
