"""Image processors compute what the reference computes, and say what is wrong with a picture or a setting."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as skimage_data
from transformers.image_utils import load_image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from transept.errors import ConfigError, FileError, FormatError, InputError, InputTypeError, TranseptWarning
from transept.preprocess.auto import AutoImageProcessor
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.arrays import output_size, size_dict
from transept.preprocess.image.base import BICUBIC, BaseImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor, ViTImageProcessorFast

# Both resize with the same Pillow, and our table holds the reference's own roundings.
EXACT = 0.0
# One level of 8 bits after normalisation with a standard deviation of one half: what "within 1/255" means there.
ONE_LEVEL = 2 / 255 + 1e-6

ASTRONAUT = skimage_data.astronaut()
SETTINGS = {
    "default": {},
    "small": {"size": {"height": 30, "width": 41}},
    "integer": {"size": 33},
    "list": {"size": [20, 30]},
    "upwards": {"size": {"height": 300, "width": 260}},
    "shortest_edge": {"size": {"shortest_edge": 57}},
    "shortest_and_longest": {"size": {"shortest_edge": 57, "longest_edge": 60}},
    "longest_not_reached": {"size": {"shortest_edge": 57, "longest_edge": 1000}},
    "box": {"size": {"max_height": 50, "max_width": 40}},
    "crop": {"size": {"shortest_edge": 64}, "do_center_crop": True, "crop_size": {"height": 51, "width": 48}},
    "crop_outside": {"size": {"height": 31, "width": 40}, "do_center_crop": True, "crop_size": {"height": 50, "width": 33}},
    "crop_only": {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 130, "width": 100}},
    "imagenet": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "one_number": {"image_mean": 0.4, "image_std": 0.3},
    "other_factor": {"rescale_factor": 1 / 127.5},
    "no_rescale": {"do_rescale": False},
    "no_normalize": {"do_normalize": False},
    "levels": {"do_rescale": False, "do_normalize": False},
    "nothing": {"do_resize": False, "do_rescale": False, "do_normalize": False},
} | {f"filter_{number}": {"resample": number, "size": 50} for number in range(6)}  # fmt: skip


def opened(path):
    """The reference's own reading of a file, which it leaves open where it is given a path."""
    with Image.open(path) as image:
        return load_image(image)


def compare(ours, reference, tolerance):
    assert ours.dtype == reference.dtype
    assert ours.shape == reference.shape
    assert np.abs(ours.astype(np.float64) - reference).max() <= tolerance


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_match_the_reference(name):
    settings = SETTINGS[name]
    images = [Image.fromarray(ASTRONAUT).resize((160, 120)), Image.fromarray(ASTRONAUT).resize((97, 143))]
    for image in images:
        reference = ViTImageProcessorPil(**settings)(image, return_tensors="np").pixel_values
        compare(ViTImageProcessor(**settings)(image, return_tensors="np").pixel_values, reference, EXACT)
        compare(ViTImageProcessor()(image, return_tensors="np", **settings).pixel_values, reference, EXACT)
    rows = ViTImageProcessor(**settings)(images).pixel_values
    expected = ViTImageProcessorPil(**settings)(images).pixel_values
    for row, other in zip(rows, expected, strict=True):
        compare(row, other, EXACT)


def test_files_match_the_reference(picture_files):
    reference, ours = ViTImageProcessorPil(), ViTImageProcessor()
    for path in picture_files.values():
        expected = reference(opened(path), return_tensors="np").pixel_values
        compare(ours(path, return_tensors="np").pixel_values, expected, EXACT)
    paths = list(picture_files.values())
    batch = ours(paths, return_tensors="np").pixel_values
    compare(batch, reference([opened(path) for path in paths], return_tensors="np").pixel_values, EXACT)


