"""What BLIP has beyond the derived suite: writing, padding of prompts and questions, sizes of images, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transept.errors import ConfigError, InputError, InputTypeError
from transept.models.blip import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipForImageTextRetrieval,
    BlipForQuestionAnswering,
    BlipModel,
)
from transept.models.blip.networks import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from .families import FAMILIES
from .harness import SINGLE, compare, error, originals

FAMILY = next(family for family in FAMILIES if family.model_type == "blip")
PIXELS = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(5))
# As a tokenizer makes them: CLS 90, SEP 97.
PROMPTS = torch.tensor([[90, 11, 12, 13, 97], [90, 21, 22, 23, 97], [90, 31, 32, 33, 97]])
SHORT = torch.tensor([[90, 11, 12, 97, 0, 0], [90, 21, 22, 23, 24, 97], [90, 31, 97, 0, 0, 0]])


def captions() -> tuple[Any, Any]:
    return originals(FAMILY, BlipForConditionalGeneration)[:2]


def questions() -> tuple[Any, Any]:
    return originals(FAMILY, BlipForQuestionAnswering)[:2]


def real(ids: Tensor) -> Tensor:
    return (ids != 0).long()


def seen(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


OPTIONS = [{"max_new_tokens": 7}, {"num_beams": 3, "max_new_tokens": 6}, {}, {"num_beams": 4, "num_return_sequences": 2}]
OPTIONS += [{"max_length": 12, "repetition_penalty": 1.5}]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("options", OPTIONS)
def test_descriptions_are_the_references(options: dict[str, Any]) -> None:
    ours, theirs = captions()
    for rows in (slice(0, 1), slice(0, 3)):
        for prompt in ({}, {"input_ids": PROMPTS[rows]}, {"input_ids": PROMPTS[rows], "attention_mask": real(PROMPTS[rows])}):
            given = {name: value.clone() for name, value in prompt.items()} | {"pixel_values": PIXELS[rows]} | options
            mine = ours.generate(**given)
            assert torch.equal(given.get("input_ids", PROMPTS[rows]), PROMPTS[rows])  # the caller's stay as they are
            assert torch.equal(mine, theirs.generate(**given))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("options", OPTIONS)
def test_answers_are_the_references(options: dict[str, Any]) -> None:
    ours, theirs = questions()
    for rows in (slice(0, 1), slice(0, 3)):
        given = {"input_ids": PROMPTS[rows], "pixel_values": PIXELS[rows], "attention_mask": real(PROMPTS[rows])} | options
        assert torch.equal(ours.generate(**given), theirs.generate(**given))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{"max_new_tokens": 6}, {"num_beams": 3, "max_new_tokens": 6}])
def test_padded_rows_are_written_as_alone(side: str, options: dict[str, Any]) -> None:
    """The reference reads padding of questions, and takes the end of the longest prompt alone away.

    Positions of questions count padding, as BERT's do, so that questions are padded on the right.
    """
    ids = SHORT if side == "right" else SHORT.gather(1, real(SHORT).argsort(dim=1, stable=True))
    for (ours, theirs), start in ((captions(), True), (questions(), False))[: 2 if side == "right" else 1]:
        together = ours.generate(pixel_values=PIXELS, input_ids=ids, attention_mask=real(ids), **options)
        inferred = ours.generate(pixel_values=PIXELS, input_ids=ids, **options)
        assert torch.equal(together, inferred)
        for row, written in enumerate(together):
            alone = ids[row : row + 1][:, ids[row] != 0]
            (expected,) = theirs.generate(pixel_values=PIXELS[row : row + 1], input_ids=alone.clone(), **options)
            if start:
                assert written[ids.shape[1] - alone.shape[1] :].tolist()[: len(expected)] == expected.tolist()
            else:
                assert written.tolist()[: len(expected)] == expected.tolist()


@pytest.mark.reference
def test_questions_have_the_loss_that_they_have_alone() -> None:
    ours, theirs = questions()
    answers = torch.tensor([[98, 7, 8, 97], [98, 9, 97, -100], [98, 5, 6, 97]])
    whole = seen(ours, SHORT, PIXELS, attention_mask=real(SHORT), labels=answers)
    losses, tokens = torch.zeros(()), (answers[:, 1:] != -100).sum(dim=1)
    for row in range(3):
        question, answer = SHORT[row : row + 1, : int(real(SHORT)[row].sum())], answers[row : row + 1, : int(tokens[row]) + 1]
        losses += seen(theirs, question, PIXELS[row : row + 1], labels=answer).loss * tokens[row]
    assert error(whole.loss, losses / tokens.sum()) <= SINGLE


@pytest.mark.reference
def test_images_of_other_sizes() -> None:
    ours, theirs = captions()
    pixels = torch.randn(2, 3, 22, 29, generator=torch.Generator().manual_seed(6))
    given = {"pixel_values": pixels, "input_ids": PROMPTS[:2], "interpolate_pos_encoding": True}
    compare(seen(ours, **given), seen(theirs, **given), SINGLE)
    assert torch.equal(ours.generate(**given, max_new_tokens=5), theirs.generate(**given, max_new_tokens=5))
    wide = BlipVisionConfig(**FAMILY.tiny["vision_config"] | {"image_size": [16, 24]})
    model = BlipVisionModel(wide).eval()
    found = seen(model, torch.randn(1, 3, 32, 24), interpolate_pos_encoding=True).last_hidden_state
    assert found.shape == (1, 1 + 8 * 6, 32)


@pytest.mark.reference
def test_texts_and_images_are_compared() -> None:
    ours, theirs, _ = originals(FAMILY, BlipForImageTextRetrieval)
    given = {"input_ids": SHORT, "attention_mask": real(SHORT), "pixel_values": PIXELS[:2], "use_itm_head": False}
    found = seen(ours, **given)
    compare(found, seen(theirs, **given), SINGLE)
    assert found.itm_score.shape == (2, 3)
    as_tuple = seen(ours, **given, return_dict=False)
    assert error(as_tuple, seen(theirs, **given).to_tuple()) <= SINGLE


def test_settings_for_generation_are_the_models(tmp_path: Path) -> None:
    ours = BlipForConditionalGeneration(BlipConfig(**FAMILY.tiny)).eval()
    ours.generation_config.max_new_tokens = 3
    assert ours.generate(PIXELS).shape == (3, 4)
    ours.save_pretrained(tmp_path)
    again = BlipForConditionalGeneration.from_pretrained(tmp_path)
    assert again.generation_config.max_new_tokens == 3
    assert torch.equal(again.generate(PIXELS), ours.generate(PIXELS))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_settings_for_generation_in_the_text_config_have_no_part(tmp_path: Path) -> None:
    """Files of older versions have them there, and version 5 does not read them."""
    import json

    import transformers

    theirs = transformers.BlipForConditionalGeneration(transformers.BlipConfig(**FAMILY.tiny)).eval()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] |= {"max_length": 9, "num_beams": 2, "length_penalty": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, theirs = (cls.from_pretrained(tmp_path) for cls in (BlipForConditionalGeneration, type(theirs)))
    assert torch.equal(ours.generate(PIXELS), theirs.generate(PIXELS))


@pytest.mark.reference
def test_vectors_of_texts_and_images() -> None:
    ours, theirs, _ = originals(FAMILY, BlipModel)
    given = {"input_ids": SHORT, "attention_mask": real(SHORT)}
    compare(ours.get_text_features(**given), theirs.get_text_features(**given), SINGLE)
    compare(ours.get_image_features(PIXELS), theirs.get_image_features(PIXELS), SINGLE)
    given["pixel_values"] = PIXELS
    assert error(ours.get_multimodal_features(**given), theirs.get_multimodal_features(**given)) <= SINGLE


def test_the_vocabulary_of_all_parts_grows() -> None:
    ours = BlipForQuestionAnswering(BlipConfig(**FAMILY.tiny)).eval()
    ours.resize_token_embeddings(105)
    assert ours.config.text_config.vocab_size == 105
    assert ours.text_encoder.embed_tokens.num_embeddings == ours.text_decoder.backbone.embed_tokens.num_embeddings == 105
    assert ours.get_output_embeddings().out_features == 105
    assert ours.get_output_embeddings().weight is ours.text_decoder.get_input_embeddings().weight
    assert ours.generate(PROMPTS, PIXELS, max_new_tokens=2).shape == (3, 3)


def test_the_network_of_images_is_read_from_a_whole_model(tmp_path: Path) -> None:
    whole = BlipForConditionalGeneration(BlipConfig(**FAMILY.tiny)).eval()
    whole.save_pretrained(tmp_path)
    alone = BlipVisionModel.from_pretrained(tmp_path)
    assert error(seen(alone, PIXELS).last_hidden_state, seen(whole.vision_model, PIXELS).last_hidden_state) == 0.0


def test_padding_on_the_left_and_the_right() -> None:
    model = BlipTextModel(BlipTextConfig(**FAMILY.tiny["text_config"])).eval()
    padded = seen(model, SHORT, real(SHORT)).last_hidden_state
    assert error(padded[2:, :3], seen(model, SHORT[2:, :3]).last_hidden_state) <= SINGLE
    image = torch.randn(3, 5, 32)
    told = seen(model, SHORT, encoder_hidden_states=image, output_attentions=True)
    assert len(told.cross_attentions) == len(told.attentions) == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"pixel_values": PIXELS[:, :, :15]}, "images of 15 x 16 pixels"),
        ({"pixel_values": PIXELS[:, :2]}, "2 channels"),
        ({"pixel_values": PIXELS[0]}, "batch, channels, height, width"),
        ({"pixel_values": PIXELS * torch.nan}, "holds nan"),
        ({"pixel_values": PIXELS, "input_ids": PROMPTS[:2]}, "3 rows, but the batch has 2"),
        ({"pixel_values": PIXELS, "input_ids": PROMPTS + 80}, "vocabulary has the ids 0 to 98"),
    ],
)
def test_inputs_that_cannot_be(inputs: dict[str, Any], message: str) -> None:
    ours, _ = captions()
    for call in (ours, ours.generate):
        with pytest.raises(InputError, match=message):
            call(**({"input_ids": PROMPTS} | inputs))


def test_more_that_cannot_be() -> None:
    ours, _ = captions()
    with pytest.raises(InputTypeError, match="`pixel_values` must be a tensor"):
        ours.generate()
    with pytest.raises(InputError, match="either `input_ids` or `inputs_embeds`"):
        ours(PIXELS)
    with pytest.raises(InputTypeError, match="takes no input `pixels`"):
        ours(PIXELS, PROMPTS, pixels=PIXELS)
    with pytest.raises(InputError, match="two real tokens in each row"):
        ours.generate(PIXELS, torch.tensor([[90, 97], [90, 0], [90, 97]]))
    with pytest.raises(InputError, match="attention_mask"):
        ours.generate(PIXELS, PROMPTS, torch.ones(3, 4))
    answers, _ = questions()
    with pytest.raises(InputError, match="neither `labels` nor `decoder_input_ids`"):
        answers(PROMPTS, PIXELS)
    with pytest.raises(InputError, match="label 99"):
        answers(PROMPTS, PIXELS, decoder_input_ids=PROMPTS, labels=PROMPTS.clamp(max=97) + 2)


def test_settings_that_cannot_be() -> None:
    text, vision = FAMILY.tiny["text_config"], FAMILY.tiny["vision_config"]
    with pytest.raises(ConfigError, match="text_config.*BlipTextConfig"):
        BlipConfig(text_config=BlipVisionConfig(**vision))
    with pytest.raises(ConfigError, match="bert"):
        BlipConfig(text_config={"model_type": "bert"})
    with pytest.raises(ConfigError, match="is_decoder"):
        BlipForConditionalGeneration(BlipConfig(text_config=text | {"is_decoder": False}, vision_config=vision))
    with pytest.raises(ConfigError, match="hidden_size"):
        BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision | {"hidden_size": 16}))
    with pytest.raises(ConfigError, match="patch_size"):
        BlipVisionConfig(patch_size=400)
    with pytest.raises(ConfigError, match="label_smoothing"):
        BlipTextConfig(label_smoothing=1.5)
    narrow = BlipConfig(text_config=text, vision_config=vision | {"hidden_size": 16})
    assert narrow.text_config.encoder_hidden_size == 16
    assert BlipForConditionalGeneration(narrow).generate(PIXELS, max_new_tokens=2).shape == (3, 3)
