"""What Whisper adds to the derived suite: generation of the core on spectrograms, SpecAugment, fixed waves, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transept.errors import ConfigError, InputError, InputTypeError
from transept.generation.generate import Generates
from transept.models.whisper import (
    WhisperConfig,
    WhisperForAudioClassification,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, gradients, labels, pair, whole_loss

FAMILY = next(family for family in FAMILIES if family.model_type == "whisper")
TINY = FAMILY.tiny
# config.json of the published tiny model, its lists of tokens cut short.
PUBLISHED = {
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "architectures": ["WhisperForConditionalGeneration"],
    "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257],
    "bos_token_id": 50257,
    "d_model": 384,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 4,
    "decoder_start_token_id": 50258,
    "dropout": 0.0,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 4,
    "eos_token_id": 50257,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "model_type": "whisper",
    "num_hidden_layers": 4,
    "num_mel_bins": 80,
    "pad_token_id": 50257,
    "scale_embedding": False,
    "suppress_tokens": [1, 2, 7, 8],
    "transformers_version": "4.27.0.dev0",
    "use_cache": True,
    "vocab_size": 51865,
}


def sound(rows: int = 2, seed: int = 3) -> Tensor:
    shape = rows, TINY["num_mel_bins"], 2 * TINY["max_source_positions"]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tiny(cls: Any = WhisperForConditionalGeneration, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(WhisperConfig(**TINY | more)).eval()


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, {"use_weighted_layer_sum": True, "torch_dtype": "float16"}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    check_config_file(WhisperConfig, PUBLISHED | extra)


@pytest.mark.reference
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}, {"use_cache": False}, {"begin": True}]
)
def test_writes_as_the_reference(options: dict[str, Any]) -> None:
    from transformers import GenerationMixin

    ours, theirs = pair(FAMILY, WhisperForConditionalGeneration)
    options = dict(options)
    begin = {"decoder_input_ids": torch.tensor([[3, 7, 9]] * 3)} if options.pop("begin", False) else {}
    options |= {"max_new_tokens": 8, "do_sample": False}
    mine = Generates.generate(ours, sound(3), **options, **begin)  # the loop of the core, without windows and rules
    assert torch.equal(mine, GenerationMixin.generate(theirs, sound(3), **options, **begin))
    named = Generates.generate(ours, input_features=sound(3), **options, **begin)
    assert torch.equal(mine, named)


@pytest.mark.reference
@pytest.mark.parametrize("cls", [WhisperModel, WhisperForConditionalGeneration])
def test_positions_of_the_decoder_may_be_given(cls: Any) -> None:
    ours, theirs = pair(FAMILY, cls)
    inputs = batch(FAMILY, cls)
    inputs["decoder_attention_mask"] = inputs["decoder_attention_mask"].flip(1)
    places = (inputs["decoder_attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        given = inputs | {"decoder_position_ids": places}
        compare(ours(**given), theirs(**given), SINGLE, only=inputs["decoder_attention_mask"])


@pytest.mark.reference
def test_classes_come_from_a_learned_mean_of_layers_and_from_given_states() -> None:
    ours, theirs = pair(FAMILY, WhisperForAudioClassification, use_weighted_layer_sum=True)
    inputs = {"input_features": sound(), "labels": torch.tensor([0, 1])}
    mine, other = ours(**inputs, output_hidden_states=True), theirs(**inputs, output_hidden_states=True)
    compare(mine, other, SINGLE)
    assert "hidden_states" not in ours(**inputs)
    encoded = ours.backbone(sound(), output_hidden_states=True)  # type: ignore[operator]
    assert error(ours(encoder_outputs=encoded).logits, mine.logits) <= SINGLE
    with pytest.raises(InputError, match="output_hidden_states=True"):
        ours(encoder_outputs=ours.backbone(sound()))  # type: ignore[operator]
    expected, found = gradients(theirs, other.loss), gradients(ours, mine.loss)
    assert error(found["layer_weights"], expected["layer_weights"]) <= 1e-4


def test_a_classifier_begins_with_the_encoder_of_a_writer(tmp_path: Path) -> None:
    writer = tiny()
    writer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="newly initialised"):
        classifier = WhisperForAudioClassification.from_pretrained(tmp_path)
    assert torch.equal(classifier.backbone.conv1.weight, writer.backbone.encoder.conv1.weight)
    assert error(classifier.backbone(sound())[0], writer.get_encoder()(sound())[0]) == 0.0


def test_the_decoder_alone_reads_states_and_outputs() -> None:
    ours = tiny(WhisperForCausalLM)
    ids, states = torch.tensor([[3, 7, 9, 11]]), torch.randn(1, 5, TINY["d_model"])
    expected = ours(ids, encoder_outputs=states).logits
    assert torch.equal(ours(ids, encoder_outputs=(states,)).logits, expected)
    assert not torch.allclose(ours(ids).logits, expected)
    assert ours.generate(ids, encoder_outputs=states, max_new_tokens=3, eos_token_id=None).shape == (1, 7)


def test_waves_are_stored_and_not_trained(tmp_path: Path) -> None:
    ours = tiny()
    table = ours.backbone.encoder.embed_positions.weight
    half = TINY["d_model"] // 2
    steps = torch.arange(half, dtype=torch.float64) / (half - 1)
    angles = torch.arange(TINY["max_source_positions"])[:, None] * 10000.0**-steps
    assert error(table, torch.cat([angles.sin(), angles.cos()], dim=1)) <= SINGLE
    assert "backbone.encoder.embed_positions.weight" not in dict(ours.named_parameters())
    ours.save_pretrained(tmp_path)
    back = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(back.backbone.encoder.embed_positions.weight, table)


def test_spans_are_hidden_in_training_alone() -> None:
    ours = tiny(WhisperModel, apply_spec_augment=True, mask_time_prob=0.5, mask_time_length=2, mask_feature_prob=0.3)
    ours.config.mask_feature_length = 2
    features, mask = sound(4), torch.ones(4, 12)
    mask[1:, 6:] = 0
    before = features.clone()
    assert ours.augmented(features, mask) is features
    ours.train()
    found = ours.augmented(features, mask)
    assert torch.equal(features, before)  # the reference overwrites the caller's
    gone = (found == 0).all(dim=1)
    assert gone.any()
    assert not gone[1:, 6:].any()
    with pytest.raises(InputError, match=r"`attention_mask` has the shape \(4, 5\)"):
        ours.augmented(features, mask[:, :5])


def test_parts_can_be_frozen() -> None:
    ours = tiny().train()
    ours.freeze_encoder()
    inputs = batch(FAMILY, WhisperForConditionalGeneration)
    found = gradients(ours, whole_loss(ours(**inputs | labels(FAMILY, WhisperForConditionalGeneration, inputs))))
    assert not [name for name in found if name.startswith("model.encoder.")]
    assert any(name.startswith("model.decoder.") for name in found)
    classifier = tiny(WhisperForAudioClassification)
    classifier.freeze_feature_encoder()
    assert not classifier.backbone.conv2.weight.requires_grad
    classifier.freeze_encoder()
    assert {name for name, each in classifier.named_parameters() if each.requires_grad} == {
        f"{layer}.{kind}" for layer in ("projector", "classifier") for kind in ("weight", "bias")
    }
    assert ours._get_feat_extract_output_lengths(12) == 6


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(1, 8, 11), r"`input_features` has the shape \(1, 8, 11\), but the model takes .* with 8 x 12"),
        (torch.zeros(1, 9, 12), "with 8 x 12"),
        (torch.zeros(1, 8, 0), "with 8 x 12"),
        (torch.zeros(0, 8, 12), "is empty"),
        (torch.zeros(8, 12), "must be .batch, bins, frames"),
        (torch.zeros(1, 8, 12, dtype=torch.long), "of floats"),
        (torch.full((1, 8, 12), float("nan")), r"`input_features` holds nan at \[0, 0, 0\]"),
        (None, "must be a tensor, but is NoneType"),
    ],
)
def test_what_is_no_spectrogram_is_an_error(features: Any, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        tiny()(features, decoder_input_ids=torch.tensor([[3]]))
    if features is not None:
        with pytest.raises((InputError, InputTypeError), match=message):
            Generates.generate(tiny(), features, max_new_tokens=2)


def test_other_errors_name_what_is_wrong() -> None:
    ours = tiny()
    with pytest.raises(InputError, match="needs `decoder_input_ids`"):
        ours(sound())
    with pytest.raises(InputError, match="has 21 positions, but WhisperDecoder has embeddings for 20"):
        ours(sound(), labels=torch.full((2, 21), 7))
    with pytest.raises(InputError, match="needs something to encode.*input_features"):
        Generates.generate(ours, max_new_tokens=2)
    with pytest.raises(ConfigError, match="`d_model` .* must be even"):
        WhisperConfig(**TINY | {"d_model": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 1})
    with pytest.raises(ConfigError, match="max_source_positions"):
        WhisperConfig(**TINY | {"max_source_positions": 0})
