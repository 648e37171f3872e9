"""Pages for LayoutLMv3: pictures, words that are read off them, and both together, as in the reference."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel
from transformers.models.layoutlmv3 import image_processing_pil_layoutlmv3 as reference

from transept.errors import InputError, InputTypeError, MissingExtraError, TranseptError, UnsupportedError
from transept.preprocess.auto import AutoImageProcessor, AutoProcessor
from transept.preprocess.image.layoutlmv3 import LayoutLMv3ImageProcessor
from transept.preprocess.page import on_page
from transept.preprocess.processors.layoutlmv3 import LayoutLMv3Processor
from transept.preprocess.text.classes import LayoutLMv3Tokenizer

pytestmark = pytest.mark.reference
LINES = ["Total: 12.50", "", "Paid in  full", "today"]


def page(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


class Tesseract(types.ModuleType):
    """A stand-in that finds lines at places that follow from the picture's size, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("pytesseract")
        self.asked: list[Any] = []

    def image_to_data(self, image: Image.Image, lang: Any, output_type: str, config: str) -> dict[str, list[Any]]:
        self.asked.append((image.size, lang, config))
        rows = range(len(LINES))
        width, height = image.size
        found: dict[str, list[Any]] = {"text": [*LINES, "  "], "left": [width // 7 + 3 * row for row in rows] + [0]}
        found["top"], found["width"] = [height // 5 + 2 * row for row in rows] + [0], [width // 3 for _ in rows] + [width]
        return found | {"height": [height // 6 for _ in rows] + [height]}


@pytest.fixture
def tesseract(monkeypatch: pytest.MonkeyPatch) -> Tesseract:
    fake = Tesseract()
    monkeypatch.setitem(sys.modules, "pytesseract", fake)
    monkeypatch.setattr(reference, "pytesseract", fake)
    monkeypatch.setattr(reference, "requires_backends", lambda *given: None)
    return fake


@pytest.fixture(scope="module")
def tokenizers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab = {token: index for index, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return folder


def pair(folder: Path, **settings: Any) -> tuple[LayoutLMv3Processor, Any]:
    theirs = transformers.LayoutLMv3Processor.__new__(transformers.LayoutLMv3Processor)
    theirs.image_processor = reference.LayoutLMv3ImageProcessorPil(**settings)
    theirs.tokenizer = transformers.LayoutLMv3TokenizerFast.from_pretrained(folder)
    tokenizer = LayoutLMv3Tokenizer.from_pretrained(folder)
    return LayoutLMv3Processor(LayoutLMv3ImageProcessor(**settings), tokenizer), theirs


def same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        mine = ours[name]
        if name == "pixel_values":
            mine, value = (np.stack([np.asarray(one) for one in each]) for each in (mine, value))
            assert np.abs(mine - value).max() <= 1e-6
        else:
            assert (mine.tolist() if isinstance(mine, torch.Tensor) else mine) == (
                value.tolist() if isinstance(value, torch.Tensor) else value
            ), name


@pytest.mark.parametrize("size", [(224, 224), (300, 500), (517, 61), (1, 1), (1, 900)])
@pytest.mark.parametrize("settings", [{}, {"size": {"height": 64, "width": 96}, "do_normalize": False}])
def test_pictures_as_in_the_reference(size: tuple[int, int], settings: dict[str, Any]) -> None:
    ours, theirs = (
        kind(apply_ocr=False, **settings) for kind in (LayoutLMv3ImageProcessor, reference.LayoutLMv3ImageProcessorPil)
    )
    for picture in (page(*size), np.asarray(page(*size)), [page(*size), page(*size, seed=1)]):
        how = {"return_tensors": "np", "input_data_format": "channels_last"}
        same(ours(picture, **how), theirs(picture, **how))


def test_words_are_read_as_in_the_reference(tesseract: Tesseract) -> None:
    settings = {"ocr_lang": "deu", "tesseract_config": "--psm 6"}
    ours, theirs = (kind(**settings) for kind in (LayoutLMv3ImageProcessor, reference.LayoutLMv3ImageProcessorPil))
    pictures = [page(300, 500), page(617, 61)]
    same(ours(pictures), theirs(pictures))
    assert (
        sorted(tesseract.asked[:2])
        == sorted(tesseract.asked[2:])
        == [((300, 500), "deu", "--psm 6"), ((617, 61), "deu", "--psm 6")]
    )
    found = ours(pictures[0], return_tensors="pt")
    assert found["words"] == [["Total: 12.50", "Paid in  full", "today"]]
    assert isinstance(found["pixel_values"], torch.Tensor)
    assert "words" not in ours(pictures[0], apply_ocr=False)
    tesseract.asked.clear()
    ours(pictures[0], ocr_lang="fra", tesseract_config=None)
    assert tesseract.asked == [((300, 500), "fra", "")]


def test_boxes_in_pixels_end_at_the_pages_edges() -> None:
    assert on_page((0, 10, 50, 100), 200, 100) == [0, 100, 250, 1000]
    assert on_page((-3, 10, 250, 101), 200, 100) == [0, 100, 1000, 1000]


def test_what_reading_needs(monkeypatch: pytest.MonkeyPatch, tesseract: Tesseract) -> None:
    ours = LayoutLMv3ImageProcessor()
    tesseract.image_to_data = _raising(FileNotFoundError("tesseract is not installed"))  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="Tesseract cannot be run"):
        ours(page(20, 20))
    tesseract.image_to_data = _raising(RuntimeError("no language xyz"))  # type: ignore[method-assign]
    with pytest.raises(
        UnsupportedError, match="image 1 of the batch: Tesseract cannot read .* no language xyz|image 0 of the batch"
    ):
        ours([page(20, 20), page(30, 30)])
    monkeypatch.setitem(sys.modules, "pytesseract", None)
    with pytest.raises(MissingExtraError, match="pytesseract"):
        ours(page(20, 20))


def _raising(error: Exception) -> Any:
    def call(*given: Any, **options: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("empty", [np.zeros((0, 10, 3), np.uint8), np.zeros((10, 0, 3), np.uint8), b"", []])
def test_flat_images_no_size(empty: Any, tesseract: Tesseract) -> None:
    for reads in (True, False):
        with pytest.raises(TranseptError):
            LayoutLMv3ImageProcessor(apply_ocr=reads)(empty)


WORDS = [["Total:", "12.50", "Paid"], ["today"]]
BOXES = [[[1, 2, 30, 40], [35, 2, 60, 40], [0, 0, 1000, 1000]], [[5, 6, 7, 8]]]
OPTIONS: list[dict[str, Any]] = [
    {"padding": True, "return_tensors": "pt"},
    {"padding": "max_length", "max_length": 40, "truncation": True},
    {
        "truncation": True,
        "max_length": 10,
        "stride": 2,
        "return_overflowing_tokens": True,
        "padding": True,
        "return_tensors": "pt",
    },
]


@pytest.mark.parametrize("options", OPTIONS)
def test_pages_as_in_the_reference(options: dict[str, Any], tokenizers_folder: Path) -> None:
    ours, theirs = pair(tokenizers_folder, apply_ocr=False)
    pictures = [page(100, 200), page(300, 30, seed=2)]
    for given in (
        {"text": WORDS, "boxes": BOXES},
        {"text": WORDS, "boxes": BOXES, "word_labels": [[1, 2, 3], [4]]},
        {"text": ["Q?", "Who?"], "text_pair": WORDS, "boxes": BOXES},
    ):
        more = {"truncation": "only_second", "max_length": 14} if "text_pair" in given and "stride" in options else {}
        same(ours(pictures, **given, **options | more), theirs(pictures, **given, **options | more))
    same(*(each(pictures[0], WORDS[0], boxes=BOXES[0], **options) for each in (ours, theirs)))


def test_pages_whose_words_are_read(tokenizers_folder: Path, tesseract: Tesseract) -> None:
    ours, theirs = pair(tokenizers_folder)
    pictures = [page(100, 200), page(300, 30, seed=2)]
    for given in ({}, {"text": ["Q?", "Who?"]}):
        same(ours(pictures, **given, padding=True), theirs(pictures, **given, padding=True))
    same(ours(pictures[0], "Who?", return_tensors="pt"), theirs(pictures[0], "Who?", return_tensors="pt"))
    for more in ({"boxes": BOXES}, {"word_labels": [[1]]}, {"text_pair": WORDS}):
        with pytest.raises(InputError, match=next(iter(more))):
            ours(pictures, ["Q?", "Who?"], **more)
    assert "words" not in ours(pictures, WORDS, boxes=BOXES, apply_ocr=False)


def test_words_alone_and_nothing(tokenizers_folder: Path) -> None:
    ours, _ = pair(tokenizers_folder, apply_ocr=False)
    assert set(ours(text=WORDS[0], boxes=BOXES[0])) == {"input_ids", "attention_mask", "bbox"}
    assert ours.model_input_names == ["input_ids", "bbox", "attention_mask", "pixel_values"]
    with pytest.raises(InputError, match="no words were passed"):
        ours(page(20, 20))
    with pytest.raises(InputError, match="no option 'paddings'"):
        ours(page(20, 20), WORDS[0], boxes=BOXES[0], paddings=True)
    with pytest.raises(InputError, match="page 0 has 3 words, but `boxes` has 1"):
        ours(page(20, 20), WORDS[0], boxes=BOXES[1])
    with pytest.raises(InputTypeError):
        LayoutLMv3Processor(None, ours.tokenizer)


def test_files_go_both_ways(tokenizers_folder: Path, tmp_path: Path) -> None:
    ours, theirs = pair(tokenizers_folder, apply_ocr=False, size={"height": 32, "width": 48})
    theirs.image_processor.save_pretrained(tmp_path / "theirs")
    theirs.tokenizer.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/config.json").write_text(json.dumps({"model_type": "layoutlmv3"}), encoding="utf-8")
    given = {"text": WORDS[0], "boxes": BOXES[0], "return_tensors": "pt"}
    expected = ours(page(20, 30), **given)
    again = AutoProcessor.from_pretrained(tmp_path / "theirs")
    assert type(again) is LayoutLMv3Processor
    same(again(page(20, 30), **given), expected)
    for legacy in (True, False):
        ours.save_pretrained(tmp_path / "ours", legacy_format=legacy)
        same(LayoutLMv3Processor.from_pretrained(tmp_path / "ours")(page(20, 30), **given), expected)
        back = transformers.LayoutLMv3ImageProcessorPil.from_pretrained(tmp_path / "ours")
        assert (back.apply_ocr, back.size["width"]) == (False, 48)
        assert type(AutoImageProcessor.from_pretrained(tmp_path / "ours")) is LayoutLMv3ImageProcessor
    older = {"feature_extractor_type": "LayoutLMv3FeatureExtractor", "apply_ocr": False, "size": 224}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older), encoding="utf-8")
    assert type(AutoImageProcessor.from_pretrained(tmp_path)) is LayoutLMv3ImageProcessor
