"""ESM's contacts, and rows that mask some of their tokens."""

from __future__ import annotations

import pytest
import torch

import transept

from .families import FAMILIES
from .harness import SINGLE, batch, compare, error, pair

ESM = next(family for family in FAMILIES if family.model_type == "esm")


@pytest.mark.reference
def test_contacts_equal_the_reference() -> None:
    ours, theirs = pair(ESM, transept.EsmForMaskedLM, attention="eager")
    inputs = batch(ESM, transept.EsmForMaskedLM)
    inputs["input_ids"][:, 4] = 2  # a chain that ends
    given = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        found = ours.predict_contacts(*given)
        assert found.shape == (3, 7, 7)
        assert error(found, theirs.predict_contacts(*given)) <= SINGLE


@pytest.mark.reference
def test_rows_are_scaled_by_how_many_tokens_they_hide() -> None:
    ours, theirs = pair(ESM, transept.EsmModel)
    inputs = batch(ESM, transept.EsmModel)
    inputs["input_ids"][0, 2:5] = inputs["input_ids"][2, 1] = ESM.tiny["mask_token_id"]
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_packed_texts_hide_tokens_of_their_own() -> None:
    torch.manual_seed(0)
    model = transept.EsmModel(transept.EsmConfig(**ESM.tiny)).eval()
    ids = torch.arange(8, 17)[None].clone()
    ids[0, [1, 2, 6]] = ESM.tiny["mask_token_id"]
    texts = torch.tensor([[0] * 4 + [1] * 5])
    with torch.no_grad():
        apart = torch.cat([model(ids[:, part]).last_hidden_state for part in (slice(4), slice(4, 9))], dim=1)
        for shown in (False, True):  # rows one behind the other, and a mask
            packed = model(ids, seq_idx=texts, output_attentions=shown).last_hidden_state
            assert error(packed, apart) <= SINGLE
