"""Sounds to classes: keywords, speakers, languages, emotions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForAudioClassification
from transept.pipelines.base import chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.labels import LabelOptions, labelled
from transept.pipelines.media import AudioPipeline
from transept.pipelines.parts import Parts
from transept.preprocess.audio.auto import AutoFeatureExtractor


@dataclass(frozen=True)
class AudioClassificationOptions(LabelOptions):
    """Options of ``audio-classification``, beside those of :class:`transept.pipelines.labels.LabelOptions`.

    Args:
        sampling_rate: the rate of arrays that come without one, in Hz; without it, such arrays are an error.
    """

    sampling_rate: int | None = None


class AudioClassificationPipeline(AudioPipeline[AudioClassificationOptions]):
    """For a sound, a list of ``{"label": str, "score": float}``, the best first.

    A sound is a path, bytes, a file object, ``(array, rate)`` or ``{"array": ..., "sampling_rate": ...}``; see
    :func:`transept.preprocess.media.load_audio`.
    """

    task = "audio-classification"

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the classifier and its feature extractor."""
        model = parts.model(AutoModelForAudioClassification)
        extractor = parts.part("feature_extractor", AutoFeatureExtractor.from_pretrained)
        return cls(model, extractor, chosen_options(AudioClassificationOptions(), options, cls.task), **batching)

    def forward(self, samples: Sequence[Sample], options: AudioClassificationOptions) -> Sequence[NDArray[np.float32]]:
        """Logits (C) of each row."""
        return list(to_numpy(self.model(**self.collate(samples)).logits))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: AudioClassificationOptions) -> Any:
        """The best classes."""
        return labelled(results[0], self.model.config, options)
