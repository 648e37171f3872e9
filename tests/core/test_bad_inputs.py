"""What models of text do with inputs and labels that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from transept import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification, BertModel
from transept.errors import InputError, InputTypeError

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
IDS = torch.arange(27).view(3, 9) + 5
ONES = torch.ones_like(IDS)


def build(cls: Any = BertModel) -> Any:
    torch.manual_seed(0)
    return cls(BertConfig(**SIZES, max_position_embeddings=16)).eval()


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"input_ids": IDS.bool()}, InputError, "must be (batch, positions) of int64 or int32, but is (3, 9) of torch.bool"),
        ({"input_ids": IDS[:, :0]}, InputError, "`input_ids` is empty: its shape is (3, 0)"),
        ({"input_ids": IDS[:0]}, InputError, "`input_ids` is empty: its shape is (0, 9)"),
        ({"inputs_embeds": torch.zeros(1, 3, 7)}, InputError, "has vectors of 7, but the model's embeddings are of 32"),
        ({"attention_mask": ONES.tolist()}, InputTypeError, "`attention_mask` must be a tensor, but is list"),
        ({"attention_mask": torch.ones(3, 7, 9, 9)}, InputError, "(3, 7, 9, 9): for 7 heads, but the model has 4"),
        (
            {"position_ids": 20 * ONES},
            InputError,
            "`position_ids` holds 20 at [0, 0], but the table of positions has the rows 0 to 15",
        ),
        ({"position_ids": -ONES}, InputError, "`position_ids` holds -1 at [0, 0]"),
    ],
)
def test_inputs_that_cannot_be(inputs: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = inputs if "inputs_embeds" in inputs else {"input_ids": IDS} | inputs
    with pytest.raises(kind) as caught:
        build()(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "labels"),
    [
        (BertForSequenceClassification, {"labels": [0, 1, 0]}),
        (BertForTokenClassification, {"labels": [[0] * 9] * 3}),
        (BertForQuestionAnswering, {"start_positions": [1, 2, 3], "end_positions": torch.tensor([1, 2, 3])}),
    ],
)
def test_labels_must_be_a_tensor(cls: Any, labels: dict[str, Any]) -> None:
    with pytest.raises(InputTypeError, match=f"`{next(iter(labels))}` must be a tensor, but is list"):
        build(cls)(IDS, **labels)


@pytest.mark.parametrize("items", [-1, float("nan"), float("inf"), "6", torch.tensor([6.0, 6.0])])
def test_numbers_of_items_that_cannot_be(items: Any) -> None:
    with pytest.raises(InputError, match="`num_items_in_batch` must be a number of items"):
        build(BertForSequenceClassification)(IDS, labels=torch.tensor([0, 1, 0]), num_items_in_batch=items)


def test_a_number_of_items_is_one_of_any_kind() -> None:
    model, labels = build(BertForSequenceClassification), torch.tensor([0, 1, 0])
    expected = model(IDS, labels=labels).loss / 2
    for items in (6, 6.0, np.int64(6), torch.tensor(6), torch.tensor([6])):
        found = model(IDS, labels=labels, num_items_in_batch=items).loss
        assert found.shape == ()
        torch.testing.assert_close(found, expected)
