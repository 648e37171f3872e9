"""What hybrids add to the derived suite: generation from caches of several kinds, biases beside padding, and older files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transept.errors import ConfigError, InputError
from transept.layers.caches.cache import DynamicCache
from transept.models.bamba import BambaForCausalLM
from transept.models.lfm2 import Lfm2Model
from transept.models.nemotron_h import NemotronHConfig
from transept.models.qwen3_5_text import Qwen3_5ForCausalLM
from transept.models.qwen3_next import Qwen3NextConfig

from .families import FAMILIES
from .harness import SINGLE, batch, classes, error, pair, settings

KINDS = [
    pytest.param(family, more, id=f"{family.model_type}-{name}")
    for family in FAMILIES
    for name, more in (("tiny", {}), *family.variants.items())
    if (family.model_type, name)
    in {("bamba", "tiny"), ("jamba", "tiny"), ("lfm2", "tiny"), ("qwen3_next", "tiny"), ("falcon_h1", "tiny")}
    | {("kimi_linear", "tiny")}
    | {("nemotron_h", "first"), ("recurrent_gemma", "tiny")}
]
IDS = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(0))


def family(model_type: str) -> Any:
    return next(each for each in FAMILIES if each.model_type == model_type)


def writer(family: Any, **more: Any) -> Any:
    cls: Any = next(cls for cls in classes(family) if cls.__name__.endswith("ForCausalLM"))
    torch.manual_seed(0)
    model = cls(cls.config_class(**settings(family, cls) | more | {"eos_token_id": None})).eval()
    for part in model.parameters():
        torch.nn.init.normal_(part, std=0.2)
    return model


@torch.no_grad()
@pytest.mark.parametrize(("family", "more"), KINDS)
def test_any_cache_and_beams_write_the_same(family: Any, more: dict[str, Any]) -> None:
    model = writer(family, **more)
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    for ways in ({"do_sample": False}, {"num_beams": 3}):
        expected = model.generate(IDS, attention_mask=mask, max_new_tokens=5, use_cache=False, **ways)
        for kind in (None, "static"):
            found = model.generate(IDS, attention_mask=mask, max_new_tokens=5, cache_implementation=kind, **ways)
            assert torch.equal(found, expected)
    alone = model.generate(IDS[1:, 3:], max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(IDS, attention_mask=mask, max_new_tokens=5, do_sample=False)[1:, 3:], alone)


@torch.no_grad()
@pytest.mark.parametrize(("family", "more"), KINDS)
def test_states_are_not_taken_back(family: Any, more: dict[str, Any]) -> None:
    model, cache = writer(family, **more), DynamicCache()
    model(IDS, past_key_values=cache)
    assert cache.get_seq_length() == 7
    assert cache.batch_size == 2
    with pytest.raises(InputError, match="states cannot be taken back from 7 to 5 positions"):
        cache.crop(5)


@torch.no_grad()
@pytest.mark.reference
def test_biases_of_lfm2_do_not_make_padding_count() -> None:
    """The reference's convolutions read the biases at padded positions."""
    ours, theirs = pair(family("lfm2"), Lfm2Model, conv_bias=True)
    inputs = batch(family("lfm2"), Lfm2Model, pad="none")
    assert error(ours(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state) <= SINGLE
    inputs = batch(family("lfm2"), Lfm2Model, pad="left")
    found = ours(**inputs).last_hidden_state
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        alone = ours(inputs["input_ids"][row : row + 1, mask]).last_hidden_state
        assert error(found[row : row + 1, mask], alone) <= SINGLE


def test_sums_over_all_tokens_are_kept_small() -> None:
    inputs = batch(family("bamba"), BambaForCausalLM)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    plain, bounded = writer(family("bamba")), writer(family("bamba"), z_loss_coefficient=0.3)
    scored = labels[:, 1:] != -100
    squares = plain(**inputs).logits.logsumexp(-1).square()[:, :-1]
    expected = plain(**inputs, labels=labels).loss + 0.3 * squares[scored].mean()
    torch.testing.assert_close(bounded(**inputs, labels=labels).loss, expected)


def test_texts_are_read_of_files_with_pictures(tmp_path: Path) -> None:
    model = writer(family("qwen3_5_text"))
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in state.items()}
    state |= {"model.visual.merger.norm.weight": torch.ones(3), "mtp.norm.weight": torch.ones(3)}
    save_file(state, tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(Qwen3_5ForCausalLM.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


def test_kinds_of_layers_are_read_as_older_files_tell_them() -> None:
    config = NemotronHConfig.from_dict({"model_type": "nemotron_h", "hybrid_override_pattern": "M-E*"})
    assert config.layer_types == config.layers_block_type == ["linear_attention", "mlp", "moe", "full_attention"]
    assert config.num_hidden_layers == 4
    assert Qwen3NextConfig(num_hidden_layers=4, full_attention_interval=2).layer_types[1::2] == ["full_attention"] * 2
    with pytest.raises(ConfigError, match="must name linear_attention or full_attention for each of 1 layers"):
        Qwen3NextConfig(num_hidden_layers=1, layer_types=["conv"])
    with pytest.raises(ConfigError, match="`time_step_limit` of NemotronHConfig must be two numbers, the lower one first"):
        NemotronHConfig(time_step_limit=[1.0, 0.5])
