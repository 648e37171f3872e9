"""What BART and its relatives (mBART, Marian) add to the derived suite."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.errors import ConfigError, InputError
from transept.models.bart import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BartModel,
)
from transept.models.marian import MarianConfig, MarianMTModel
from transept.models.mbart import MBartConfig, MBartForConditionalGeneration, MBartModel

from .families import FAMILIES
from .families.settings import STACKS
from .harness import SINGLE, batch, check_config_file, check_same, compare, error, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}
# What config.json of published models says, less what is about decoding.
LARGE_CNN = {
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "add_final_layer_norm": False,
    "architectures": ["BartForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 12,
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 12,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_position_embeddings": 1024,
    "model_type": "bart",
    "normalize_before": False,
    "num_hidden_layers": 12,
    "output_past": True,
    "pad_token_id": 1,
    "scale_embedding": False,
    "vocab_size": 50264,
}
OPUS = {
    "activation_function": "swish",
    "architectures": ["MarianMTModel"],
    "bos_token_id": 0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "is_encoder_decoder": True,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_embedding": False,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "vocab_size": 58101,
}
IDS = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(0))


def tiny(**more: Any) -> BartConfig:
    return BartConfig(**STACKS, init_std=0.25, **more)


def seen(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.reference
def test_files_of_the_older_layout() -> None:
    check_config_file(BartConfig, LARGE_CNN)
    check_config_file(MBartConfig, LARGE_CNN | {"model_type": "mbart", "scale_embedding": True, "decoder_start_token_id": None})
    check_config_file(MarianConfig, OPUS)
    assert BartConfig(num_labels=2).to_dict()["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert BartConfig.from_dict(BartConfig(num_labels=2).to_dict()).num_labels == 2
    assert BartConfig.from_dict(BartConfig().to_dict()).num_labels == 3


@pytest.mark.reference
def test_decoder_inputs_are_the_encoders_where_there_are_none() -> None:
    for family, cls in ((FAMILY["bart"], BartModel), (FAMILY["mbart"], MBartModel)):
        ours, theirs = pair(family, cls)
        inputs = {key: value for key, value in batch(family, cls).items() if not key.startswith("decoder_")}
        compare(seen(ours, **inputs), seen(theirs, **inputs), SINGLE)


def test_published_checkpoints_keep_tables_several_times_and_no_prefix(tmp_path: Path) -> None:
    model = BartForConditionalGeneration(tiny()).eval()
    model.save_pretrained(tmp_path)
    state = {name.removeprefix("model."): tensor for name, tensor in stored(str(tmp_path)).items()}
    assert {"shared.weight", "final_logits_bias"} <= state.keys()
    del state["final_logits_bias"]
    copies = {f"{half}.embed_tokens.weight": state["shared.weight"].clone() for half in ("encoder", "decoder")}
    save_file(state | copies | {"encoder.version": torch.ones(1)}, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, info = BartForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
        alone = BartForCausalLM.from_pretrained(tmp_path)
    assert not info["missing_keys"]
    expected = seen(model, input_ids=IDS, decoder_input_ids=IDS)
    check_same(again, model, lambda model: seen(model, input_ids=IDS, decoder_input_ids=IDS))
    states = expected.encoder_last_hidden_state
    assert error(seen(alone, input_ids=IDS, encoder_hidden_states=states).logits, expected.logits) <= SINGLE
    assert alone.config.is_decoder
    assert not alone.config.is_encoder_decoder
    assert model.config.is_encoder_decoder
    del state["shared.weight"]
    save_file(state | {"lm_head.weight": copies["encoder.embed_tokens.weight"]}, tmp_path / "model.safetensors")
    one = BartForConditionalGeneration.from_pretrained(tmp_path)
    check_same(one, model, lambda model: seen(model, input_ids=IDS, decoder_input_ids=IDS))
    assert one.lm_head.weight is one.backbone.encoder.embed_tokens.weight is one.backbone.decoder.embed_tokens.weight


def test_a_decoder_of_a_whole_checkpoint(tmp_path: Path) -> None:
    model = BartForConditionalGeneration(tiny()).eval()
    model.save_pretrained(tmp_path)
    alone = BartForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(alone.backbone.embed_tokens.weight, model.backbone.embed_tokens.weight)
    alone.save_pretrained(tmp_path / "alone")
    assert all(name.startswith("model.decoder.") for name in stored(str(tmp_path / "alone")))


def test_what_the_decoder_is_given() -> None:
    model = BartForConditionalGeneration(tiny()).eval()
    whole = seen(model, input_ids=IDS, decoder_input_ids=IDS)
    encoded = model.get_encoder()(IDS)
    for given in (encoded, encoded.to_tuple()):
        assert error(seen(model, encoder_outputs=given, decoder_input_ids=IDS).logits, whole.logits) == 0.0
    first = seen(model, encoder_outputs=encoded, decoder_input_ids=IDS[:, :3], use_cache=True)
    keys = [layer.keys for layer in first.past_key_values.cross]
    mask = torch.ones_like(IDS)
    inputs = {"encoder_outputs": encoded, "attention_mask": mask, "past_key_values": first.past_key_values}
    second = seen(model, **inputs, decoder_input_ids=IDS[:, 3:], use_cache=True, logits_to_keep=1)
    assert error(second.logits, whole.logits[:, -1:]) <= SINGLE
    assert all(torch.equal(old, layer.keys) for old, layer in zip(keys, second.past_key_values.cross))
    with pytest.raises(InputError, match="decoder_start_token_id"):
        BartModel(tiny(decoder_start_token_id=None))(IDS)
    padded = IDS.clone()
    padded[0, 5:] = 1
    with_mask = seen(model, input_ids=padded, attention_mask=(padded != 1).long(), decoder_input_ids=IDS)
    assert error(seen(model, input_ids=padded, decoder_input_ids=IDS).logits, with_mask.logits) == 0.0


def test_languages_are_moved_to_the_front() -> None:
    model = MBartForConditionalGeneration(MBartConfig(**STACKS))
    labels = torch.tensor([[5, 6, 2, 90], [7, 2, 91, -100]])
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[90, 5, 6, 2], [91, 7, 2, 91]]


def test_sequences_are_classified_by_their_last_end() -> None:
    model = BartForSequenceClassification(tiny()).eval()
    ids = IDS.clone()
    ids[0, [2, 4]], ids[1, 6] = 2, 2
    out = seen(model, input_ids=ids, output_hidden_states=True)
    picked = out.decoder_hidden_states[-1][torch.arange(2), torch.tensor([4, 6])]
    assert error(out.logits, model.head(picked)) <= SINGLE
    ids[0] = 7
    with pytest.raises(InputError, match="row 0"):
        model(ids)
    with pytest.raises(InputError, match="input_ids"):
        model(inputs_embeds=torch.zeros(2, 7, 32))


@pytest.mark.parametrize("tied", [True, False])
def test_vocabularies_are_resized_together(tied: bool) -> None:
    model = BartForConditionalGeneration(tiny(tie_word_embeddings=tied)).eval()
    before = seen(model, input_ids=IDS, decoder_input_ids=IDS).logits
    model.final_bias.fill_(0.5)
    model.resize_token_embeddings(120)
    after = seen(model, input_ids=IDS, decoder_input_ids=IDS).logits
    assert after.shape[-1] == model.config.vocab_size == 120
    assert error(after[..., :99] - 0.5, before) <= SINGLE
    assert model.final_bias[0, 99:].unique().tolist() == [0.0]
    assert (model.lm_head.weight is model.backbone.encoder.embed_tokens.weight) is tied
    model.resize_token_embeddings(50)
    assert seen(model, input_ids=IDS % 50, decoder_input_ids=IDS % 50).logits.shape[-1] == 50


def test_two_languages_with_vocabularies_of_their_own() -> None:
    settings = STACKS | {"pad_token_id": 0, "decoder_start_token_id": 0, "init_std": 0.25}
    model = MarianMTModel(MarianConfig(**settings, decoder_vocab_size=60, share_encoder_decoder_embeddings=False)).eval()
    assert model.get_decoder().vocab_size == 60
    assert model.lm_head.weight is model.backbone.decoder.embed_tokens.weight
    assert model(IDS, labels=IDS % 60).logits.shape[-1] == 60
    with pytest.raises(InputError, match="0 to 59"):
        model(IDS, decoder_input_ids=torch.full((2, 3), 60))
    before = seen(model, input_ids=IDS, decoder_input_ids=IDS % 60).logits
    model.resize_token_embeddings(110)
    model.resize_decoder_token_embeddings(70)
    after = seen(model, input_ids=IDS, decoder_input_ids=IDS % 60).logits
    assert error(after[..., :60], before) <= SINGLE
    assert (model.config.vocab_size, model.config.decoder_vocab_size, after.shape[-1]) == (110, 70, 70)
    shared = MarianMTModel(MarianConfig(**settings))
    shared.resize_token_embeddings(101)
    assert shared.config.decoder_vocab_size == 101
    with pytest.raises(InputError, match="share"):
        shared.resize_decoder_token_embeddings(7)


@pytest.mark.reference
def test_two_vocabularies_equal_the_reference(tmp_path: Path) -> None:
    import transformers

    settings = STACKS | {"pad_token_id": 0, "decoder_start_token_id": 0, "init_std": 0.25, "scale_embedding": True}
    config = transformers.MarianConfig(**settings, decoder_vocab_size=60, share_encoder_decoder_embeddings=False)
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(config).eval()
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path)
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(ours) is MarianMTModel
    inputs = {"input_ids": IDS, "labels": IDS % 60, "use_cache": False}
    compare(seen(ours, **inputs), seen(theirs, **inputs), SINGLE)
    embeds = {"inputs_embeds": torch.randn(2, 7, 32), "decoder_inputs_embeds": torch.randn(2, 5, 32), "use_cache": False}
    compare(seen(ours, **embeds), seen(theirs, **embeds), SINGLE)
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "ours").eval()
    compare(seen(ours, **inputs), seen(again, **inputs), SINGLE)


def test_settings_that_cannot_be() -> None:
    for name, value in {"encoder_attention_heads": 5, "decoder_layerdrop": 2.0, "init_std": -1.0, "pad_token_id": 99}.items():
        with pytest.raises(ConfigError, match=name if name != "encoder_attention_heads" else "d_model"):
            BartForConditionalGeneration(BartConfig(**(STACKS | {name: value})))
    with pytest.raises(InputError, match="decoder_input_ids"):
        MarianMTModel(MarianConfig(**STACKS, pad_token_id=0))(IDS)
