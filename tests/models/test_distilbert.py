"""What DistilBERT adds to the derived suite: its own names for settings, sinusoids for positions, and its heads' dropout."""

from __future__ import annotations

import pytest
import torch

from transept.layers.positions import sinusoids
from transept.models.distilbert import (
    DistilBertConfig,
    DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)

from .families import FAMILIES
from .harness import batch, check_config_file, error

FAMILY = next(family for family in FAMILIES if family.model_type == "distilbert")
# config.json of the published base model.
BASE = {
    "activation": "gelu",
    "architectures": ["DistilBertForMaskedLM"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}


@pytest.mark.reference
def test_reads_published_config_files() -> None:
    check_config_file(DistilBertConfig, BASE)


def test_settings_have_two_names() -> None:
    config = DistilBertConfig(hidden_size=48, num_attention_heads=3, num_hidden_layers=1)
    assert (config.dim, config.n_heads, config.n_layers) == (48, 3, 1)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (48, 3, 1)
    assert "hidden_size" not in config.to_dict()


@pytest.mark.reference
def test_positions_begin_as_waves() -> None:
    import transformers

    settings = FAMILY.tiny | {"sinusoidal_pos_embds": True}
    theirs = transformers.DistilBertModel(transformers.DistilBertConfig(**settings))
    ours = DistilBertModel(DistilBertConfig(**settings))
    assert error(ours.embed_positions.weight, theirs.embeddings.position_embeddings.weight) <= 1e-7  # one rounding to float32


def test_waves_of_an_odd_size() -> None:
    sines, cosines = sinusoids(torch.arange(4), 3)
    assert (sines.shape, cosines.shape) == ((4, 2), (4, 1))
    assert torch.equal(torch.cat([sines, cosines], dim=1)[0], torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))


def test_token_types_are_not_used() -> None:
    model = DistilBertModel(DistilBertConfig(**FAMILY.tiny)).eval()
    inputs = batch(FAMILY, DistilBertModel)
    types = {"token_type_ids": torch.ones_like(inputs["input_ids"])}
    assert error(model(**inputs, **types).last_hidden_state, model(**inputs).last_hidden_state) == 0.0


def test_each_head_has_its_own_dropout() -> None:
    config = DistilBertConfig(**FAMILY.tiny, dropout=0.1, qa_dropout=0.3, seq_classif_dropout=0.4)
    heads = {
        DistilBertForTokenClassification: 0.1,
        DistilBertForQuestionAnswering: 0.3,
        DistilBertForSequenceClassification: 0.4,
        DistilBertForMultipleChoice: 0.4,
    }
    for cls, rate in heads.items():
        assert cls(config).head.dropout.p == rate
