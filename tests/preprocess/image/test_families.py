"""The image processors of all families: the reference's numbers, files and choices."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from skimage import data as skimage_data
from transformers.image_utils import load_image
from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from transept.errors import ConfigError, InputError
from transept.preprocess.auto import AutoImageProcessor
from transept.preprocess.image import beit, clip, convnext, detr, dpt, segformer, siglip, vit
from transept.preprocess.image.beit import BeitImageProcessor
from transept.preprocess.image.blip import BlipImageProcessor
from transept.preprocess.image.clip import BitImageProcessor, CLIPImageProcessor
from transept.preprocess.image.convnext import ConvNextImageProcessor
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor
from transept.preprocess.image.siglip import SiglipImageProcessor
from transept.preprocess.image.vit import DeiTImageProcessor

CLASSES = {
    "BeitImageProcessor": (BeitImageProcessor, BeitImageProcessorPil),
    "BitImageProcessor": (BitImageProcessor, BitImageProcessorPil),
    "BlipImageProcessor": (BlipImageProcessor, BlipImageProcessorPil),
    "CLIPImageProcessor": (CLIPImageProcessor, CLIPImageProcessorPil),
    "ConvNextImageProcessor": (ConvNextImageProcessor, ConvNextImageProcessorPil),
    "DPTImageProcessor": (DPTImageProcessor, DPTImageProcessorPil),
    "DeiTImageProcessor": (DeiTImageProcessor, DeiTImageProcessorPil),
    "DetrImageProcessor": (DetrImageProcessor, DetrImageProcessorPil),
    "SegformerImageProcessor": (SegformerImageProcessor, SegformerImageProcessorPil),
    "SiglipImageProcessor": (SiglipImageProcessor, SiglipImageProcessorPil),
}
DEPTH_ANYTHING = {
    "size": {"height": 518, "width": 518},
    "ensure_multiple_of": 14,
    "keep_aspect_ratio": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
SETTINGS = [
    *((name, {}) for name in CLASSES),
    ("BeitImageProcessor", {"do_center_crop": True, "size": 100, "crop_size": 77}),
    ("BeitImageProcessor", {"do_center_crop": True, "size": 50, "crop_size": 77}),
    ("BitImageProcessor", {"size": {"shortest_edge": 256}}),  # DINOv2
    ("BitImageProcessor", {"size": 90, "crop_size": {"height": 100, "width": 51}}),
    ("BitImageProcessor", {"size": 90, "do_center_crop": False, "do_pad": True}),
    ("DeiTImageProcessor", {"size": 90, "do_center_crop": False, "do_pad": True, "pad_size": {"height": 91, "width": 120}}),
    ("BlipImageProcessor", {"size": 50, "do_normalize": False}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
    ("ConvNextImageProcessor", {"size": 64, "crop_pct": 0.95}),
    ("ConvNextImageProcessor", {"size": 64, "crop_pct": 1.3}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 70}, "do_center_crop": True, "crop_size": 60}),
    ("ConvNextImageProcessor", {"do_resize": False, "do_center_crop": True, "crop_size": 60}),
    ("DPTImageProcessor", DEPTH_ANYTHING),
    ("DPTImageProcessor", {"size": 70, "ensure_multiple_of": 32}),
    ("DPTImageProcessor", {"size": {"height": 60, "width": 200}, "keep_aspect_ratio": True}),
    ("DPTImageProcessor", {"do_pad": True, "size_divisor": 14, "size": {"height": 60, "width": 71}}),
    ("DPTImageProcessor", {"do_pad": True, "size_divisor": 14, "do_resize": False}),
    ("DetrImageProcessor", {"size": {"shortest_edge": 60, "longest_edge": 133}}),
    ("DetrImageProcessor", {"size": {"max_height": 90, "max_width": 70}}),
    ("DetrImageProcessor", {"size": {"height": 90, "width": 70}}),
    ("DetrImageProcessor", {"size": 50}),
    ("DetrImageProcessor", {"size": {"height": 90, "width": 70}, "pad_size": {"height": 91, "width": 99}}),
    ("DetrImageProcessor", {"do_resize": False, "do_rescale": False, "do_normalize": False}),
    ("DetrImageProcessor", {"do_resize": False, "do_normalize": False, "pad_size": {"height": 301, "width": 350}}),
    ("DetrImageProcessor", {"do_pad": False}),
    ("SegformerImageProcessor", {"size": 65, "do_normalize": False}),
    ("CLIPImageProcessor", {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}),
    ("SiglipImageProcessor", {"size": {"height": 384, "width": 384}}),
    ("SiglipImageProcessor", {"size": 50}),
]
SIZES = [(160, 120), (97, 143), (64, 64), (33, 301), (301, 33)]


def same(ours, reference, images, **options):
    """Equal to the last digit, one by one and as a batch; sizes of a mixed batch, with which each is seen alone, are ours."""
    expected = reference(images, **options)
    found = ours(images, **options)
    assert {*found} - {"image_sizes"} == {*expected}
    for name in expected:
        for one, other in zip(found[name], expected[name], strict=True):
            assert one.dtype == other.dtype, name
            assert np.array_equal(one, other), name


@pytest.fixture(scope="module")
def pictures():
    astronaut = Image.fromarray(skimage_data.astronaut())
    return [astronaut.resize(size) for size in SIZES]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_settings_match_the_reference(name, settings, pictures):
    ours, reference = (kind(**settings) for kind in CLASSES[name])
    same(ours, reference, pictures)
    for picture in pictures:
        same(ours, reference, picture, return_tensors="np")


@pytest.mark.parametrize("name", CLASSES)
def test_odd_sizes_match_the_reference(name):
    rng, (ours, reference) = np.random.default_rng(0), (kind() for kind in CLASSES[name])
    for height, width in ((1, 1), (1, 2), (3, 1), (2, 7), (223, 225), (1, 40), (40, 1)):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        same(ours, reference, pixels, return_tensors="np", input_data_format="channels_last")


@pytest.mark.parametrize("name", CLASSES)
def test_files_match_the_reference(name, picture_files):
    """Real kinds of files; those whose shape would make a picture of more pixels than we allow stand elsewhere."""
    ours, reference = (kind() for kind in CLASSES[name])
    for file, path in picture_files.items():
        if file in ("line.png", "row.png"):
            continue
        if ours.do_convert_rgb:
            with Image.open(path) as image:
                if image.has_transparency_data:
                    continue  # the reference lays these over white in its own way only where the mode is RGBA
        with Image.open(path) as image:
            expected = reference(load_image(image), return_tensors="np").pixel_values
        assert np.array_equal(ours(path, return_tensors="np").pixel_values, expected), file


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in CLASSES), ("DPTImageProcessor", DEPTH_ANYTHING)])
def test_real_photographs_match_the_reference(name, settings, real_images):
    (ours, reference), seen = (kind(**settings) for kind in CLASSES[name]), 0
    for path in sorted(real_images.rglob("*.*")):
        if path.suffix in (".txt", ".md") or path.name == "truncated_image.png":
            continue
        with Image.open(path) as image:
            if image.mode.startswith("I;16") or (ours.do_convert_rgb and image.has_transparency_data):
                continue  # the reference clips 16-bit levels, and lays only RGBA over white
            picture = load_image(image)
        assert np.array_equal(ours(path).pixel_values[0], reference(picture).pixel_values[0]), path.name
        seen += 1
    assert seen >= 15


@pytest.mark.parametrize("size", [(4000, 1), (1, 4000)])
def test_thin_pictures(size):
    """The right answer, or an error that says how large the picture would become."""
    image = Image.new("RGB", size, (1, 2, 3))
    for ours, reference in CLASSES.values():
        if ours in (BitImageProcessor, CLIPImageProcessor):
            with pytest.raises(InputError, match="would be resized to (896000 x 224|224 x 896000)"):
                ours()(image)
        else:
            longest = {"size": {"shortest_edge": 9, "longest_edge": 1333}} if ours is DetrImageProcessor else {}
            if longest:  # the reference rounds the shorter side to nothing, and fails
                assert {1, 1333} == {*ours(**longest)(image).pixel_values[0].shape[1:]}
            else:
                same(ours(), reference(), image, return_tensors="np")
    assert {14, 518} == {*DPTImageProcessor(**DEPTH_ANYTHING)(image).pixel_values[0].shape[1:]}


def test_sides_are_at_least_one_multiple():
    processor = DPTImageProcessor(size={"height": 64, "width": 1000}, keep_aspect_ratio=True, ensure_multiple_of=14)
    assert processor(np.zeros((900, 10, 3), np.uint8)).pixel_values[0].shape == (3, 70, 14)


@pytest.mark.parametrize("name", CLASSES)
def test_the_reference_file_is_written_back_as_it_was(name, tmp_path):
    ours, reference = CLASSES[name]
    reference().save_pretrained(tmp_path / "theirs")
    loaded = AutoImageProcessor.from_pretrained(tmp_path / "theirs")
    assert type(loaded) is ours
    assert loaded == ours()
    loaded.save_pretrained(tmp_path / "ours")
    theirs, written = (json.loads((tmp_path / at / "preprocessor_config.json").read_text()) for at in ("theirs", "ours"))
    assert {key: value for key, value in written.items() if key in theirs} == theirs


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("beit", "BeitImageProcessor"),
        ("blip", "BlipImageProcessor"),
        ("clip", "CLIPImageProcessor"),
        ("convnext", "ConvNextImageProcessor"),
        ("deit", "DeiTImageProcessor"),
        ("depth_anything", "DPTImageProcessor"),
        ("detr", "DetrImageProcessor"),
        ("dinov2", "BitImageProcessor"),
        ("dinov2_with_registers", "BitImageProcessor"),
        ("dpt", "DPTImageProcessor"),
        ("resnet", "ConvNextImageProcessor"),
        ("segformer", "SegformerImageProcessor"),
        ("siglip_vision_model", "SiglipImageProcessor"),
        ("swin", "ViTImageProcessor"),
    ],
)
def test_auto_finds_the_class_by_the_models_type(model_type, name, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert type(AutoImageProcessor.from_pretrained(tmp_path)).__name__ == name


@pytest.mark.parametrize("name", CLASSES)
def test_auto_finds_the_class_by_all_spellings(name, tmp_path):
    for spelling in (name, f"{name}Fast", f"{name}Pil"):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": spelling}))
        assert type(AutoImageProcessor.from_pretrained(tmp_path)) is CLASSES[name][0]
    older = name.replace("ImageProcessor", "FeatureExtractor")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_extractor_type": older}))
    assert type(AutoImageProcessor.from_pretrained(tmp_path)) is CLASSES[name][0]


def test_the_fast_names_are_the_same_classes():
    for module in (beit, clip, convnext, detr, dpt, segformer, siglip, vit):
        names = [name for name in vars(module) if name.endswith("ImageProcessorFast")]
        assert names
        assert all(getattr(module, name) is getattr(module, name.removesuffix("Fast")) for name in names)


def test_files_of_resnet():
    """Published files of ResNet-50, with today's and with older keys."""
    older = {"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224, "resample": 3}
    newer = {"image_processor_type": "ConvNextImageProcessor", "crop_pct": None, "size": {"shortest_edge": 224}}
    assert ConvNextImageProcessor.from_dict(older) == ConvNextImageProcessor.from_dict(newer)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ConvNextImageProcessor", {"size": {"height": 5, "width": 5}}, "must hold shortest_edge"),
        ("ConvNextImageProcessor", {"crop_pct": 0.0}, "`crop_pct`"),
        ("DPTImageProcessor", {"size": {"shortest_edge": 5}}, "must hold height and width"),
        ("DPTImageProcessor", {"ensure_multiple_of": 0}, "`ensure_multiple_of`"),
        ("DPTImageProcessor", {"size_divisor": -1}, "`size_divisor`"),
        ("BitImageProcessor", {"pad_size": {"shortest_edge": 5}}, "`pad_size`"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        CLASSES[name][0](**settings)
