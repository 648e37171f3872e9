"""Guesses are checked several at a time, and with weights of few bits they must change no token either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from transept.adapt.gguf import save_gguf
from transept.adapt.quantize import quantize
from transept.quantized.grouped import GroupedLinear, can_multiply
from transept.quantized.linear import few_bits

WORDS, LENGTH, NEW = 61, 48, 36
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}


def followed(first: torch.Tensor, length: int) -> torch.Tensor:
    """(N, length) ids, where each but the first follows from the one before it, in rounds of five."""
    rows = [first]
    while len(rows) < length:
        rows.append((9 * rows[-1] + 7) % WORDS)
    return torch.stack(rows, dim=1)


def learnt(sizes: dict[str, int], steps: int) -> Any:
    """A model that has learnt what follows, so that its first choice is clear; with few steps it is often wrong."""
    torch.manual_seed(0)
    settings = {"vocab_size": WORDS, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = transept.LlamaForCausalLM(transept.LlamaConfig(**sizes | settings)).train()
    optimizer, rows = torch.optim.AdamW(model.parameters(), lr=3e-3), followed(torch.arange(WORDS), LENGTH)
    for step in range(steps):
        some = rows[step % 4 :: 4]
        model(input_ids=some, labels=some).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.generation_config.update(num_assistant_tokens=4, assistant_confidence_threshold=0.0)
    return model.eval()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("learnt")
    learnt(SIZES, 60).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def drafts() -> list[Any]:
    """Assistants that are mostly right, and mostly wrong."""
    return [learnt(SMALL, 100), learnt(SMALL, 10)]


def loaded(path: Path, **options: Any) -> Any:
    return transept.LlamaForCausalLM.from_pretrained(path, **options).eval()


def file(path: Path, encoding: str, folder: Path) -> Any:
    save_gguf(loaded(path), folder / "model.gguf", encoding)
    return loaded(folder / "model.gguf")


BITS = transept.BitsAndBytesConfig
WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "int8": lambda path, _: quantize(loaded(path)),
    "int4": lambda path, _: quantize(loaded(path), 4),
    "int4 in groups of 128": lambda path, _: quantize(loaded(path), 4, 128),
    "eight bits": lambda path, _: loaded(path, quantization_config=BITS(load_in_8bit=True)),
    "NF4": lambda path, _: loaded(path, quantization_config=BITS(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "HQQ": lambda path, _: loaded(path, quantization_config=transept.HqqConfig(nbits=4)),
    "Q8_0": lambda path, folder: file(path, "q8_0", folder),
    "Q4_0": lambda path, folder: file(path, "q4_0", folder),
    "Q4_K": lambda path, folder: file(path, "q4_k_m", folder),
}


@pytest.mark.parametrize("way", WAYS)
def test_guesses_change_no_token(way: str, path: Path, drafts: list[Any], tmp_path: Path) -> None:
    model = WAYS[way](path, tmp_path)
    assert few_bits(model)
    calls = [0]
    model.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    for first in (1, 17, 42):
        ids = followed(torch.tensor([first]), 7 + first % 5)
        plain = model.generate(input_ids=ids, **settings)
        assert torch.equal(plain, followed(torch.tensor([first]), plain.shape[1]))
        for how in ({"assistant_model": drafts[0]}, {"assistant_model": drafts[1]}, {"prompt_lookup_num_tokens": 4}):
            calls[0] = 0
            assert torch.equal(model.generate(input_ids=ids, **settings, **how), plain)
            assert calls[0] < NEW or how != {"assistant_model": drafts[0]}  # whose guesses are taken


@pytest.mark.skipif(not can_multiply(), reason="needs a kernel for this processor")
@pytest.mark.parametrize("way", ["int4", "NF4", "HQQ", "Q8_0", "Q4_0", "Q4_K"])
def test_rows_are_multiplied_as_each_alone(way: str, path: Path, tmp_path: Path) -> None:
    """Bit for bit, however many there are, so that a guess is checked by the numbers that would have made it."""
    layers = [module for module in WAYS[way](path, tmp_path).modules() if isinstance(module, GroupedLinear)]
    assert layers
    for layer in layers:
        rows = torch.randn(9, layer.in_features) * torch.rand(9, 1)
        alone = torch.cat([layer(rows[i : i + 1]) for i in range(9)])
        assert torch.equal(layer(rows), alone)
        assert torch.equal(layer(rows[:5]), alone[:5])
