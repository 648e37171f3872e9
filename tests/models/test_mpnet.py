"""What MPNet adds to the derived suite: distances in buckets, and positions that count real tokens."""

from __future__ import annotations

import pytest
import torch

from transept.errors import ConfigError, InputError
from transept.layers.positions import distance_buckets
from transept.models.mpnet import BUCKETS, FURTHEST, MPNetConfig, MPNetForMaskedLM, MPNetModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "mpnet")
# config.json of the published base model.
BASE = {
    "architectures": ["MPNetForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "mpnet",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
    "vocab_size": 30527,
}


@pytest.mark.reference
def test_reads_published_config_files() -> None:
    check_config_file(MPNetConfig, BASE)


@pytest.mark.reference
def test_buckets_of_every_distance() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    place = torch.arange(600)
    theirs = MPNetEncoder.relative_position_bucket(place[None, :] - place[:, None])
    ours = distance_buckets(place[None, :] - place[:, None], buckets=BUCKETS, furthest=FURTHEST)
    assert torch.equal(ours, theirs)
    assert ours.unique().numel() == BUCKETS - 1  # none is for a distance of zero after the query


@pytest.mark.reference
def test_sequences_longer_than_the_furthest_bucket() -> None:
    ours, theirs = pair(FAMILY, MPNetModel, max_position_embeddings=200)
    ids = torch.randint(5, 99, (2, 190), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        compare(ours(ids), theirs(ids), SINGLE)


@pytest.mark.reference
def test_embeddings_of_a_padded_batch_all_count() -> None:
    ours, theirs = pair(FAMILY, MPNetModel)
    inputs = batch(FAMILY, MPNetModel)
    given = {"inputs_embeds": ours.get_input_embeddings()(inputs["input_ids"]), "attention_mask": inputs["attention_mask"]}
    with torch.no_grad():
        compare(ours(**given), theirs(**given), SINGLE)


@pytest.mark.reference
def test_a_full_mask_is_added_to_the_bias() -> None:
    ours, theirs = pair(FAMILY, MPNetModel)
    ids = batch(FAMILY, MPNetModel, pad="none")["input_ids"]
    allowed = torch.ones(9, 9, dtype=torch.bool).tril().expand(3, 1, 9, 9)
    added = torch.zeros(3, 1, 9, 9).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=added)
        compare(ours(ids, attention_mask=allowed), expected, SINGLE)
        compare(ours(ids, attention_mask=added), expected, SINGLE)


def test_distances_learn_when_layers_are_recomputed() -> None:
    torch.manual_seed(0)
    model = MPNetForMaskedLM(MPNetConfig(**FAMILY.tiny, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).train()
    inputs = batch(FAMILY, MPNetForMaskedLM)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        return model.backbone.distance_bias.weight.grad.clone()

    expected = gradient()
    model.gradient_checkpointing_enable()
    assert error(gradient(), expected) <= SINGLE


def test_as_many_tokens_as_positions_behind_the_padding_id() -> None:
    model = MPNetModel(MPNetConfig(**FAMILY.tiny))
    assert model(torch.full((1, 62), 7)).last_hidden_state.shape == (1, 62, 32)
    with pytest.raises(InputError, match="63 tokens, but there are embeddings for 62"):
        model(torch.full((1, 63), 7))


@pytest.mark.parametrize("wrong", [{"relative_attention_num_buckets": 31}, {"vocab_size": 1}, {"max_position_embeddings": 1}])
def test_refuses_tables_that_are_too_small(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MPNetConfig(**FAMILY.tiny | wrong)
