"""What HuBERT adds to the derived suite: published configs, old names of its positions, and what is frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transept.errors import ConfigError, InputError
from transept.models.hubert import HubertConfig, HubertForCTC, HubertModel

from .families import FAMILIES
from .harness import check_config_file

FAMILY = next(family for family in FAMILIES if family.model_type == "hubert")
# config.json of hubert-large-ls960-ft, shortened.
PUBLISHED = {
    "architectures": ["HubertForCTC"],
    "conv_bias": True,
    "conv_dim": [512] * 7,
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "do_stable_layer_norm": True,
    "feat_extract_dropout": 0.0,
    "feat_extract_norm": "layer",
    "feat_proj_dropout": 0.1,
    "feat_proj_layer_norm": True,
    "gradient_checkpointing": False,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "model_type": "hubert",
    "num_attention_heads": 16,
    "num_feat_extract_layers": 7,
    "num_hidden_layers": 24,
    "vocab_size": 32,
}


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, {"feat_proj_layer_norm": False, "conv_pos_batch_norm": True}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    check_config_file(HubertConfig, PUBLISHED | extra)


def test_a_config_holds_no_settings_of_others() -> None:
    assert not {"codevector_dim", "tdnn_dim", "adapter_attn_dim", "num_negatives"} & HubertConfig().to_dict().keys()
    with pytest.raises(ConfigError, match="conv_kernel"):
        HubertConfig(conv_kernel=[10])


def test_old_names_of_normed_weights_are_read_and_new_ones_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = HubertModel(HubertConfig(**FAMILY.tiny)).eval()
    ours.save_pretrained(tmp_path)
    stored, place = load_file(tmp_path / "model.safetensors"), "encoder.pos_conv_embed.conv"
    assert f"{place}.parametrizations.weight.original0" in stored
    for number, letter in enumerate("gv"):
        stored[f"{place}.weight_{letter}"] = stored.pop(f"{place}.parametrizations.weight.original{number}")
    save_file(stored, tmp_path / "model.safetensors")
    again = HubertModel.from_pretrained(tmp_path).eval()
    wave = torch.randn(1, 900)
    assert torch.equal(again(wave).last_hidden_state, ours(wave).last_hidden_state)


def test_norms_over_the_batch_learn_in_training_alone() -> None:
    ours = HubertModel(HubertConfig(**FAMILY.tiny | {"conv_pos_batch_norm": True, "apply_spec_augment": False}))
    norm: Any = ours.embed_positions.norm
    ours.eval()(torch.randn(2, 900))
    assert not norm.running_mean.any()
    ours.train()(torch.randn(2, 900))
    assert norm.running_mean.any()


def test_convolutions_are_frozen_and_bad_sound_is_an_error() -> None:
    ours = HubertForCTC(HubertConfig(**FAMILY.tiny)).eval()
    ours.freeze_feature_encoder()
    assert not any(each.requires_grad for each in ours.backbone.feature_extractor.parameters())
    with pytest.raises(InputError, match="has 0 samples"):
        ours(torch.zeros(1, 0))
    with pytest.raises(InputError, match=r"nan at \[0, 0\]"):
        ours(torch.full((1, 900), float("nan")))
    assert torch.isfinite(ours(torch.zeros(1, 900)).logits).all()
