"""What BLOOM adds to the derived suite: biases with caches, padding and packed rows, and layouts of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.errors import ConfigError
from transept.models.bloom import BloomConfig, BloomForCausalLM, BloomForTokenClassification, BloomModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_steps, error, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}["bloom"]
TINY = FAMILY.tiny
# config.json of the published model with 560 million parameters.
PUBLISHED = {
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_embed": 1024,
    "n_inner": None,
    "n_layer": 24,
    "num_attention_heads": 16,
    "offset_alibi": 100,
    "pad_token_id": 3,
    "pretraining_tp": 1,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "slow_but_exact": False,
    "transformers_version": "4.20.0",
    "unk_token_id": 0,
    "use_cache": True,
    "vocab_size": 250880,
}


@pytest.mark.reference
def test_files_of_the_older_layout() -> None:
    check_config_file(BloomConfig, PUBLISHED)
    config = BloomConfig.from_dict(PUBLISHED)
    assert (config.hidden_size, config.num_hidden_layers, config.n_head) == (1024, 24, 16)
    assert BloomConfig.from_dict(PUBLISHED, hidden_size=512).hidden_size == 512


def test_published_checkpoints_keep_no_prefix_and_no_head(tmp_path: Path) -> None:
    model = BloomForCausalLM(BloomConfig(**TINY))
    model.save_pretrained(tmp_path)
    state = {name.removeprefix("transformer."): tensor for name, tensor in stored(str(tmp_path)).items()}
    assert state["h.0.self_attention.query_key_value.weight"].shape == (144, 48)
    assert "lm_head.weight" not in state
    save_file(state, tmp_path / "model.safetensors")
    again = BloomForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left", "right"])
@pytest.mark.parametrize("heads", [4, 6])
def test_steps_equal_the_reference(heads: int, pad: str) -> None:
    ours, theirs = pair(FAMILY, BloomForCausalLM, n_head=heads)
    check_steps(ours, theirs, batch(FAMILY, BloomForCausalLM, pad=pad))


def test_packed_rows_equal_rows_alone() -> None:
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(**TINY)).eval()
    ids, lengths = torch.randint(5, 99, (1, 9)), (4, 5)
    document = torch.arange(2).repeat_interleave(torch.tensor(lengths))
    own = (document[:, None] == document[None, :]) & torch.ones(9, 9, dtype=torch.bool).tril()
    with torch.no_grad():
        packed = model(ids, attention_mask=own[None]).last_hidden_state
        alone = [model(part).last_hidden_state for part in ids.split(lengths, dim=1)]
    assert error(packed, torch.cat(alone, dim=1)) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_further_from_the_truth_than_the_reference(dtype: Any) -> None:
    ours, theirs = pair(FAMILY, BloomModel, n_head=16)
    ids = torch.randint(5, 99, (1, 400), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        truth = theirs(ids).last_hidden_state
        mine, other = (error(model.to(dtype)(ids).last_hidden_state, truth) for model in (ours, theirs))
    assert mine <= 1.2 * other  # other kernels round otherwise


def test_token_classifiers_drop_out_as_the_reference_does() -> None:
    def dropout(**settings: float) -> float:
        return BloomForTokenClassification(BloomConfig(**TINY, **settings)).head.dropout.p

    assert dropout(hidden_dropout=0.2) == 0.2
    assert dropout(hidden_dropout=0.2, classifier_dropout=0.0) == 0.0


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="`hidden_size` of BloomConfig must be a positive multiple of `n_head`"):
        BloomModel(BloomConfig(hidden_size=48, n_head=5))
