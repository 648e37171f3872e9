"""Padding without a mask: by every route encoders infer the mask that the tokenizer would have given, row by row, or warn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import transept
from tests.core.test_rows import made
from tests.models.harness import BACKBONES
from transept.errors import TranseptWarning
from transept.kinds import text

# Absolute, relative and rotary positions, windows, counted positions, an encoder with its decoder, and an encoder's own mask.
NAMES = ("BertModel", "RobertaModel", "MPNetModel", "ModernBertModel", "T5EncoderModel", "BartModel", "XLNetModel")
ENCODERS = [case for case in BACKBONES if case.id in NAMES]
# Sums of numbers near one, a few hundred at a time, in float64.
TOLERANCE = 2e-12


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TranseptWarning)
        yield


def padded(pad: int) -> tuple[Tensor, Tensor]:
    """Ids (4, 7) of rows that are padded at the right, at the left and not at all, and one of padding alone; and their mask."""
    ids = torch.randint(5, 90, (4, 7), generator=torch.Generator().manual_seed(1))
    ids[0, 4:], ids[1, :2], ids[3] = pad, pad, pad
    mask = (ids != pad).long()
    mask[3] = 1  # nothing tells it from text
    return ids, mask


def states(model: Any, ids: Tensor, **more: Any) -> Tensor:
    """The states of all positions but padding's."""
    found: Tensor = model(input_ids=ids, return_dict=True, **more).last_hidden_state
    return torch.cat([found[0, :4], found[1, 2:], *found[2:]])


def exported(model: Any) -> Any:
    """The model as a program for any number of rows and positions."""
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", max=12)}
    example = {"input_ids": torch.randint(5, 90, (2, 5)), "return_dict": True}
    shapes = {"input_ids": sizes, "return_dict": None}
    return torch.export.export(model, (), example, dynamic_shapes=shapes).module()


ROUTES = [(name, route) for name in NAMES for route in ("eager", "device")]
ROUTES += [("BertModel", "compiled"), ("ModernBertModel", "compiled"), ("BartModel", "compiled")]
ROUTES += [("BertModel", "exported"), ("T5EncoderModel", "exported")]


@pytest.mark.parametrize(("name", "route"), ROUTES)
def test_every_route_infers_the_same(name: str, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(*next(case.values for case in ENCODERS if case.id == name))
    ids, mask = padded(model.config.pad_token_id)
    if route == "device":  # whose values are not looked at
        monkeypatch.setattr(text, "readable", lambda values: False)
    run: Any = torch.compile(model, fullgraph=True, backend="eager") if route == "compiled" else model
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`input_ids` holds the padding id", TranseptWarning)  # of the last row
        run = exported(model) if route == "exported" else run
        torch.testing.assert_close(states(run, ids), states(model, ids, attention_mask=mask), rtol=0, atol=TOLERANCE)
        assert not torch.allclose(states(model, ids), states(model, ids, attention_mask=torch.ones_like(mask)))


def bert(**more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    return transept.BertModel(transept.BertConfig(**sizes | more)).double().eval()


def test_a_row_is_read_as_it_is_alone() -> None:
    model, (ids, _) = bert(), padded(0)
    ids[2, 3] = 0  # padding within a row is text
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        together = model(ids).last_hidden_state
        for row, expected in zip(ids, together, strict=True):
            torch.testing.assert_close(model(row[None]).last_hidden_state[0], expected, rtol=0, atol=TOLERANCE)
        mask = model.infer_mask(ids)
    assert torch.equal(mask, torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1] * 7, [1] * 7]) != 0)
    assert len(said) == 4  # of the batch, of two rows alone, and of the batch
    assert "`input_ids` holds the padding id 0 but no `attention_mask` was passed" in str(said[0].message)


def test_what_is_inferred_or_not_padded_gives_no_warning() -> None:
    model, (ids, _) = bert(), padded(0)
    with quiet():
        model(ids[:3])
        model(ids[2:3])
        model(inputs_embeds=model.embed_tokens(ids))
    assert bert(pad_token_id=None).infer_mask(ids) is None


@pytest.mark.parametrize(
    "settings", [{"is_decoder": True}, {"eos_token_id": 0}, {"bos_token_id": 0}, {"eos_token_id": [2, 0]}], ids=str
)
def test_padding_that_may_be_text_is_attended_to_with_a_warning(settings: dict[str, Any]) -> None:
    model, (ids, _) = bert(**settings), padded(0)
    with torch.no_grad():
        with pytest.warns(TranseptWarning, match="padding is attended to"):
            found = model(ids).last_hidden_state
        expected = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(compiled(ids).last_hidden_state, expected, rtol=0, atol=TOLERANCE)


def test_nothing_is_inferred_of_embeddings() -> None:
    model, (ids, mask) = bert(), padded(0)
    embeds = model.embed_tokens(ids)
    with torch.no_grad():
        whole = model(inputs_embeds=embeds, attention_mask=torch.ones_like(ids)).last_hidden_state
        torch.testing.assert_close(model(inputs_embeds=embeds).last_hidden_state, whole, rtol=0, atol=TOLERANCE)
        masked = states(model, ids, attention_mask=mask)
    assert not torch.allclose(torch.cat([whole[0, :4], whole[1, 2:], *whole[2:]]), masked)
