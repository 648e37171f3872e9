"""Noise on embeddings, drawn as the reference draws it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import transept
from transept.adapt.neftune import add_embedding_noise
from transept.errors import InputError

IDS = torch.arange(5, 21).reshape(2, 8)


def bert() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    return transept.BertForMaskedLM(transept.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


@pytest.mark.reference
def test_the_noise_is_the_references() -> None:
    from transformers.integrations.neftune import neftune_post_forward_hook

    model, twin = bert().train(), bert().train()
    plain = model(IDS).logits
    handle = add_embedding_noise(model, 5)
    table = twin.get_input_embeddings()
    table.neftune_noise_alpha = 5.0
    table.register_forward_hook(neftune_post_forward_hook)
    torch.manual_seed(3)
    mine = model(IDS).logits
    torch.manual_seed(3)
    assert torch.allclose(mine, twin(IDS).logits, atol=1e-7)
    assert not torch.allclose(mine, plain)
    handle.remove()
    assert torch.equal(model(IDS).logits, plain)
    assert not model.get_input_embeddings()._forward_hooks


def test_its_size_and_where_it_is_not() -> None:
    model = bert().train()
    add_embedding_noise(model, 7.0)
    table = model.get_input_embeddings()
    noise = (table(IDS) - table.weight[IDS]).detach()
    assert 0.9 * 7 / math.sqrt(8 * 32) < float(noise.abs().max()) <= 7 / math.sqrt(8 * 32)
    model.eval()
    assert torch.equal(table(IDS), table.weight[IDS])
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not torch.equal(again.train().get_input_embeddings()(IDS), table.weight[IDS])


@pytest.mark.parametrize("alpha", [0, -1, math.nan, math.inf, "5", True, None])
def test_bad_sizes(alpha: Any) -> None:
    with pytest.raises(InputError, match="alpha"):
        add_embedding_noise(bert(), alpha)


def test_models_without_embeddings() -> None:
    config = transept.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37)
    with pytest.raises(InputError, match="no token embeddings"):
        add_embedding_noise(transept.ViTModel(config), 5)
