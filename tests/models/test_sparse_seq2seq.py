"""Encoder–decoders with experts: what their routers show and add to losses, and that padding counts nowhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .families import FAMILIES
from .harness import ROUNDED, SINGLE, batch, classes, compare, error, labels, pair

WRITERS = [
    pytest.param(family, cls, id=family.model_type)
    for family in FAMILIES
    if family.model_type in ("switch_transformers",)
    for cls in classes(family)
    if cls.__name__.endswith("ForConditionalGeneration")
]
LIMITS: list[dict[str, Any]] = [{}, {"expert_capacity": 1}]


@pytest.mark.reference
@pytest.mark.parametrize("more", LIMITS, ids=["roomy", "full"])
@pytest.mark.parametrize(("family", "cls"), WRITERS)
def test_routers_and_their_losses_equal_the_reference(family: Any, cls: Any, more: dict[str, Any]) -> None:
    ours, theirs = pair(family, cls, router_aux_loss_coef=0.3, **more)
    inputs = batch(family, cls, pad="none")
    inputs |= labels(family, cls, inputs) | {"output_router_logits": True, "use_cache": False}
    mine, other = ours(**inputs), theirs(**inputs)
    compare(mine, other, SINGLE)
    name = next(name for name, _ in theirs.named_parameters() if name.endswith("router.classifier.weight"))
    found, expected = (
        torch.autograd.grad(output.loss, dict(model.named_parameters())[name])[0]
        for model, output in ((ours, mine), (theirs, other))
    )
    assert error(found, expected) <= 1e-4
    shown = ours(**{name: value for name, value in inputs.items() if name != "output_router_logits"})
    assert "encoder_router_logits" not in shown
    assert float(shown.loss.detach()) != pytest.approx(float(mine.loss.detach()), abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("more", LIMITS, ids=["roomy", "full"])
@pytest.mark.parametrize(("family", "cls"), WRITERS)
def test_padding_takes_no_place_and_counts_nowhere(family: Any, cls: Any, more: dict[str, Any], side: str) -> None:
    ours = pair(family, cls, **more)[0]
    inputs = batch(family, cls, pad="none", rows=1)
    given = {"labels": inputs["decoder_input_ids"], "output_router_logits": True, "use_cache": False}
    alone = ours(**inputs, **given)
    padded = {name: torch.nn.functional.pad(value, (3, 0) if side == "left" else (0, 3)) for name, value in inputs.items()}
    padded |= {name: inputs[name] for name in ("decoder_input_ids", "decoder_attention_mask")}
    together = ours(**padded, **given)
    for name in ("loss", "logits", "encoder_aux_loss", "decoder_aux_loss"):
        assert error(together[name], alone[name]) <= 10 * SINGLE, name
    if "encoder_z_loss" in alone:
        assert error(together.encoder_z_loss, alone.encoder_z_loss) <= ROUNDED * 10
