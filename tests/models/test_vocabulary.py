"""Vocabularies that grow: what comes of it is saved and loaded whole, and reads the new tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import InputError

from .families import Family
from .harness import EVERY, USED, batch, pair

pytestmark = pytest.mark.reference

GROWING = [case for case in EVERY if case.values[0].modality not in ("image", "audio", "pictures")]


@pytest.mark.parametrize(("family", "cls"), in_turn(GROWING, 40, whole=[case for case in GROWING if case in USED]))
def test_a_grown_vocabulary_is_saved_and_read(family: Family, cls: type[Model], tmp_path: Path) -> None:
    model, _ = pair(family, cls)
    if family.model_type.endswith("encoder_decoder"):
        with pytest.raises(InputError, match="vocabularies of their own"):
            model.resize_token_embeddings(110)
        return
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return
    size = table.num_embeddings + 3
    assert model.resize_token_embeddings(size).num_embeddings == size
    model.save_pretrained(tmp_path)
    again, inputs = cls.from_pretrained(tmp_path).eval(), batch(family, cls)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    for name in inputs.keys() & {"input_ids", "decoder_input_ids"}:
        inputs[name][0, ..., 2] = size - 1
    for each in (model, again):
        each(**inputs)
