"""``AutoFeatureExtractor``: the feature extractor that a model's files name."""

from __future__ import annotations

from typing import ClassVar

from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.auto import AutoPreprocessor


class AutoFeatureExtractor(AutoPreprocessor[SequenceFeatureExtractor]):
    """Finds the class by ``feature_extractor_type``, or by the model's type."""

    section: ClassVar[str] = "feature_extractor"
    classes: ClassVar[dict[str, str]] = {"Wav2Vec2FeatureExtractor": "transept.preprocess.audio.wav2vec2"}
    model_types: ClassVar[dict[str, str]] = {"wav2vec2": "Wav2Vec2FeatureExtractor"}
