"""``generate`` of Whisper: what is said in a sound, as text, with times, in its own language or in English.

Shapes: B sounds, R rows (sounds times returned sequences), F mel bins, T' frames, T ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from transept.config.fields import specs
from transept.errors import UnsupportedError, refuse
from transept.generation.config import GenerationConfig
from transept.generation.generate import Generates
from transept.models.whisper.segments import STRIDE, LazyFeatures, Segment
from transept.models.whisper.settings import SpeechSettings
from transept.models.whisper.transcription import PIECES, Transcription


class Transcribes(Generates):
    """Mixed into models that write what is said in a spectrogram."""

    settings_beside = frozenset(specs(SpeechSettings))

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, input_features: Tensor | None = None, generation_config: GenerationConfig | None = None, **options: Any
    ) -> Any:
        """Transcribe sounds, or translate them into English.

        A sound of more than one window (30 seconds) is written window by window, with times; each begins where the last whole
        piece before it ends. Several such sounds need an ``attention_mask``. With several ``temperature`` s a window that is
        too repetitive or unlikely is written again, drawn at the next of them.

        Args:
            input_features: (B, F, T') log-mel frames; ``encoder_outputs`` of one window are taken in their place.
            generation_config: settings, in place of the checkpoint's; those it leaves open are the checkpoint's.
            options: those of :class:`~transept.models.whisper.settings.SpeechSettings` (``language``, ``task``,
                ``return_timestamps``, ``condition_on_prev_tokens``, ``logprob_threshold`` ...), those of every generation, and

                - ``attention_mask`` (B, T'): 1 for frames of the sound.
                - ``temperature``: a number, or several, of which the first is tried first; 0 takes the most likely tokens.
                - ``prompt_ids`` (T,): what the tokenizer's ``get_prompt_ids`` gives, such as names in their spelling.
                - ``seed``: of the drawing: one number for the call, or one a row, which makes rows independent of each other.
                - ``monitor_progress``: called with (R, 2): how many frames of each row are done, and how many there are.

        Returns:
            (R, T) ids without prompt and end, filled up with padding. With ``return_segments`` or ``return_token_timestamps``
            a mapping with ``sequences``, ``segments`` (a list a row of ``start``, ``end``, ``tokens`` ...) and
            ``token_timestamps`` (R, T) in seconds. With ``return_dict_in_generate`` and no times, the output of generation.

        Raises:
            InputError, ConfigError: settings or inputs that cannot be; each names its remedy.
        """
        return Transcription(self, input_features, generation_config, options).result()

    @torch.no_grad()
    def generate_segments(
        self,
        input_features: Tensor | LazyFeatures | None = None,
        generation_config: GenerationConfig | None = None,
        **options: Any,
    ) -> Iterator[tuple[int, Segment]]:
        """Write as :meth:`generate` does, and give each piece, with the number of its row, as soon as its window is written.

        A sound that is too long to hold is one of :class:`~transept.models.whisper.segments.LazyFeatures`. With ``begin_at``, a
        number of frames that ``monitor_progress`` was told before, an interrupted transcript goes on from there; where windows
        go on from each other's text, or are drawn, it begins anew.
        """
        yield from Transcription(self, input_features, generation_config, options).windows()

    def stream(self, *args: Any, **options: Any) -> Any:
        """An ``UnsupportedError``: a window may be written again, so that pieces and not tokens are given one by one."""
        raise UnsupportedError("stream() gives tokens, which is not supported for transcripts.", hint=PIECES)

    @torch.no_grad()
    def detect_language(
        self,
        input_features: Tensor | None = None,
        encoder_outputs: Any = None,
        generation_config: Any = None,
        num_segment_frames: int = 3000,
    ) -> Tensor:
        """The ids (B,) of the languages that are spoken in the first window of spectrograms (B, F, T')."""
        refuse((input_features is None) is (encoder_outputs is None), "Pass either `input_features` or `encoder_outputs`.")
        options = {} if encoder_outputs is None else {"encoder_outputs": encoder_outputs}
        window = input_features[..., :num_segment_frames] if isinstance(input_features, Tensor) else None
        window = None if window is None else window[..., : STRIDE * self.config.max_source_positions]
        return Transcription(self, window, generation_config, options).heard_languages()
