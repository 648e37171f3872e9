"""Speech to text by connectionist temporal classification (Graves et al. 2006), of recordings of any length.

A long recording is cut into chunks that overlap. Their edges, where the model lacks context, are left out, and what is kept is
decoded as a whole, so that no letter is cut.

Shapes: S samples, T frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForCTC, AutoModelForSpeechSeq2Seq
from transept.errors import InputError, UnsupportedError
from transept.kinds.audio import AudioBackbone
from transept.pipelines.base import TaskPipeline
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.media import AudioOptions, AudioPipeline
from transept.pipelines.transcription import TranscriptionPipeline
from transept.preprocess.settings import is_number


class SpeechOptions(AudioOptions):
    """Options of ``automatic-speech-recognition``.

    Args:
        chunk_length_s: seconds of a chunk; recordings are not cut when absent or 0.
        stride_length_s: seconds at the left and right of a chunk that only give context; a sixth of a chunk when absent.
        return_timestamps: also answer with the times of each ``"char"`` or each ``"word"``.
        ignore_warning: taken for the reference's sake: here nothing is warned of.
    """

    chunk_length_s: float | None = None
    stride_length_s: float | Sequence[float] | None = None
    return_timestamps: str | bool | None = None
    ignore_warning: bool = False

    def __post_init__(self) -> None:
        strides = self.stride_length_s if isinstance(self.stride_length_s, Sequence) else (self.stride_length_s,) * 2
        if len(strides) != 2:
            raise InputError(f"`stride_length_s` must be seconds, or (left, right), but is {self.stride_length_s!r}.")
        if (unit := self.return_timestamps) not in (None, False, "char", "word"):
            problem = f"`return_timestamps` is {unit!r}, but CTC tells the times of characters or words."
            raise InputError(problem, hint='Pass "char" or "word".')
        for name, seconds in zip(("chunk_length_s", *["stride_length_s"] * 2), (self.chunk_length_s, *strides), strict=True):
            if seconds is not None and (not is_number(seconds) or seconds < 0):
                raise InputError(f"`{name}` must be seconds from 0, but is {seconds!r}.")


class Chunk(NamedTuple):
    """Samples from ``start`` to ``stop``, of whose frames those from ``first`` up to ``end`` are kept."""

    start: int
    stop: int
    first: int
    end: int | None


def chunks(total: int, hop: int, field: int, size: int, left: int, right: int) -> Iterator[Chunk]:
    """Cut ``total`` samples so that what is kept of all chunks is each of their frames, once and in order.

    A frame is made of ``field`` samples, ``hop`` behind the one before it. ``size``, ``left`` and ``right``, samples of a chunk
    and of the context in it, are multiples of ``hop``.
    """
    for start in range(0, total, size - left - right):
        first = left // hop if start else 0
        if start + size >= total:
            if total - start >= field:
                yield Chunk(start, total, first, None)
            return
        # The last frame that is kept must be whole, whatever context is asked for.
        stop = min(start + size + max(0, field - hop - right), total)
        yield Chunk(start, stop, first, (size - right) // hop)


class AutomaticSpeechRecognitionPipeline(AudioPipeline):
    """For a sound, ``{"text": str}``; with ``return_timestamps`` also ``"chunks"``: texts with times in seconds.

    A sound is what :func:`transept.preprocess.media.load_audio` reads; a mapping may have ``"stride"``: samples at the left and
    right that only give context.
    """

    task, auto, options_class = "automatic-speech-recognition", AutoModelForCTC, SpeechOptions
    reads = AudioBackbone
    components, drawable = ("feature_extractor", "tokenizer"), True
    tokenizer: Any

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        """Models that write text do it otherwise."""
        ctc, writers = (tuple(auto.tasks) for auto in (AutoModelForCTC, AutoModelForSpeechSeq2Seq))
        names = parts.architectures
        writes = any(name.endswith(writers) for name in names) and not any(name.endswith(ctc) for name in names)
        if writes or (not names and parts.config.is_encoder_decoder):
            return TranscriptionPipeline.build(parts, **given)
        return super().build(parts, **given)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next; an ``UnsupportedError`` where the model's states are no frames."""
        if self.model.body.adapted:
            name = type(self.model).__name__
            raise UnsupportedError(f"this {name} has an adapter behind its frames: it tells no times and joins no chunks.")
        return math.prod(self.model.config.conv_stride)

    def check_options(self, options: Any) -> None:
        self.aligned(options)

    def aligned(self, options: Any) -> tuple[int, int, int] | None:
        """Samples of a chunk and of the context at its left and right, in whole frames; ``None`` where nothing is cut."""
        if not options.chunk_length_s:
            return None
        stride = options.chunk_length_s / 6 if options.stride_length_s is None else options.stride_length_s
        seconds = (options.chunk_length_s, *(stride if isinstance(stride, Sequence) else (stride, stride)))
        rate, hop = self.feature_extractor.sampling_rate, self.hop
        size, left, right = (round(each * rate / hop) * hop for each in seconds)
        if size < self.model.body.receptive_field or size <= left + right:
            full = f"a chunk of {seconds[0]:g} s has no room beside {seconds[1]:g} s and {seconds[2]:g} s of context."
            raise InputError(full, hint="Pass a larger chunk_length_s or a smaller stride_length_s.")
        return size, left, right

    def rows(self, item: Any, samples: NDArray[np.float32], options: Any) -> list[Sample]:
        if (sizes := self.aligned(options)) is not None:
            plan = chunks(len(samples), self.hop, self.model.body.receptive_field, *sizes)
            return [self.row(samples[c.start : c.stop], kept=slice(c.first, c.end)) for c in plan]
        context = item.get("stride") if isinstance(item, Mapping) else None
        return [self.row(samples, kept=slice(None) if context is None else self.kept(len(samples), context, item))]

    def kept(self, total: int, context: Any, item: Mapping[str, Any]) -> slice:
        """The frames of a recording that are not context, given as samples at the left and right in its own rate."""
        rate = self.feature_extractor.sampling_rate
        ratio = rate / item.get("sampling_rate", rate)
        whole = isinstance(context, Sequence) and len(context) == 2 and all(isinstance(n, int) and n >= 0 for n in context)
        if not whole or sum(context) * ratio > total:
            raise InputError(f'"stride" must be samples at the left and right of the sound, but is {context!r}.')
        left, right = (round(round(each * ratio) / self.hop) for each in context)
        return slice(left, round(total / self.hop) - right)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.int64]]:
        """The best symbol of each frame that is kept, (T) for each row."""
        best = self.run(self.collate(samples)).logits.argmax(dim=-1).cpu().numpy()
        lengths = [self.model.body.state_lengths(len(sample.inputs["samples"])) for sample in samples]
        return [row[:length][sample.inputs["kept"]] for row, length, sample in zip(best, lengths, samples, strict=True)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        path, unit = np.concatenate(results), options.return_timestamps
        if not unit:
            return {"text": self.tokenizer.decode(path)}
        decoded, rate = self.tokenizer.decode(path, **{f"output_{unit}_offsets": True}), self.feature_extractor.sampling_rate
        pieces = [(each[unit], each["start_offset"], each["end_offset"]) for each in decoded[f"{unit}_offsets"]]
        times = [{"text": text, "timestamp": (start * self.hop / rate, end * self.hop / rate)} for text, start, end in pieces]
        return {"text": decoded.text, "chunks": times}
