"""Settings of image processors go to files and come back, ours and the reference's, in both layouts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import AutoImageProcessor as ReferenceAuto
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from transept.errors import ConfigError, FileError, FormatError, InputError, InputTypeError, UnsupportedError
from transept.preprocess.auto import AutoImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor

SETTINGS = {
    "size": {"height": 30, "width": 40},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 20, "width": 20},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
    "do_convert_rgb": True,
}
IMAGE = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)


def same(ours, reference):
    expected = reference(IMAGE, return_tensors="np").pixel_values
    return np.array_equal(ours(IMAGE, return_tensors="np").pixel_values, expected)


@pytest.mark.parametrize("settings", [{}, SETTINGS, {"size": {"shortest_edge": 33}, "do_rescale": False}])
def test_ours_to_the_reference_and_back(tmp_path, settings):
    ours = ViTImageProcessor(**settings)
    ours.save_pretrained(tmp_path / "deep" / "ours")
    for loaded in (
        ViTImageProcessorPil.from_pretrained(tmp_path / "deep/ours"),
        ReferenceAuto.from_pretrained(tmp_path / "deep/ours"),
    ):
        assert same(ours, loaded)
        loaded.save_pretrained(tmp_path / "theirs")
    for loaded in (
        ViTImageProcessor.from_pretrained(tmp_path / "theirs"),
        AutoImageProcessor.from_pretrained(str(tmp_path / "theirs")),
    ):
        assert type(loaded) is ViTImageProcessor
        assert loaded == ours


def test_the_reference_file_is_written_back_as_it_was(tmp_path):
    ViTImageProcessorPil().save_pretrained(tmp_path / "theirs")
    ViTImageProcessor.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    theirs, ours = (json.loads((tmp_path / name / "preprocessor_config.json").read_text()) for name in ("theirs", "ours"))
    assert ours == theirs


def test_unknown_keys_are_kept_and_code_is_not(tmp_path):
    written = {
        "image_processor_type": "ViTImageProcessor",
        "size": 20,
        "reduce_labels": True,
        "deep": {"a": [1, None]},
        "nothing": None,
        "do_convert_rgb": None,
        "crop_pct": 0.9,
        "auto_map": {"AutoImageProcessor": "evil.Processor"},
        "_private": 1,
        "processor_class": "Any",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    loaded = AutoImageProcessor.from_pretrained(tmp_path, use_fast=True, backend="pil")
    assert loaded.size == {"height": 20, "width": 20}
    assert loaded.extra == {"reduce_labels": True, "deep": {"a": [1, None]}, "nothing": None, "crop_pct": 0.9}
    loaded.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again/preprocessor_config.json").read_text())
    assert again["deep"] == {"a": [1, None]}
    assert not {"auto_map", "_private", "processor_class", "extra", "do_convert_rgb"} & again.keys()


@pytest.mark.parametrize(
    ("content", "config"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, None),
        ({"image_processor_type": "ViTImageProcessorFast"}, None),
        ({"image_processor_type": "ViTImageProcessorPil"}, None),
        ({"feature_extractor_type": "ViTFeatureExtractor"}, None),
        ({}, {"model_type": "vit"}),
    ],
)
def test_auto_finds_the_class(tmp_path, content, config):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content | {"size": 17}))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert AutoImageProcessor.from_pretrained(tmp_path) == ViTImageProcessor(size=17)
    assert AutoImageProcessor.from_pretrained(tmp_path, size=18) == ViTImageProcessor(size=18)


def test_nested_layout_goes_first(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 1}))
    nested = {"image_processor": {"image_processor_type": "ViTImageProcessor", "size": 19}, "processor_class": "X"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert ViTImageProcessor.from_pretrained(tmp_path).size == {"height": 19, "width": 19}
    assert AutoImageProcessor.from_pretrained(tmp_path).size == {"height": 19, "width": 19}
    assert ViTImageProcessor.from_pretrained(tmp_path / "processor_config.json").size == {"height": 19, "width": 19}
    assert ViTImageProcessor.from_pretrained(tmp_path / "preprocessor_config.json").size == {"height": 1, "width": 1}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/preprocessor_config.json").write_text(json.dumps({"size": 3}))
    assert ViTImageProcessor.from_pretrained(tmp_path, subfolder="sub").size == {"height": 3, "width": 3}


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(FileError, match=r"holds neither 'preprocessor_config\.json' nor"):
        AutoImageProcessor.from_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    for text, kind, message in (
        ('{"image_processor_type": "VitImageProcessor"}', UnsupportedError, "'VitImageProcessor'.*'ViTImageProcessor'"),
        ('{"image_processor_type": "os.system"}', UnsupportedError, "'os.system', which is not supported"),
        ('{"image_processor_type": 5}', UnsupportedError, "names no class"),
        ("{}", UnsupportedError, "names no class under 'image_processor_type'"),
        ("[1]", FormatError, "must hold a JSON object"),
        ("{", FormatError, "not valid JSON"),
        ('{"size": 1, "size": 2}', FormatError, "the key 'size' twice"),
        ('{"image_std": NaN}', FormatError, "NaN"),
        ("[" * 100_000, FormatError, "nested deeper|not valid"),
    ):
        file.write_text(text)
        with pytest.raises(kind, match=message) as caught:
            AutoImageProcessor.from_pretrained(tmp_path)
        assert str(file) in str(caught.value)
    file.write_text('{"size": {"height": "tall", "width": 5}}')
    with pytest.raises(ConfigError, match="`size` holds height = 'tall'") as caught:
        ViTImageProcessor.from_pretrained(tmp_path)
    assert str(file) in str(caught.value)
    (tmp_path / "processor_config.json").write_text('{"image_processor": 5}')
    with pytest.raises(FormatError, match=r"processor_config\.json.*must hold a JSON object"):
        AutoImageProcessor.from_pretrained(tmp_path)


def test_misspelt_overrides_and_calls(tmp_path):
    ViTImageProcessor().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no setting 'do_normalise'\. Did you mean 'do_normalize'"):
        ViTImageProcessor.from_pretrained(tmp_path, do_normalise=False)
    with pytest.raises(InputTypeError, match=r"AutoImageProcessor\.from_pretrained\(\)"):
        AutoImageProcessor()
    with pytest.raises(FileError):
        ViTImageProcessor().save_pretrained(tmp_path / "preprocessor_config.json")


def test_no_file_outside_the_directory_is_read(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "preprocessor_config.json").write_text('{"size": 5}')
    with pytest.raises((InputError, FormatError), match="outside"):
        ViTImageProcessor.from_pretrained(tmp_path / "model", subfolder="..")
    (tmp_path / "model/preprocessor_config.json").symlink_to(tmp_path / "preprocessor_config.json")
    with pytest.raises(FormatError, match="outside"):
        ViTImageProcessor.from_pretrained(tmp_path / "model")
