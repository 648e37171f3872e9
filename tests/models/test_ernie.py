"""ERNIE's embeddings of tasks."""

from __future__ import annotations

import pytest
import torch

import transept
from transept.errors import InputError

from .families import FAMILIES
from .harness import SINGLE, batch, compare, error, pair

ERNIE = next(family for family in FAMILIES if family.model_type == "ernie")


@pytest.mark.reference
def test_tasks_are_told_by_numbers() -> None:
    ours, theirs = pair(ERNIE, transept.ErnieModel)
    inputs = batch(ERNIE, transept.ErnieModel)
    inputs["task_type_ids"] = torch.arange(inputs["input_ids"].shape[-1]).expand_as(inputs["input_ids"]) % 3
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_packed_texts_keep_their_tasks_and_unknown_ones_are_errors() -> None:
    torch.manual_seed(0)
    model = transept.ErnieModel(transept.ErnieConfig(**ERNIE.tiny)).eval()
    ids, tasks = torch.arange(5, 14)[None], torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2]])
    with torch.no_grad():
        packed = model(ids, task_type_ids=tasks, seq_idx=torch.tensor([[0] * 4 + [1] * 5])).last_hidden_state
        apart = [model(ids[:, part], task_type_ids=tasks[:, part]).last_hidden_state for part in (slice(4), slice(4, 9))]
    assert error(packed, torch.cat(apart, dim=1)) <= SINGLE
    with pytest.raises(InputError, match="the tasks 0 to 2"):
        model(ids, task_type_ids=tasks + 1)


def test_choices_have_tasks_of_their_own() -> None:
    torch.manual_seed(0)
    model = transept.ErnieForMultipleChoice(transept.ErnieConfig(**ERNIE.tiny)).eval()
    ids, tasks = torch.arange(5, 17).view(1, 2, 6), torch.tensor([[[0] * 6, [2] * 6]])
    with torch.no_grad():
        together = model(ids, task_type_ids=tasks).logits
        apart = [model(ids[:, [choice]], task_type_ids=tasks[:, [choice]]).logits for choice in range(2)]
    assert error(together, torch.cat(apart, dim=1)) <= SINGLE
