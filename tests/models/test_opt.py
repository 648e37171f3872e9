"""What OPT adds to the derived suite: positions counted by the mask, sizes of embeddings, and layouts of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.errors import ConfigError, InputError
from transept.models.opt import OPTConfig, OPTForCausalLM, OPTModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_steps, compare, error, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}["opt"]
TINY = FAMILY.tiny
# config.json of the published models with 125 and 350 million parameters.
SMALL = {
    "_remove_final_layer_norm": False,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "transformers_version": "4.21.0.dev0",
    "use_cache": True,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
MEDIUM = SMALL | {
    "do_layer_norm_before": False,
    "ffn_dim": 4096,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "word_embed_proj_dim": 512,
}


@pytest.mark.reference
@pytest.mark.parametrize("values", [SMALL, MEDIUM, SMALL | {"_remove_final_layer_norm": True}])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(OPTConfig, values)
    config = OPTConfig.from_dict(values | {"_name_or_path": "facebook/opt-125m"})
    assert config._remove_final_layer_norm is values["_remove_final_layer_norm"]
    assert config.to_dict()["_remove_final_layer_norm"] is values["_remove_final_layer_norm"]
    assert "_name_or_path" not in config.to_dict()


def test_published_checkpoints_keep_no_prefix_and_a_version(tmp_path: Path) -> None:
    model = OPTForCausalLM(OPTConfig(**TINY, word_embed_proj_dim=12))
    model.save_pretrained(tmp_path)
    state = {name.removeprefix("model."): tensor for name, tensor in stored(str(tmp_path)).items()}
    assert state["decoder.embed_positions.weight"].shape == (22, 32)
    state |= {"decoder.version": torch.tensor([3.0]), "lm_head.weight": state["decoder.embed_tokens.weight"].clone()}
    save_file(state, tmp_path / "model.safetensors")
    again, info = OPTForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == {"decoder.version"}
    assert again.lm_head.weight is again.backbone.embed_tokens.weight
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left", "right"])
@pytest.mark.parametrize("variant", ["narrow", "post"])
def test_steps_equal_the_reference(variant: str, pad: str) -> None:
    ours, theirs = pair(FAMILY, OPTForCausalLM, **FAMILY.variants[variant])
    check_steps(ours, theirs, batch(FAMILY, OPTForCausalLM, pad=pad))


@pytest.mark.reference
def test_given_positions_and_masks_with_holes_equal_the_reference() -> None:
    ours, theirs = pair(FAMILY, OPTModel)
    inputs = batch(FAMILY, OPTModel, pad="none")
    inputs["attention_mask"][:, 4] = 0
    with torch.no_grad():
        for given in (inputs, inputs | {"position_ids": torch.arange(9)[None] * 2}):
            compare(ours(**given), theirs(**given), SINGLE, only=inputs["attention_mask"])


def test_rows_may_be_longer_than_the_table_where_they_are_padded() -> None:
    model = OPTModel(OPTConfig(**TINY)).eval()
    ids = torch.randint(5, 99, (2, 22), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = mask[1, 15:] = 0
    with torch.no_grad():
        alone = model(ids[:1, 2:]).last_hidden_state
        assert error(model(ids, attention_mask=mask).last_hidden_state[:1, 2:], alone) <= SINGLE
    mask[0, 1] = 1
    with pytest.raises(InputError, match="21 positions, but OPTModel has embeddings for 20"):
        model(ids, attention_mask=mask)
    cache = model(ids[:, :20]).past_key_values
    with pytest.raises(InputError, match="21 positions"):
        model(ids[:, 20:21], past_key_values=cache)


def test_layers_may_be_left_out_in_training() -> None:
    model = OPTModel(OPTConfig(**TINY, layerdrop=1.0, dropout=0.0))
    ids = torch.randint(5, 99, (2, 7))
    bare = model.norm(model.embed_tokens(ids) + model.embed_positions(torch.arange(7)))
    assert torch.equal(model.train()(ids, use_cache=False).last_hidden_state, bare)
    assert error(model.eval()(ids).last_hidden_state, bare) > 0.1


def test_new_weights_have_the_deviation_of_the_config() -> None:
    model = OPTForCausalLM(OPTConfig(**TINY | {"init_std": 0.5}))
    assert float(model.backbone.layers[0].mlp.up_proj.weight.detach().std()) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layerdrop": 1.5}, r"`layerdrop` of OPTConfig must be in \[0, 1\]"),
        ({"init_std": -1.0}, "`init_std` of OPTConfig must be at least 0"),
        ({"num_attention_heads": 5}, "must be a positive multiple of `num_attention_heads`"),
        ({"pad_token_id": 99}, "`pad_token_id` of OPTConfig must be an id of the vocabulary"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OPTModel(OPTConfig(**TINY | settings))
