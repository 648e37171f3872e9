"""Rows without padding and packed batches: every text is read as it is alone, by every family and kernel, in training too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import TEXT, Family
from tests.models.harness import BACKBONES, is_part, settings
from transept.core.model import Backbone
from transept.core.text import TextBackbone
from transept.errors import InputError
from transept.models.bert import BertConfig, BertForSequenceClassification, BertForTokenClassification, BertModel
from transept.models.llama import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaModel
from transept.models.reformer import ReformerModel

LENGTHS = (5, 2, 2, 7, 1)
READERS = [case for case in BACKBONES if issubclass(case.values[1], TextBackbone) and not is_part(case.values[1])]
RAGGED = [case for case in READERS if case.values[1].ragged]
# CLIP pools each row at its end token, so that a row holds one text.
PACKED = [c for c in READERS if c.values[1].__name__ != "CLIPTextModel"]
# Sums are taken in another order, of numbers near one, a few hundred at a time.
TOLERANCE = 2e-12


def made(family: Family, cls: type[Backbone], **more: Any) -> Any:
    torch.manual_seed(0)
    model = cls(cls.config_class(**settings(family, cls, **more))).double().eval()
    with torch.no_grad():  # biases and norms start as constants, which would hide mistakes
        for parameter in model.parameters():
            if parameter.ndim <= 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def texts(vocab: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, vocab, (1, length), generator=generator) for length in LENGTHS]


def alone(model: Any, rows: list[Tensor]) -> Tensor:
    return torch.cat([model(row).last_hidden_state for row in rows], dim=1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("family", "cls"), RAGGED)
def test_rows_without_padding_are_as_alone(family: Family, cls: type[Backbone], attention: str) -> None:
    model = made(family, cls)
    model.set_attn_implementation(attention)
    rows = texts(int(model.config.vocab_size))
    joined = torch.cat(rows, dim=1)
    together, apart = model(joined, lengths=LENGTHS), alone(model, rows)
    torch.testing.assert_close(together.last_hidden_state, apart, rtol=0, atol=TOLERANCE)
    if together.get("pooler_output") is not None:
        expected = torch.cat([model(row).pooler_output for row in rows])
        torch.testing.assert_close(together.pooler_output, expected, rtol=0, atol=TOLERANCE)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    seed = torch.randn(apart.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    of_rows = torch.autograd.grad((together.last_hidden_state * seed).sum(), weights, allow_unused=True)
    of_each = torch.autograd.grad((apart * seed).sum(), weights, allow_unused=True)
    for ours, expected in zip(of_rows, of_each, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("family", "cls"), PACKED)
def test_packed_texts_do_not_see_each_other(family: Family, cls: type[Backbone], masked: bool) -> None:
    model = made(family, cls)
    rows = texts(int(model.config.vocab_size))
    joined = torch.cat(rows, dim=1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None] + model.first_position
    # Two rows of the batch: the texts in both orders, the second with padding at its end.
    turned = torch.cat(rows[::-1], dim=1)
    places = torch.cat([torch.arange(length) for length in LENGTHS[::-1]])[None] + model.first_position
    ids, both = torch.cat([joined, turned]), torch.cat([positions, places])
    mask = torch.ones_like(ids)
    if masked:
        mask[1, -3:] = 0
    found = model(input_ids=ids, attention_mask=mask if masked else None, position_ids=both).last_hidden_state
    torch.testing.assert_close(found[:1], alone(model, rows), rtol=0, atol=TOLERANCE)
    last = rows[0][:, :2] if masked else rows[0]  # of the last text, three of five tokens are masked
    expected = alone(model, [*rows[:0:-1], last])
    torch.testing.assert_close(found[1:, : expected.shape[1]], expected, rtol=0, atol=TOLERANCE)
    assert not masked or not found[1, -3:].any()


def test_a_compiled_model_keeps_packed_texts_apart() -> None:
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**TEXT, intermediate_size=37)).double().eval()
    rows = texts(99)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        found = compiled(torch.cat(rows, dim=1), position_ids=positions, use_cache=False).last_hidden_state
        torch.testing.assert_close(found, alone(model, rows), rtol=0, atol=TOLERANCE)


def test_packed_training_has_the_loss_and_gradients_of_separate_texts() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TEXT, intermediate_size=37)).double().train()
    rows = [row for row in texts(99) if row.shape[1] > 1]
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    labels = torch.cat([torch.cat([row.new_tensor([[-100]]), row[:, 1:]], dim=1) for row in rows], dim=1)
    packed = model(torch.cat(rows, dim=1), position_ids=positions, labels=labels).loss
    count = sum(row.shape[1] - 1 for row in rows)
    apart = sum(model(row, labels=row).loss * (row.shape[1] - 1) for row in rows) / count
    torch.testing.assert_close(packed, apart, rtol=1e-12, atol=0)
    weights = list(model.parameters())
    for ours, expected in zip(torch.autograd.grad(packed, weights), torch.autograd.grad(apart, weights), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cls", [BertForSequenceClassification, LlamaForSequenceClassification])
def test_heads_answer_for_each_row(cls: Any) -> None:
    torch.manual_seed(0)
    model, rows = cls(cls.config_class(**TEXT, intermediate_size=37, num_labels=3)).double().eval(), texts(99)
    found = model(torch.cat(rows, dim=1), lengths=LENGTHS).logits
    torch.testing.assert_close(found, torch.cat([model(row).logits for row in rows]), rtol=0, atol=TOLERANCE)


def test_tokens_are_classified_without_padding() -> None:
    torch.manual_seed(0)
    model, rows = BertForTokenClassification(BertConfig(**TEXT, intermediate_size=37)).double().eval(), texts(99)
    found = model(torch.cat(rows, dim=1), lengths=LENGTHS).logits
    torch.testing.assert_close(found, torch.cat([model(row).logits for row in rows], dim=1), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"lengths": (3, 3)}, "add up to 6 positions"),
        ({"lengths": (7, 0)}, "add up to 7 positions"),
        ({"lengths": (3, 4), "attention_mask": torch.ones(1, 7)}, "`lengths` and `attention_mask` exclude each other"),
        ({"lengths": (3, 4), "output_attentions": True}, "cannot be shown for rows without padding"),
    ],
)
def test_lengths_that_cannot_be(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BertModel(BertConfig(**TEXT, intermediate_size=37))(torch.ones(1, 7, dtype=torch.long), **more)


def test_a_family_without_rows_says_so() -> None:
    assert not ReformerModel.ragged
    model = BertModel(BertConfig(**TEXT, intermediate_size=37, is_decoder=True))
    with pytest.raises(InputError, match="begin anew within a row.*`past_key_values` cannot be for"):
        cache = model(torch.ones(1, 2, dtype=torch.long)).past_key_values
        model(torch.ones(1, 4, dtype=torch.long), position_ids=torch.tensor([[0, 1, 0, 1]]), past_key_values=cache)
