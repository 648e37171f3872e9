"""What ELECTRA adds to the derived suite: replaced tokens, summaries, its decoder, generators and discriminators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from transept.errors import ConfigError, InputError
from transept.models.electra import (
    ElectraConfig,
    ElectraForCausalLM,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_decoder, compare, error, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "electra")
# config.json of the published small discriminator.
SMALL = {
    "architectures": ["ElectraForPreTraining"],
    "attention_probs_dropout_prob": 0.1,
    "embedding_size": 128,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "electra",
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "summary_type": "first",
    "summary_use_proj": True,
    "transformers_version": "4.11.0.dev0",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


@pytest.mark.reference
def test_reads_published_config_files() -> None:
    check_config_file(ElectraConfig, SMALL)


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "left"])
def test_decoder_with_cross_attention_and_cache(pad: str) -> None:
    check_decoder(FAMILY, ElectraForCausalLM, pad=pad)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["first", "last", "mean", "cls_index"])
def test_summaries(kind: str) -> None:
    ours, theirs = pair(FAMILY, ElectraForMultipleChoice, summary_type=kind)
    inputs = batch(FAMILY, ElectraForMultipleChoice)
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


@pytest.mark.reference
def test_detection_without_a_mask() -> None:
    ours, theirs = pair(FAMILY, ElectraForPreTraining)
    ids, labels = batch(FAMILY, ElectraForPreTraining, pad="none")["input_ids"], torch.arange(27).view(3, 9) % 2
    with torch.no_grad():
        compare(ours(ids, labels=labels), theirs(ids, labels=labels), SINGLE)


def test_detection_counts_real_tokens_that_are_not_ignored() -> None:
    torch.manual_seed(0)
    model = ElectraForPreTraining(ElectraConfig(**FAMILY.tiny)).eval()
    inputs = batch(FAMILY, ElectraForPreTraining)
    labels = torch.arange(27).view(3, 9) % 2
    labels[0, 3] = -100
    real = inputs["attention_mask"].bool()
    real[0, 3] = False
    out = model(**inputs, labels=labels)
    expected = F.binary_cross_entropy_with_logits(out.logits[real], labels[real].float())
    assert error(out.loss, expected) <= SINGLE
    assert out.loss_terms["replaced"].count == real.sum()
    assert error(model(**inputs, labels=labels.float()).loss, expected) <= SINGLE


@pytest.mark.parametrize("labels", [torch.ones(3, 8, dtype=torch.long), torch.full((3, 9), 2)])
def test_detection_refuses_other_labels(labels: torch.Tensor) -> None:
    model = ElectraForPreTraining(ElectraConfig(**FAMILY.tiny))
    with pytest.raises(InputError, match="label"):
        model(**batch(FAMILY, ElectraForPreTraining), labels=labels)


def test_generator_and_discriminator_share_their_checkpoints(tmp_path: Path) -> None:
    torch.manual_seed(0)
    generator = ElectraForMaskedLM(ElectraConfig(**FAMILY.tiny)).eval()
    generator.save_pretrained(tmp_path)
    ids = batch(FAMILY, ElectraModel)["input_ids"]
    with torch.no_grad():
        expected = generator.backbone(ids).last_hidden_state
        assert error(ElectraModel.from_pretrained(tmp_path)(ids).last_hidden_state, expected) == 0.0
        with pytest.warns(UserWarning, match="newly initialised"):
            discriminator, info = ElectraForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
        assert error(discriminator.backbone(ids).last_hidden_state, expected) == 0.0
    layers, kinds = ("dense", "dense_prediction"), ("weight", "bias")
    assert info["missing_keys"] == {f"discriminator_predictions.{layer}.{kind}" for layer in layers for kind in kinds}


@pytest.mark.parametrize("wrong", [{"summary_type": "attn"}, {"hidden_dropout_prob": 7.0}, {"pad_token_id": 99}])
def test_refuses_configs_that_no_model_can_be_built_from(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ElectraConfig(**FAMILY.tiny | wrong)


def test_factorised_vocabulary_grows_with_its_tied_head() -> None:
    model = ElectraForMaskedLM(ElectraConfig(**FAMILY.tiny)).eval()
    before = model(torch.tensor([[5, 7, 6]])).logits
    model.resize_token_embeddings(103)
    after = model(torch.tensor([[5, 7, 6]])).logits
    assert after.shape[-1] == 103
    assert error(after[..., :99], before) <= SINGLE
