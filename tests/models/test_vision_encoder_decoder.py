"""What pairs of an encoder of images and a decoder add to the derived suite: writing, two checkpoints, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transept.core.auto import AutoModelForImageTextToText, AutoModelForVision2Seq
from transept.errors import InputError, TranseptWarning
from transept.models.bert import BertConfig, BertModel
from transept.models.resnet import ResNetConfig, ResNetModel
from transept.models.trocr import TrOCRConfig, TrOCRForCausalLM
from transept.models.vision_encoder_decoder import VisionEncoderDecoderConfig, VisionEncoderDecoderModel
from transept.models.vit import ViTConfig, ViTModel

from .families import FAMILIES
from .families.settings import BLOCK, TEXT, WRITER
from .harness import SINGLE, check_same, compare, error, originals, stored

FAMILY = next(family for family in FAMILIES if family.model_type == "vision_encoder_decoder")
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
OPTIONS = [{"max_new_tokens": 8}, {"num_beams": 3, "max_new_tokens": 8}, {"num_beams": 4, "num_return_sequences": 2}]
OPTIONS[2] |= {"max_length": 9, "length_penalty": 0.3}


def seen(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.reference
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("variant", ["tiny", "narrow", "gpt"])
def test_writes_what_the_reference_writes(variant: str, options: dict[str, Any]) -> None:
    ours, theirs, _ = originals(FAMILY, VisionEncoderDecoderModel, **FAMILY.variants.get(variant, {}))
    fixed = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 98}
    for rows in (PIXELS[:1], PIXELS):
        expected = theirs.generate(pixel_values=rows, **options, **fixed)
        assert torch.equal(ours.generate(pixel_values=rows, **options, **fixed), expected)
        assert torch.equal(ours.generate(rows, **options, **fixed), expected)


def test_two_checkpoints_make_a_pair(tmp_path: Path) -> None:
    ViTModel(ViTConfig(**BLOCK, image_size=16, patch_size=4)).save_pretrained(tmp_path / "sees")
    TrOCRForCausalLM(TrOCRConfig(**WRITER)).save_pretrained(tmp_path / "writes")
    options = {"decoder_start_token_id": 2, "pad_token_id": 1}
    pair = VisionEncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "sees", tmp_path / "writes", **options)
    assert not pair.training
    pair.save_pretrained(tmp_path / "pair")
    names = stored(str(tmp_path / "pair"))
    assert {"encoder.layernorm.weight", "decoder.model.decoder.layers.0.fc1.weight"} <= names.keys()
    for auto in (AutoModelForVision2Seq, AutoModelForImageTextToText):
        again = auto.from_pretrained(tmp_path / "pair")
        assert type(again) is VisionEncoderDecoderModel
        check_same(again, pair, lambda model: seen(model, pixel_values=PIXELS, labels=torch.tensor([[5, 2], [6, 2]])))
    assert torch.equal(again.generate(PIXELS, max_new_tokens=4), pair.generate(PIXELS, max_new_tokens=4))
    BertModel(BertConfig(**TEXT, intermediate_size=37)).save_pretrained(tmp_path / "bert")
    with pytest.warns(TranseptWarning, match="crossattention"):
        VisionEncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "sees", tmp_path / "bert")


@pytest.mark.reference
def test_images_of_other_sizes() -> None:
    ours, theirs, _ = originals(FAMILY, VisionEncoderDecoderModel)
    wide = torch.randn(1, 3, 20, 28, generator=torch.Generator().manual_seed(2))
    given = {"pixel_values": wide, "decoder_input_ids": torch.tensor([[2, 7]]), "interpolate_pos_encoding": True}
    compare(seen(ours, **given), seen(theirs, **given), SINGLE)


def test_states_in_the_place_of_images() -> None:
    ours = originals(FAMILY, VisionEncoderDecoderModel)[0]
    states = seen(ours.encoder, pixel_values=PIXELS)
    fixed = {"max_new_tokens": 5, "num_beams": 2}
    assert torch.equal(ours.generate(encoder_outputs=states, **fixed), ours.generate(PIXELS, **fixed))
    ids = torch.tensor([[2, 7], [2, 9]])
    given = seen(ours, encoder_outputs=(states.last_hidden_state,), decoder_input_ids=ids)
    assert error(given.logits, seen(ours, pixel_values=PIXELS, decoder_input_ids=ids).logits) <= SINGLE


def test_what_cannot_be() -> None:
    ours = originals(FAMILY, VisionEncoderDecoderModel)[0]
    writer = TrOCRForCausalLM(TrOCRConfig(**WRITER))
    with pytest.raises(InputError, match="BertModel is no encoder by itself here.*ImageBackbone"):
        VisionEncoderDecoderModel(encoder=BertModel(BertConfig(**TEXT)), decoder=writer)
    with pytest.raises(InputError, match="images of 12 x 16 pixels"):
        ours.generate(PIXELS[:, :, :12])
    with pytest.raises(InputError, match="needs something to encode"):
        ours.generate()
    with pytest.raises(InputError, match="`cross_attention_hidden_size` of the decoder is 20"):
        decoder = WRITER | {"model_type": "trocr", "cross_attention_hidden_size": 20}
        VisionEncoderDecoderModel(VisionEncoderDecoderConfig(**FAMILY.tiny | {"decoder": decoder}))
    with pytest.raises(InputError, match="decoder_start_token_id"):
        VisionEncoderDecoderModel(encoder=ours.encoder, decoder=writer)(PIXELS, labels=torch.tensor([[5], [6]]))
    maps = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 32], depths=[1, 1]))
    with pytest.raises(InputError, match=r"must be \(batch, positions, size\)"):
        VisionEncoderDecoderModel(encoder=maps, decoder=writer)(torch.randn(1, 3, 32, 32), torch.tensor([[2]]))
