"""Mutated safetensors files, indices, configs and tokenizers: no crash, no untyped error, no way out of the directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.gguf_files import Kind, gated, write
from tests.checkpoint.small import config, raw
from tests.fuzz.mutate import mangled, mutated, text_of
from tests.models.families import FAMILIES
from transept.checkpoint.methods import METHODS
from transept.checkpoint.store import TensorStore, open_store
from transept.core.auto import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForDepthEstimation
from transept.errors import TranseptError
from transept.models.bert import BertForSequenceClassification, BertModel
from transept.preprocess.text.auto import AutoTokenizer
from transept.quantized.grouped import can_multiply
from transept.quantized.linear import few_bits
from transept.storage.source import Source

Fuzz = Callable[[Callable[[Random], None]], None]


def test_safetensors(tmp_path: Path, fuzz: Fuzz) -> None:
    """Headers as documents, and whole files as bytes; what opens is read to its end."""
    path = tmp_path / "model.safetensors"
    BertModel(config()).save_pretrained(tmp_path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    small = {name: entry for name, entry in header.items() if entry.get("data_offsets", [0])[0] < 2000}
    end = max(entry["data_offsets"][1] for entry in small.values() if "data_offsets" in entry)

    def attempt(noise: Random) -> None:
        match noise.randrange(4):
            case 0:
                path.write_bytes(mangled(whole, noise))
            case 1:
                path.write_bytes(raw(mangled(whole[8 : 8 + length], noise), data))
            case _:
                text = text_of(mutated(small, noise), noise).encode("utf-8", "surrogatepass")
                wrong = noise.choice([None, None, None, noise.getrandbits(64), len(text) + 1])
                path.write_bytes(raw(text, data[:end], length=wrong))
        store = TensorStore([path])
        for name in store:
            assert torch.equal(store[name].view(-1).view(torch.uint8), store.passing(name).view(-1).view(torch.uint8))

    fuzz(attempt)


def test_indices(tmp_path: Path, fuzz: Fuzz) -> None:
    """The map of tensors to files; files beside the directory are bait."""
    root = tmp_path / "root"
    for directory in (root, tmp_path / "bait"):
        BertModel(config()).save_pretrained(directory, max_shard_size=3000)
    path = root / "model.safetensors.index.json"
    index, text = json.loads(path.read_text()), path.read_bytes()
    shards = sorted(file.name for file in root.glob("*.safetensors"))
    small = {"metadata": {"total_size": 1}, "weight_map": dict(list(index["weight_map"].items())[:4])}
    bait = [f"../bait/{shards[0]}", str(tmp_path / "bait" / shards[0]), "config.json", ".", "..", shards[-1]]

    def attempt(noise: Random) -> None:
        if noise.random() < 0.2:
            path.write_bytes(mangled(text, noise))
        else:
            document = copy_with_bait(noise)
            path.write_bytes(text_of(document, noise).encode("utf-8", "surrogatepass"))
        store = open_store(Source(str(root)))
        assert all(file.parent == root for file in store.files)
        assert all(store[name].numel() >= 0 for name in store)

    def copy_with_bait(noise: Random) -> Any:
        document = mutated(noise.choice([small, index]), noise)
        if noise.random() < 0.3 and isinstance(document, dict) and isinstance(document.get("weight_map"), dict):
            document["weight_map"][noise.choice(["x", *index["weight_map"]])] = noise.choice(bait)
        return document

    fuzz(attempt)


# Families without a model without a task.
ALONE: Any = {"depth_anything": AutoModelForDepthEstimation, "trocr": AutoModelForCausalLM}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory with a small model of every family."""
    found = {}
    for family in FAMILIES:
        directory = tmp_path_factory.mktemp(family.model_type)
        model = ALONE.get(family.model_type, AutoModel).from_config(AutoConfig.for_model(family.model_type, **family.tiny))
        model.save_pretrained(directory)
        found[family.model_type] = directory
    return found


def test_configs(tmp_path: Path, models: dict[str, Path], fuzz: Fuzz) -> None:
    """Settings of every family: the model is built and filled, or an error says why not; what is read can be saved."""
    root = tmp_path / "root"
    root.mkdir()
    texts = {name: (directory / "config.json").read_bytes() for name, directory in models.items()}
    weights = {name: (directory / "model.safetensors").read_bytes() for name, directory in models.items()}

    def attempt(noise: Random) -> None:
        name = noise.choice(sorted(models))
        (root / "model.safetensors").write_bytes(weights[name])
        if noise.random() < 0.1:
            (root / "config.json").write_bytes(mangled(texts[name], noise))
        else:
            document = mutated(json.loads(texts[name]), noise)
            (root / "config.json").write_bytes(text_of(document, noise).encode("utf-8", "surrogatepass"))
        load = noise.choice([AutoModel, AutoModel, BertForSequenceClassification])
        load = ALONE.get(name, load)
        model = load.from_pretrained(root, strict=noise.random() < 0.8)
        again = type(model.config).from_dict(json.loads(model.config.to_json_string()))
        assert again == model.config or "NaN" in model.config.to_json_string()  # which is not equal to itself

    fuzz(attempt)


