"""Rows without padding that go on from caches of their own; that they equal rows alone is shown for each family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transept import BartConfig, BartForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM, SlidingWindowCache
from transept.errors import InputError, InputTypeError
from transept.layers.caches.rows import RowCaches


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    sizes: Any = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 20,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def ids(count: int) -> Tensor:
    return torch.arange(count)[None] % 20


@torch.inference_mode()
def test_a_row_keeps_its_bits_when_others_come_and_go(llama: LlamaForCausalLM) -> None:
    def read(company: int) -> Tensor:
        own, others = DynamicCache(), [DynamicCache() for _ in range(company)]
        rows = RowCaches([own, *others])
        first = llama(ids(5 + 3 * company), lengths=[5, *[3] * company], past_key_values=rows).logits[0, :5]
        return torch.cat([first, llama(ids(1), lengths=[1], past_key_values=RowCaches([own])).logits[0]])

    torch.testing.assert_close(read(0), read(3), rtol=0, atol=1e-6)  # products of other sizes


@torch.inference_mode()
def test_caches_must_fit(llama: LlamaForCausalLM) -> None:
    one = DynamicCache()
    with pytest.raises(InputError, match="two rows have the same cache"):
        RowCaches([one, one])
    with pytest.raises(InputTypeError, match="SlidingWindowCache"):
        RowCaches([SlidingWindowCache()])
    with pytest.raises(InputError, match="caches of 1 rows, but `lengths` names 2"):
        llama(ids(4), lengths=[2, 2], past_key_values=RowCaches([one]))
    with pytest.raises(InputError, match="`lengths` and `past_key_values` exclude each other"):
        llama(ids(4), lengths=[2, 2], past_key_values=one)
    with pytest.raises(InputError, match="add up to 0 positions"):
        llama(ids(4), lengths=[], past_key_values=RowCaches())


def test_other_networks_say_that_they_cannot() -> None:
    sizes: Any = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "vocab_size": 20}
    model = BartForCausalLM(BartConfig(**sizes)).eval()
    with pytest.raises(InputError, match="cannot go on from caches of their own"):
        model(ids(2), lengths=[2], past_key_values=RowCaches([DynamicCache()]))
