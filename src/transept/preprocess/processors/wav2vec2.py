"""Wav2Vec2's processor (Baevski et al. 2020, arXiv:2006.11477): sounds, and the texts that are spoken in them."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError
from transept.preprocess.features import BatchFeature
from transept.preprocess.processor import LabelProcessor


class Wav2Vec2Processor(LabelProcessor):
    """A feature extractor, which makes ``input_values`` of sounds, and a CTC tokenizer: labels of texts, texts of paths."""

    model_types = ("hubert", "wav2vec2", "wavlm")
    parts = {"feature_extractor": (), "tokenizer": ("Wav2Vec2CTCTokenizer",)}

    def __call__(self, audio: Any = None, text: Any = None, **options: Any) -> BatchFeature:  # type: ignore[override]
        """Prepare sounds, texts or both; ``options`` as for every :class:`Processor`."""
        return super().__call__(audio=audio, text=text, **options)

    def pad(self, input_features: Any = None, *, labels: Any = None, **options: Any) -> BatchFeature:
        """Pad extracted sounds, encoded texts or both, as a collator does; see the two parts' ``pad``."""
        if input_features is None and labels is None:
            raise InputError("neither input_features nor labels were passed.")
        of_text = {name: value for name, value in options.items() if name != "truncation"}
        found = {}
        if input_features is not None:
            found["audio"] = self.feature_extractor.pad(input_features, **options)
        if labels is not None:
            found["text"] = self.tokenizer.pad(labels, **of_text)
        return self.joined(found)
