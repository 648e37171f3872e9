"""Speech to text by models that write it: short sounds in batches, long ones window by window, or in chunks that overlap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModelForSpeechSeq2Seq
from transept.errors import InputError, InputTypeError
from transept.generation.generate import Generates
from transept.layers.attention.kernels import is_wide
from transept.pipelines.base import TaskPipeline, count
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.media import AudioOptions, MediaPipeline
from transept.preprocess.audio.decode import MAX_SECONDS
from transept.preprocess.audio.long_spectrogram import LongSpectrogram
from transept.preprocess.audio.transcript import Written, timed_words
from transept.preprocess.settings import is_number

# The reference's defaults, where neither the caller nor the checkpoint says.
NEW_TOKENS, BEAMS = 256, 5
# What one window counts in a batch: its text, since most of the time is spent on writing.
_WINDOW = 224


class TranscriptionOptions(AudioOptions):
    """Options of ``automatic-speech-recognition`` with models that write.

    Args:
        return_timestamps: also answer with the times of pieces (``True``) or of each ``"word"``.
        return_language: also answer with the language of each piece.
        chunk_length_s, stride_length_s: seconds of chunks that long sounds are cut into, and of what chunks share at each side
            (a sixth of a chunk when absent). Chunks are written side by side, faster and less exactly than windows in turn.
        max_new_tokens: of one window.
        generate_kwargs: arguments of the model's ``generate``, such as ``language``, ``task`` and ``num_beams``.
    """

    return_timestamps: str | bool | None = None
    return_language: bool | None = None
    chunk_length_s: float | None = None
    stride_length_s: float | Sequence[float] | None = None
    max_new_tokens: int | None = count()
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (unit := self.return_timestamps) not in (None, False, True, "word"):
            raise InputError(f"`return_timestamps` is {unit!r}.", hint='Pass True for pieces, or "word".')
        if not isinstance(self.generate_kwargs, Mapping):
            raise InputTypeError(f"`generate_kwargs` must be a mapping, but is {type(self.generate_kwargs).__name__}.")
        for name, seconds in (("chunk_length_s", self.chunk_length_s), *(("stride_length_s", each) for each in self.strides)):
            if seconds is not None and (not is_number(seconds) or seconds < 0):
                raise InputError(f"`{name}` must be seconds from 0, but is {seconds!r}.")
        if self.chunk_length_s and sum(self.strides) >= self.chunk_length_s:
            raise InputError(f"a chunk of {self.chunk_length_s:g} s has no room beside {sum(self.strides):g} s that it shares.")

    @property
    def strides(self) -> tuple[float, float]:
        """Seconds that a chunk shares at its left and right."""
        given = (self.chunk_length_s or 0) / 6 if self.stride_length_s is None else self.stride_length_s
        left, right = given if isinstance(given, Sequence) and len(given) == 2 else (given, given)
        return left, right  # type: ignore[return-value]


class TranscriptionPipeline(MediaPipeline):
    """For a sound, ``{"text": str}``, and ``"chunks"`` where times or languages are asked for.

    A sound is what :func:`transept.preprocess.media.load_audio` reads. Made by ``pipeline("automatic-speech-recognition")``
    where the model writes text.
    """

    task, auto, options_class = "automatic-speech-recognition", AutoModelForSpeechSeq2Seq, TranscriptionOptions
    noun, axes, drawable = "sound", 2, True
    components: ClassVar[tuple[str, ...]] = ("feature_extractor", "tokenizer")
    feature_extractor: Any
    tokenizer: Any

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        """With AVX-512, with plain weights: packed ones pay there where many rows are multiplied, and a step writes a few.

        Elsewhere plain ones are read once for each row: two rows and a vocabulary of 51,865 took 22 ms, and 5 ms when packed.
        """
        return super().build(replace(parts, packed=parts.packed and not is_wide()), **given)

    def check_model(self) -> None:
        self.need(isinstance(self.model, Generates), "writes text")
        # Whether it writes times, and so sounds of any length.
        self.in_windows = hasattr(self.model, "generate_segments") and hasattr(self.tokenizer, "first_time_id")

    def check_options(self, options: TranscriptionOptions) -> None:
        asked = options.return_timestamps or options.return_language or options.chunk_length_s
        if asked and not self.in_windows:
            name = type(self.model).__name__
            raise InputError(f"{name} tells neither times nor languages and joins no chunks.", hint="Leave these options out.")

    def is_one(self, inputs: Any) -> bool:
        """Whether this is one sound; so are ``(array, rate)`` and a list of samples."""
        if isinstance(inputs, list | tuple) and inputs:
            return (isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], int)) or is_number(inputs[0])
        return super().is_one(inputs)

    def read(self, item: Any, options: TranscriptionOptions) -> list[Sample]:
        sound: NDArray[Any] = self.feature_extractor.load([item], options.sampling_rate)[0]
        if not len(sound):
            raise InputError("the sound has no samples.", hint="Leave it out.")
        if not self.in_windows:
            return [Sample({"samples": sound}, len(sound) // 160)]
        if options.chunk_length_s:
            return [
                Sample({"samples": part, "stride": stride}, _WINDOW, "window") for part, stride in self.chunks(sound, options)
            ]
        windows = -(-len(sound) // self.feature_extractor.n_samples)
        return [Sample({"samples": sound}, windows * _WINDOW, "window" if windows == 1 else "long")]

    def chunks(self, sound: NDArray[Any], options: Any) -> Iterator[tuple[NDArray[Any], tuple[float, float, float]]]:
        """Parts of a sound, each with its length, and what it shares with the part at its left and right, in seconds."""
        rate = self.feature_extractor.sampling_rate
        size, left, right = (round(seconds * rate) for seconds in (options.chunk_length_s, *options.strides))
        most = self.feature_extractor.n_samples
        if size > most:
            raise InputError(f"a chunk of {size / rate:g} s is longer than a window of {most / rate:g} s.")
        for start in range(0, len(sound), size - left - right):
            part, before = sound[start : start + size], left if start else 0
            last = start + size >= len(sound)
            if len(part) > before:
                yield part, (len(part) / rate, before / rate, 0.0 if last else right / rate)
            if last:
                return

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        rows, rate = [sample.inputs["samples"] for sample in samples], self.feature_extractor.sampling_rate
        how: dict[str, Any] = {"return_tensors": "pt", "sampling_rate": rate, "return_attention_mask": True}
        if not self.in_windows:
            how |= {"padding": True}
        elif samples[0].group == "long":
            how |= {"padding": "longest", "truncation": False}
        return {name: value.to(self.model.device) for name, value in self.feature_extractor(rows, **how).items()}

    def settings(self, options: TranscriptionOptions) -> dict[str, Any]:
        """Arguments of ``generate``: the caller's, and the usual number of beams and of new tokens."""
        config, chosen = self.model.generation_config, dict(options.generate_kwargs)
        if options.max_new_tokens is not None:
            chosen["max_new_tokens"] = options.max_new_tokens
        if not any(chosen.get(name) for name in ("max_new_tokens", "max_length")) and config.max_new_tokens is None:
            chosen["max_new_tokens"] = NEW_TOKENS
        if chosen.get("num_beams") is None and config.num_beams is None:
            chosen["num_beams"] = BEAMS
        if self.in_windows:
            chosen["return_segments"] = True
            if options.return_timestamps:
                chosen |= {"return_timestamps": True, "return_token_timestamps": options.return_timestamps == "word"}
        return chosen

    def forward(self, samples: Sequence[Sample], options: TranscriptionOptions) -> Sequence[Any]:
        inputs, settings = self.collate(samples), self.settings(options)
        generated = self.model.generate(**inputs, **settings)
        if not self.in_windows:
            return [row.cpu() for row in generated]
        return [self.row(segments, options) for segments in generated["segments"]]

    def row(self, segments: Sequence[Mapping[str, Any]], options: TranscriptionOptions) -> dict[str, Any]:
        """What the tokenizer makes a transcript of: ids, and times of tokens, (1, T) each; the language's id comes first."""
        tokens = [torch.zeros(0, dtype=torch.long), *(segment["tokens"] for segment in segments)]
        times = [torch.zeros(0), *(segment["token_timestamps"] for segment in segments if "token_timestamps" in segment)]
        if options.return_language and segments:
            result, known = segments[0]["result"], self.model.generation_config.extra.get("lang_to_id") or {}
            whole = (result["sequences"] if isinstance(result, Mapping) else result).tolist()
            found = [index for index in whole if index in set(known.values())][:1]
            tokens.insert(0, torch.tensor(found, dtype=torch.long))
            times.insert(0, torch.zeros(len(found)))
        return {"tokens": torch.cat(tokens)[None], "token_timestamps": torch.cat(times)[None]}

    def stream(
        self,
        sound: Any,
        progress: Callable[[float, float], Any] | None = None,
        *,
        start: float = 0.0,
        max_seconds: float = MAX_SECONDS,
        **options: Any,
    ) -> Iterator[dict[str, Any]]:
        """The pieces of one sound as they are written: ``"text"``, ``"timestamp"`` (start, end), and ``"words"`` with theirs.

        A file is read in windows, in memory that does not grow with its length.

        Args:
            sound: as for a call.
            progress: told the seconds of sound that are done, and all of them, before each window and at the end.
            start: go on from the seconds that an interrupted call was told of last; it begins anew where windows go on from the
                text of those before, as ``progress`` is told.
            max_seconds: longer files are refused.
            options: as for a call; words are given with ``return_timestamps="word"``.
        """
        chosen = self.with_options({"return_timestamps": True} | options) if options else self.options
        self.need(self.in_windows, "writes text with times")
        inputs, samples = self.windows(sound, max_seconds, chosen)
        settings = self.settings(chosen) | {"return_timestamps": True}
        per_second = self.feature_extractor.nb_max_frames / self.feature_extractor.chunk_length
        settings["begin_at"] = round(start * per_second)
        if progress is not None:
            seconds, tell = samples / self.feature_extractor.sampling_rate, progress
            settings["monitor_progress"] = lambda frames: tell(min(float(frames[0, 0]) / per_second, seconds), seconds)
        for _, segment in self.model.generate_segments(**inputs, **settings):
            yield self.piece(segment, chosen)

    def windows(self, sound: Any, max_seconds: float, options: Any) -> tuple[dict[str, Any], int]:
        """What the model reads of one sound, and the number of its samples; of a long file only the window at hand is held."""
        extractor = self.feature_extractor
        if isinstance(sound, str | os.PathLike) and os.path.isfile(sound) and not extractor.dither:
            features = LongSpectrogram(extractor, sound, max_seconds)
            if features.samples > extractor.n_samples:
                return {"input_features": features}, features.samples
        (sample,) = self.read(sound, replace(options, chunk_length_s=None))
        return dict(self.collate([sample])), len(sample.inputs["samples"])

    def piece(self, segment: Any, options: TranscriptionOptions) -> dict[str, Any]:
        first, ids = self.tokenizer.first_time_id, segment.tokens.tolist()
        text = [place for place, index in enumerate(ids) if index < first]
        piece = {"text": self.tokenizer.decode([ids[place] for place in text], skip_special_tokens=True)}
        piece |= {"timestamp": (round(segment.start, 2), round(segment.end, 2))}
        if segment.times is None or options.return_timestamps != "word":
            return piece
        times = [round(seconds, 2) for seconds in segment.times.tolist()]
        tokens = [Written(ids[place], times[max(place - 1, 0)], times[place]) for place in text]
        return piece | {"words": timed_words(tokens, self.tokenizer, options.generate_kwargs.get("language"))}

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: TranscriptionOptions) -> Any:
        if not self.in_windows:
            return {"text": self.tokenizer.decode(results[0], skip_special_tokens=True)}
        kept = [{name: sample.inputs[name] for name in ("stride",) if name in sample.inputs} for sample in samples]
        outputs = [result | more for result, more in zip(results, kept, strict=True)]
        precision = self.feature_extractor.chunk_length / self.model.config.max_source_positions
        asked = {"return_timestamps": options.return_timestamps, "return_language": options.return_language}
        text, more = self.tokenizer._decode_asr(outputs, **asked, time_precision=precision)
        return {"text": text, **more}
