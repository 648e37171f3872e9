"""What Qwen2-VL and 2.5 do that no other family does: texts with pictures and videos of any size, over several turns.

The reference keeps on the model by how much positions differ from their count; what it writes is compared right after it reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from transept.core.auto import AutoConfig, AutoModelForImageTextToText, config_class
from transept.core.model import Model
from transept.errors import ConfigError, InputError, InputTypeError, TranseptWarning
from transept.layers.caches.cache import DynamicCache
from transept.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from transept.models.qwen2_vl import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLModel, Qwen2VLTextModel

from .families import FAMILIES
from .harness import SINGLE, batch, compare, error, originals, pair, stored
from .pictures import joined, patches

pytestmark = pytest.mark.reference

KINDS = {cls.config_class.model_type: cls for cls in (Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration)}
NAMES = list(KINDS)
IMG, V, S, E = 90, 91, 92, 93  # tokens: image, video, vision starts, vision ends
GRIDS = [(1, 4, 4), (1, 2, 6), (1, 6, 4)]
# Two pictures in a row, one picture, a video; texts of different lengths.
ROWS = [[5, 6, S, *[IMG] * 4, E, 7, S, *[IMG] * 3, E, 8, 9], [10, S, *[IMG] * 6, E, 11], [12, S, *[V] * 4, E, 3, 4, 5]]
GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}


def family(name: str) -> Any:
    return next(each for each in FAMILIES if each.model_type == name)


def inputs(name: str, rows: list[list[int]], grids: Any = (), videos: Any = (), pad: str = "left") -> dict[str, Any]:
    found: dict[str, Any] = dict(joined(rows, pad))
    if grids:
        found |= {"pixel_values": patches(family(name), grids), "image_grid_thw": torch.tensor(grids)}
    if videos:
        found |= {"pixel_values_videos": patches(family(name), videos, 2), "video_grid_thw": torch.tensor(videos)}
        found |= {"second_per_grid_ts": torch.tensor([1.7] * len(videos))} if name == "qwen2_5_vl" else {}
    return found


def typed(given: dict[str, Any]) -> dict[str, Any]:
    ids = given["input_ids"]
    return given | {"mm_token_type_ids": ((ids == IMG).int() + 2 * (ids == V).int())}


def run(model: Any, given: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**given)


MIXED: dict[str, Any] = {"grids": GRIDS, "videos": [(2, 4, 2)]}


@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_images_and_videos_in_one_batch(name: str, pad: str) -> None:
    ours, theirs = pair(family(name), KINDS[name])
    given = inputs(name, ROWS, **MIXED, pad=pad)
    mask = given["attention_mask"]
    shown = {"output_hidden_states": True}
    other = run(theirs, typed(given) | shown)
    compare(run(ours, given | shown), other, SINGLE, only=mask)  # kinds of tokens follow from the ids
    compare(run(ours, typed(given) | shown), other, SINGLE, only=mask)
    found, deltas = ours.get_rope_index(**{k: v for k, v in given.items() if "pixel" not in k})
    expected, others = theirs.model.get_rope_index(**{k: v for k, v in typed(given).items() if "pixel" not in k})
    assert torch.equal(found, expected)
    assert torch.equal(deltas, others)


CASES: dict[str, Any] = {
    "single": (ROWS[1:2], {"grids": GRIDS[2:]}),
    "several": (ROWS[:1], {"grids": GRIDS[:2]}),
    "text": ([[5, 6, 7]], {}),
    "video": (ROWS[2:], {"videos": [(2, 4, 2)]}),
    "batch": (ROWS, MIXED),
}


@pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_writes_as_the_reference(name: str, case: str, more: dict[str, Any]) -> None:
    ours, theirs = pair(family(name), KINDS[name])
    rows, pictures = CASES[case]
    given = inputs(name, rows, **pictures)
    assert torch.equal(ours.generate(**given, **GREEDY | more), theirs.generate(**typed(given), **GREEDY | more))


@pytest.mark.parametrize("more", [{"use_cache": False}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_other_ways_to_write_give_the_same(name: str, more: dict[str, Any]) -> None:
    ours, _ = pair(family(name), KINDS[name])
    given = inputs(name, ROWS, **MIXED)
    expected = ours.generate(**given, **GREEDY)
    assert torch.equal(ours.generate(**given, **GREEDY | more), expected)
    assert torch.equal(ours.generate(**given, **GREEDY), expected)  # no call changes the model
    shown = ours.generate(**given, **GREEDY, num_beams=2, return_dict_in_generate=True, output_hidden_states=True)
    assert torch.equal(shown.sequences, ours.generate(**given, **GREEDY, num_beams=2))
    few = ours.generate(**given, **GREEDY, num_return_sequences=1, prompt_lookup_num_tokens=2) if len(ROWS) == 1 else None
    assert few is None or torch.equal(few, expected)


def test_rows_of_a_batch_write_as_alone() -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    together = ours.generate(**inputs("qwen2_vl", ROWS, **MIXED), **GREEDY)
    every = patches(family("qwen2_vl"), GRIDS).split([16, 12, 24])
    for row, which in ((0, [0, 1]), (1, [2])):
        pixels = {"pixel_values": torch.cat([every[i] for i in which]), "image_grid_thw": torch.tensor(GRIDS)[which]}
        alone = ours.generate(torch.tensor(ROWS[row : row + 1]), **pixels, **GREEDY)
        assert torch.equal(alone[0, len(ROWS[row]) :], together[row, -GREEDY["max_new_tokens"] :])


@pytest.mark.parametrize("pad", ["left", "none"])
def test_step_by_step_equals_at_once(pad: str) -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    rows = ROWS if pad == "left" else ROWS[:1]
    given = inputs("qwen2_vl", rows, **(MIXED if pad == "left" else {"grids": GRIDS[:2]}))
    mask, ids = given.pop("attention_mask"), given.pop("input_ids")
    masked = {"attention_mask": mask} if pad == "left" else {}
    whole, steps, cache = run(ours, given | {"input_ids": ids} | masked).logits, [], None
    for start, end in ((0, 14), (14, 15), (15, 17)):
        part = {"input_ids": ids[:, start:end], "past_key_values": cache, "use_cache": True}
        part |= {"attention_mask": mask[:, :end]} if masked else {}
        output = run(ours, part | (given if start == 0 else {}))
        cache = output.past_key_values
        steps.append(output.logits)
    assert error(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()]) <= SINGLE


def test_what_follows_a_picture_counts_on_from_its_largest_position() -> None:
    """The reference does so in a forward pass, and counts on from the last token's positions where it writes."""
    ours, theirs = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    given = inputs("qwen2_vl", [[5, S, *[IMG] * 6]], GRIDS[2:])
    written = ours.generate(**given, **GREEDY)
    for length in range(8, written.shape[1]):
        ids = written[:, :length]
        rest = typed(given | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        assert torch.equal(run(theirs, rest).logits[:, -1].argmax(-1), written[:, length])


@pytest.mark.parametrize("told", ["new pictures", "all pictures"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_second_turn_brings_a_picture(batched: bool, told: str) -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    first = [[5, S, *[IMG] * 4, E, 7], [3, 5, S, *[IMG] * 3, E, 7, 8, 9, 10]][: 1 + batched]
    more = [[S, *[IMG] * 6, E, 11, 12]] * len(first)
    grids = GRIDS[:2][: len(first)]
    cache = DynamicCache()
    turn = ours.generate(**inputs("qwen2_vl", first, grids), **GREEDY | {"max_new_tokens": 4}, past_key_values=cache)
    whole = torch.cat([turn, torch.tensor(more)], dim=1)
    mask = torch.cat([inputs("qwen2_vl", first)["attention_mask"], torch.ones(len(first), 4 + len(more[0]))], dim=1)
    new = [GRIDS[2]] * len(first)
    order = [grid for pair in zip(grids, new, strict=True) for grid in pair]
    pixels = {grid: patches(family("qwen2_vl"), [grid], 1 + n) for n, grid in enumerate([*grids, GRIDS[2]])}
    cache2 = DynamicCache()
    early = {"pixel_values": torch.cat([pixels[g] for g in grids]), "image_grid_thw": torch.tensor(grids)}
    start = {"input_ids": turn[:, :-1], "attention_mask": mask[:, : turn.shape[1] - 1], "past_key_values": cache2}
    run(ours, start | early | {"use_cache": True})
    every = {"pixel_values": torch.cat([pixels[g] for g in order]), "image_grid_thw": torch.tensor(order)}
    late = {"pixel_values": torch.cat([pixels[g] for g in new]), "image_grid_thw": torch.tensor(new)}
    asked = {"input_ids": whole, "attention_mask": mask} | GREEDY
    expected = ours.generate(**asked, **every)
    assert torch.equal(ours.generate(**asked, **(late if told == "new pictures" else every), past_key_values=cache2), expected)
    assert cache2.deltas is not None


def test_the_cache_keeps_what_numbers_positions() -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    given = inputs("qwen2_vl", ROWS, **MIXED)
    cache = run(ours, given | {"use_cache": True}).past_key_values
    expected = ours.get_rope_index(**{k: v for k, v in given.items() if "pixel" not in k})[1][:, 0]
    assert torch.equal(cache.deltas, expected)
    cache.reorder_cache(torch.tensor([2, 0]))
    assert torch.equal(cache.deltas, expected[[2, 0]])
    parts, form = cache.take_apart()
    assert torch.equal(DynamicCache.put_together(parts, form).deltas, cache.deltas)
    with pytest.raises(InputError, match="cannot be cropped to 5 positions.*first 16"):
        cache.crop(5)
    cache.crop(0)
    assert cache.deltas is None


def test_what_the_vision_model_gave_can_be_passed() -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    given = inputs("qwen2_vl", ROWS, **MIXED)
    expected = run(ours, given)
    with torch.no_grad():
        encoded = {
            "image": ours.get_image_features(given.pop("pixel_values"), given["image_grid_thw"]),
            "video": ours.get_video_features(given.pop("pixel_values_videos"), given["video_grid_thw"]),
        }
    assert [len(each) for each in encoded["image"].pooler_output] == [4, 3, 6]
    compare(run(ours, given | {"mm_encoder_outputs": encoded}), expected, SINGLE)
    embedded = {"inputs_embeds": ours.get_input_embeddings()(given["input_ids"]), "mm_encoder_outputs": encoded}
    rest = {name: value for name, value in given.items() if name != "input_ids"}
    compare(run(ours, rest | embedded), expected, SINGLE)
    positions = ours.get_rope_index(**given)[0]
    compare(run(ours, rest | embedded | {"position_ids": positions}), expected, SINGLE)
    with pytest.raises(InputError, match="`pixel_values` and `mm_encoder_outputs` exclude"):
        ours(**given, pixel_values=torch.ones(1), mm_encoder_outputs=encoded)
    with pytest.raises(InputTypeError, match="from kinds \\(image, video\\)"):
        ours(**given, mm_encoder_outputs={"sound": encoded["image"]})


@pytest.mark.parametrize("name", NAMES)
def test_the_vision_model_alone(name: str) -> None:
    ours, theirs = pair(family(name), KINDS[name])
    pixels, grids = patches(family(name), [(2, 4, 6), *GRIDS]), torch.tensor([(2, 4, 6), *GRIDS])
    mine, other = (
        run(model.get_submodule("model.visual"), {"hidden_states": pixels, "grid_thw": grids}) for model in (ours, theirs)
    )
    compare(mine, other, SINGLE)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rows": ROWS[:2], "grids": GRIDS[:2]}, "row 1 has 6 placeholders for features of images, but the images for it have 0"),
    ({"rows": ROWS[1:2], "grids": GRIDS[:2]}, "row 0 has 6 placeholders.*have 7"),
    ({"rows": [[5, 6]], "grids": GRIDS[:1]}, "1 of 1 images, with 4 features, have no placeholders"),
    ({"rows": ROWS[1:2]}, "row 0 has 6 placeholders for features of images, but the images for it have 0"),
    ({"rows": ROWS[:1], "grids": [(1, 4, 4), (1, 3, 6)]}, "the grid of picture 1 is \\[1, 3, 6\\]"),
]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(("made", "message"), BAD)
def test_pictures_that_do_not_fit_are_refused(made: dict[str, Any], message: str, writes: bool) -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    with pytest.raises(InputError, match=message):
        (ours.generate if writes else ours)(**inputs("qwen2_vl", **made))


def test_pixels_that_cannot_be() -> None:
    ours, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    given = inputs("qwen2_vl", ROWS[1:2], GRIDS[2:])
    for wrong, message in (
        ({"pixel_values": given["pixel_values"][:, :90]}, "the grids are of 24 patches of 96 numbers"),
        ({"pixel_values": given["pixel_values"] * torch.nan}, "`pixel_values` holds nan"),
        ({"image_grid_thw": None}, "`image_grid_thw` must be a tensor"),
        ({"position_ids": torch.zeros(4, 1, 10, dtype=torch.long)}, "`position_ids` has the shape"),
    ):
        with pytest.raises(InputError, match=message):
            ours(**given | wrong)
    with pytest.raises(InputError, match="`output_attentions` cannot be shown"):
        ours.backbone.visual(given["pixel_values"], given["image_grid_thw"], output_attentions=True)


FLAT = {
    "model_type": "qwen2_vl",
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    "vision_config": {"model_type": "qwen2_vl", "depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "in_chans": 3},
    "tie_word_embeddings": True,
}


def test_older_configs_are_flat() -> None:
    config = AutoConfig.for_model(**FLAT)
    assert isinstance(config, Qwen2VLConfig)
    assert config.text_config.hidden_size == 32
    assert config.text_config.rope_parameters["rope_type"] == "default"
    assert (config.tie_word_embeddings, config.vision_config.embed_dim) == (True, 16)
    for theirs in map(transformers.Qwen2VLConfig.from_dict, (FLAT, config.to_dict())):
        for part in ("text_config", "vision_config"):
            mine, other = getattr(config, part).to_dict(), getattr(theirs, part).to_dict()
            same = mine.keys() & other.keys() - {"rope_parameters", "transformers_version", "dtype"}
            assert {name: mine[name] for name in same} == {name: other[name] for name in same}
        assert theirs.text_config.rope_parameters["mrope_section"] == [1, 1, 2]
        assert theirs.tie_word_embeddings
    assert config_class("qwen2_5_vl").model_type == "qwen2_5_vl"
    inner = Qwen2VLConfig(
        **{**family("qwen2_vl").tiny, "text_config": config.text_config.with_settings(tie_word_embeddings=True)}
    )
    assert inner.tie_word_embeddings
    # The defaults of the two models do not fit each other, as in the reference; only a model says so.
    assert Qwen2VLConfig().text_config is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": {"model_type": "bert"}}, "'bert'"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "'clip_vision_model'"),
        ({"vision_config": {"hidden_size": 48}}, "`hidden_size` of Qwen2VLTextConfig must be the size"),
        ({"vision_config": {"embed_dim": 18, "num_heads": 3, "hidden_size": 32}}, "`num_heads`"),
        ({"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "'axial'"),
        ({"vision_config": [1]}, "must be a config"),
    ],
)
def test_configs_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Qwen2VLModel(Qwen2VLConfig(**family("qwen2_vl").tiny | change))
    sections = family("qwen2_vl").tiny["text_config"] | {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 1]}}
    with pytest.raises(ConfigError, match="add up to 4"):
        Qwen2VLTextModel(Qwen2VLConfig(**family("qwen2_vl").tiny | {"text_config": sections}).text_config)


LAYOUTS = {
    "newer": lambda name: name.replace("visual.", "model.visual.") if name.startswith("visual") else _inner(name),
    "older": lambda name: name,
}


def _inner(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_files_of_all_layouts_are_read(name: str, layout: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    ours, _, other = originals(family(name), KINDS[name])
    ours.save_pretrained(tmp_path)
    save_file({LAYOUTS[layout](each): tensor for each, tensor in other.items()}, tmp_path / "model.safetensors")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(again) is KINDS[name]
    assert all(torch.equal(tensor, again.state_dict()[each]) for each, tensor in ours.state_dict().items())
    bare: Any = KINDS[name].backbone_class.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, ours.state_dict()[f"model.{each}"]) for each, tensor in bare.state_dict().items())
    bare.save_pretrained(tmp_path / "bare")
    assert {each.partition(".")[0] for each in stored(str(tmp_path / "bare"))} == {"visual", "language_model"}
    with pytest.warns(TranseptWarning, match="newly initialised.*lm_head.weight"):
        KINDS[name].from_pretrained(tmp_path / "bare")


def test_the_text_model_compiles() -> None:
    each = family("qwen2_vl")
    ours, _ = pair(each, Qwen2VLTextModel)
    given = batch(each, Qwen2VLTextModel, pad="none")
    given["position_ids"] = torch.arange(9)[None, None].repeat(3, 3, 1) // torch.tensor([1, 2, 3])[:, None, None]
    torch._dynamo.reset()
    compare(run(torch.compile(ours, fullgraph=True, backend="eager"), given), run(ours, given), SINGLE)


def test_a_base_model_reads_and_embeds() -> None:
    ours, _ = pair(family("qwen2_vl"), Qwen2VLModel)
    assert isinstance(ours, Model)
    assert ours.get_input_embeddings().num_embeddings == 99  # type: ignore[attr-defined]
    writer, _ = pair(family("qwen2_vl"), KINDS["qwen2_vl"])
    writer.resize_token_embeddings(105)
    assert writer.config.text_config.vocab_size == 105
    found: Tensor = run(writer, inputs("qwen2_vl", ROWS[1:2], GRIDS[2:])).logits
    assert found.shape[-1] == 105
