"""What is said in sounds, by an encoder–decoder such as Whisper (Radford et al. 2022)."""

from __future__ import annotations

from transept.core.auto import AutoModelForSpeechSeq2Seq
from transept.training.recipes.ctc import SpeechRecipe


class SpeechToText(SpeechRecipe):
    """The transcript of each sound; its first token, with which every text begins, is left to the model."""

    task = "speech-to-text"
    tag = "automatic-speech-recognition"
    auto = AutoModelForSpeechSeq2Seq

    def letters(self, text: str, place: str) -> list[int]:
        ids = super().letters(text, place)
        start = getattr(self.model.config, "decoder_start_token_id", None)
        return ids[1:] if ids[:1] == [start] else ids


RECIPE = SpeechToText
