"""Packed rows train as rows alone: loss and gradients of every text family's language model, however the rows are told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.test_rows import made
from tests.models.families import FAMILIES, Family
from tests.models.harness import USED, classes, is_part
from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import InputError
from transept.heads.language import ForCausalLM, ForMaskedLM
from transept.kinds.text import TextBackbone
from transept.models.bloom import BloomConfig, BloomModel
from transept.models.mamba import MambaConfig, MambaForCausalLM
from transept.models.xlnet import XLNetConfig, XLNetModel
from transept.training.collate.padding import DataCollatorWithFlattening

LENGTHS = (5, 2, 7, 3)
# Sums of some hundred numbers near one, in another order, in float64; the requirement is 1e-5.
TOLERANCE = 1e-9


def writers() -> list[Any]:
    cases = [
        pytest.param(family, cls, id=cls.__name__)
        for family in FAMILIES
        for cls in classes(family)
        if issubclass(cls, ForCausalLM | ForMaskedLM) and issubclass(cls.backbone_class, TextBackbone) and not is_part(cls)
        if family.model_type not in ("fnet", "funnel", "prophetnet", "tapas")  # whose rows hold one text
    ]
    assert len(cases) > 25
    return cases


def rows_of(vocabulary: int, masked: bool) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, vocabulary, (length,), generator=generator) for length in LENGTHS]
    if not masked:
        return [{"input_ids": row} for row in rows]
    return [{"input_ids": row, "labels": torch.where(torch.arange(len(row)) % 2 == 1, row, -100)} for row in rows]


def summed(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The sum of the additive terms."""
    return torch.stack([term.sum for term in model(**batch).loss_terms.values() if term.additive]).sum()


@pytest.mark.parametrize(("family", "cls"), in_turn(writers(), 35, whole=USED))
def test_packed_rows_have_the_loss_and_gradients_of_rows_alone(family: Family, cls: type[Model]) -> None:
    model = made(family, cls)
    rows = rows_of(int(model.config.vocab_size), issubclass(cls, ForMaskedLM))
    first = model.backbone.first_position
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    alone = torch.stack([summed(model, DataCollatorWithFlattening(return_position_ids=False)([row])) for row in rows]).sum()
    expected = torch.autograd.grad(alone, weights, allow_unused=True)
    packed = summed(model, DataCollatorWithFlattening(position_ids_start=first)(rows))
    torch.testing.assert_close(packed, alone, rtol=TOLERANCE, atol=0)
    for ours, theirs in zip(torch.autograd.grad(packed, weights, allow_unused=True), expected):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("told", ["return_seq_idx", "return_flash_attn_kwargs"])
def test_states_begin_anew_however_rows_are_told_apart(told: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    model = MambaForCausalLM(MambaConfig(**sizes)).double()
    rows = rows_of(60, masked=False)
    untold: dict[str, Any] = {"return_position_ids": False, "return_seq_idx": False}
    collator = DataCollatorWithFlattening(**untold | {told: True})
    alone = torch.stack([summed(model, DataCollatorWithFlattening()([row])) for row in rows]).sum()
    torch.testing.assert_close(summed(model, collator(rows)), alone, rtol=TOLERANCE, atol=0)
    blind = summed(model, DataCollatorWithFlattening(**untold)(rows))
    assert abs((blind - alone).item()) > 1e-3  # without boundaries it is one text
    with pytest.raises(InputError, match="counts positions itself"):
        model(**DataCollatorWithFlattening(return_seq_idx=False)(rows))


def test_positions_that_a_family_counts_itself_are_not_taken_lightly() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 16, "n_layer": 1, "n_head": 2}
    bloom = BloomModel(BloomConfig(**sizes))
    ids = torch.randint(5, 60, (2, 4))
    counted = bloom(ids, position_ids=torch.arange(4)[None]).last_hidden_state
    assert torch.equal(counted, bloom(ids).last_hidden_state)
    for wrong in (torch.arange(1, 5)[None], torch.arange(3)[None]):
        with pytest.raises(InputError, match="BloomModel counts positions itself, and `position_ids` are others"):
            bloom(ids, position_ids=wrong)
    xlnet = XLNetModel(XLNetConfig(vocab_size=60, d_model=16, n_layer=1, n_head=2, d_inner=16))
    with pytest.raises(InputError, match="`seq_idx` tells that rows hold several texts, which `perm_mask` cannot be for"):
        xlnet(ids, seq_idx=torch.tensor([[0, 0, 1, 1]]), perm_mask=torch.zeros(2, 4, 4))
