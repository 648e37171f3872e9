"""What ModernBERT adds to the derived suite: both layouts of its files, windows, pooling, sparse prediction, its start."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from transept.errors import ConfigError, TranseptWarning
from transept.models.modernbert import (
    GLOBAL,
    LOCAL,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, gradients, labels, pair

FAMILY = {family.model_type: family for family in FAMILIES}["modernbert"]
TINY = FAMILY.tiny
CLASSIFIERS = [ModernBertForSequenceClassification, ModernBertForMultipleChoice]
# config.json of the published base model.
PUBLISHED = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "sep_token_id": 50282,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "vocab_size": 50368,
}


@pytest.mark.reference
@pytest.mark.parametrize(
    "more",
    [{}, {"global_rope_theta": 5e5, "local_rope_theta": 2e4, "global_attn_every_n_layers": 4}, {"local_attention": 64}],
)
def test_files_of_the_older_layout(more: dict[str, Any]) -> None:
    check_config_file(ModernBertConfig, PUBLISHED | more)


def test_both_layouts_mean_the_same() -> None:
    old = ModernBertConfig.from_dict(PUBLISHED)
    assert old.layer_types == [LOCAL if index % 3 else GLOBAL for index in range(22)]
    assert {kind: rope["rope_theta"] for kind, rope in (old.rope_parameters or {}).items()} == {
        GLOBAL: 160000.0,
        LOCAL: 10000.0,
    }
    assert (old.local_attention, old.sliding_window) == (128, 64)
    old.sliding_window = 2
    assert (old.local_attention, old.sliding_window) == (4, 2)
    assert ModernBertConfig.from_dict(old.to_dict()) == old
    assert ModernBertConfig().rope_parameters == old.rope_parameters
    one = ModernBertConfig.from_dict(PUBLISHED | {"local_rope_theta": None}).rope_parameters or {}
    assert one[LOCAL]["rope_theta"] == 160000.0  # local layers without a theta of their own turn as the global ones
    other = ModernBertConfig.from_dict(old.to_dict(), local_rope_theta=5000.0).rope_parameters or {}
    assert (other[GLOBAL]["rope_theta"], other[LOCAL]["rope_theta"]) == (160000.0, 5000.0)
    scaled = ModernBertConfig(rope_scaling={"rope_type": "linear", "factor": 2.0}).rope_parameters or {}
    assert all(rope["rope_type"] == "linear" and rope["factor"] == 2.0 for rope in scaled.values())


@pytest.mark.reference
@pytest.mark.parametrize("layers", [[GLOBAL, GLOBAL, LOCAL], [LOCAL, LOCAL, LOCAL], [LOCAL, GLOBAL, LOCAL]], ids=str)
@pytest.mark.parametrize("window", [1, 2, 5, 64])
def test_any_order_of_layers_equals_the_reference(layers: list[str], window: int) -> None:
    import transformers

    ropes = {
        GLOBAL: {"rope_type": "yarn", "rope_theta": 900.0, "factor": 2.0, "original_max_position_embeddings": 8},
        LOCAL: {"rope_type": "default", "rope_theta": 70.0},
    }
    given = TINY | {"num_hidden_layers": 3, "layer_types": layers, "local_attention": window, "rope_parameters": ropes}
    torch.manual_seed(0)
    theirs = transformers.ModernBertModel(transformers.ModernBertConfig(**given)).eval()
    ours = ModernBertModel(ModernBertConfig(**given)).eval()
    ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(5, 99, (2, 30))
    with torch.no_grad():
        for kernel in ("eager", "sdpa"):
            ours.set_attn_implementation(kernel)
            compare(ours(ids), theirs(ids), SINGLE)


def test_local_layers_see_half_a_window_on_either_side() -> None:
    torch.manual_seed(0)
    given = TINY | {"num_hidden_layers": 1, "layer_types": [LOCAL], "local_attention": 6}
    model = ModernBertModel(ModernBertConfig(**given)).eval()
    embeds = torch.randn(1, 15, 32, requires_grad=True)
    # Not their plain sum: that of what a layer norm gives is constant, and its gradient nothing but rounding.
    (model(inputs_embeds=embeds).last_hidden_state[0, 7] * torch.randn(32)).sum().backward()
    assert embeds.grad is not None
    seen = embeds.grad[0].abs().amax(-1)
    assert (seen[4:11] > 1e-4 * seen.max()).all()
    assert seen[:4].max() == seen[11:].max() == 0  # what is not attended to has a weight of zero, exactly


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "left", "none"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("cls", CLASSIFIERS)
def test_poolings_equal_the_reference(cls: Any, pooling: str, pad: str) -> None:
    ours, theirs = pair(FAMILY, cls, classifier_pooling=pooling)
    inputs = batch(FAMILY, cls, pad=pad)
    with torch.no_grad():
        assert error(ours(**inputs).logits, theirs(**inputs).logits) <= SINGLE
        if pad == "none":
            alone = {"input_ids": inputs["input_ids"]}
            assert error(ours(**alone).logits, ours(**inputs).logits) <= SINGLE


def test_a_missing_mask_counts_for_the_mean_as_well() -> None:
    torch.manual_seed(0)
    model = ModernBertForSequenceClassification(ModernBertConfig(**TINY, classifier_pooling="mean")).eval()
    inputs = batch(FAMILY, ModernBertForSequenceClassification)
    with torch.no_grad():
        assert error(model(inputs["input_ids"]).logits, model(**inputs).logits) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("ignored", [-100, 7])
def test_sparse_predictions_equal_the_reference(ignored: int) -> None:
    given = {"sparse_prediction": True, "sparse_pred_ignore_index": ignored}
    ours, theirs = pair(FAMILY, ModernBertForMaskedLM, **given)
    dense, _ = pair(FAMILY, ModernBertForMaskedLM)
    inputs = batch(FAMILY, ModernBertForMaskedLM)
    wanted = labels(FAMILY, ModernBertForMaskedLM, inputs)["labels"]
    wanted[0, 4] = ignored
    mine, other = ours(**inputs, labels=wanted), theirs(**inputs, labels=wanted)
    compare(mine, other, SINGLE)
    assert mine.logits.shape == (int((wanted != ignored).sum()), 99)
    compare(ours(**inputs), theirs(**inputs), SINGLE)
    if ignored == -100:
        expected = gradients(dense, dense(**inputs, labels=wanted).loss)
        found = gradients(ours, mine.loss)
        largest = max(float(gradient.norm()) for gradient in expected.values())
        assert all(float((found[name] - g).norm()) <= 1e-5 * largest for name, g in expected.items())


@pytest.mark.parametrize(
    "cls",
    [*CLASSIFIERS, ModernBertForTokenClassification, ModernBertForQuestionAnswering, ModernBertForMaskedLM, ModernBertModel],
)
def test_weights_start_as_the_paper_says(cls: Any) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 96, "vocab_size": 500}
    model = cls(ModernBertConfig(**TINY | sizes | {"initializer_range": 0.02}))
    usual, narrow = 0.02, 0.02 / math.sqrt(2 * 2)
    kept = 0.8796  # deviation of a normal distribution cut off at two deviations
    for name, parameter in model.named_parameters():
        weights = parameter.detach()
        if weights.ndim == 1:
            assert weights.unique().tolist() == [1.0 if "norm" in name else 0.0]
            continue
        std = narrow if name.endswith(("Wo.weight", "head.dense.weight")) else usual
        std = 1 / math.sqrt(128) if name == "classifier.weight" else std
        assert float(weights.abs().max()) <= 2 * std + 1e-6, name
        assert float(weights.std()) == pytest.approx(kept * std, rel=0.25 if "classifier" in name else 0.05), name


def test_classifiers_start_from_the_pretrained_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pretrained = ModernBertForMaskedLM(ModernBertConfig(**TINY))
    pretrained.save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match=r"classifier\.weight, classifier\.bias"):
        model, info = ModernBertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == {"decoder.bias"}
    assert torch.equal(model.head.dense.weight, pretrained.lm_head.dense.weight)
    model.save_pretrained(tmp_path / "fine-tuned")
    with pytest.warns(TranseptWarning, match=r"decoder\.bias"):
        again = ModernBertForMaskedLM.from_pretrained(tmp_path / "fine-tuned")
    assert torch.equal(again.lm_head.dense.weight, pretrained.lm_head.dense.weight)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    bare = ModernBertModel.from_pretrained(tmp_path / "fine-tuned")
    assert torch.equal(bare.layers[1].mlp.gate_up_proj.weight, pretrained.backbone.layers[1].mlp.gate_up_proj.weight)


def test_the_vocabulary_grows_with_its_output() -> None:
    model = ModernBertForMaskedLM(ModernBertConfig(**TINY)).eval()
    model.resize_token_embeddings(120)
    assert model(torch.randint(5, 120, (1, 4))).logits.shape == (1, 4, 120)
    assert model.lm_head.out_proj.weight is model.backbone.embed_tokens.weight


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"layer_types": [GLOBAL]}, "layer_types"),
        ({"layer_types": [GLOBAL, "chunked_attention"]}, "layer_types"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers"),
        ({"num_attention_heads": 5}, "hidden_size"),
        ({"pad_token_id": 50283}, "pad_token_id"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
        ({"rope_parameters": {LOCAL: "default"}}, "rope_parameters"),
        ({"local_rope_theta": "many"}, "rope_theta"),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ModernBertModel(ModernBertConfig(**TINY | wrong))
