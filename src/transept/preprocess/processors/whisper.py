"""Whisper's processor (Radford et al. 2022): spectrograms of sounds, and the texts that are spoken in them."""

from __future__ import annotations

from typing import Any

from transept.preprocess.features import BatchFeature
from transept.preprocess.processor import LabelProcessor


class WhisperProcessor(LabelProcessor):
    """A feature extractor, which makes ``input_features`` of sounds, and a tokenizer: labels of texts, texts of ids."""

    model_types = ("whisper",)
    parts = {"feature_extractor": ("WhisperFeatureExtractor",), "tokenizer": ("WhisperTokenizer",)}

    def __call__(self, audio: Any = None, text: Any = None, **options: Any) -> BatchFeature:  # type: ignore[override]
        """Prepare sounds, texts or both; ``options`` as for every :class:`Processor`."""
        return super().__call__(audio=audio, text=text, **options)

    def get_decoder_prompt_ids(
        self, task: str | None = None, language: str | None = None, no_timestamps: bool = True
    ) -> list[tuple[int, int]]:
        """See :meth:`WhisperTokenizer.get_decoder_prompt_ids`."""
        found: list[tuple[int, int]] = self.tokenizer.get_decoder_prompt_ids(task, language, no_timestamps)
        return found

    def get_prompt_ids(self, text: str, return_tensors: str | None = "np") -> Any:
        """See :meth:`WhisperTokenizer.get_prompt_ids`."""
        return self.tokenizer.get_prompt_ids(text, return_tensors)
