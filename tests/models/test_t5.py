"""What T5 adds to the derived suite: its older files, untied heads, float16, distances and the encoder alone."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.core.auto import AutoModel, AutoModelForSeq2SeqLM
from transept.errors import ConfigError, InputError, TranseptWarning
from transept.layers.positions import distance_buckets
from transept.models.t5 import (
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
)

from .families import FAMILIES
from .harness import SINGLE, check_config_file, compare, error, stored

TINY = {family.model_type: family for family in FAMILIES}["t5"].tiny
SMALL = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"prefix": "summarize: "}},
    "vocab_size": 32128,
}
FLAN = SMALL | {
    "d_ff": 1024,
    "dense_act_fn": "gelu_new",
    "feed_forward_proj": "gated-gelu",
    "is_gated_act": True,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
}
IDS = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(0))


def seen(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.reference
def test_files_of_the_older_layout() -> None:
    check_config_file(T5Config, SMALL)
    check_config_file(T5Config, {name: value for name, value in FLAN.items() if name != "tie_word_embeddings"})
    flan = T5Config.from_dict(FLAN)
    assert (flan.is_gated_act, flan.dense_act_fn, flan.scale_decoder_outputs) == (True, "gelu_new", False)
    assert T5Config.from_dict(flan.to_dict()) == flan
    assert T5Config().scale_decoder_outputs
    assert T5Config(num_layers=3).num_decoder_layers == 3


@pytest.mark.reference
@pytest.mark.parametrize("tie", [True, False])
def test_heads_that_are_stored_apart(tie: bool, tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**TINY, tie_word_embeddings=tie)).eval()
    theirs.save_pretrained(tmp_path)
    state = stored(str(tmp_path)) | {"lm_head.weight": torch.randn(99, 32)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    if not tie:  # as files were written before the setting was about scale alone
        T5Config(**TINY, tie_word_embeddings=False).save_pretrained(tmp_path)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert any(issubclass(warning.category, TranseptWarning) for warning in caught) is tie
    inputs = {"input_ids": IDS, "labels": IDS, "use_cache": False}
    compare(seen(ours, **inputs), seen(theirs, **inputs), SINGLE)
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    compare(seen(ours, **inputs), seen(again, **inputs), SINGLE)


@pytest.mark.reference
@pytest.mark.parametrize("causal", [True, False])
def test_buckets_of_every_distance(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-600, 601)
    for buckets, furthest in ((32, 128), (8, 6), (33, 200)):
        theirs = T5Attention._relative_position_bucket(distance, not causal, buckets, furthest)
        assert torch.equal(distance_buckets(distance, buckets=buckets, furthest=furthest, causal=causal), theirs)


@pytest.mark.reference
def test_half_precision_keeps_what_overflows_wide(tmp_path: Path) -> None:
    import transformers

    T5ForConditionalGeneration(T5Config(**TINY)).save_pretrained(tmp_path)
    ours = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16).eval()
    wide = {name for name, parameter in ours.named_parameters() if parameter.dtype is torch.float32}
    assert wide == {name for name, _ in ours.named_parameters() if name.endswith("DenseReluDense.wo.weight")}
    assert wide
    mine, other = (seen(model, input_ids=IDS, decoder_input_ids=IDS) for model in (ours, theirs))
    assert error(mine.logits, other.logits) <= 5e-3  # float16 has 11 bits
    assert mine.logits.dtype is torch.float16
    brain = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in brain.parameters()} == {torch.bfloat16}


def test_whole_checkpoints_hold_the_encoder(tmp_path: Path) -> None:
    model = T5ForConditionalGeneration(T5Config(**TINY)).eval()
    model.save_pretrained(tmp_path)
    state = stored(str(tmp_path))
    state["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(8, 4)
    save_file(state, tmp_path / "model.safetensors")
    expected = model.get_encoder()(IDS).last_hidden_state
    assert type(AutoModel.from_pretrained(tmp_path)) is T5Model
    encoder = T5EncoderModel.from_pretrained(tmp_path)
    assert not encoder.config.is_encoder_decoder
    assert error(encoder(IDS).last_hidden_state, expected) == 0.0
    compare(
        seen(T5ForConditionalGeneration.from_pretrained(tmp_path), input_ids=IDS, labels=IDS),
        seen(model, input_ids=IDS, labels=IDS),
        0.0,
    )
    for cls in (T5ForTokenClassification, T5ForSequenceClassification):
        with pytest.warns(TranseptWarning, match=r"newly initialised.*classif"):
            tuned = cls.from_pretrained(tmp_path)
        inner = tuned.backbone if cls is T5ForTokenClassification else tuned.get_encoder()
        assert error(inner(IDS).last_hidden_state, expected) == 0.0
        tuned.save_pretrained(tmp_path / "tuned")
        assert all(name.startswith(("transformer.", "class")) for name in stored(str(tmp_path / "tuned")))
    state["encoder.embed_tokens.weight"] = state.pop("shared.weight")
    save_file(state, tmp_path / "model.safetensors")
    assert error(T5EncoderModel.from_pretrained(tmp_path)(IDS).last_hidden_state, expected) == 0.0
    back = T5ForConditionalGeneration.from_pretrained(tmp_path / "tuned", strict=False)
    assert error(back.get_encoder()(IDS).last_hidden_state, expected) == 0.0


def test_parameters_start_by_the_size_of_their_input() -> None:
    torch.manual_seed(0)
    settings = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_heads": 8, "num_layers": 2, "vocab_size": 500}
    model = T5ForConditionalGeneration(T5Config(**settings, tie_word_embeddings=False))
    expected = {"q_proj": 1 / math.sqrt(64 * 16), "k_proj": 1 / 8, "o_proj": 1 / math.sqrt(128), "up_proj": 1 / 8}
    expected |= {"down_proj": 1 / 16, "embed_tokens": 1.0, "lm_head": 1.0}
    names = model.checkpoint_names()
    for name, parameter in model.named_parameters():
        kind = names.dialect(name).removesuffix(".weight").rpartition(".")[2]
        if kind in expected:
            assert float(parameter.detach().std()) == pytest.approx(expected[kind], rel=0.05), name


def test_settings_that_cannot_be() -> None:
    wrong = {"feed_forward_proj": "gated-gelu-new", "relative_attention_num_buckets": 2, "relative_attention_max_distance": 16}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            T5Config(**{name: value})
    with pytest.raises(InputError, match="decoder_input_ids"):
        T5ForConditionalGeneration(T5Config(**TINY))(IDS)
    with pytest.raises(InputError, match="decoder_start_token_id"):
        T5ForConditionalGeneration(T5Config(**(TINY | {"decoder_start_token_id": None})))(IDS, labels=IDS)
