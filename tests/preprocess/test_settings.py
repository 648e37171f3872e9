"""Numbers in the settings of preprocessors, as a model's file may hold any."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from transept.config.fields import specs
from transept.errors import ConfigError, InputError, TranseptError
from transept.preprocess.audio import decode
from transept.preprocess.audio.audio_spectrogram_transformer import ASTFeatureExtractor
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor
from transept.preprocess.audio.whisper import WhisperFeatureExtractor
from transept.preprocess.classes import FEATURE_EXTRACTORS, IMAGE_PROCESSORS, VIDEO_PROCESSORS
from transept.preprocess.image.clip import CLIPImageProcessor
from transept.preprocess.image.convnext import ConvNextImageProcessor
from transept.preprocess.image.llava import LlavaImageProcessor
from transept.preprocess.image.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.settings import Preprocessor

TABLES = {**IMAGE_PROCESSORS, **VIDEO_PROCESSORS, **FEATURE_EXTRACTORS}
NUMBERS = [0, -1, 10**6, 10**9, 2**62, 5e-324, 1e-300, 1e300, -1e300]
SIZES = [10**6, {"height": 10**6, "width": 10**6}, {"shortest_edge": 10**6}, {"shortest_edge": 1, "longest_edge": 10**7}]
# What makes a setting count.
SWITCHES: dict[str, dict[str, Any]] = {
    "crop_size": {"do_center_crop": True},
    "pad_size": {"do_pad": True},
    "size_divisor": {"do_pad": True},
    "fps": {"do_sample_frames": True},
    "num_frames": {"do_sample_frames": True},
    "min_frames": {"do_sample_frames": True, "fps": 2.0},
    "max_frames": {"do_sample_frames": True, "fps": 2.0},
}


def class_of(name: str) -> type[Preprocessor]:
    found: type[Preprocessor] = getattr(importlib.import_module(f"transept.preprocess.{TABLES[name]}"), name)
    return found


def extremes(cls: type[Preprocessor]) -> Iterator[dict[str, Any]]:
    """Each number among the settings of a class at its extremes, and what makes it count."""
    for name, spec in specs(cls).items():
        kind = str(spec.kind)
        values: list[Any] = SIZES if name in ("size", "crop_size", "pad_size") else []
        if "int" in kind or "float" in kind:
            values = [number for number in NUMBERS if "float" in kind or isinstance(number, int)]
        lists = [[number] * 3 for number in values] if "list" in kind else []
        switches = {key: value for key, value in SWITCHES.get(name, {}).items() if key in specs(cls)}
        yield from ({name: value, **switches} for value in (*values, *lists))


def called(processor: Any) -> dict[str, Any]:
    if isinstance(processor, SequenceFeatureExtractor):
        return dict(processor(np.sin(np.arange(2000, dtype=np.float32)), sampling_rate=16000))
    pixels = np.arange(6 * 20 * 24 * 3, dtype=np.uint32).astype(np.uint8).reshape(6, 20, 24, 3)
    if isinstance(processor, Qwen2VLVideoProcessor):
        return dict(processor(pixels, video_metadata=[{"fps": 24.0}]))
    more = {"apply_ocr": False} if "apply_ocr" in specs(type(processor)) else {}
    return dict(processor(pixels[0], **more))


@pytest.mark.parametrize("name", sorted({cls.__name__: name for name in TABLES for cls in [class_of(name)]}))
def test_numbers_at_their_extremes(name: str) -> None:
    """Each is refused by a typed error, or the result is finite and of a size that fits into memory."""
    for settings in extremes(class_of(name)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = called(class_of(name)(**settings))
        except TranseptError:
            continue
        for key, value in made.items():
            for array in value if isinstance(value, list) else [value]:
                assert np.isfinite(array).all(), (settings, key)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (CLIPImageProcessor, {"crop_size": 10**6}, "`crop_size` is 1000000 x 1000000 pixels, more than 64000000"),
        (ViTImageProcessor, {"size": 10**6}, "`size` is 1000000 x 1000000 pixels"),
        (
            ViTImageProcessor,
            {"image_std": 1e-300},
            r"`image_std` of ViTImageProcessor must be in \[1e-08, 1e\+08\], but is 1e-300",
        ),
        (ViTImageProcessor, {"image_std": [0.5, 0.5, 1e300]}, "`image_std` .* but is .*1e[+]300"),
        (ViTImageProcessor, {"image_mean": -1e300}, r"`image_mean` .* must be in \[-1e\+08, 1e\+08\]"),
        (ViTImageProcessor, {"rescale_factor": 1e-300}, "`rescale_factor` of ViTImageProcessor must be in"),
        (CLIPImageProcessor, {"resample": 7}, r"`resample` of CLIPImageProcessor must be in \[0, 5\], but is 7"),
        (ConvNextImageProcessor, {"size": {"shortest_edge": 10**5}}, "`size` .* a square of at most 64000000 pixels"),
        (Qwen2VLImageProcessor, {"temporal_patch_size": 10**5}, r"`temporal_patch_size` .* must be in \[1, 64\]"),
        (ASTFeatureExtractor, {"max_length": 10**9}, r"`max_length` .* at most 67108864 values with `num_mel_bins` \(128\)"),
        (ASTFeatureExtractor, {"std": 1e-300}, "`std` of ASTFeatureExtractor must be in"),
        (WhisperFeatureExtractor, {"dither": 1e300}, "`dither` of WhisperFeatureExtractor must be in"),
        (
            WhisperFeatureExtractor,
            {"chunk_length": 3600, "sampling_rate": 48000},
            r"`chunk_length` .*`sampling_rate` \(48000\)",
        ),
        (WhisperFeatureExtractor, {"chunk_length": 3600, "hop_length": 1}, r"`hop_length` .* is too short for `chunk_length`"),
        (WhisperFeatureExtractor, {"chunk_length": 3600, "n_fft": 2**16}, "`hop_length` .* is too short"),
        (Wav2Vec2FeatureExtractor, {"padding_value": 1e300}, "`padding_value` of Wav2Vec2FeatureExtractor must be in"),
    ],
    ids=str,
)
def test_errors_name_the_setting_and_its_value(cls: type[Preprocessor], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


def test_a_sound_is_not_resampled_to_too_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_SAMPLES", 10_000)
    with pytest.raises(InputError, match="2000 samples at 16000 Hz, which are 96000 at 768000 Hz, more than 10000"):
        Wav2Vec2FeatureExtractor(sampling_rate=768_000)(np.zeros(2000, np.float32), sampling_rate=16_000)


def test_a_narrow_picture_is_not_padded_to_a_huge_square() -> None:
    ours = LlavaImageProcessor(do_pad=True)
    with pytest.raises(InputError, match="padding makes an image of 9000 x 9000 pixels"):
        ours(np.zeros((6, 9000, 3), np.uint8))
    LlavaImageProcessor(do_pad=True, image_mean=[1e8] * 3)(np.zeros((6, 90, 3), np.uint8))
