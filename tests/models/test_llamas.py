"""Llama's kin equal the reference in float64, where its norms and rotations stay in float64, too; and files of older layouts."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import transept
from tests.thorough import in_turn

from .families import Family
from .families.llamas import LLAMAS
from .harness import DOUBLE, batch, classes, compare, in_double, pair

pytestmark = pytest.mark.reference


# A root that is whole: the reference keeps it in float32.
WHOLE = {name: {"hidden_size": 64} for name in ("gemma", "gemma3_text", "gemma4_text")}


@pytest.mark.parametrize("family", in_turn([pytest.param(family, id=family.model_type) for family in LLAMAS], 20))
def test_equals_the_reference_in_double(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = next(cls for cls in classes(family) if cls.__name__.endswith("CausalLM"))
    ours, theirs = pair(family, cls, attention="eager", **WHOLE.get(family.model_type, {}))
    ours, theirs = ours.double(), theirs.double()
    inputs = batch(family, cls) | {"output_hidden_states": True}
    with torch.no_grad():
        mine = ours(**inputs)
    compare(mine, in_double(theirs, monkeypatch, **inputs), DOUBLE)


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "attention_factor": 1.2}
OLD: dict[str, dict[str, Any]] = {
    "gemma": {"hidden_act": "gelu", "rope_theta": 777.0},
    "gemma3_text": {
        "rope_theta": 3e5,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
        "num_hidden_layers": 7,
    },
    "olmo3": {"rope_theta": 3e5, "rope_scaling": YARN, "num_hidden_layers": 5},
    "cohere2": {"sliding_window_pattern": 3, "num_hidden_layers": 7, "rope_theta": 5e4},
    "stablelm": {"partial_rotary_factor": 0.5, "rope_theta": 3e5},
    "apertus": {},
    "exaone4": {"num_hidden_layers": 8},
}


@pytest.mark.parametrize("model_type", OLD)
def test_older_files_mean_what_they_meant(model_type: str) -> None:
    import transformers

    values = {"model_type": model_type, **OLD[model_type]}
    ours = transept.AutoConfig.for_model(**values)
    theirs = transformers.AutoConfig.for_model(**values)
    for config in (ours, type(ours).from_dict(theirs.to_dict()), type(theirs).from_dict(ours.to_dict())):
        assert config.rope_parameters == theirs.rope_parameters
        assert getattr(config, "hidden_act", None) == getattr(theirs, "hidden_act", None)
        assert getattr(config, "layer_types", None) == getattr(theirs, "layer_types", None)


def test_norms_and_rotary_tables_have_the_references_names() -> None:
    from transformers.models.phi import modeling_phi

    norm = importlib.import_module("transept.models.gemma.modeling_gemma").GemmaRMSNorm
    rotary = importlib.import_module("transept.models.phi.modeling_phi").PhiRotaryEmbedding
    settings = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 50, "intermediate_size": 8}
    states, positions = torch.zeros(1, 5, 32), torch.arange(5)[None]
    ours = rotary(transept.PhiConfig(**settings))
    theirs = modeling_phi.PhiRotaryEmbedding(modeling_phi.PhiConfig(**settings))
    for mine, other in zip(ours(states, positions), theirs(states, positions), strict=True):
        assert torch.equal(mine, other)
    assert isinstance(transept.GemmaModel(transept.GemmaConfig(**settings)).norm, norm)
    assert torch.equal(norm(8)(torch.ones(8)), torch.ones(8) / (1 + 1e-6) ** 0.5)
