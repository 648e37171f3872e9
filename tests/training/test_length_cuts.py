"""Rows of an update in parts of like length: the same loss and the same gradients.

Errors are max|difference| / max|reference| in float64: 1e-10, where only a difference in the mathematics can show.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.families import Family
from tests.models.harness import DOUBLE, TASKS, USED, batch, doubled, error, labels, settings, shallow
from tests.thorough import in_turn
from transept.core.inputs import Packing
from transept.core.model import Model
from transept.kinds.text import unpadded
from transept.models.bert import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.luke import LukeConfig, LukeForTokenClassification
from transept.objectives.terms import total
from transept.training import length_cuts as cuts
from transept.training.length_cuts import PASS, Ragged, cheapest, cost_of_pass, split_by_length
from transept.training.objective import counts_of

pytestmark = pytest.mark.reference

# FNet reads no mask, and DPR has no losses of its own.
APART = [case for case in TASKS if case.values[0].modality in ("text", "seq2seq", "document")]
APART = [case for case in APART if case.values[0].model_type not in ("fnet", "dpr")]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}


def _tiny(family: Family, cls: type[Model]) -> Model:
    torch.manual_seed(0)
    chosen = settings(family, cls)
    return cls(cls.config_class.from_dict(chosen | shallow(chosen))).eval().double()


def _update(model: Model, batches: list[dict[str, Any]]) -> tuple[Tensor, dict[str, Tensor]]:
    counts: dict[str, Tensor] = {}
    for each in batches:
        for name, count in (counts_of(model, each) or {}).items():
            counts[name] = counts.get(name, torch.zeros(())) + count
    model.zero_grad()
    losses = [total(model(**each).loss_terms, counts) for each in batches]
    torch.stack(losses).sum().backward()
    return torch.stack(losses).sum().detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def _same(model: Model, batches: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    wanted, gradients = _update(model, batches)
    found, others = _update(model, parts)
    assert error(found, wanted) <= DOUBLE
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert float((others[name] - gradient).abs().max()) <= DOUBLE * largest, name


@pytest.mark.parametrize(("family", "cls"), in_turn(APART, 80, whole=USED))
def test_an_update_is_the_same_without_padding(family: Family, cls: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_ragged_costs_less", lambda *args: True)
    inputs = batch(family, cls)
    inputs = doubled(inputs | labels(family, cls, inputs))
    model = _tiny(family, cls)
    parts = split_by_length(model, [inputs], cost=0, ragged=True)
    if isinstance(parts[0], Ragged):
        assert len(parts) == 1
        with unpadded():
            _same(model, [inputs], parts)
    else:
        uneven = inputs["attention_mask"].ndim != 2 or Packing.of_padded(inputs["attention_mask"]) is None
        kept = (
            "entity_ids" in inputs
            or not model.rows_apart
            or not all(stack.rows_apart and getattr(stack, "ragged", False) for stack in model.stacks)
        )
        assert kept or uneven or "decoder_input_ids" in inputs or family.modality == "seq2seq" or _labelled_padding(inputs)


def _labelled_padding(inputs: dict[str, Any]) -> bool:
    given, mask = inputs["labels"], inputs["attention_mask"]
    return given.shape == mask.shape and bool(((given != -100) & (mask == 0)).any())


@pytest.mark.parametrize(("family", "cls"), in_turn(APART, 80, whole=USED, start=2))
def test_an_update_is_the_same_cut_and_uncut(family: Family, cls: type[Model]) -> None:
    inputs = batch(family, cls)
    inputs = doubled(inputs | labels(family, cls, inputs))
    model = _tiny(family, cls)
    parts = split_by_length(model, [inputs], cost=0)
    as_many = "entity_ids" in inputs  # as many as tokens, so that it is not known what their columns are
    if as_many or not model.rows_apart or not all(stack.rows_apart for stack in model.stacks):
        assert len(parts) == 1
        assert all(parts[0][name] is value for name, value in inputs.items())
        return
    # Of which one has labels in padding, and others are given none.
    assert (len(parts) > 1) == (cls.__name__ != "ElectraForPreTraining" and not family.reads_padding)
    _same(model, [inputs], parts)


def _rows(lengths: list[int], width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(3, 30, mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_batches_with_other_numbers_of_entities_stay_whole() -> None:
    torch.manual_seed(0)
    sizes = SIZES | {"entity_vocab_size": 10, "entity_emb_size": 8}
    model = LukeForTokenClassification(LukeConfig(**sizes)).eval().double()
    batches = [_rows([3, 9, 9, 5], 9) for _ in range(2)]
    for count, given in enumerate(batches, 1):
        given["labels"] = given["labels"].clamp(max=1)
        given |= {"entity_ids": torch.ones(4, count, dtype=torch.long), "entity_position_ids": torch.ones(4, count, 2).long()}
    assert len(split_by_length(model, batches, cost=0)) == 2
    parts = split_by_length(model, batches[:1], cost=0)
    assert len(parts) > 1
    _same(model, batches[:1], parts)


def test_real_positions_alone_are_computed_where_that_costs_less() -> None:
    model, rows, seen = BertForMaskedLM(BertConfig(**SIZES)).train(), _rows([3, 9, 9, 5], 40), []
    model.backbone.layers[0].register_forward_hook(lambda layer, args, out: seen.append(tuple(out.shape)))
    (part,) = split_by_length(model, [rows], cost=PASS, ragged=True)
    assert isinstance(part, Ragged)
    assert part["attention_mask"].sum(dim=1).tolist() == [9, 9, 5, 3]
    with unpadded():
        states = model.backbone(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).last_hidden_state
    assert seen == [(1, 26, 16)]
    assert states.shape == (4, 9, 16)
    assert not states[part["attention_mask"] == 0].any()
    model(**part)
    assert seen[1:] == [(4, 9, 16)]
    assert not any(isinstance(each, Ragged) for each in split_by_length(model, [rows], cost=PASS))
    groups = split_by_length(model, [rows], cost=PASS + 100, ragged=True)  # starting operations for each length would cost more
    assert not any(isinstance(each, Ragged) for each in groups)


def test_rows_that_are_padded_before_keep_their_padding() -> None:
    model, rows = BertForMaskedLM(BertConfig(**SIZES)), _rows([3, 9, 9, 5], 40)
    left = {name: value.flip(1) if value.ndim == 2 else value for name, value in rows.items()}
    assert not any(isinstance(each, Ragged) for each in split_by_length(model, [left], cost=PASS, ragged=True))
    with unpadded():
        assert model.eval()(**left).logits.isfinite().all()


def test_rows_that_are_padded_on_the_left_keep_their_length() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    (part,) = split_by_length(model, [{name: value.flip(1) for name, value in _rows([9, 2, 3], 9).items()}], cost=0)
    assert part["input_ids"].shape == (3, 9)


def test_rows_of_several_batches_are_cut_together() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=32)).double()
    batches = [_rows([9, 2, 8], 9), _rows([3, 3, 2], 4), _rows([12, 1, 1], 12)]
    parts = split_by_length(model, batches, cost=2)
    computed = sum(part["input_ids"].numel() for part in parts)
    assert 41 <= computed <= 48 < sum(each["input_ids"].numel() for each in batches)
    assert max(part["input_ids"].numel() for part in parts) <= 36  # no more than the largest batch
    assert parts[0]["input_ids"].shape[1] == 12
    _same(model, batches, parts)


def test_where_to_cut_is_the_best_of_all_ways() -> None:
    generator = torch.Generator().manual_seed(0)
    for cost, most in ((0, 1e9), (3, 1e9), (10, 1e9), (3, 12)):
        for _ in range(10):
            lengths = torch.randint(1, 9, (7, 2), generator=generator).numpy()
            lengths = lengths[np.argsort(-lengths.sum(axis=1), kind="stable")]

            def price(bounds: list[tuple[int, int]], rows: Any = lengths, cost: float = cost, most: float = most) -> float:
                sizes = [(b - a) * rows[a:b].max(axis=0).sum() for a, b in bounds]
                over = any(size > most and b - a > 1 for size, (a, b) in zip(sizes, bounds, strict=True))
                return float("inf") if over else sum(sizes) + cost * len(bounds)

            ways = []
            for chosen in product([False, True], repeat=6):
                places = [0, *(i + 1 for i, at in enumerate(chosen) if at), 7]
                ways.append(price(list(pairwise(places))))
            assert price(cheapest(lengths, cost, most)) == min(ways)


def test_labels_in_padding_stay() -> None:
    model = BertForMaskedLM(BertConfig(**SIZES)).eval().double()
    inputs = _rows([9, 2, 3], 9)
    inputs["labels"][1, 6] = 5
    parts = split_by_length(model, [inputs], cost=0)
    assert sorted(part["input_ids"].shape[1] for part in parts) == [3, 7, 9]
    _same(model, [inputs], parts)


def test_columns_that_all_rows_pad_are_left_out() -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES))
    inputs = _rows([5, 5], 20) | {"labels": torch.tensor([0, 1])}
    (part,) = split_by_length(model, [inputs], cost=30)
    assert part["input_ids"].shape == (2, 5)
    assert split_by_length(model, [inputs], cost=31)[0]["input_ids"] is inputs["input_ids"]  # too little to gain


@pytest.mark.parametrize(
    "more",
    [
        {"attention_mask": None},
        {"attention_mask": torch.ones(3, 1, 9, 9)},
        {"lengths": [9, 2, 3]},
        {"output_hidden_states": True},
        {"strange": torch.ones(3, 9)},
        {"encoder_hidden_states": torch.ones(2, 4, 16)},
    ],
)
def test_batches_that_cannot_be_taken_apart_stay_whole(more: dict[str, Any]) -> None:
    model = BertForMaskedLM(BertConfig(**SIZES))
    inputs = _rows([9, 2, 3], 9) | more
    parts = split_by_length(model, [inputs, inputs], cost=0)
    assert [list(part) for part in parts] == [list(inputs)] * 2
    assert all(part[name] is inputs[name] for part in parts for name in inputs)


def test_losses_that_depend_on_padding_or_on_other_rows_are_not_cut() -> None:
    inputs = _rows([9, 2, 3], 9)
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    for model in (
        BertForQuestionAnswering(BertConfig(**SIZES)),
        LlamaForCausalLM(LlamaConfig(**SIZES, **dynamic)),
        torch.nn.Linear(2, 2),
    ):
        assert split_by_length(model, [inputs], cost=0)[0]["input_ids"] is inputs["input_ids"]


def test_a_pass_costs_more_positions_the_smaller_the_layers() -> None:
    small, large = (BertForMaskedLM(BertConfig(**SIZES | {"intermediate_size": size})) for size in (16, 1600))
    assert cost_of_pass(small) > cost_of_pass(large) > 120
