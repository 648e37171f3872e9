"""CLIP's and SigLIP's processors: the reference's numbers and files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers
from PIL import Image
from skimage import data as skimage_data
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from transept.errors import InputError
from transept.preprocess.auto import AutoProcessor
from transept.preprocess.image.clip import CLIPImageProcessor
from transept.preprocess.processors.clip import CLIPProcessor
from transept.preprocess.processors.siglip import SiglipProcessor
from transept.preprocess.text.classes import CLIPTokenizer

ALPHABET = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
TOKENS = [*ALPHABET, *(f"{letter}</w>" for letter in ALPHABET), "ca", "cat</w>", "<|startoftext|>", "<|endoftext|>"]
MERGES = ["c a", "ca t</w>"]
TEXTS = ["a photo of a cat", "Cat, two!"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(TOKENS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES))
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(CLIPImageProcessor().to_dict() | {"crop_size": 224, "size": 224})
    )
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    return tmp_path


@pytest.fixture
def pictures():
    astronaut = Image.fromarray(skimage_data.astronaut())
    return [astronaut.resize((97, 143)), astronaut.resize((301, 33))]


def reference(files):
    return transformers.CLIPProcessor(CLIPImageProcessorPil(), transformers.CLIPTokenizer.from_pretrained(files))


def test_calls_match_the_reference(files, pictures):
    ours, theirs = AutoProcessor.from_pretrained(files), reference(files)
    assert type(ours) is CLIPProcessor
    assert type(ours.tokenizer) is CLIPTokenizer
    for inputs in (
        {"text": TEXTS, "images": pictures, "padding": True, "return_tensors": "np"},
        {"text": TEXTS, "padding": "max_length", "max_length": 9, "truncation": True, "return_tensors": "np"},
        {"images": pictures, "size": {"shortest_edge": 90}, "crop_size": {"height": 80, "width": 80}, "return_tensors": "np"},
        {"text": TEXTS[0], "images": pictures[0], "return_tensors": "np", "text_kwargs": {"add_special_tokens": False}},
    ):
        found, expected = ours(**inputs), theirs(**inputs)
        assert list(found) == list(expected)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert {*ours.model_input_names} == {*theirs.model_input_names}
    row = ours(text=TEXTS[1])["input_ids"]
    assert ours.decode(row, skip_special_tokens=True) == theirs.decode(row, skip_special_tokens=True)
    with pytest.raises(InputError, match="CLIPProcessor takes no audio"):
        ours(audio=[0.0])


@pytest.mark.parametrize("legacy", [False, True])
def test_files_go_to_the_reference_and_back(files, pictures, tmp_path, legacy):
    ours = AutoProcessor.from_pretrained(files)
    ours.save_pretrained(tmp_path / "ours", legacy_format=legacy)
    theirs = transformers.AutoProcessor.from_pretrained(tmp_path / "ours")
    assert type(theirs) is transformers.CLIPProcessor
    theirs.save_pretrained(tmp_path / "theirs")
    inputs = {"text": TEXTS, "images": pictures, "padding": True, "return_tensors": "np"}
    expected = ours(**inputs)
    for folder in ("ours", "theirs"):
        again = AutoProcessor.from_pretrained(tmp_path / folder)
        assert type(again) is CLIPProcessor
        assert again.image_processor == ours.image_processor
        found = again(**inputs)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_siglip_is_found_by_the_models_type(files):
    (files / "config.json").write_text('{"model_type": "siglip"}')
    (files / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    assert type(AutoProcessor.from_pretrained(files)) is SiglipProcessor
