"""Pictures and videos as tokens: Qwen2-VL's and LLaVA's preprocessing beside the reference's Pillow path, and their processors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from PIL import Image, ImageOps
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from transept.errors import ConfigError, InputError, InputTypeError, MissingExtraError, TranseptError
from transept.preprocess.auto import AutoImageProcessor, AutoProcessor, AutoVideoProcessor
from transept.preprocess.image.llava import LlavaImageProcessor
from transept.preprocess.image.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor, smart_resize
from transept.preprocess.processors.llava import LlavaProcessor
from transept.preprocess.processors.qwen2_vl import Qwen2_5_VLProcessor, Qwen2VLProcessor
from transept.preprocess.text.tokenizer import Tokenizer

pytestmark = pytest.mark.reference

SIZES = [(100, 100), (31, 57), (640, 480), (333, 1000), (28, 28), (1, 150), (1700, 1300), (13, 2000)]
PAIRS = [(Qwen2VLImageProcessor, Qwen2VLImageProcessorPil), (LlavaImageProcessor, LlavaImageProcessorPil)]
SETTINGS: list[Any] = [
    (0, {}),
    (0, {"patch_size": 16, "merge_size": 1, "temporal_patch_size": 3}),
    (0, {"do_normalize": False}),
]
SETTINGS += [(0, {"min_pixels": 100 * 28 * 28, "max_pixels": 300 * 28 * 28}), (1, {}), (1, {"do_pad": True})]


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=str)
def test_equals_the_references_pillow_path(kind: int, settings: dict[str, Any]) -> None:
    ours, theirs = (cls(**settings) for cls in PAIRS[kind])
    for image in (drawn(*size) for size in SIZES):
        mine, other = (each(image, return_tensors="np") for each in (ours, theirs))
        assert list(mine) == list(other)
        for name in other:
            assert mine[name].shape == other[name].shape
            np.testing.assert_allclose(mine[name], other[name], rtol=0, atol=1e-6)
    several = [drawn(*size) for size in SIZES[:4]]
    mine, other = (each(several, return_tensors="np") for each in (ours, theirs))
    assert all(np.abs(mine[name] - other[name]).max() <= 1e-6 for name in other)


@pytest.mark.real_data
@pytest.mark.parametrize("kind", [0, 1])
def test_photographs_equal_the_references(kind: int, real_images: Path) -> None:
    ours, theirs = (cls() for cls in PAIRS[kind])
    found = 0
    for path in sorted(real_images.rglob("*")):
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            continue
        if path.name == "truncated_image.png":
            continue
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
        if image.mode not in ("RGB", "L", "P", "CMYK") or image.has_transparency_data or min(image.size) < 16:
            continue
        mine, other = (each(image, return_tensors="np") for each in (ours, theirs))
        np.testing.assert_allclose(mine["pixel_values"], other["pixel_values"], rtol=0, atol=1e-6)
        found += 1
    assert found >= 10


def test_smart_resize() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference

    rng = np.random.default_rng(0)
    for height, width in rng.integers(1, 3000, (300, 2)).tolist():
        if max(height, width) <= 200 * min(height, width):
            assert smart_resize(height, width) == reference(height, width, max_pixels=28 * 28 * 1280)
    for wrong in ((1, 201), (4000, 1)):
        with pytest.raises(InputError, match="more than 200 times as long as wide"):
            smart_resize(*wrong)
    with pytest.raises(InputError, match="image 1 of the batch: a picture of 1 x 4000 pixels"):
        Qwen2VLImageProcessor()([drawn(30, 30), drawn(1, 4000)])


def test_settings_of_all_files_are_read(tmp_path: Path) -> None:
    older = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}
    first = older | {"size": {"min_pixels": 100, "max_pixels": 10000}}
    newer = {"size": {"shortest_edge": 3136, "longest_edge": 12845056}, "image_processor_type": "Qwen2VLImageProcessorFast"}
    for values in (older, first, newer):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
        ours = AutoImageProcessor.from_pretrained(tmp_path)
        assert isinstance(ours, Qwen2VLImageProcessor)
        assert ours.size == {"shortest_edge": 3136, "longest_edge": 12845056}
        assert (ours.min_pixels, ours.max_pixels) == (3136, 12845056)
    ours.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "preprocessor_config.json").read_text())
    assert "min_pixels" not in written
    assert transformers.AutoImageProcessor.from_pretrained(tmp_path / "again", backend="pil").size["longest_edge"] == 12845056
    ours.max_pixels = 28 * 28 * 10
    assert ours(drawn(500, 400), return_tensors="np")["image_grid_thw"].prod() <= 40
    assert ours.get_number_of_image_patches(400, 500) == ours.get_number_of_image_patches(400, 500, {"max_pixels": 7840})
    for wrong in (
        {"size": 224},
        {"size": {"height": 3, "width": 3}},
        {"min_pixels": 10**6, "max_pixels": 10},
        {"patch_size": 0},
    ):
        with pytest.raises(ConfigError):
            Qwen2VLImageProcessor(**wrong)
    with pytest.raises(InputError, match="has no whole blocks of 28 x 28"):
        Qwen2VLImageProcessor(do_resize=False)(drawn(30, 28))


# Videos


def frames(count: int, width: int = 80, height: int = 60) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, height, width, 3), np.uint8)


def test_videos_are_pairs_of_frames_of_images() -> None:
    size = {"shortest_edge": 3136, "longest_edge": 28 * 28 * 8}
    ours, still = Qwen2VLVideoProcessor(size=size), Qwen2VLImageProcessor(size=size)
    video = frames(5)
    made = ours(video, return_tensors="np")
    steps, rows, columns = made["video_grid_thw"][0]
    assert steps == 3
    patches = made["pixel_values_videos"].reshape(3, rows * columns, 3, 2, 14, 14)
    for number in range(6):
        frame = still(Image.fromarray(video[min(number, 4)]), return_tensors="np")["pixel_values"]
        expected = frame.reshape(rows * columns, 3, 2, 14, 14)[:, :, 0]
        np.testing.assert_array_equal(patches[number // 2, :, :, number % 2], expected)
    for same in (list(video), video.transpose(0, 3, 1, 2), [Image.fromarray(frame) for frame in video], [video], video[None]):
        np.testing.assert_array_equal(ours(same, return_tensors="np")["pixel_values_videos"], made["pixel_values_videos"])
    both = ours([video, list(frames(2, 60, 90))], return_tensors="pt")
    assert both["video_grid_thw"].shape == (2, 3)
    assert len(both["pixel_values_videos"]) == both["video_grid_thw"].prod(-1).sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, list(range(40))),
        ({"do_sample_frames": True, "num_frames": 6}, [0, 6, 13, 20, 26, 33]),
        ({"do_sample_frames": True, "fps": 2}, [0, 10, 20, 30]),
        ({"do_sample_frames": True, "fps": 3, "max_frames": 5}, [0, 10, 20, 30]),
    ],
    ids=str,
)
def test_frames_are_chosen_evenly(options: dict[str, Any], expected: list[int]) -> None:
    ours = Qwen2VLVideoProcessor(size={"shortest_edge": 784, "longest_edge": 3136}, **options)
    made = ours(frames(40), video_metadata=[{"fps": 20.0}], return_metadata=True)
    assert made["video_metadata"][0].frames_indices == expected
    assert made["video_metadata"][0].sampled_fps == len(expected) / 40 * 20
    assert made["video_grid_thw"][0][0] == -(-len(expected) // 2)


def test_long_videos_share_their_pixels() -> None:
    video = np.zeros((40, 300, 400, 3), np.uint8)
    small = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 768}
    capped = Qwen2VLVideoProcessor(size=small, max_video_tokens=500)(video)["video_grid_thw"][0]
    free = Qwen2VLVideoProcessor(size=small, max_video_tokens=500, cap_pixels_per_frame=False)(video)["video_grid_thw"][0]
    assert capped[1] * capped[2] // 4 <= int(500 * 0.9) * 2 // 40 < free[1] * free[2] // 4


@pytest.mark.parametrize(
    ("video", "options", "message"),
    [
        ([], {}, "holds no video"),
        (3, {}, "lists of pictures or files"),
        ([[]], {}, "has no frames"),
        ([3], {}, "a video is an array .* but not int"),
        (frames(3), {"video_metadata": [{"fps": "fast"}]}, "`video_metadata` of a video is {'fps': 'fast'}"),
        (frames(3), {"video_metadata": [{"fps": 0}]}, "`video_metadata` of a video"),
        (frames(3), {"video_metadata": ["fast"]}, "`video_metadata` of a video is 'fast'"),
        ([drawn(60, 60), drawn(90, 60)], {}, "frames of different sizes"),
        (frames(3), {"do_sample_frames": True, "num_frames": 8}, "8 frames cannot be taken of a video of 3"),
        (frames(3), {"do_sample_frames": True, "fps": 2}, "`fps` was asked of a video"),
        (frames(9), {"do_sample_frames": True, "fps": 2, "num_frames": 2}, "exclude each other"),
        (frames(3), {"video_metadata": [{}, {}]}, "for 2 videos, but there are 1"),
        ([frames(2), [drawn(1, 900)] * 2], {}, "video 1 of the batch:.*200 times"),
    ],
)
def test_videos_that_cannot_be(video: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        Qwen2VLVideoProcessor()(video, **options)


def test_files_need_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="Reading videos needs the package 'av'.*transept\\[video\\]"):
        Qwen2VLVideoProcessor()(b"clip")


# Processors

WORDS = ["[PAD]", "[UNK]", "<|image_pad|>", "<|video_pad|>", "<image>", "<s>", "<e>", "u", "a", "b", "c", ":", " "]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<s>IMAGE<e>{% elif part['type'] == 'video' %}<s><|video_pad|><e>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def backend() -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    found.pre_tokenizer = Split("", "isolated")
    return found


SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "additional_special_tokens": WORDS[2:7], "padding_side": "left"}
SMALL = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
KINDS = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "llava": LlavaProcessor}
LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}


def made(kind: str) -> Any:
    image = "<image>" if kind == "llava" else "<|image_pad|>"
    words = Tokenizer(tokenizer_object=backend(), **SPECIAL)
    template = TEMPLATE.replace("IMAGE", image)
    if kind == "llava":
        crop = {"height": 42, "width": 56}
        return LlavaProcessor(LlavaImageProcessor(size=56, crop_size=crop), words, **LLAVA, chat_template=template)
    pictures, videos = Qwen2VLImageProcessor(size=SMALL), Qwen2VLVideoProcessor(size=SMALL)
    return KINDS[kind](pictures, words, videos, chat_template=template)


def reference(kind: str) -> Any:
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), **SPECIAL)
    if kind == "llava":
        crop = {"height": 42, "width": 56}
        return transformers.LlavaProcessor(LlavaImageProcessorPil(size={"shortest_edge": 56}, crop_size=crop), words, **LLAVA)
    name = KINDS[kind].__name__
    return getattr(transformers, name)(Qwen2VLImageProcessorPil(size=SMALL), words, None)


@pytest.mark.parametrize("kind", KINDS)
def test_processors_equal_the_references(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The reference's videos need torchvision, which pictures do without.
    monkeypatch.setattr(transformers.ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)
    image = "<image>" if kind == "llava" else "<|image_pad|>"
    texts = [f"u: <s>{image}<e> a <s>{image}<e>b", f"c {image}"]
    options: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
    pictures = [drawn(90, 60), drawn(50, 130), drawn(77, 77)]
    mine = made(kind)(images=pictures, text=texts, **options)
    other = reference(kind)(images=pictures, text=texts, **options)
    assert set(mine) == set(other)
    for name in other:
        assert mine[name].shape == other[name].shape, name
        assert (mine[name] - other[name]).abs().max() <= 1e-6, name


@pytest.mark.parametrize("kind", KINDS)
def test_chats_have_their_pictures(kind: str) -> None:
    ours = made(kind)
    parts = [{"type": "image", "image": drawn(90, 60)}, {"type": "text", "text": "a"}]
    chat = [{"role": "user", "content": parts}]
    options: dict[str, Any] = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    one = ours.apply_chat_template(chat, **options)
    features = 12 if kind == "llava" else int(one["image_grid_thw"].prod()) // 4
    assert (one["input_ids"] == ours.image_token_id).sum() == features
    two = ours.apply_chat_template([chat, [{"role": "user", "content": parts * 2}]], padding=True, **options)
    assert (two["input_ids"] == ours.image_token_id).sum(-1).tolist() == [features, 2 * features]
    for wrong in ("missing.png", "https://example.com/cat.png", "data:image/png;base64,AAAA"):
        with pytest.raises(TranseptError, match="missing|URL|fetch|corrupt"):
            ours.apply_chat_template([{"role": "user", "content": [{"type": "image", "image": wrong}]}], **options)
    if kind != "llava":
        clip = {"type": "video", "video": frames(4)}
        found = ours.apply_chat_template([{"role": "user", "content": [clip]}], **options)
        assert (found["input_ids"] == ours.video_token_id).sum() == found["video_grid_thw"].prod() // 4
        assert set(found["mm_token_type_ids"].flatten().tolist()) == {0, 2}
        assert ("second_per_grid_ts" in found) == (kind == "qwen2_5_vl")
        for key in ("video", "url", "path"):
            with pytest.raises(InputError, match="is a URL"):
                address = {"type": "video", key: "cache:http://127.0.0.1:1/clip.mp4"}
                ours.apply_chat_template([{"role": "user", "content": [address]}], **options)


@pytest.mark.parametrize("kind", KINDS)
def test_placeholders_that_do_not_fit(kind: str) -> None:
    ours = made(kind)
    image = ours.image_token
    for text, count in ((f"a {image}", 2), (f"{image} {image}", 1), ("a", 1)):
        with pytest.raises(InputError, match="row 0 of the texts has"):
            ours(images=[drawn(60, 60)] * count, text=text)
    with pytest.raises(InputError, match="truncation would leave"):
        ours(images=drawn(60, 60), text=f"a {image} b", truncation=True, max_length=4)


def test_llava_must_know_its_patches() -> None:
    ours = made("llava")
    ours.patch_size = None
    with pytest.raises(InputError, match="`patch_size` is not set"):
        ours(images=drawn(60, 60), text="<image>")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_processors(kind: str, tmp_path: Path) -> None:
    ours = made(kind)
    ours.save_pretrained(tmp_path)
    again = AutoProcessor.from_pretrained(tmp_path)
    assert type(again) is type(ours)
    assert again.to_dict() == ours.to_dict()
    if kind != "llava":
        assert AutoVideoProcessor.from_pretrained(tmp_path).size == SMALL
        older = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 784, "max_pixels": 7840}
        (tmp_path / "processor_config.json").unlink()
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
        assert AutoVideoProcessor.from_pretrained(tmp_path).size == {"shortest_edge": 784, "longest_edge": 7840}
        newer = {"video_processor_type": "Qwen2VLVideoProcessor", "max_frames": 12}
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(newer))
        assert AutoVideoProcessor.from_pretrained(tmp_path).max_frames == 12