@pytest.mark.real_data
def test_real_photographs_match_the_reference(real_images):
    reference, ours, seen = ViTImageProcessorPil(), ViTImageProcessor(), 0
    for path in sorted(real_images.rglob("*.*")):
        if path.suffix in (".txt", ".md"):
            continue
        if path.name == "truncated_image.png":
            with pytest.raises(FormatError, match="truncated"):
                ours(path)
            continue
        image = opened(path)
        with Image.open(path) as raw:
            if raw.mode.startswith("I;16"):  # the reference clips these to white; give it the scaled levels
                image = Image.fromarray(np.rint(np.asarray(raw) / 257).astype(np.uint8)).convert("RGB")
        expected = reference(image, return_tensors="np").pixel_values
        compare(ours(path, return_tensors="np").pixel_values, expected, EXACT)
        seen += 1
    assert seen >= 20


@pytest.mark.parametrize("seed", range(40))
def test_random_sizes_match_the_reference(seed):
    rng = np.random.default_rng(seed)
    height, width, a, b = (int(number) for number in rng.integers(1, 90, 4))
    size = [{"height": a, "width": b}, {"shortest_edge": a}, {"shortest_edge": a, "longest_edge": a + b}][seed % 3]
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    settings = {"size": size, "resample": seed % 6, "input_data_format": "channels_last"}
    reference = ViTImageProcessorPil(**settings)(image, return_tensors="np").pixel_values
    compare(ViTImageProcessor(**settings)(image, return_tensors="np").pixel_values, reference, EXACT)


def test_narrow_pictures_keep_one_pixel():
    assert output_size(1, 10_000, {"shortest_edge": 10, "longest_edge": 100}) == (1, 100)
    assert output_size(10_000, 1, {"max_height": 100, "max_width": 100}) == (100, 1)
    with pytest.raises(InputError, match="10000 x 1 pixels would be resized to 10000000 x 1000"):
        output_size(1, 10_000, {"shortest_edge": 1000})


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
def test_arrays_match_the_reference(kind, order):
    pixels = ASTRONAUT[::4, ::3]
    pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1)) if order == "channels_first" else pixels
    reference, ours = ViTImageProcessorPil(), ViTImageProcessor()
    for told in (None, order):
        expected = reference(kind(pixels), return_tensors="np", input_data_format=told).pixel_values
        compare(ours(kind(pixels), return_tensors="np", input_data_format=told).pixel_values, expected, EXACT)
    batch = np.stack([pixels, pixels[::-1] if order == "channels_last" else pixels[:, ::-1]])
    expected = reference(list(batch), return_tensors="np").pixel_values
    for images in (batch, list(batch), [[batch[0]], [batch[1]]], (batch,)):
        compare(ours(images, return_tensors="np").pixel_values, expected, EXACT)


def test_fractions_of_full_brightness():
    fractions = np.random.default_rng(0).random((40, 50, 3)).astype(np.float32)
    ours, reference = ViTImageProcessor(do_rescale=False), ViTImageProcessorPil(do_rescale=False)
    # the reference cuts fractions down to 8 bits before it resizes, we round: half a level apart on average, one at most
    compare(
        ours(fractions, return_tensors="np").pixel_values, reference(fractions, return_tensors="np").pixel_values, ONE_LEVEL
    )
    for settings in (
        {"do_resize": False},
        {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 45, "width": 30}},
    ):
        expected = reference(fractions, return_tensors="np", **settings).pixel_values
        compare(ours(fractions, return_tensors="np", **settings).pixel_values, expected, EXACT)
    levels = ours(ASTRONAUT[:40, :50] / 255, return_tensors="np").pixel_values
    assert np.allclose(levels, ViTImageProcessor()(ASTRONAUT[:40, :50], return_tensors="np").pixel_values, atol=1e-6)
    with pytest.raises(InputError, match="NaN"):
        ours(np.full((40, 50, 3), np.nan, np.float32), do_resize=False)


def test_fractions_that_are_rescaled_again_warn():
    with pytest.warns(TranseptWarning, match="do_rescale=False"):
        ViTImageProcessor()(np.full((40, 50, 3), 0.5))


