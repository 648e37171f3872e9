"""What GPT-NeoX adds to the derived suite: names of its rotary settings, its scalings, and layouts of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.errors import ConfigError
from transept.models.gpt_neox import GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXForTokenClassification, GPTNeoXModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_steps, compare, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}["gpt_neox"]
TINY = FAMILY.tiny
# config.json of the smallest Pythia.
PUBLISHED = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}


@pytest.mark.reference
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_files_of_the_older_layout(more: dict[str, Any]) -> None:
    check_config_file(GPTNeoXConfig, PUBLISHED | more)


@pytest.mark.reference
def test_files_with_both_names() -> None:
    from transformers import GPTNeoXConfig as Theirs

    both = PUBLISHED | {"rotary_pct": 1.0, "partial_rotary_factor": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0}
    assert GPTNeoXConfig.from_dict(both).rope_parameters == Theirs.from_dict(both).rope_parameters


def test_rotary_settings_under_either_name() -> None:
    def rope(**settings: Any) -> dict[str, Any]:
        return GPTNeoXConfig(**settings).rope_parameters or {}

    plain = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    assert rope() == plain
    assert rope(rotary_pct=0.5, rotary_emb_base=7.0) == plain | {"partial_rotary_factor": 0.5, "rope_theta": 7.0}
    assert rope(partial_rotary_factor=0.5, rope_theta=7.0) == plain | {"partial_rotary_factor": 0.5, "rope_theta": 7.0}
    # What the caller says replaces what a file says, in whichever spelling.
    for file in (PUBLISHED, GPTNeoXConfig.from_dict(PUBLISHED).to_dict()):
        for name in ("rotary_pct", "partial_rotary_factor"):
            found = GPTNeoXConfig.from_dict(file, **{name: 0.75}).rope_parameters or {}
            assert found == plain | {"partial_rotary_factor": 0.75}


def test_published_checkpoints_keep_masks_and_frequencies(tmp_path: Path) -> None:
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**TINY))
    model.save_pretrained(tmp_path)
    state = stored(str(tmp_path))
    assert {name for name in state if not name.startswith("gpt_neox.")} == {"embed_out.weight"}
    buffers = {f"gpt_neox.layers.{i}.attention.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
    buffers |= {f"gpt_neox.layers.{i}.attention.masked_bias": torch.tensor(-1e9) for i in range(2)}
    buffers |= {f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq": torch.ones(2) for i in range(2)}
    save_file(state | buffers, tmp_path / "model.safetensors")
    again, info = GPTNeoXForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == buffers.keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_heads_are_stored_one_after_the_other(tmp_path: Path) -> None:
    model = GPTNeoXModel(GPTNeoXConfig(**TINY))
    model.save_pretrained(tmp_path)
    fused = stored(str(tmp_path))["layers.1.attention.query_key_value.weight"].view(4, 3, 8, 32)
    x = torch.randn(2, 5, 32)
    attention = model.layers[1].self_attn
    bias = attention.qkv_proj.bias.view(4, 3, 8)
    for index, part in enumerate(attention.project(x)):
        expected = torch.einsum("btd,hed->bhte", x, fused[:, index]) + bias[:, index, None]
        torch.testing.assert_close(part, expected)


@pytest.mark.reference
@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": "linear", "factor": 3.0}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}],
    ids=["linear", "dynamic", "yarn"],
)
def test_scalings_turn_a_part_of_each_head(scaling: dict[str, Any]) -> None:
    rope = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, **scaling}
    ours, theirs = pair(FAMILY, GPTNeoXModel, rope_parameters=rope, max_position_embeddings=6)
    inputs = batch(FAMILY, GPTNeoXModel)
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left", "right"])
@pytest.mark.parametrize("parallel", [True, False])
def test_steps_equal_the_reference(parallel: bool, pad: str) -> None:
    ours, theirs = pair(FAMILY, GPTNeoXForCausalLM, use_parallel_residual=parallel)
    check_steps(ours, theirs, batch(FAMILY, GPTNeoXForCausalLM, pad=pad))


def test_token_classifiers_drop_out_as_the_reference_does() -> None:
    assert GPTNeoXForTokenClassification(GPTNeoXConfig(**TINY)).head.dropout.p == 0.1
    assert GPTNeoXForTokenClassification(GPTNeoXConfig(**TINY, classifier_dropout=0.3)).head.dropout.p == 0.3


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="must be a positive multiple of `num_attention_heads`"):
        GPTNeoXModel(GPTNeoXConfig(**TINY | {"num_attention_heads": 5}))
    with pytest.raises(ConfigError, match="`partial_rotary_factor` in `rope_parameters` must leave 2 to 8 elements"):
        GPTNeoXModel(GPTNeoXConfig(**TINY | {"rope_parameters": {"partial_rotary_factor": 0.1}}))
