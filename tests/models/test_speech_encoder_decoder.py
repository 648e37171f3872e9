"""What pairs over sound add to the derived suite: any encoder of sound, names of the input, writing, and wrong halves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from transept.core.auto import AutoModelForSpeechSeq2Seq
from transept.errors import InputError
from transept.models.bert import BertConfig, BertLMHeadModel, BertModel
from transept.models.speech_encoder_decoder import SpeechEncoderDecoderModel
from transept.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2Model

from .families import FAMILIES, TEXT
from .harness import SINGLE, batch, error, pair, reference_class

FAMILY = next(family for family in FAMILIES if family.model_type == "speech_encoder_decoder")
READER = BertConfig(**TEXT, intermediate_size=37, is_decoder=True, add_cross_attention=True)
EARS = Wav2Vec2Config(**{name: value for name, value in FAMILY.tiny["encoder"].items() if name != "model_type"})


def seen(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_writes_as_the_reference(options: dict[str, Any]) -> None:
    ours, theirs = pair(FAMILY, SpeechEncoderDecoderModel)
    inputs = batch(FAMILY, SpeechEncoderDecoderModel)
    options |= {"attention_mask": inputs["attention_mask"], "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    options |= {"decoder_start_token_id": 1, "eos_token_id": 2}
    mine = ours.generate(inputs["inputs"], **options)  # type: ignore[operator]
    assert torch.equal(mine, theirs.generate(inputs["inputs"], **options))
    assert torch.equal(ours.generate(input_values=inputs["inputs"], **options), mine)  # type: ignore[operator]


@pytest.mark.reference
def test_states_of_padding_are_not_read() -> None:
    ours, _ = pair(FAMILY, SpeechEncoderDecoderModel, encoder=FAMILY.tiny["encoder"] | {"feat_extract_norm": "layer"})
    inputs = batch(FAMILY, SpeechEncoderDecoderModel)
    together = seen(ours, **inputs).logits[2:]
    alone = {name: value[2:] for name, value in inputs.items()}
    length = int(alone["attention_mask"].sum())
    alone |= {name: alone[name][:, :length] for name in ("inputs", "attention_mask")}
    real = alone["decoder_attention_mask"].bool()
    assert error(seen(ours, **alone).logits[real], together[real]) <= SINGLE


def test_inputs_have_three_names_and_checkpoints_come_back(tmp_path: Path) -> None:
    ours = SpeechEncoderDecoderModel(encoder=Wav2Vec2Model(EARS), decoder=BertLMHeadModel(READER)).eval()
    wave, ids = torch.randn(2, 400), torch.tensor([[1, 7], [1, 8]])
    expected = seen(ours, wave, decoder_input_ids=ids).logits
    for name in ("inputs", "input_values", "input_features"):
        assert torch.equal(seen(ours, **{name: wave}, decoder_input_ids=ids).logits, expected)
    assert torch.equal(seen(ours, input_values=wave, input_features=None, decoder_input_ids=ids).logits, expected)
    with pytest.raises(InputError, match="passed twice, as `inputs` and `input_values`"):
        ours(wave, input_values=wave, decoder_input_ids=ids)
    ours.freeze_feature_encoder()
    assert not any(each.requires_grad for each in ours.encoder.feature_extractor.parameters())  # type: ignore[union-attr]
    ours.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path)
    assert type(again) is SpeechEncoderDecoderModel
    assert torch.equal(seen(again, wave, decoder_input_ids=ids).logits, expected)
    assert reference_class(SpeechEncoderDecoderModel).from_pretrained(tmp_path).config.encoder.model_type == "wav2vec2"


def test_wrong_halves() -> None:
    with pytest.raises(InputError, match=r"BertModel is no encoder by itself here.*SoundBackbone"):
        SpeechEncoderDecoderModel(encoder=BertModel(BertConfig(**TEXT)), decoder=BertLMHeadModel(READER))
    ours = SpeechEncoderDecoderModel(encoder=Wav2Vec2Model(EARS), decoder=BertLMHeadModel(READER))
    with pytest.raises(InputError, match="`input_values` must be a tensor"):
        ours(decoder_input_ids=torch.tensor([[1]]))
