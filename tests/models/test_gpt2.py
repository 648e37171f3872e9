"""What GPT-2 adds to the derived suite: layouts of its checkpoints, cross-attention, and the double heads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.errors import CheckpointError, ConfigError, InputError
from transept.models.gpt2 import (
    GPT2Config,
    GPT2DoubleHeadsModel,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_decoder, compare, error, labels, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}["gpt2"]
TINY = FAMILY.tiny
# config.json of the published smallest model.
PUBLISHED = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}


@pytest.mark.reference
def test_files_of_the_older_layout() -> None:
    check_config_file(GPT2Config, PUBLISHED)
    config = GPT2Config.from_dict(PUBLISHED)
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (768, 12, 1024)
    assert GPT2Config(hidden_size=32, num_attention_heads=4).to_dict()["n_embd"] == 32


def test_published_checkpoints_keep_no_prefix_and_masks(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(**TINY))
    model.save_pretrained(tmp_path)
    state = {name.removeprefix("transformer."): tensor for name, tensor in stored(str(tmp_path)).items()}
    assert state["h.0.attn.c_attn.weight"].shape == (32, 96)
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
    masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
    save_file(state | masks, tmp_path / "model.safetensors")
    again, info = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == masks.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    bare = GPT2Model.from_pretrained(tmp_path)
    assert torch.equal(bare.layers[1].mlp.up_proj.weight, model.backbone.layers[1].mlp.up_proj.weight)
    state["h.1.mlp.c_fc.weight"] = state["h.1.mlp.c_fc.weight"].T.contiguous()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"h\.1\.mlp\.c_fc\.weight: \(128, 32\) in the file"):
        GPT2LMHeadModel.from_pretrained(tmp_path)


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left", "right"])
@pytest.mark.parametrize("cls", [GPT2Model, GPT2LMHeadModel])
def test_reads_an_encoder_step_by_step(cls: Any, pad: str) -> None:
    check_decoder(FAMILY, cls, pad=pad)


def test_an_encoders_states_need_cross_attention() -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(InputError, match="no cross-attention"):
        GPT2Model(GPT2Config(**TINY))(ids, encoder_hidden_states=torch.zeros(1, 3, 32))


@pytest.mark.reference
def test_widened_scores_are_the_same_in_single_precision() -> None:
    ours, theirs = pair(FAMILY, GPT2Model, attention="eager", reorder_and_upcast_attn=True)
    inputs = batch(FAMILY, GPT2Model)
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


@pytest.mark.reference
def test_token_types_are_words() -> None:
    ours, theirs = pair(FAMILY, GPT2Model)
    inputs = batch(FAMILY, GPT2Model) | {"token_type_ids": torch.full((3, 9), 77)}
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_no_position_beyond_the_table() -> None:
    model = GPT2Model(GPT2Config(**TINY))
    cache = model(torch.ones(1, 60, dtype=torch.long)).past_key_values
    with pytest.raises(InputError, match="65 positions"):
        model(torch.ones(1, 5, dtype=torch.long), past_key_values=cache)


@pytest.mark.parametrize("crossed", [False, True])
def test_what_is_added_to_the_stream_starts_smaller(crossed: bool) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=256, n_layer=8, n_head=4, add_cross_attention=crossed))
    small = 0.02 / math.sqrt(16)
    seen = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            adds = name.endswith("c_proj.weight")
            assert float(parameter.detach().std()) == pytest.approx(small if adds else 0.02, rel=0.05), name
            seen += adds
        else:
            assert parameter.unique().tolist() == [1.0 if ".ln_" in name and name.endswith("weight") else 0.0]
    assert seen == (24 if crossed else 16)


def test_token_classifiers_drop_out_as_the_reference_does() -> None:
    assert GPT2ForTokenClassification(GPT2Config(**TINY)).head.dropout.p == 0.1
    assert GPT2ForTokenClassification(GPT2Config(**TINY, classifier_dropout=0.3)).head.dropout.p == 0.3
    assert GPT2ForSequenceClassification(GPT2Config(**TINY)).head.dropout.p == 0.0


@pytest.mark.reference
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu", None])
def test_double_heads_equal_the_reference(activation: str | None, given: bool) -> None:
    ours, theirs = pair(FAMILY, GPT2DoubleHeadsModel, summary_activation=activation)
    inputs = batch(FAMILY, GPT2DoubleHeadsModel)
    wanted = labels(FAMILY, GPT2DoubleHeadsModel, inputs)
    if not given:
        del inputs["mc_token_ids"]
    with torch.no_grad():
        for more in ({}, wanted, {"labels": wanted["labels"]}, {"mc_labels": wanted["mc_labels"]}):
            compare(ours(**inputs, **more, use_cache=False), theirs(**inputs, **more, use_cache=False), SINGLE)


def test_double_heads_read_one_state_of_each_choice() -> None:
    ids = torch.randint(5, 99, (2, 3, 7), generator=torch.Generator().manual_seed(0))
    for kind in ("first", "last", "mean"):
        torch.manual_seed(0)
        model = GPT2DoubleHeadsModel(GPT2Config(**TINY, summary_type=kind)).eval()
        out = model(ids, output_hidden_states=True)
        states = out.hidden_states[-1]
        state = {"first": states[:, :, 0], "last": states[:, :, -1], "mean": states.mean(2)}[kind]
        assert torch.allclose(out.mc_logits, model.head.out_proj(state).squeeze(-1))
        assert out.mc_logits.shape == (2, 3)
        assert out.past_key_values.get_seq_length() == 7


def test_double_heads_name_what_does_not_fit() -> None:
    model = GPT2DoubleHeadsModel(GPT2Config(**TINY)).eval()
    ids = torch.randint(5, 99, (2, 3, 7))
    wanted = {"labels": ids, "mc_labels": torch.tensor([0, 2])}
    out = model(ids, **wanted)
    assert out.loss_terms.keys() == {"causal_lm", "choice"}
    assert error(out.loss, out.loss_terms["causal_lm"].mean) == 0.0
    twice = model(ids, **wanted, num_items_in_batch={"causal_lm": 72, "choice": 4})
    assert error(2 * twice.loss, out.loss) <= SINGLE
    assert error(2 * twice.mc_loss, out.mc_loss) <= SINGLE
    assert isinstance(model(ids, return_dict=False), tuple)
    with pytest.raises(InputError, match="causal_lm, choice"):
        model(ids, **wanted, num_items_in_batch=72)
    with pytest.raises(InputError, match=r"\(2, 2\).*6 choices"):
        model(ids, mc_token_ids=torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(InputError, match="label 3"):
        model(ids, mc_labels=torch.tensor([0, 3]))
    with pytest.raises(InputError, match="choices"):
        model()
    with pytest.raises(ConfigError, match="summary_use_proj"):
        GPT2DoubleHeadsModel(GPT2Config(**TINY, summary_use_proj=False))
    with pytest.raises(ConfigError, match="summary_type"):
        GPT2Config(**TINY, summary_type="attn")
