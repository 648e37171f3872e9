"""MVP's prompts beside the reference's, whose encoder is given them here: its own constructor drops the setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import InputError
from transept.models.mvp import MvpConfig, MvpForConditionalGeneration

from .families import FAMILIES
from .harness import SINGLE, batch, classes, compare

FAMILY = next(family for family in FAMILIES if family.model_type == "mvp")


@pytest.fixture(scope="module")
def models() -> tuple[MvpForConditionalGeneration, Any]:
    """Ours and theirs with the same prompts."""
    import transformers
    from transformers.models.mvp.modeling_mvp import MvpEncoder

    torch.manual_seed(0)
    settings = FAMILY.tiny | {"use_prompt": True}
    theirs: Any = transformers.MvpForConditionalGeneration(transformers.MvpConfig(**settings))
    theirs.model.encoder = MvpEncoder(theirs.config, use_prompt=True)
    theirs.tie_weights()
    ours = MvpForConditionalGeneration(MvpConfig(**settings))
    ours.load_state_dict(theirs.state_dict())
    return ours.eval(), theirs.eval()


@pytest.mark.reference
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_prompts_equal_the_reference(models: tuple[Any, Any], kernel: str) -> None:
    ours, theirs = models
    ours.set_attn_implementation(kernel)
    for pad in ("none", "right"):
        inputs = batch(FAMILY, type(ours), pad=pad)
        more = {"output_attentions": kernel == "eager", "output_hidden_states": True}
        with torch.no_grad():
            compare(ours(**inputs, **more), theirs(**inputs, **more), SINGLE)
    inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    asked = {"max_new_tokens": 8, "num_beams": 2, "do_sample": False}
    assert ours.generate(**inputs, **asked).tolist() == theirs.generate(**inputs, **asked).tolist()


def test_prompts_alone_are_tuned(models: tuple[Any, Any]) -> None:
    for kind in classes(FAMILY):
        ours: Any = kind(models[0].config)
        ours.set_lightweight_tuning()
        trained = {name for name, parameter in ours.named_parameters() if parameter.requires_grad}
        assert trained == {name for name, _ in ours.named_parameters() if "_prompt." in name}
        assert len(trained) == (10 if kind.__name__ == "MvpForCausalLM" else 15)
        with pytest.raises(InputError, match="no prompts"):
            kind(MvpConfig(**FAMILY.tiny)).set_lightweight_tuning()  # type: ignore[attr-defined]
