"""What LLaVA does beside what every family must: it writes about pictures, over several turns, from files of all layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.core.auto import AutoModelForImageTextToText
from transept.errors import ConfigError, InputError
from transept.layers.caches.cache import DynamicCache
from transept.models.llava import LlavaConfig, LlavaForConditionalGeneration, LlavaModel

from .families import FAMILIES
from .harness import SINGLE, compare, error, originals, pair, stored
from .pictures import features, joined

pytestmark = pytest.mark.reference

FAMILY = next(each for each in FAMILIES if each.model_type == "llava")
IMG, N = 90, features(FAMILY)
GREEDY: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}
ONE, TWO = [5, *[IMG] * N, 6, 7], [8, *[IMG] * N, 9, *[IMG] * N, 10, 11]


def inputs(rows: list[list[int]], count: int, pad: str = "left") -> dict[str, Any]:
    pixels = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return joined(rows, pad) | ({"pixel_values": pixels} if count else {})


def run(model: Any, given: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**given)


@pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}], ids=str)
@pytest.mark.parametrize(("rows", "count"), [([ONE], 1), ([TWO], 2), ([ONE, TWO], 3), ([[5, 6, 7]], 0)])
def test_writes_as_the_reference(rows: list[list[int]], count: int, more: dict[str, Any]) -> None:
    ours, theirs = pair(FAMILY, LlavaForConditionalGeneration)
    given = inputs(rows, count)
    expected = theirs.generate(**given, **GREEDY | more)
    assert torch.equal(ours.generate(**given, **GREEDY | more), expected)
    assert torch.equal(ours.generate(**given, **GREEDY | more, prefill_chunk_size=5), expected)
    assert torch.equal(ours.generate(**given, **GREEDY | more, use_cache=False), expected)


def test_chosen_layers_and_features_in_the_place_of_pixels() -> None:
    ours, theirs = pair(FAMILY, LlavaForConditionalGeneration)
    given = inputs([ONE, TWO], 3)
    for more in ({"vision_feature_layer": 1}, {"vision_feature_layer": -1, "vision_feature_select_strategy": "default"}):
        compare(run(ours, given | more), run(theirs, given | more), SINGLE, only=given["attention_mask"])
    with torch.no_grad():
        encoded = {"image": ours.get_image_features(given["pixel_values"])}
    expected, pixels = run(ours, given), given.pop("pixel_values")
    compare(run(ours, given | {"mm_encoder_outputs": encoded}), expected, SINGLE)
    assert torch.equal(
        ours.generate(**given, mm_encoder_outputs=encoded, **GREEDY), ours.generate(**given, pixel_values=pixels, **GREEDY)
    )
    for wrong, message in (({"vision_feature_layer": 3}, "is 3, but there are 3"), ({"image_sizes": [[1, 1]]}, "image_sizes")):
        with pytest.raises(InputError, match=message):
            ours(**given, pixel_values=pixels, **wrong)


@pytest.mark.parametrize("told", ["new", "all"])
def test_a_second_turn_brings_a_picture(told: str) -> None:
    ours, _ = pair(FAMILY, LlavaForConditionalGeneration)
    given = inputs([TWO], 2)
    cache = DynamicCache()
    first = {"input_ids": given["input_ids"][:, : N + 2], "pixel_values": given["pixel_values"][:1]}
    run(ours, first | {"past_key_values": cache, "use_cache": True})
    pixels = given["pixel_values"] if told == "all" else given["pixel_values"][1:]
    written = ours.generate(given["input_ids"], pixel_values=pixels, past_key_values=cache, **GREEDY)
    assert torch.equal(written, ours.generate(**given, **GREEDY))


def test_step_by_step_equals_at_once() -> None:
    ours, _ = pair(FAMILY, LlavaForConditionalGeneration)
    given = inputs([ONE], 1, "none")
    whole, cache, parts = run(ours, given).logits, None, []
    for start, end in ((0, N + 1), (N + 1, N + 2), (N + 2, N + 3)):
        more = {"pixel_values": given["pixel_values"]} if start == 0 else {}
        step = {"input_ids": given["input_ids"][:, start:end], "past_key_values": cache, "use_cache": True}
        output = run(ours, step | more)
        cache = output.past_key_values
        parts.append(output.logits)
    assert error(torch.cat(parts, dim=1), whole) <= SINGLE


@pytest.mark.parametrize(
    ("rows", "count", "message"),
    [
        ([ONE, ONE], 1, "row 1 has 16 placeholders for features of images, but the images for it have 0"),
        ([ONE], 2, "1 of 2 images, with 16 features, have no placeholders"),
        ([[5, IMG, 6]], 1, "row 0 has 1 placeholders for features of images, but the images for it have 16"),
        ([ONE], 0, "row 0 has 16 placeholders.*have 0"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(rows: list[list[int]], count: int, message: str) -> None:
    ours, _ = pair(FAMILY, LlavaForConditionalGeneration)
    for call in (ours, ours.generate):
        with pytest.raises(InputError, match=message):
            call(**inputs(rows, count))
    with pytest.raises(InputError, match="`pixel_values` has 1 channels"):
        ours(**inputs([ONE], 0), pixel_values=torch.zeros(1, 1, 16, 16))


@pytest.mark.parametrize("layout", ["older", "2025", "5"])
def test_files_of_all_layouts_are_read(layout: str, tmp_path: Path) -> None:
    ours, _, _ = originals(FAMILY, LlavaForConditionalGeneration)
    ours.save_pretrained(tmp_path)
    found = stored(str(tmp_path))
    if layout != "older":
        found = {name.replace("vision_tower.vision_model", "vision_tower"): tensor for name, tensor in found.items()}
    if layout == "2025":
        short = {name.replace("language_model.model", "language_model"): tensor for name, tensor in found.items()}
        found = {"lm_head.weight" if "lm_head" in name else f"model.{name}": tensor for name, tensor in short.items()}
    save_file(found, tmp_path / "model.safetensors")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert isinstance(again, LlavaForConditionalGeneration)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())
    bare = LlavaModel.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, ours.state_dict()[f"model.{name}"]) for name, tensor in bare.state_dict().items())


def test_parts_without_a_type_are_clip_and_llama() -> None:
    config = LlavaConfig(text_config={"hidden_size": 64, "num_attention_heads": 4}, vision_config={"hidden_size": 48})
    assert [config.text_config.model_type, config.vision_config.model_type] == ["llama", "clip_vision_model"]
    assert [config.text_config.hidden_size, config.vision_config.hidden_size] == [64, 48]


def test_features_of_images_come_with_what_is_asked_of_the_vision_model() -> None:
    model = LlavaModel(LlavaConfig(**FAMILY.tiny)).eval()
    vision = model.config.vision_config
    pixels = torch.rand(2, 3, vision.image_size, vision.image_size)
    plain = model.get_image_features(pixels)
    asked = model.get_image_features(pixels, output_hidden_states=True, output_attentions=True)
    assert plain.hidden_states is plain.attentions is None
    assert [len(asked.hidden_states), len(asked.attentions)] == [vision.num_hidden_layers + 1, vision.num_hidden_layers]
    torch.testing.assert_close(plain.pooler_output, asked.pooler_output)
    assert torch.equal(model.get_image_features(pixels, return_dict=False)[0], plain.last_hidden_state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vision_feature_layer": 3}, "must be among the 3 hidden states"),
        ({"vision_feature_layer": []}, "must be among the 3 hidden states"),
        ({"vision_feature_select_strategy": "none"}, "vision_feature_select_strategy"),
        ({"text_config": 7}, "must be a config with a `model_type`"),
    ],
)
def test_configs_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LlavaConfig(**FAMILY.tiny | change)
