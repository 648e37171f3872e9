"""Rows without padding and packed batches: every text is read as it is alone, by every family and kernel, in training too."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import TEXT, Family
from tests.models.harness import (
    BACKBONES,
    EVERY,
    SINGLE,
    USED,
    batch,
    compare,
    error,
    is_part,
    originals,
    pair,
    settings,
    takes_cache,
)
from tests.thorough import crossed
from transept.core.model import Backbone, Model
from transept.errors import InputError
from transept.kinds.hybrid import HybridBackbone
from transept.kinds.text import TextBackbone
from transept.models.bert import BertConfig, BertForSequenceClassification, BertForTokenClassification, BertModel
from transept.models.llama import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaModel
from transept.models.reformer import ReformerModel

LENGTHS = (5, 2, 2, 7, 1)
READERS = [case for case in BACKBONES if issubclass(case.values[1], TextBackbone) and not is_part(case.values[1])]
RAGGED = [case for case in READERS if case.values[1].ragged]
# CLIP and SigLIP pool each row at one token, so that a row holds one text.
PACKED = [case for case in READERS if "seq_idx" in case.values[1].options()]
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


@pytest.mark.parametrize(("family", "cls", "attention"), crossed(RAGGED, ["sdpa", "eager"], 90, whole=USED))
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


def numbers(lengths: Sequence[int] = LENGTHS) -> Tensor:
    """(1, N) of each position's text."""
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]


