"""Sounds to classes: keywords, speakers, languages, emotions."""

from __future__ import annotations

from dataclasses import dataclass

from transept.core.auto import AutoModelForAudioClassification
from transept.pipelines.labels import ClassifyingPipeline, LabelOptions
from transept.pipelines.media import AudioPipeline


@dataclass(frozen=True)
class AudioClassificationOptions(LabelOptions):
    """Options of ``audio-classification``, beside those of :class:`transept.pipelines.labels.LabelOptions`.

    Args:
        sampling_rate: the rate of arrays that come without one, in Hz; without it, such arrays are an error.
    """

    sampling_rate: int | None = None


class AudioClassificationPipeline(AudioPipeline[AudioClassificationOptions], ClassifyingPipeline):
    """For a sound, a list of ``{"label": str, "score": float}``, the best first.

    A sound is a path, bytes, a file object, ``(array, rate)`` or ``{"array": ..., "sampling_rate": ...}``; see
    :func:`transept.preprocess.media.load_audio`.
    """

    task, auto, options_class = "audio-classification", AutoModelForAudioClassification, AudioClassificationOptions
