"""PEGASUS-X beside the reference, whose encoder shows more states than positions have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from .families import FAMILIES
from .harness import SINGLE, batch, classes, error, labels, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "pegasus_x")


def same_attention(ours: dict[str, Tensor], theirs: dict[str, Tensor], *, shift: int, tokens: int) -> None:
    """Compare weights of real positions: the reference's blocks have more before and behind them."""
    of_tokens = theirs["global"][..., :3], theirs["global"][..., 3 + shift : 3 + shift + tokens]
    assert error(ours["global"], torch.cat(of_tokens, dim=-1)) <= SINGLE
    mine, other = (each["local"].flatten(2, 3)[:, :, shift : shift + tokens] for each in (ours, theirs))
    assert error(mine, other) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "right", "left"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_equals_the_reference(pad: str, kernel: str) -> None:
    for cls in classes(FAMILY):
        ours, theirs = pair(FAMILY, cls, attention=kernel)
        inputs = batch(FAMILY, cls, pad=pad)
        inputs |= labels(FAMILY, cls, inputs)
        more = {"output_hidden_states": True, "output_attentions": kernel == "eager"}
        with torch.no_grad():
            mine, other = ours(**inputs, **more), theirs(**inputs, **more)
        shown = dict(other)
        states = shown.pop("encoder_hidden_states")
        tokens = inputs["input_ids"].shape[1]
        states = [*(each[:, :tokens] for each in states[:-1]), states[-1][0]]
        assert error(mine.encoder_hidden_states, tuple(states)) <= SINGLE
        shown.pop("past_key_values", None)
        for number, weights in enumerate(shown.pop("encoder_attentions", ())):
            same_attention(mine.encoder_attentions[number], weights, shift=2 * (number % 2), tokens=tokens)
        for name in shown:
            assert error(mine[name], shown[name]) <= SINGLE, name


@pytest.mark.reference
@pytest.mark.parametrize("beams", [1, 3])
def test_writes_as_the_reference(beams: int) -> None:
    cls: Any = next(cls for cls in classes(FAMILY) if "Generation" in cls.__name__)
    ours, theirs = pair(FAMILY, cls)
    inputs = {name: value for name, value in batch(FAMILY, cls).items() if not name.startswith("decoder_")}
    asked = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False}
    assert ours.generate(**inputs, **asked).tolist() == theirs.generate(**inputs, **asked).tolist()
