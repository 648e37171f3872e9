"""What Mamba adds to the derived suite: its cache, masks, initialisation, half precision, and files of the older layout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from transept.errors import ConfigError, InputError, InputTypeError
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.layer import States
from transept.models.mamba import MambaConfig, MambaForCausalLM, MambaModel
from transept.models.rwkv import RwkvConfig, RwkvForCausalLM, RwkvModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, error, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "mamba")
TINY: dict[str, Any] = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2}
IDS = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(0))


def tiny(cls: Any = MambaForCausalLM, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(MambaConfig(**TINY | {"time_step_min": 0.5, "time_step_max": 2.0} | more)).eval()


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left"])
def test_decoding_equals_the_reference(pad: str) -> None:
    """The reference reads a mask with the prompt only."""
    ours, theirs = pair(FAMILY, MambaForCausalLM)
    inputs = batch(FAMILY, MambaForCausalLM, pad=pad)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        mine = ours(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        other = theirs(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        for step in (6, 7, 8):
            mine = ours(ids[:, [step]], attention_mask=mask[:, : step + 1], past_key_values=mine.past_key_values)
            other = theirs(ids[:, [step]], cache_params=other.cache_params, use_cache=True)
            assert error(mine.logits, other.logits) <= SINGLE
    assert mine.cache_params is mine["cache_params"] is mine.past_key_values
    assert mine.cache_params.get_seq_length() == 9
    assert list(mine.keys()) == list(other.keys())


@pytest.mark.parametrize("name", ["past_key_values", "cache_params"])
def test_long_sequences_may_be_read_in_any_pieces(name: str) -> None:
    model, ids = tiny(), torch.randint(1, 60, (2, 75), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(75) >= torch.tensor([[0], [20]])).long()
    with torch.no_grad():
        whole = model(ids, attention_mask=mask).logits
        cache, pieces = None, []
        for start, end in ((0, 1), (1, 3), (3, 40), (40, 41), (41, 75)):
            out = model(ids[:, start:end], attention_mask=mask[:, :end], **{name: cache}, use_cache=True)
            cache = out.cache_params
            pieces.append(out.logits)
    assert error(torch.cat(pieces, dim=1), whole) <= SINGLE


def test_a_cache_may_be_copied_and_gone_on_from_twice() -> None:
    model = tiny()
    with torch.no_grad():
        first = model(IDS[:, :5], use_cache=True).past_key_values
        parts, spec = torch.utils._pytree.tree_flatten(first)
        twin = torch.utils._pytree.tree_unflatten(parts, spec)
        one = model(IDS[:, 5:], past_key_values=first, use_cache=True)
        two = model(IDS[:, 5:], past_key_values=twin, use_cache=True)
    assert torch.equal(one.logits, two.logits)
    assert first.get_seq_length() == twin.get_seq_length() == 9


def test_beams_of_states_are_reordered() -> None:
    model = tiny()
    with torch.no_grad():
        cache = model(IDS[:, :5], use_cache=True).past_key_values
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        rows = IDS[[1, 1, 0]]
        step = model(rows[:, 5:], past_key_values=cache, use_cache=True)
        assert error(step.logits, model(rows).logits[:, 5:]) <= SINGLE


def test_caches_and_masks_of_attention_are_refused() -> None:
    model = tiny()
    attention = DynamicCache([(torch.zeros(2, 1, 3, 4),) * 2] * len(model.backbone.layers))
    with pytest.raises(InputTypeError, match="layer 0 of the cache holds keys and values, but the model keeps states"):
        model(IDS, past_key_values=attention)
    with pytest.raises(InputError, match="a state has no pairs of positions"):
        model(IDS, attention_mask=torch.ones(2, 1, 9, 9))
    with pytest.raises(InputError, match="batch of 2"):
        model(IDS[:1], past_key_values=model(IDS, use_cache=True).past_key_values)
    cache = DynamicCache()
    assert model(IDS, past_key_values=cache, use_cache=True).past_key_values is cache
    assert [layer.kinds for layer in cache.layers] == [("states",)] * len(model.backbone.layers)


@pytest.mark.reference
@pytest.mark.parametrize("wide", [True, False])
def test_half_precision_is_as_near_to_the_truth_as_the_references(wide: bool) -> None:
    ours, theirs = pair(FAMILY, MambaForCausalLM, residual_in_fp32=wide)
    with torch.no_grad():
        truth = ours(IDS).logits
        mine, other = ours.bfloat16()(IDS), theirs.bfloat16()(IDS)
    assert mine.logits.dtype == other.logits.dtype == torch.float32
    assert mine.cache_params.part(0, States).get("conv").dtype == torch.bfloat16
    assert mine.cache_params.part(0, States).get("recurrent").dtype == torch.float32
    assert float((mine.logits - truth).norm()) <= 1.5 * float((other.logits - truth).norm())
    states = [model.bfloat16()(IDS, output_hidden_states=True).hidden_states for model in (ours, theirs)]
    assert [state.dtype for state in states[0]] == [state.dtype for state in states[1]]


@torch.no_grad()
def test_weights_before_training_are_those_of_the_paper() -> None:
    model = tiny(MambaModel, hidden_size=64, time_step_min=0.001, time_step_max=0.1, rescale_prenorm_residual=True)
    for block in model.layers:
        mixer = block.mixer
        steps = F.softplus(mixer.dt_proj.bias)
        assert 0.00099 <= float(steps.min()) < 0.003
        assert 0.05 < float(steps.max()) <= 0.101
        assert float(mixer.dt_proj.weight.abs().max()) == pytest.approx(0.5, rel=0.05)
        assert float(mixer.out_proj.weight.abs().max()) == pytest.approx(1 / math.sqrt(128 * 2), rel=0.01)
        assert mixer.conv1d.weight.abs().max() <= 0.5
        torch.testing.assert_close(mixer.A_log.exp(), torch.arange(1.0, 17).expand(128, 16))
        assert (mixer.D == 1).all()
    constant = tiny(MambaModel, hidden_size=64, time_step_init_scheme="constant")
    assert (constant.layers[0].mixer.dt_proj.weight == 0.5).all()


def test_files_of_the_first_authors_are_read(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["backbone.embedding.weight"] = state.pop("backbone.embeddings.weight")
    save_file(state, tmp_path / "model.safetensors")
    again = MambaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert again.lm_head.weight is again.backbone.embed_tokens.weight


MAMBA_130M = {
    "architectures": ["MambaForCausalLM"],
    "bos_token_id": 0,
    "conv_kernel": 4,
    "d_inner": 1536,
    "d_model": 768,
    "eos_token_id": 0,
    "expand": 2,
    "fused_add_norm": True,
    "hidden_act": "silu",
    "hidden_size": 768,
    "initializer_range": 0.1,
    "intermediate_size": 1536,
    "layer_norm_epsilon": 1e-05,
    "model_type": "mamba",
    "n_layer": 24,
    "num_hidden_layers": 24,
    "pad_token_id": 0,
    "pad_vocab_size_multiple": 8,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "rms_norm": True,
    "ssm_cfg": {},
    "state_size": 16,
    "time_step_floor": 0.0001,
    "time_step_init_scheme": "random",
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "time_step_rank": 48,
    "time_step_scale": 1.0,
    "torch_dtype": "float32",
    "transformers_version": "4.39.0.dev0",
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": 50280,
}


@pytest.mark.reference
def test_config_files_mean_the_same_to_both() -> None:
    check_config_file(MambaConfig, MAMBA_130M)


def test_sizes_follow_from_others() -> None:
    config = MambaConfig(hidden_size=100, expand=3)
    assert (config.intermediate_size, config.time_step_rank) == (300, 7)
    assert MambaConfig.from_dict(MAMBA_130M, expand=1).intermediate_size == 1536  # as its file says


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"conv_kernel": 0}, "`conv_kernel`"),
        ({"expand": 0}, "`intermediate_size`"),
        ({"time_step_rank": 0}, "`time_step_rank`"),
        ({"time_step_rank": "all"}, "`time_step_rank`"),
        ({"state_size": 0}, "`state_size`"),
        ({"pad_token_id": 60}, "`pad_token_id`"),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        MambaConfig(**TINY | wrong)


@pytest.mark.reference
@pytest.mark.parametrize("every", [1, 2])
def test_rwkv_is_scaled_down_and_goes_on_as_in_the_reference(every: int) -> None:
    """The reference scales its weights in place outside training, and gives five states of all layers by name, for one row."""
    family = next(family for family in FAMILIES if family.model_type == "rwkv")
    ours, theirs = pair(family, RwkvForCausalLM, rescale_every=every)
    before, ids = {name: value.clone() for name, value in ours.state_dict().items()}, IDS[:1].repeat(1, 8)
    for training in (True, False):
        for model in (ours, theirs):
            model.train(training)
        with torch.no_grad():
            mine, other = (model(ids, output_hidden_states=True, use_cache=False) for model in (ours, theirs))
        assert error(mine.logits, other.logits) <= SINGLE
        assert error(mine.hidden_states, other.hidden_states) <= SINGLE
    assert all(torch.equal(before[name], value) for name, value in ours.state_dict().items())
    state: Any = None
    states: Any = None
    for start, end in ((0, 5), (5, 6), (6, 40), (40, 72)):
        with torch.no_grad():
            mine = ours(ids[:, start:end], state=state, use_cache=True)
            other = theirs(ids[:, start:end], state=states, use_cache=True)
        assert error(mine.logits, other.logits) <= SINGLE
        state, states = mine.state, other.state
    kept = [state.part(layer, States) for layer in range(3)]
    last = (torch.stack([part.get(name) for part in kept], dim=-1) for name in ("feed_forward", "attention"))
    scale, total, weight = torch.stack([part.get("recurrent") for part in kept], dim=-1).unbind(1)
    assert error((*last, total, weight, scale), tuple(states)) <= SINGLE


@pytest.mark.reference
def test_rwkv_begins_as_in_the_reference() -> None:
    import transformers

    tiny = TINY | {"num_hidden_layers": 3, "attention_hidden_size": 24}
    theirs, ours = transformers.RwkvModel(transformers.RwkvConfig(**tiny)), RwkvModel(RwkvConfig(**tiny))
    other = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if "time_" in name:
            assert error(parameter, other[name]) <= SINGLE, name
        else:
            assert float(parameter.detach().norm()) == pytest.approx(float(other[name].detach().norm()), rel=1e-4), name
