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
    if family.model_type in ("switch_transformers", "nllb-moe")
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
    fill, places = {"input_ids": ours.config.pad_token_id}, (3, 0) if side == "left" else (0, 3)
    padded = {name: torch.nn.functional.pad(value, places, value=fill.get(name, 0)) for name, value in inputs.items()}
    padded |= {name: inputs[name] for name in ("decoder_input_ids", "decoder_attention_mask")}
    together = ours(**padded, **given)
    for name in ("loss", "logits", "encoder_aux_loss", "decoder_aux_loss"):
        assert error(together[name], alone[name]) <= 10 * SINGLE, name
    if "encoder_z_loss" in alone:
        assert error(together.encoder_z_loss, alone.encoder_z_loss) <= ROUNDED * 10


@pytest.mark.reference
@pytest.mark.parametrize("fraction", [0.2, -1.0])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("family", "cls"), [case for case in WRITERS if case.id == "nllb-moe"])
def test_full_experts_leave_out_the_tokens_that_the_reference_leaves_out(
    family: Any, cls: Any, first: bool, prioritized: bool, fraction: float
) -> None:
    more = {"normalize_router_prob_before_dropping": first, "batch_prioritized_routing": prioritized, "expert_capacity": 3}
    ours, theirs = pair(family, cls, moe_eval_capacity_token_fraction=fraction, **more)
    inputs = batch(family, cls, pad="none") | {"output_hidden_states": True}
    compare(ours(**inputs), theirs(**inputs), SINGLE)
    roomy = pair(family, cls)[0]
    assert error(roomy(**inputs).logits, theirs(**inputs).logits) > 1e-2