def test_tokenizers(tmp_path: Path, fuzz: Fuzz) -> None:
    """`tokenizer.json` and what stands beside it: it tokenizes, or an error says why not."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##a", "##b", "hello", "##llo", "world"]
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Punctuation()])
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens(words[:5])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    documents: dict[str, Any] = {
        "tokenizer.json": json.loads(backend.to_str()),
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer",
            "model_max_length": 512,
            "unk_token": "[UNK]",
            "mask_token": {"content": "[MASK]", "lstrip": True, "special": True},
            "added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}},
            "chat_template": "{{ messages }}",
        },
        "special_tokens_map.json": {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    }

    def attempt(noise: Random) -> None:
        spoilt = noise.choice([name for name in documents for _ in range(2 if name == "tokenizer.json" else 1)])
        for name, document in documents.items():
            text = json.dumps(document) if name != spoilt else text_of(mutated(document, noise), noise)
            (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        tokenizer(["hello world", "", "a [MASK] b\0😀"], padding=tokenizer.pad_token is not None, truncation=False)

    fuzz(attempt)


def test_quantised_weights(tmp_path: Path, fuzz: Fuzz) -> None:
    """Settings of every method and parts of any shape: weights are unpacked, or an error says why not."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA))
    model.save_pretrained(tmp_path)
    plain, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    ends = ["qweight", "qzeros", "scales", "g_idx", "weight", "SCB", "weight.absmax", "weight.quant_map", "weight_scale"]
    ends += ["weight.quant_state.bitsandbytes__nf4", "weight.nested_absmax", "weight.nested_quant_map", "weight_packed"]
    ends += ["weight_zero_point", "weight_shape", "weight_scale_inv", "W_q", "scale", "zero", "shape", "nbits", "_weight_qdata"]
    ends += ["_weight_scale", "_weight_zero_point"]
    types = [torch.int32, torch.uint8, torch.int8, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64]
    settings = {"bits": 4, "group_size": 4, "load_in_8bit": False, "weight_block_size": [4, 4], "format": "pack-quantized"}
    settings["config_groups"] = {"g": {"weights": {"num_bits": 4, "block_structure": [2, 2]}}}
    state = {
        "quant_type": "nf4",
        "blocksize": 4,
        "dtype": "float16",
        "shape": [8, 8],
        "nested_blocksize": 4,
        "nested_offset": 0.1,
    }

    def attempt(noise: Random) -> None:
        tensors = dict(plain)
        stem = "model.layers.0.mlp.up_proj"
        del tensors[f"{stem}.weight"]
        for end in noise.sample(ends, noise.randrange(2, 12)):
            shape = [noise.choice([0, 1, 2, 4, 8, 16]) for _ in range(noise.randrange(4))]
            tensors[f"{stem}.{end}"] = torch.zeros(shape).to(noise.choice(types))
            if "quant_state" in end:
                text = text_of(mutated(state, noise), noise).encode("utf-8", "surrogatepass")
                tensors[f"{stem}.{end}"] = torch.tensor([*text], dtype=torch.uint8)
        (tmp_path / "model.safetensors").unlink()
        save_file(tensors, tmp_path / "model.safetensors")
        document = config | {"quantization_config": mutated(settings | {"quant_method": noise.choice([*METHODS])}, noise)}
        (tmp_path / "config.json").write_bytes(text_of(document, noise).encode("utf-8", "surrogatepass"))
        model = AutoModelForCausalLM.from_pretrained(tmp_path, strict=noise.random() < 0.5)
        if few_bits(model):
            model(input_ids=torch.tensor([[3, 4, 5]]))

    can_multiply()  # which builds the kernel, outside of the directory
    fuzz(attempt)


LLAMA: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 16,
}


def test_gguf(tmp_path: Path, fuzz: Fuzz) -> None:
    """The head of a file and its tensors: a model, its config and its tokenizer load, or an error says why not."""
    values, tensors = gated("llama")
    can_multiply()  # which builds the kernel, outside of the directory
    small = values | {f"tokenizer.ggml.{name}": value for name, value in SMALL_TOKENIZER.items()}
    whole = write(tmp_path / "whole.gguf", "llama", small, tensors, Kind.Q4_0).read_bytes()
    head = whole.index(b"output_norm.weight")

    def attempt(noise: Random) -> None:
        data = bytearray(whole)
        match noise.randrange(4):
            case 0:
                data = bytearray(mangled(whole, noise))
            case 1:  # numbers of eight bytes: counts, lengths, sizes and places
                place = noise.randrange(4, head + 2000)
                number = noise.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(whole), noise.getrandbits(64)])
                data[place : place + 8] = number.to_bytes(8, "little")
            case 2:
                for _ in range(noise.randrange(1, 6)):
                    data[noise.randrange(head + 2000)] = noise.randrange(256)
            case _:
                del data[noise.randrange(len(data)) :]
        path = tmp_path / "model.gguf"
        path.unlink(missing_ok=True)  # what is mapped still must not change
        path.write_bytes(data)
        noise.choice([AutoModelForCausalLM, AutoConfig, AutoTokenizer]).from_pretrained(path)

    fuzz(attempt)


SMALL_TOKENIZER: dict[str, Any] = {"model": "llama", "tokens": [f"t{index}" for index in range(96)], "token_type": [1] * 96}
SMALL_TOKENIZER |= {"scores": [-float(index) for index in range(96)], "unknown_token_id": 0, "add_bos_token": True}


def test_the_suite_would_see_what_it_looks_for(fuzz: Fuzz, tmp_path: Path) -> None:
    def untyped(noise: Random) -> None:
        if noise.random() < 0.5:
            raise TranseptError("typed")
        raise KeyError("untyped")

    with pytest.raises((AssertionError, KeyError)):
        fuzz(untyped)

    def outside(noise: Random) -> None:
        (tmp_path.parent / f"{tmp_path.name}-outside").write_text("")

    with pytest.raises(AssertionError, match="left the directory"):
        fuzz(outside)