def counted(lengths: Sequence[int] = LENGTHS) -> Tensor:
    """(1, N) of positions that begin anew."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


@pytest.mark.parametrize(("family", "cls", "masked"), crossed(PACKED, [False, True], 90, whole=USED))
def test_packed_texts_do_not_see_each_other(family: Family, cls: type[Backbone], masked: bool) -> None:
    model = made(family, cls)
    rows = texts(int(model.config.vocab_size))
    # Two rows of the batch: the texts in both orders, the second with padding at its end.
    ids, both = (
        torch.cat([torch.cat(rows, dim=1), torch.cat(rows[::-1], dim=1)]),
        torch.cat([numbers(), numbers(LENGTHS[::-1])]),
    )
    mask = torch.ones_like(ids)
    if masked:
        mask[1, -3:] = 0
    found = model(input_ids=ids, attention_mask=mask if masked else None, seq_idx=both).last_hidden_state
    torch.testing.assert_close(found[:1], alone(model, rows), rtol=0, atol=TOLERANCE)
    last = rows[0][:, :2] if masked else rows[0]  # of the last text, three of five tokens are masked
    expected = alone(model, [*rows[:0:-1], last])
    torch.testing.assert_close(found[1:, : expected.shape[1]], expected, rtol=0, atol=TOLERANCE)
    assert not masked or not found[1, -3:].any()


BOUNDS = torch.tensor([0, 5, 7, 9, 16, 17])
TOLD: list[dict[str, Tensor]] = [
    {"seq_idx": numbers()},
    {"seq_idx": 7 - numbers().int() % 2},  # texts change where numbers do
    {"cu_seq_lens_q": BOUNDS},
    {"cu_seq_lens_k": BOUNDS.int(), "max_length_k": 7},  # type: ignore[dict-item]
    {"seq_idx": numbers(), "cu_seq_lens_q": BOUNDS, "cu_seq_lens_k": BOUNDS, "position_ids": counted()},
]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: "-".join(told))
@pytest.mark.parametrize("compiled", [False, True])
def test_texts_may_be_told_in_several_ways(told: dict[str, Tensor], compiled: bool) -> None:
    model, rows = BertModel(BertConfig(**TEXT, intermediate_size=37)).double().eval(), texts(99)
    torch._dynamo.reset()  # graphs of other tests count towards the limit
    run: Any = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
    with torch.no_grad():
        found = run(torch.cat(rows, dim=1), **told).last_hidden_state
        torch.testing.assert_close(found, alone(model, rows), rtol=0, atol=TOLERANCE)


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaModel(LlamaConfig(**TEXT, intermediate_size=37)).double().eval()


def test_a_compiled_model_infers_texts() -> None:
    model, rows = llama(), texts(99)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        found = compiled(torch.cat(rows, dim=1), position_ids=counted(), use_cache=False).last_hidden_state
        torch.testing.assert_close(found, alone(model, rows), rtol=0, atol=TOLERANCE)


def test_an_exported_model_infers_texts_of_any_length() -> None:
    model, rows = llama(), texts(99)
    length = {1: torch.export.Dim("length", max=64)}
    example: dict[str, Any] = {"input_ids": rows[3], "position_ids": torch.arange(7)[None], "use_cache": False}
    shapes = {"input_ids": length, "position_ids": length, "use_cache": None}
    exported = torch.export.export(model, (), example, dynamic_shapes=shapes).module()
    with torch.no_grad():
        found = exported(input_ids=torch.cat(rows, dim=1), position_ids=counted(), use_cache=False).last_hidden_state
        torch.testing.assert_close(found, alone(model, rows), rtol=0, atol=TOLERANCE)


TASKS = ("WhisperForCausalLM", "LlamaForCausalLM", "LlamaForTokenClassification")
PLACED = [case for case in EVERY if case.id in TASKS or case.values[1] in [other.values[1] for other in READERS]]
PLACED = [case for case in PLACED if "position_ids" in getattr(case.values[1], "backbone_class", case.values[1]).reads]
UNLIKE = {"ReformerModel": "the reference's axial positions take no such rows", "CLIPTextModel": "its rows end with one token"}
UNLIKE["FNetModel"] = "a transform has no mask, and its rows hold one text"
UNLIKE["Llama4TextModel"] = "the reference cuts texts where the chunks of their row end: see tests/models/test_experts.py"


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), PLACED)
def test_texts_are_inferred_where_the_reference_infers_them(family: Family, cls: type[Model]) -> None:
    if cls.__name__ in UNLIKE:
        pytest.skip(UNLIKE[cls.__name__])
    ours, theirs = pair(family, cls)  # BigBird's of the reference changes its attention for good when it reads short rows
    if isinstance(ours.body, HybridBackbone):  # the reference's states pass from text to text
        _equal_texts_alone(ours)
        return
    backbone: Any = ours.body
    ids = torch.randint(5, backbone.vocab_size, (3, 6), generator=torch.Generator().manual_seed(1))
    places = torch.tensor([[0] * 6, [0, 1, 2, 0, 1, 2], [3, 4, 5, 2, 3, 4]]) + backbone.first_position
    asked: list[dict[str, Any]] = [{}, {"use_cache": False}] if takes_cache(cls) else [{}]
    for more in (*asked, *({"attention_mask": torch.ones_like(ids)} | each for each in asked)):
        given: dict[str, Any] = {"input_ids": ids, "position_ids": places, **more}
        with torch.no_grad():
            assert error(ours(**given)[0], theirs(**given)[0]) <= SINGLE
            if "labels" in inspect.signature(cls.forward).parameters:
                mine, expected = ours(**given, labels=ids % 2), theirs(**given, labels=ids % 2)
                assert error(mine.logits, expected.logits) <= SINGLE
                assert error(mine.loss, expected.loss) <= SINGLE
                assert more.get("use_cache") or "past_key_values" not in mine


def _equal_texts_alone(model: Any) -> None:
    ids = torch.randint(5, model.body.vocab_size, (1, 6), generator=torch.Generator().manual_seed(1))
    places = torch.tensor([[0, 1, 2, 0, 1, 2]]) + model.body.first_position
    with torch.no_grad():
        rows = torch.cat([model(input_ids=part, use_cache=False)[0] for part in ids.split(3, dim=1)], dim=1)
        assert error(model(input_ids=ids, position_ids=places, use_cache=False)[0], rows) <= SINGLE


@pytest.mark.reference
def test_attentions_and_cross_attention_of_inferred_texts() -> None:
    family, cls = next(case.values for case in EVERY if case.id == "LlamaModel")
    ours, theirs = pair(family, cls, attention="eager")
    given: dict[str, Any] = {"input_ids": torch.arange(5, 11)[None], "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    given |= {"output_attentions": True, "use_cache": False}
    with torch.no_grad():
        compare(ours(**given), theirs(**given), SINGLE)
    family, cls = next(case.values for case in EVERY if case.id == "WhisperModel")
    ours, theirs, _ = originals(family, cls)
    given = {"input_features": batch(family, cls)["input_features"], "use_cache": False}
    given |= {
        "decoder_input_ids": torch.arange(5, 23).view(3, 6),
        "decoder_position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]] * 3),
    }
    with torch.no_grad():
        compare(ours(**given), theirs(**given), SINGLE)
    family, cls = next(case.values for case in EVERY if case.id == "WhisperForConditionalGeneration")
    ours, theirs, _ = originals(family, cls)
    given |= {"labels": given["decoder_input_ids"]}
    for more in ({}, {"use_cache": None}):
        with torch.no_grad():
            assert error(ours(**given | more).logits, theirs(**given | more).logits) <= SINGLE


def test_packed_training_has_the_loss_and_gradients_of_separate_texts() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TEXT, intermediate_size=37)).double().train()
    rows = [row for row in texts(99) if row.shape[1] > 1]
    positions = counted([row.shape[1] for row in rows])
    labels = torch.cat([torch.cat([row.new_tensor([[-100]]), row[:, 1:]], dim=1) for row in rows], dim=1)
    joined = torch.cat(rows, dim=1)
    packed = model(joined, position_ids=positions, labels=labels, use_cache=False).loss
    told = model(joined, seq_idx=numbers([row.shape[1] for row in rows]), labels=labels).loss
    torch.testing.assert_close(told, packed, rtol=1e-12, atol=0)
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"seq_idx": numbers(), "lengths": LENGTHS},
            "`seq_idx` tells that rows hold several texts, which `lengths` cannot be for",
        ),
        ({"seq_idx": numbers(), "use_cache": True}, "which `use_cache` cannot be for"),
        ({"seq_idx": numbers(), "attention_mask": torch.ones(1, 1, 17, 17)}, r"`attention_mask` must be .* beside `seq_idx`"),
        ({"seq_idx": numbers()[0]}, r"`seq_idx` has the shape \(17,\), but the inputs are \(1, 17\)"),
        ({"seq_idx": counted().float()}, "`seq_idx` must be a tensor of integers"),
        ({"cu_seq_lens_q": BOUNDS[:-1]}, r"`cu_seq_lens_q` must rise from 0 to 17, .* but is \[0, 5, 7, 9, 16\]"),
        ({"cu_seq_lens_q": BOUNDS[1:]}, "must rise from 0"),
        ({"cu_seq_lens_k": BOUNDS[[0, 2, 1, 5]]}, "must rise from 0"),
        ({"cu_seq_lens_q": BOUNDS.float()}, r"\(texts \+ 1\) integers .* but are \(6,\) of torch.float32"),
        ({"cu_seq_lens_q": BOUNDS, "cu_seq_lens_k": BOUNDS[[0, 1, 5]]}, "tell of different texts"),
        ({"cu_seq_lens_q": BOUNDS, "seq_idx": counted()}, "tell of different texts"),
    ],
)
def test_texts_that_cannot_be(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BertModel(BertConfig(**TEXT, intermediate_size=37))(torch.ones(1, 17, dtype=torch.long), **more)


def test_rows_make_no_cache() -> None:
    with pytest.raises(InputError, match="`use_cache` is true, but rows without padding have no cache"):
        llama()(torch.cat(texts(99), dim=1), lengths=LENGTHS, use_cache=True)


def test_a_family_without_rows_says_so() -> None:
    assert not ReformerModel.ragged
    model, ids = BertModel(BertConfig(**TEXT, intermediate_size=37, is_decoder=True)), torch.ones(1, 4, dtype=torch.long)
    cache = model(ids[:, :2]).past_key_values
    with pytest.raises(InputError, match="`seq_idx` tells that rows hold several texts, which `past_key_values` cannot be for"):
        model(ids, seq_idx=torch.tensor([[0, 0, 1, 1]]), past_key_values=cache)


def test_positions_beside_a_cache_are_positions() -> None:
    model, places = llama(), torch.tensor([[0, 1, 0, 1]])
    ids = torch.arange(5, 11)[None]
    cache = model(ids[:, :2]).past_key_values
    found = model(ids[:, 2:], position_ids=places, past_key_values=cache).last_hidden_state
    whole = model(ids, position_ids=torch.tensor([[0, 1, 0, 1, 0, 1]]), attention_mask=torch.ones_like(ids)).last_hidden_state
    torch.testing.assert_close(found, whole[:, 2:], rtol=0, atol=TOLERANCE)
