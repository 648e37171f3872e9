"""Masks over pairs of positions in generation, against the forward pass over all that is written so far."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tests.generation.test_caches import ids, llama, tiny
from transept.errors import InputError
from transept.models.bloom import BloomConfig, BloomForCausalLM
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transept.models.mistral import MistralConfig, MistralForCausalLM

LENGTH, NEW = 7, 6
SMALL = {"vocab_size": 60, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2}
UNTIED = {"tie_word_embeddings": False}  # else it says one token again and again
MODELS: dict[str, Any] = {
    "llama": llama,
    "windows": lambda: tiny(MistralForCausalLM, MistralConfig, sliding_window=3),
    "table": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, **SMALL)).eval(),
    "slopes": lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_head=4, n_layer=2, **SMALL | UNTIED)).eval(),
}


def pairs(rows: int, heads: int = 1) -> Tensor:
    """(rows, heads, T, T): odd ones, in which some positions see later ones; each sees itself."""
    drawn = torch.rand(rows, heads, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.6
    return drawn | torch.eye(LENGTH, dtype=torch.bool)


def oracle(model: Any, prompt: Tensor, mask: Tensor) -> Tensor:
    """Greedy tokens, by whole forward passes."""
    found = prompt
    for _ in range(NEW):
        size = found.shape[1]
        whole = torch.ones(*mask.shape[:2], size, size, dtype=torch.bool).tril()
        whole[:, :, :LENGTH, :LENGTH] = mask
        whole[:, :, LENGTH:, :LENGTH] = mask[:, :, -1:]
        with torch.no_grad():
            token = model(found, attention_mask=whole, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
        found = torch.cat([found, token], dim=1)
    return found


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_written_is_what_whole_passes_say(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    model, prompt, mask = MODELS[kind](), ids(2, LENGTH) % 50 + 5, pairs(rows)
    given: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}
    expected = oracle(model, prompt, mask.expand(2, -1, -1, -1))
    assert not torch.equal(expected, model.generate(prompt, **given))
    for settings in ({}, {"use_cache": False}, {"prefill_chunk_size": 3}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(prompt, attention_mask=mask, **given, **settings), expected)
    added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    assert torch.equal(model.generate(prompt, attention_mask=added, **given), expected)
    if rows == 2:
        assert torch.equal(model.generate(prompt, attention_mask=mask[:, 0], **given), expected)
        alone = [model.generate(prompt[i : i + 1], attention_mask=mask[i : i + 1], **given) for i in range(2)]
        assert torch.equal(torch.cat(alone), expected)


def test_heads_may_see_differently_and_beams_keep_the_mask() -> None:
    model, prompt, mask = llama(), ids(2, LENGTH) % 50 + 5, pairs(2, 4)
    given: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}
    assert torch.equal(model.generate(prompt, attention_mask=mask, **given), oracle(model, prompt, mask))
    cached, whole = (model.generate(prompt, attention_mask=mask, num_beams=3, use_cache=on, **given) for on in (True, False))
    assert torch.equal(cached, whole)


def test_compiled_steps_take_it_too() -> None:
    model, prompt, mask = llama(), ids(2, LENGTH) % 50 + 5, pairs(2)
    torch._dynamo.reset()
    counted = CompileCounter()
    compiled = {"cache_implementation": "static", "compile_config": {"backend": counted, "fullgraph": True}}
    found = model.generate(prompt, attention_mask=mask, max_new_tokens=NEW, eos_token_id=None, **compiled)
    assert torch.equal(found, oracle(model, prompt, mask))
    assert counted.frame_count == 1


def test_masks_of_another_shape_are_refused() -> None:
    for shape in ((2, 1, 5, 7), (2, 1, 7, 5), (3, 1, 7, 7), (2, 7, 5)):
        with pytest.raises(InputError, match=r"`attention_mask` has the shape"):
            llama().generate(ids(2, LENGTH), attention_mask=torch.ones(shape), max_new_tokens=2)
