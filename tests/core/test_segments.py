"""Token types and positions that cannot be are told before the embeddings see them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transept
from transept.errors import InputError, InputTypeError, TranseptError

TINY = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
IDS = torch.tensor([[3, 4, 5, 6]])


def model(name: str) -> Any:
    return getattr(transept, f"{name}Model")(getattr(transept, f"{name}Config")(**TINY, max_position_embeddings=12)).eval()


@pytest.mark.parametrize("name", ["Bert", "Electra", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("types", [torch.tensor([[0, 0, 7, 0]]), torch.tensor([[0, -1, 0, 0]]), torch.zeros(1, 3).long()])
def test_token_types(name: str, types: torch.Tensor) -> None:
    with pytest.raises(InputError, match="token_type_ids"):
        model(name)(IDS, token_type_ids=types)


@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "MPNet"])
@pytest.mark.parametrize("places", [torch.tensor([[0, 1, 99, 3]]), torch.tensor([[0, 1, 2]]), [0, 1, 2, 3], torch.zeros(1, 4)])
def test_positions(name: str, places: Any) -> None:
    with pytest.raises(InputError, match="position_ids"):
        model(name)(IDS, position_ids=places)


def test_labels_of_a_causal_model_must_be_a_tensor() -> None:
    config = transept.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)
    with pytest.raises(InputTypeError, match="labels"):
        transept.GPT2LMHeadModel(config)(IDS, labels=[[3, 4, 5, 6]])


def test_chunks_along_an_axis_that_is_not_there() -> None:
    with pytest.raises(InputError, match="chunk_dim"):
        transept.apply_chunking_to_forward(torch.relu, 2, 5, torch.zeros(2, 3))


@pytest.mark.parametrize("name", [None, 5, ["bert"]])
def test_what_is_no_name_of_a_model(name: Any) -> None:
    for load in (transept.AutoModel, transept.AutoTokenizer, transept.AutoConfig, transept.BertModel):
        with pytest.raises(TranseptError, match="named by a text or a path|was not told what to load"):
            load.from_pretrained(name)
