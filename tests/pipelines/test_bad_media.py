"""Pictures and sounds of odd sizes and contents, through every task that reads them: an answer, or our error; none hangs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.pace import within
from tests.thorough import in_turn
from transept import pipeline
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor

from . import document_models, test_dual
from .media_models import RATE, picture, png, rated, save_audio_model, save_image_model, wav
from .speech_models import save_writer
from .vision_models import tiny_detr, tiny_dpt, tiny_segformer

EDGES = {"shortest_edge": 64, "longest_edge": 100}
SIZE = {"height": 48, "width": 48}
WORDS = [("one", [0, 0, 50, 50]), ("two", [60, 0, 99, 50])]


def built(name: str, directory: Path) -> Any:
    """The pipeline of that name, of a tiny model."""
    if name == "object-detection":
        return pipeline(name, tiny_detr(), image_processor=DetrImageProcessor(size=EDGES), threshold=0)
    if name == "panoptic":
        model, processor = tiny_detr("DetrForSegmentation"), DetrImageProcessor(size=EDGES)
        return pipeline("image-segmentation", model, image_processor=processor, threshold=0.3)
    if name == "semantic":
        return pipeline("image-segmentation", tiny_segformer(), image_processor=SegformerImageProcessor(size=SIZE))
    if name == "depth-estimation":
        return pipeline(name, tiny_dpt(), image_processor=DPTImageProcessor(size=SIZE))
    if name in ("zero-shot-image-classification", "image-embedding"):
        options = {"candidate_labels": ["a", "b"]} if name.startswith("zero") else {}
        return pipeline(name, test_dual.saved(directory, "clip"), **options)
    if name == "document-question-answering":
        document_models.save(directory)
        return pipeline(name, directory)
    return pipeline(name, save_image_model(directory))


TASKS = ["image-classification", "image-feature-extraction", "image-embedding", "zero-shot-image-classification"]
TASKS += ["object-detection", "panoptic", "semantic", "depth-estimation", "document-question-answering"]


@pytest.fixture(scope="module", params=TASKS)
def ask(request, tmp_path_factory) -> Any:
    """Asks a task about one picture."""
    pipe = built(request.param, tmp_path_factory.mktemp("model"))
    if request.param == "document-question-answering":
        return lambda image: pipe({"image": image, "question": "who?", "word_boxes": WORDS})
    return pipe


def encoded(size: tuple[int, int], mode: str = "L") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (2, 3)], ids=str)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_small_and_narrow_pictures_are_answered(ask, size):
    with within(20):
        for source in (png(picture(0, *size)), Image.fromarray(picture(0, *size))):
            assert ask(source) is not None


@pytest.mark.parametrize("ask", in_turn(TASKS, 3), indirect=True)
def test_sixty_megapixels_are_answered(ask):
    with within(90):
        answer = ask(encoded((10_000, 6_000)))
    if isinstance(answer, dict) and "depth" in answer:
        assert answer["depth"].size == (10_000, 6_000)


WRONG: dict[str, tuple[Any, type[TranseptError], str]] = {
    "too large": (
        lambda: encoded((10_000, 7_000), "1"),
        FormatError,
        "has 10000 x 7000 pixels, more than the 64000000 allowed",
    ),
    "cut": (lambda: png(picture())[:60], FormatError, "truncated or corrupt"),
    "no picture": (lambda: b"hello", FormatError, "Formats that are read"),
    "missing": (lambda: "nowhere/cat.png", FileError, "no such image file"),
    "NaN": (lambda: np.full((8, 8, 3), np.nan), InputError, "values from nan to nan"),
    "no channels": (lambda: np.zeros((8, 8, 0), np.uint8), InputError, "neither end can hold 1, 3 or 4 channels"),
    "no pixels": (lambda: np.zeros((0, 8, 3), np.uint8), InputError, "height 0, width 8"),
    "ambiguous": (lambda: np.zeros((1, 4000, 3), np.uint8), InputError, "either end could hold the channels"),
    "no object": (lambda: 5, InputTypeError, "int is not an image"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("error")
def test_pictures_that_cannot_be(ask, name):
    make, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        ask(make())


@pytest.fixture(scope="module", params=["writer", "Wav2Vec2ForCTC", "Wav2Vec2ForSequenceClassification"])
def hear(request, tmp_path_factory) -> Any:
    directory = tmp_path_factory.mktemp("model")
    if request.param == "writer":
        return pipeline("automatic-speech-recognition", save_writer(directory), max_new_tokens=8)
    task = "automatic-speech-recognition" if request.param.endswith("CTC") else "audio-classification"
    return pipeline(task, save_audio_model(directory, request.param))


SOUNDS: dict[str, Any] = {
    "silence": np.zeros(RATE, np.float32),
    "a long silence": np.zeros(65 * RATE, np.float32),
    "noise": np.random.default_rng(0).standard_normal(RATE).astype(np.float32) * 50,
    "a click": np.eye(1, RATE, 500, dtype=np.float32)[0],
    "all at the limit": np.ones(RATE, np.float32),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_silence_and_noise_end(hear, name):
    with within(60):
        answer = hear(rated(SOUNDS[name]))
    assert answer is not None


TEN_HOURS = 10 * 3600
NO_SOUNDS: dict[str, tuple[Any, type[TranseptError], str]] = {
    "no samples": (lambda: rated(np.zeros(0, np.float32)), InputError, "empty"),
    "NaN": (lambda: rated(np.full(RATE, np.nan, np.float32)), InputError, "sample 0 of the audio is nan"),
    "cut": (lambda: wav(np.zeros(RATE, np.float32))[:500], FormatError, "truncated"),
    "no sound": (lambda: b"hello", FormatError, "not read"),
    "missing": (lambda: "nowhere/talk.wav", FileError, "no such audio file"),
    "ten hours": (
        lambda: flac(TEN_HOURS, 2000),
        FormatError,
        r"lasts longer than the 3600 seconds allowed\. Cut it .*load_audio",
    ),
}


def flac(seconds: int, rate: int) -> bytes:
    """A file of silence, of few bytes."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(seconds * rate, np.int16), rate, format="FLAC")
    return buffer.getvalue()


@pytest.mark.parametrize("name", NO_SOUNDS)
def test_sounds_that_cannot_be(hear, name):
    make, kind, message = NO_SOUNDS[name]
    with pytest.raises(kind, match=message):
        hear(make())
