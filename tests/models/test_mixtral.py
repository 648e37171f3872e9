"""Experts in a whole model: their loss, their checkpoints, and what they refuse. Mixtral's and Qwen3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transept.errors import CheckpointError, ConfigError, TranseptWarning
from transept.models.mixtral import MixtralConfig, MixtralForCausalLM, MixtralModel
from transept.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM

from .families import FAMILIES
from .families.settings import SHARP
from .harness import SINGLE, batch, check_config_file, check_steps, error, gradients, labels, pair

TINY: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": SHARP,
    "num_experts": 4,
}
MIXTRAL = TINY | {"intermediate_size": 12}
QWEN = TINY | {"intermediate_size": 12, "moe_intermediate_size": 9, "num_experts_per_tok": 2}
BOTH = [pytest.param(MixtralForCausalLM, id="mixtral"), pytest.param(Qwen3MoeForCausalLM, id="qwen3_moe")]
FAMILY = {
    MixtralForCausalLM: next(family for family in FAMILIES if family.model_type == "mixtral"),
    Qwen3MoeForCausalLM: next(family for family in FAMILIES if family.model_type == "qwen3_moe"),
}


def tiny(cls: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(cls.config_class(**(QWEN if cls is Qwen3MoeForCausalLM else MIXTRAL) | more)).eval()


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "none"])
@pytest.mark.parametrize("cls", BOTH)
def test_the_loss_has_the_balance_of_real_tokens(cls: Any, pad: str) -> None:
    family = FAMILY[cls]
    ours, theirs = pair(family, cls, router_aux_loss_coef=0.3)
    inputs = batch(family, cls, pad=pad)
    inputs |= labels(family, cls, inputs)
    mine = ours(**inputs, output_router_logits=True)
    other = theirs(**inputs, output_router_logits=True, use_cache=False)
    assert list(mine.keys()) == list(other.keys())
    for name in ("loss", "aux_loss", "logits", "router_logits"):
        assert error(mine[name], other[name]) <= SINGLE, name
    assert list(mine.loss_terms) == ["causal_lm", "load_balance"]
    assert not mine.loss_terms["load_balance"].additive
    router = "model.layers.0.mlp.gate.weight"
    found = gradients(ours, mine.loss)[router]
    expected = gradients(theirs, other.loss)[router]
    assert error(found, expected) <= 1e-4
    plain = ours(**inputs)
    assert "aux_loss" not in plain
    assert error(gradients(ours, plain.loss)[router], expected) > 1e-3


@pytest.mark.parametrize("cls", BOTH)
def test_the_number_of_items_divides_what_is_a_sum(cls: Any) -> None:
    model, ids = tiny(cls, output_router_logits=True), torch.arange(12).view(2, 6)
    whole = model(ids, labels=ids)
    half = model(ids, labels=ids, num_items_in_batch=20)
    weighted = model.config.router_aux_loss_coef * whole.aux_loss
    torch.testing.assert_close(half.loss - weighted, (whole.loss - weighted) / 2)


@pytest.mark.parametrize("cls", BOTH)
def test_steps_show_their_own_routers(cls: Any) -> None:
    model, ids = tiny(cls, output_router_logits=True), torch.arange(6)[None]
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]])
    first = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)
    step = model(ids[:, 4:], attention_mask=mask, past_key_values=first.past_key_values, use_cache=True)
    assert [tuple(logits.shape) for logits in step.router_logits] == [(2, 4), (2, 4)]
    assert float(step.aux_loss.detach()) > 0


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left"])
@pytest.mark.parametrize("cls", BOTH)
def test_decoding_equals_the_reference(cls: Any, pad: str) -> None:
    check_steps(*pair(FAMILY[cls], cls), batch(FAMILY[cls], cls, pad=pad))


# --- checkpoints -----------------------------------------------------------------------------------------------------------


def rewritten(model: Any, directory: Path, change: Any) -> Path:
    """A checkpoint of the model, with its stored tensors changed."""
    model.save_pretrained(directory)
    state = load_file(directory / "model.safetensors")
    save_file(change(state), directory / "model.safetensors")
    return directory


def stacked(state: dict[str, Any]) -> dict[str, Any]:
    """The layout that the reference computes with."""
    parts = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    plain: dict[str, Any] = {}
    experts: dict[str, dict[str, list[Any]]] = {}
    for name in sorted(state):
        layer, _, rest = name.replace("block_sparse_moe", "mlp").partition(".mlp.")
        if rest.startswith("experts."):
            kind = parts[rest.split(".")[2]]
            experts.setdefault(layer, {}).setdefault(kind, []).append(state[name])
        else:
            plain[name.replace("block_sparse_moe", "mlp")] = state[name]
    for layer, kinds in experts.items():
        stacks = {kind: torch.stack(rows) for kind, rows in kinds.items()}
        plain[f"{layer}.mlp.experts.gate_up_proj"] = torch.cat([stacks["gate"], stacks["up"]], dim=1)
        plain[f"{layer}.mlp.experts.down_proj"] = stacks["down"]
    return plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cls", BOTH)
def test_stacked_checkpoints_are_read_and_written_apart(cls: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny(cls)
    model.save_pretrained(tmp_path / "apart")
    again = cls.from_pretrained(rewritten(model, tmp_path / "stacked", stacked), dtype=dtype)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.to(dtype)), name
    again.float().save_pretrained(tmp_path / "again")
    names = load_file(tmp_path / "again" / "model.safetensors").keys()
    assert names == load_file(tmp_path / "apart" / "model.safetensors").keys()
    assert any(".experts.3." in name for name in names)


@pytest.mark.parametrize("cls", BOTH)
def test_checkpoints_of_our_own_names_and_of_both_layouts_are_understood(cls: Any, tmp_path: Path) -> None:
    model = tiny(cls)
    stored = model.checkpoint_names().keys.save(model.state_dict())
    for state in (model.state_dict(), stored, stacked(stored)):
        fresh = cls.from_pretrained(None, config=model.config, state_dict=state)
        assert all(torch.equal(tensor, fresh.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("cls", BOTH)
def test_an_expert_that_is_missing_or_of_another_shape_is_named(cls: Any, tmp_path: Path) -> None:
    model = tiny(cls)
    victim = next(name for name in model.checkpoint_names().keys.save(model.state_dict()) if ".experts.2." in name)

    def without(state: dict[str, Any]) -> dict[str, Any]:
        return {name: tensor for name, tensor in state.items() if name != victim}

    directory = rewritten(model, tmp_path / "missing", without)
    with pytest.raises(CheckpointError, match=r"missing .*experts\.\w+_proj\.2(\.0)?\n"):
        cls.from_pretrained(directory)
    with pytest.warns(TranseptWarning, match=r"experts\.\w+_proj\.2"):
        partly = cls.from_pretrained(directory, strict=False)
    for name, tensor in model.state_dict().items():
        whole = torch.equal(partly.state_dict()[name], tensor)
        assert whole or torch.equal(partly.state_dict()[name][[0, 1, 3]], tensor[[0, 1, 3]]), name
    directory = rewritten(model, tmp_path / "shape", lambda state: state | {victim: state[victim][:-1]})
    with pytest.raises(CheckpointError, match=r"mismatched .*experts\.\w+_proj\.2"):
        cls.from_pretrained(directory)
    more = victim.replace(".experts.2.", ".experts.4.")
    directory = rewritten(model, tmp_path / "more", lambda state: state | {more: state[victim].clone()})
    with pytest.raises(CheckpointError, match=f"unexpected .*{more}"):
        cls.from_pretrained(directory)


def test_new_experts_have_the_familys_deviation() -> None:
    torch.manual_seed(0)
    model = MixtralModel(MixtralConfig(**MIXTRAL | {"hidden_size": 64, "intermediate_size": 64, "initializer_range": 0.3}))
    assert float(model.layers[0].mlp.experts.down_proj.detach().std()) == pytest.approx(0.3, rel=0.05)


# --- settings --------------------------------------------------------------------------------------------------------------

MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


@pytest.mark.reference
@pytest.mark.parametrize(("cls", "values"), [(MixtralConfig, MIXTRAL_8X7B), (Qwen3MoeConfig, QWEN3_30B)])
def test_config_files_mean_the_same_to_both(cls: Any, values: dict[str, Any]) -> None:
    check_config_file(cls, values)


def test_sizes_follow_where_a_file_leaves_them_out() -> None:
    values = {name: value for name, value in MIXTRAL_8X7B.items() if name != "head_dim"}
    config = MixtralConfig.from_dict(values)
    assert config.head_dim == 128
    assert config.num_experts == config.num_local_experts == 8
    assert config.rope_theta == 1e6


@pytest.mark.parametrize(
    ("cls", "wrong", "named"),
    [
        (MixtralConfig, {"num_experts_per_tok": 5}, "`num_experts_per_tok` .* between 1 and `num_local_experts`"),
        (MixtralConfig, {"num_experts_per_tok": 0}, "`num_experts_per_tok`"),
        (MixtralConfig, {"sliding_window": 0}, "`sliding_window`"),
        (Qwen3MoeConfig, {"decoder_sparse_step": 0}, "`decoder_sparse_step`"),
        (Qwen3MoeConfig, {"mlp_only_layers": ["1"]}, "`mlp_only_layers`"),
    ],
)
def test_impossible_settings_are_named(cls: Any, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        cls(**MIXTRAL | wrong)


def test_dense_layers_need_no_experts() -> None:
    config = Qwen3MoeConfig(**QWEN | {"num_experts": 0})
    assert not any(map(config.is_sparse, range(2)))
    assert [Qwen3MoeConfig(**QWEN, decoder_sparse_step=2).is_sparse(layer) for layer in range(4)] == [False, True, False, True]