def test_transparency_follows_do_convert_rgb(picture_files):
    with Image.open(picture_files["alpha.png"]) as image:
        image.load()
    expected = CLIPImageProcessorPil()(image, return_tensors="np").pixel_values
    clip = ViTImageProcessor(
        do_convert_rgb=True,
        do_center_crop=True,
        crop_size=224,
        size={"shortest_edge": 224},
        resample=BICUBIC,
        image_mean=[0.48145466, 0.4578275, 0.40821073],
        image_std=[0.26862954, 0.26130258, 0.27577711],
    )
    compare(clip(image, return_tensors="np").pixel_values, expected, EXACT)
    dropped = ViTImageProcessor()(image, return_tensors="np").pixel_values
    compare(dropped, ViTImageProcessorPil()(image.convert("RGB"), return_tensors="np").pixel_values, EXACT)


def test_gray_models_get_one_channel(picture_files):
    settings = {"image_mean": [0.3], "image_std": [0.2], "size": 20}
    with Image.open(picture_files["gray.png"]) as image:
        expected = ViTImageProcessorPil(**settings)(image, return_tensors="np").pixel_values
        compare(ViTImageProcessor(**settings)(image, return_tensors="np").pixel_values, expected, EXACT)
    assert ViTImageProcessor(**settings)(ASTRONAUT, return_tensors="np").pixel_values.shape == (1, 1, 20, 20)
    gray = np.full((5, 6), 0.25, np.float32)
    assert ViTImageProcessor(**settings, do_resize=False, do_rescale=False)(gray).pixel_values[0].shape == (1, 5, 6)


