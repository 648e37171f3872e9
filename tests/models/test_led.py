"""LED with tokens that have global attention, beside the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import InputError

from .families import FAMILIES
from .harness import SINGLE, batch, classes, compare, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "led")
MODEL, WRITER = (cls for cls in classes(FAMILY) if cls.__name__ in ("LEDModel", "LEDForConditionalGeneration"))


def _inputs(cls: Any, pad: str) -> dict[str, Any]:
    """A batch of eight positions, a multiple of the window; the first token of each row and one more have global attention."""
    inputs = batch(FAMILY, cls, pad=pad, length=8)
    chosen = torch.zeros_like(inputs["input_ids"])
    chosen[:, 0], chosen[range(3), [3, 2, 1]] = 1, 1
    return inputs | {"global_attention_mask": chosen}


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "right"])
def test_global_tokens_equal_the_reference(pad: str) -> None:
    ours, theirs = pair(FAMILY, MODEL, attention="eager")
    inputs = _inputs(MODEL, pad)
    more = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        mine, other = ours(**inputs, **more), theirs(**inputs, **more)
    assert mine.encoder_global_attentions[0].shape == (3, 4, 8, 2)
    compare(mine, other, SINGLE)
    ours.set_attn_implementation("sdpa")
    with torch.no_grad():
        torch.testing.assert_close(ours(**inputs).last_hidden_state, other.last_hidden_state)


@pytest.mark.reference
@pytest.mark.parametrize("beams", [1, 3])
def test_generates_with_global_tokens(beams: int) -> None:
    ours, theirs = pair(FAMILY, WRITER)
    inputs = {name: value for name, value in _inputs(WRITER, "right").items() if not name.startswith("decoder_")}
    asked = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False}
    mine, other = ours.generate(**inputs, **asked), theirs.generate(**inputs, **asked)
    assert mine.tolist() == other.tolist()
    del inputs["global_attention_mask"]
    with torch.no_grad():
        alone = ours(**inputs, decoder_input_ids=torch.full((3, 1), 2)).logits
    assert not torch.equal(
        alone,
        ours(**_inputs(WRITER, "right") | {"decoder_input_ids": torch.full((3, 1), 2), "decoder_attention_mask": None}).logits,
    )


def test_masks_of_pairs_are_refused() -> None:
    ours, _ = pair(FAMILY, MODEL)
    inputs = batch(FAMILY, MODEL, pad="none")
    with pytest.raises(InputError, match="must be \\(batch, positions\\)"):
        ours(**inputs | {"attention_mask": torch.ones(3, 9, 9, dtype=torch.bool)})
    with pytest.raises(InputError, match="global_attention_mask"):
        ours(**inputs, global_attention_mask=torch.ones(3, 4, dtype=torch.long))