def test_channels_can_be_left_alone():
    processor = ViTImageProcessor(do_convert_rgb=False, size=10, image_mean=0.5, image_std=0.5)
    for mode, channels in (("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4), ("P", 3)):
        assert processor(Image.new(mode, (8, 8)), return_tensors="np").pixel_values.shape == (1, channels, 10, 10)
    with pytest.raises(InputError, match="`image_mean` has 3 numbers, but the image has 4 channels"):
        ViTImageProcessor(do_convert_rgb=False)(Image.new("RGBA", (8, 8)))


@pytest.mark.parametrize("settings", [{}, {"do_rescale": False, "do_normalize": False}, {"size": {"shortest_edge": 40}}])
def test_channels_last_output(settings):
    first = ViTImageProcessor(**settings)(ASTRONAUT, return_tensors="np").pixel_values
    last = ViTImageProcessor(**settings)(ASTRONAUT, return_tensors="np", data_format="channels_last").pixel_values
    assert np.array_equal(last, first.transpose(0, 2, 3, 1))
    fractions = np.random.default_rng(0).random((40, 50, 3))
    for options in ({}, {"do_resize": True, "size": 50}):
        options = {"do_rescale": False, "do_resize": False, "return_tensors": "np"} | options
        first = ViTImageProcessor()(fractions, **options).pixel_values
        last = ViTImageProcessor()(fractions, data_format="channels_last", **options).pixel_values
        assert np.array_equal(last, first.transpose(0, 2, 3, 1))


def test_what_comes_back():
    processor = ViTImageProcessor(size=8)
    batch = processor([ASTRONAUT, ASTRONAUT[:50]], return_tensors="pt")
    assert isinstance(batch, BatchFeature)
    assert isinstance(batch["pixel_values"], torch.Tensor)
    assert batch.pixel_values.shape == (2, 3, 8, 8)
    assert batch.to(torch.float16).pixel_values.dtype == torch.float16
    assert batch.to("cpu", dtype=torch.float32).pixel_values.dtype == torch.float32
    assert dict(**batch).keys() == {"pixel_values"}
    with pytest.raises(AttributeError, match="has no 'input_ids'; it has pixel_values"):
        _ = batch.input_ids
    assert isinstance(processor.preprocess(ASTRONAUT).pixel_values, list)
    assert isinstance(processor(images=ASTRONAUT, return_tensors="np").pixel_values, np.ndarray)
    for copied in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert type(copied) is BatchFeature
        assert torch.equal(copied.pixel_values, batch.pixel_values)
    ids = BatchFeature({"input_ids": [[1, 2], [3, 4]], "name": "kept"}).to(torch.float16)
    assert ids.name == "kept"
    assert BatchFeature({"input_ids": [[1, 2]]}, "pt").to(torch.float16).input_ids.dtype == torch.int64
    with pytest.raises(InputError, match="return_tensors is 'tf'"):
        processor(ASTRONAUT, return_tensors="tf")


def test_processors_pickle_and_copy():
    processor = ViTImageProcessor(size=16, extra={"kept": 1})
    for copied in (copy.deepcopy(processor), pickle.loads(pickle.dumps(processor))):
        assert copied == processor
        assert np.array_equal(copied(ASTRONAUT).pixel_values[0], processor(ASTRONAUT).pixel_values[0])
    assert ViTImageProcessorFast is ViTImageProcessor
    assert processor != ViTImageProcessor()


def test_calls_do_not_change_the_settings():
    processor = ViTImageProcessor()
    processor(ASTRONAUT, size=10, do_normalize=False)
    assert processor == ViTImageProcessor()
    processor.size = 12
    assert processor(ASTRONAUT, return_tensors="np").pixel_values.shape == (1, 3, 12, 12)


def test_unequal_shapes_need_one_size():
    images = [ASTRONAUT, ASTRONAUT[:100]]
    rows = ViTImageProcessor(size={"shortest_edge": 20})(images).pixel_values
    assert [row.shape for row in rows] == [(3, 20, 20), (3, 20, 102)]
    with pytest.raises(InputError, match=r"different shapes \(\(3, 20, 20\), \(3, 20, 102\)\)"):
        ViTImageProcessor(size={"shortest_edge": 20})(images, return_tensors="pt")


def test_one_image_object_many_times():
    file = io.BytesIO()
    Image.fromarray(ASTRONAUT).save(file, "JPEG")
    file.seek(0)
    image = Image.open(file)  # not decoded yet
    rows = ViTImageProcessor()([image] * 8, return_tensors="np").pixel_values
    assert (rows == rows[0]).all()


def test_a_bad_image_is_named_by_its_place(tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    processor = ViTImageProcessor()
    with pytest.raises(FormatError, match=r"broken\.png: image 2 of the batch: is corrupt"):
        processor([ASTRONAUT, ASTRONAUT, path, ASTRONAUT])
    with pytest.raises(FileError, match="image 1 of the batch: there is no such image file"):
        processor([ASTRONAUT, tmp_path / "gone.png"])
    with pytest.raises(InputError, match="image 0 of the batch: NoneType is not an image"):
        processor([None, ASTRONAUT])
    with pytest.raises(InputError, match=r"^NoneType is not an image"):
        processor(None)
    with pytest.raises(InputError, match="holds no image"):
        processor([[], []])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": -5}, "`size` holds height = -5"),
        ({"size": 0}, "`size` holds height = 0"),
        ({"size": "224"}, "`size` must be a size, but is '224'"),
        ({"size": {"height": 5}}, "`size` has the keys"),
        ({"size": {"height": 5, "width": 2.5}}, "width = 2.5"),
        ({"size": {"height": 5, "width": True}}, "width = True"),
        ({"size": {"height": 10**9, "width": 1}}, "height = 1000000000"),
        ({"size": None}, "`size` must be a size"),
        ({"do_center_crop": True}, "`crop_size` of ViTImageProcessor must hold height and width"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 5}}, "`crop_size`"),
        ({"resample": 9}, "`resample`"),
        ({"resample": "bilinear"}, "`resample`"),
        ({"resample": True}, "`resample`"),
        ({"do_resize": "yes"}, r"`do_resize` of ViTImageProcessor must be bool \| None, but is 'yes'"),
        ({"rescale_factor": 0}, "`rescale_factor`"),
        ({"rescale_factor": float("inf")}, "`rescale_factor`"),
        ({"image_mean": "0.5"}, "`image_mean`"),
        ({"image_mean": [0.5, "a", 0.5]}, "`image_mean`"),
        ({"image_std": [0.5, 0.5, 0]}, "`image_std`"),
        ({"image_std": []}, "`image_std`"),
        ({"data_format": "last"}, "`data_format`"),
        ({"input_data_format": "first"}, "`input_data_format`"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        ViTImageProcessor(**settings)
    with pytest.raises(ConfigError, match=message):
        ViTImageProcessor()(ASTRONAUT, **settings)


def test_unknown_settings_name_the_nearest():
    with pytest.raises(InputError, match=r"no setting 'do_resise'. Did you mean 'do_resize'"):
        ViTImageProcessor()(ASTRONAUT, do_resise=False)
    with pytest.raises(InputError, match="`image_mean` has 2 numbers"):
        ViTImageProcessor(image_mean=[0.5, 0.5])(ASTRONAUT)


def test_sizes_in_all_spellings():
    assert size_dict(5, "size") == {"height": 5, "width": 5}
    assert size_dict(5, "size", square=False) == {"shortest_edge": 5}
    assert size_dict((5, 6), "size") == {"height": 5, "width": 6}
    assert size_dict({"shortest_edge": 5, "longest_edge": None}, "size") == {"shortest_edge": 5}


def test_a_family_is_few_lines():
    class ShortestEdge(BaseImageProcessor):
        default_to_square = False

    assert ShortestEdge(size=20)(ASTRONAUT[:100], return_tensors="np").pixel_values.shape == (1, 3, 20, 102)


def test_what_code_for_the_reference_asks_for(tmp_path):
    ours, picture = ViTImageProcessor(size={"height": 20, "width": 30}), Image.new("RGB", (9, 8), "red")
    assert (ours.size.height, ours.size["width"], ours.size.shortest_edge) == (20, 30, None)
    assert copy.deepcopy(ours).size == pickle.loads(pickle.dumps(ours)).size == {"height": 20, "width": 30}
    with pytest.raises(AttributeError, match="a size has no 'breadth'"):
        ours.size.breadth  # noqa: B018
    wanted = ours(picture, return_tensors="np").pixel_values
    assert np.array_equal(ours(picture, return_tensors="np", device="cpu", disable_grouping=True).pixel_values, wanted)
    with pytest.raises(InputError, match=r"prepared on the CPU, not on 'cuda:0'. Call .to\(device\)"):
        ours(picture, device="cuda:0")
    picture.save(tmp_path / "red.png")
    opened = ours.fetch_images([[str(tmp_path / "red.png")], picture])
    assert opened[0][0].size == (9, 8)
    assert opened[1] is picture
    with pytest.raises(InputError, match="is a URL"):
        ours.fetch_images("https://example.com/red.png")


def test_a_class_of_ones_own_is_registered(tmp_path, monkeypatch):
    class Halved(ViTImageProcessor):
        """Pictures of half the size."""

    for name in ("classes", "model_types"):
        monkeypatch.setattr(AutoImageProcessor, name, dict(getattr(AutoImageProcessor, name)))
    config = type("HalvedConfig", (), {"model_type": "halved"})
    AutoImageProcessor.register(config, slow_image_processor_class=Halved)
    Halved().save_pretrained(tmp_path)
    assert type(AutoImageProcessor.from_pretrained(tmp_path)) is Halved
    with pytest.raises(InputError, match="'halved' has Halved. Pass exist_ok=True"):
        AutoImageProcessor.register(config, Halved)
    with pytest.raises(InputTypeError, match="is no class of BaseImageProcessor"):
        AutoImageProcessor.register(config, dict, exist_ok=True)
    with pytest.raises(InputError, match="has no argument 'classes'"):
        AutoImageProcessor.register(config, classes=[Halved])
