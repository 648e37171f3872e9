"""How Whisper writes (Radford et al. 2022, sections 2.3 and 3.8): window after window, again where a window went wrong.

Shapes: B sounds, R rows (sounds times returned sequences), F mel bins, T' frames, T ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.config.fields import specs
from transept.errors import InputError, InputTypeError, UnsupportedError, refuse
from transept.generation.config import GenerationConfig
from transept.generation.decoding import pick_rows
from transept.generation.prompt import Prompt, check_arguments
from transept.generation.rules import MORE
from transept.generation.run import Run
from transept.kinds.seq2seq import as_output
from transept.models.whisper.alignment import heads_of, token_times
from transept.models.whisper.fallback import Judge, Verdict
from transept.models.whisper.rules import TimeRules
from transept.models.whisper.segments import STRIDE, LazyFeatures, Segment, split
from transept.models.whisper.settings import SpeechSettings
from transept.outputs import ModelOutput

# A window goes on from the text before it unless that was drawn at this temperature, or above.
_COOL = 0.5
_ASKED = tuple(specs(SpeechSettings))
_NEEDLESS = ("time_precision_features", "num_segment_frames", "force_unique_generate_call", "synced_gpus", "trust_remote_code")
PIECES = "Call generate_segments(), or stream() of the pipeline: they give each piece as soon as it is written."


@dataclass
class Row:
    """What is known of one row."""

    source: int  # the sound that it is of
    frames: int
    begin: list[int] = field(default_factory=list)  # the ids that each window begins with
    seek: int = 0  # frames that are done
    said: list[int] | None = None  # the last tokens of its pieces
    follows: bool = True  # whether the next window goes on from the text before

    @property
    def is_open(self) -> bool:
        return self.seek < self.frames


class Transcription:
    """One call: all that it knows is here, and nothing of it stays with the model."""

    def __init__(
        self, model: Any, features: Tensor | LazyFeatures | None, config: GenerationConfig | None, options: dict[str, Any]
    ) -> None:
        self.model, self.features = model, features
        take: Callable[[str], Any] = lambda name: options.pop(name, None)  # noqa: E731
        check_arguments(options | {"generation_config": config})
        for name in _NEEDLESS:
            take(name)
        self.encoded, self.mask, self.prompt_ids = take("encoder_outputs"), take("attention_mask"), take("prompt_ids")
        self.monitor, seed, self.begin_at = take("monitor_progress"), take("seed"), take("begin_at") or 0
        temperature = take("temperature")
        self.more = {name: take(name) for name in MORE}
        for name, hint in (("assistant_model", "Leave it out."), ("streamer", PIECES)):
            given = take(name) if name == "streamer" else self.more[name]
            refuse(given is not None, f"`{name}` is not supported for transcripts.", hint, UnsupportedError)
        asked = {name: take(name) for name in _ASKED}
        self.untimed = asked["return_timestamps"] is False  # by the caller; what files say is for short sounds
        self.settings = model._settings(config, options)
        self.temperatures = self._temperatures(temperature)
        for name in options:
            raise InputError(f"generate() of {type(model).__name__} takes no `{name}`.")
        self.speech = SpeechSettings.of(self.settings, model.config, asked)
        self.first_time = self.speech.first_time(model.config)
        self.window = STRIDE * model.config.max_source_positions
        self.positions: int = model.config.max_target_positions
        self._read_inputs()
        if self.speech.condition_on_prev_tokens or any(self.temperatures):
            self.begin_at = 0  # its window would go on from the text, or the draws, of those before
        self.rows = self._rows()
        self.generators = self._generators(seed)
        self.outputs: list[ModelOutput] = []

    # What was passed

    def _read_inputs(self) -> None:
        model, features = self.model, self.features
        self.heard: list[int] | None = None  # frames of each sound, where that is known
        if self.encoded is not None:
            refuse(features is not None, "both `input_features` and `encoder_outputs` were passed.", "Pass one of them.")
            self.encoded = as_output(self.encoded)
            self.sounds, self.total = self.encoded.last_hidden_state.shape[0], self.window
            self.heard = None if self.mask is None else self.mask.sum(dim=1).tolist()
            return
        if isinstance(features, LazyFeatures):
            self.sounds, _, self.total = features.shape
            self.heard = [self.total]
            return
        what = f"`input_features` must be a tensor, but is {type(features).__name__}."
        refuse(
            not isinstance(features, Tensor),
            what,
            'Pass what the feature extractor gives with return_tensors="pt".',
            InputTypeError,
        )
        assert features is not None
        bins = model.config.num_mel_bins
        what = (
            f"`input_features` must be (sounds, {bins}, frames) of floats, but is {tuple(features.shape)} of {features.dtype}."
        )
        wrong = features.ndim != 3 or features.shape[1] != bins or not features.numel()
        refuse(wrong or not features.is_floating_point(), what)
        self.features = features.to(model.device, model.dtype)
        self.sounds, self.total = features.shape[0], features.shape[2]
        if self.mask is not None:
            found = tuple(self.mask.shape)
            refuse(found != (self.sounds, self.total), f"`attention_mask` must be {(self.sounds, self.total)}, but is {found}.")
            self.heard = self.mask.sum(dim=1).tolist()

    def _temperatures(self, given: Any) -> list[float]:
        """What is tried, in order; 0 for the most likely tokens."""
        usual = (1.0 if self.settings.temperature is None else self.settings.temperature) if self.settings.do_sample else 0.0
        tried = list(given) if isinstance(given, list | tuple) else [usual if given is None else given]
        wrong = [each for each in tried if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < 1e6]
        refuse(not tried or wrong, f"`temperature` must be a number from 0, or several, but is {given!r}.")
        return [float(each) for each in tried]

    def _rows(self) -> list[Row]:
        speech, is_long = self.speech, self.total > self.window
        if is_long:
            what = f"a sound of {self.total} frames is longer than a window ({self.window}), and is written with times."
            refuse(self.untimed, what, "Pass return_timestamps=True, or one window.")
            speech.return_timestamps = True
            missing = self.sounds > 1 and self.heard is None
            what = f"{self.sounds} sounds that are longer than a window need an `attention_mask` to tell where each ends."
            refuse(missing, what, "Pass that of the feature extractor: return_attention_mask=True.")
        if speech.return_timestamps:
            speech.need_times(self.model.config)
        frames = self.heard if is_long and self.sounds > 1 and self.heard is not None else [self.total] * self.sounds
        copies, self.settings.num_return_sequences = self.settings.num_return_sequences or 1, 1
        start = self.settings.decoder_start_token_id
        refuse(not isinstance(start, int), f"`decoder_start_token_id` is {start}.", "Set model.generation_config's.")
        begin, unknown = speech.begin(int(start), self.sounds)
        if unknown:
            for line, language in zip(begin, self.heard_languages().tolist(), strict=True):
                line[1] = language
        known = [[index for index in line if index is not None] for line in begin]
        sources = [source for source in range(self.sounds) for _ in range(copies)]
        return [Row(source, int(frames[source]), known[source], self.begin_at) for source in sources]

    def _generators(self, seed: Any) -> list[torch.Generator] | None:
        if seed is None:
            return None
        seeds = list(seed) if isinstance(seed, Sequence) else [seed + place for place in range(len(self.rows))]
        refuse(
            len(seeds) != len(self.rows), f"there are {len(seeds)} seeds for {len(self.rows)} rows.", "Pass one a row, or one."
        )
        return [torch.Generator().manual_seed(each) for each in seeds]

    def heard_languages(self) -> Tensor:
        """(B,) the most likely languages of the first window, by the first token behind the start."""
        known = self.speech.lang_to_id or {}
        refuse(not known, "the model has no languages to tell apart.", "Set model.generation_config.lang_to_id.")
        encoded = self._encode([Row(place, self.total) for place in range(self.sounds)])
        start = torch.full((self.sounds, 1), self.settings.decoder_start_token_id, device=self.model.device)
        logits = self.model(encoder_outputs=encoded, decoder_input_ids=start, use_cache=False).logits[:, -1]
        ids = torch.tensor(sorted(known.values()), device=logits.device)
        return ids[logits[:, ids].argmax(dim=1)]

    # Windows

    def windows(self) -> Iterator[tuple[int, Segment]]:
        """Write all windows; pieces with the number of their row, as they are finished."""
        while open_ := [place for place, row in enumerate(self.rows) if row.is_open]:
            self._report()
            rows = [self.rows[place] for place in open_]
            encoded = self._encode(rows)
            ids, mask = self._prompt(rows)
            verdicts = self._write(open_, encoded, ids, mask)
            times = self._times(rows, verdicts, encoded, ids, mask)
            for place, row, verdict, seconds in zip(open_, rows, verdicts, times, strict=True):
                for segment in self._finish(row, verdict, seconds, ids.shape[1]):
                    yield place, segment
        self._report()

    def _report(self) -> None:
        if self.monitor is not None:
            self.monitor(torch.tensor([[min(row.seek, row.frames), row.frames] for row in self.rows]))

    def _encode(self, rows: Sequence[Row]) -> Any:
        """The encoder's output for the window that each row is at; rows of one sound that are at one place are read once."""
        if self.features is None:
            return pick_rows(self.encoded, torch.tensor([row.source for row in rows], device=self.model.device))
        places = [(row.source, row.seek, min(row.seek + self.window, row.frames)) for row in rows]
        distinct = list(dict.fromkeys(places))
        cut = [self._frames(*place) for place in distinct]
        windows = torch.stack([F.pad(each, (0, self.window - each.shape[1])) for each in cut])
        encoded = self.model.encode_prompt(windows, return_dict=True)
        if len(distinct) == len(places):
            return encoded
        return pick_rows(encoded, torch.tensor([distinct.index(place) for place in places], device=windows.device))

    def _frames(self, source: int, start: int, stop: int) -> Tensor:
        if isinstance(self.features, Tensor):
            return self.features[source, :, start:stop]
        assert self.features is not None
        return torch.from_numpy(self.features.read(start, stop)).to(self.model.device, self.model.dtype)

    def _prompt(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor | None]:
        """What each row is to go on from, (R, T), shorter ones behind padding, and a mask of what is no padding."""
        lines = [[*self._earlier(row), *row.begin] for row in rows]
        longest = max(map(len, lines))
        what = f"a prompt of {longest} tokens leaves no room: the model has {self.positions} positions."
        refuse(longest >= self.positions, what, "Shorten `prompt_ids`.")
        filler, device = self.settings.pad_token_id or 0, self.model.device
        ids = torch.tensor([[filler] * (longest - len(line)) + line for line in lines], device=device)
        if all(len(line) == longest for line in lines):
            return ids, None
        lengths = torch.tensor([len(line) for line in lines], device=device)
        return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]

    def _earlier(self, row: Row) -> list[int]:
        """The prompt of the caller, or the text before a row's window, at most half of the decoder's positions."""
        speech, prompt = self.speech, [] if self.prompt_ids is None else torch.as_tensor(self.prompt_ids).tolist()
        mark = self._mark()
        first = prompt[1:] if prompt and prompt[0] == mark else prompt
        follows, everywhere = speech.condition_on_prev_tokens and row.follows, speech.prompt_condition_type == "all-segments"
        said = row.said if everywhere or not first else [*first, *(row.said or [])]
        if not follows or said is None:
            return prompt
        before = prompt if prompt and everywhere else [] if mark is None else [mark]
        return [*before, *said[-(self.positions // 2 - 1) :]]

    def _mark(self) -> int | None:
        """The id that stands before earlier text; in files without it, it is the last but one that is never written."""
        suppressed = self.settings.suppress_tokens or []
        old = suppressed[-2] if len(suppressed) > 1 else None
        return old if self.speech.prev_sot_token_id is None else self.speech.prev_sot_token_id

    def _without_second(self, tokens: list[int]) -> list[int]:
        """A piece's tokens without the second of two times at its end."""
        return tokens[:-1] if len(tokens) > 2 and tokens[-2] >= self.first_time else tokens

    def _finish(self, row: Row, verdict: Verdict, times: Tensor | None, begin: int) -> list[Segment]:
        """Cut what a row's window wrote into pieces, and move on."""
        offset, frames = row.seek * self.speech.time_precision / STRIDE, min(row.frames - row.seek, self.window)
        row.follows = verdict.temperature < _COOL
        if verdict.silent:
            row.seek += frames
            return []
        pieces, done = split(verdict.tokens, self.first_time, frames, self.speech.time_precision)
        row.seek += done
        segments = []
        for first, last, start, end in pieces:
            seconds = None if times is None else times[first:last] + offset
            piece = Segment(verdict.tokens[first:last], offset + start, offset + end, begin + first, seconds, verdict.result)
            segments.append(piece)
            row.said = [*(row.said or []), *self._without_second(piece.tokens.tolist())][-self.positions :]
        return segments

    # One window

    def _write(self, places: Sequence[int], encoded: Any, ids: Tensor, mask: Tensor | None) -> list[Verdict]:
        """Write a window, and again, at the next temperature, what went wrong."""
        judge = Judge(self.speech, self.model.config.vocab_size, self.settings)
        silence = self._silence(encoded, ids, mask, [len(self.rows[place].begin) for place in places])
        verdicts: dict[int, Verdict] = {}
        open_ = list(range(len(places)))
        for temperature in self.temperatures:
            rows = torch.tensor(open_, device=ids.device)
            part = encoded if len(open_) == len(places) else pick_rows(encoded, rows)
            prompt = self._decoder_prompt(part, ids[rows], None if mask is None else mask[rows])
            run = self._run(prompt, temperature, [places[place] for place in open_])
            written = judge.listen(run, temperature)
            if self.settings.return_dict_in_generate:
                self.outputs.append(written.output)
            found = judge.judge(written, temperature, [silence[place] for place in open_])
            verdicts |= dict(zip(open_, found, strict=True))
            open_ = [place for place, verdict in zip(open_, found, strict=True) if verdict.wrong]
            if not open_:
                break
        return [verdicts[place] for place in range(len(places))]

    def _decoder_prompt(self, encoded: Any, ids: Tensor, mask: Tensor | None) -> Prompt:
        inputs: dict[str, Any] = {"encoder_outputs": encoded}
        if mask is not None and bool(mask.all()):
            mask = None
        if mask is not None:
            inputs["decoder_position_ids"] = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return Prompt(ids, mask, inputs=inputs)

    def _run(self, prompt: Prompt, temperature: float, places: Sequence[int]) -> Run:
        s, start, drawn = self.settings, prompt.ids.shape[1], temperature > 0
        length: dict[str, Any] = {}
        if s.max_new_tokens is not None:
            length["max_new_tokens"] = min(s.max_new_tokens, self.positions - start)
        elif s.max_length is not None:  # more, since what the window goes on from is not its own
            length["max_length"] = min(s.max_length + min(self.positions // 2 - 1, start), self.positions)
        kind = {"do_sample": drawn, "temperature": temperature if drawn else 1.0, "num_beams": 1 if drawn else s.num_beams}
        if self._needs_scores(temperature):
            kind |= {"output_scores": True, "return_dict_in_generate": True}
        settings = s.with_settings(**length | kind)
        processors = list(self.more["logits_processor"] or ())
        if self.speech.return_timestamps:
            ends = s.eos_token_id if isinstance(s.eos_token_id, list) else [s.eos_token_id]
            end = min([each for each in ends if each is not None], default=self.first_time - 1)
            processors.insert(0, TimeRules(self.first_time, end, start, self.speech.max_initial_timestamp_index))
        seeds = None
        if self.generators is not None and drawn:
            seeds = [int(torch.randint(2**63 - 1, (1,), generator=self.generators[place])) for place in places]
        return Run(self.model, settings, prompt, seeds, self.more | {"logits_processor": processors or None})

    def _needs_scores(self, temperature: float) -> bool:
        """Whether beams must tell their scores, since no step of theirs is final."""
        judged = self.speech.logprob_threshold is not None or self.speech.no_speech_threshold is not None
        return judged and temperature == 0 and (self.settings.num_beams or 1) > 1

    def _silence(self, encoded: Any, ids: Tensor, mask: Tensor | None, begins: Sequence[int]) -> list[float]:
        """How likely each row's window has no speech, by what follows the start of the transcript."""
        if self.speech.no_speech_threshold is None or self.speech.no_timestamps_token_id is None:
            return [0.0] * len(begins)
        prompt = self._decoder_prompt(encoded, ids, mask)
        given = prompt.inputs | ({} if prompt.mask is None else {"decoder_attention_mask": prompt.mask})
        logits = self.model(decoder_input_ids=ids, use_cache=False, **given).logits
        starts = torch.tensor([ids.shape[1] - begin for begin in begins], device=ids.device)
        chances = logits[torch.arange(len(begins), device=ids.device), starts].float().softmax(dim=-1)
        return chances[:, self.speech.no_timestamps_token_id - 1].tolist()

    def _times(
        self, rows: Sequence[Row], verdicts: Sequence[Verdict], encoded: Any, ids: Tensor, mask: Tensor | None
    ) -> list[Tensor | None]:
        """When each token of a window was said, in seconds of it: the decoder reads what was written once more, and looks."""
        if not self.speech.return_token_timestamps:
            return [None] * len(rows)
        written = [verdict.tokens if verdict.ended else verdict.tokens[:-1] for verdict in verdicts]
        longest, begin = max(map(len, written)), ids.shape[1]
        filled = [F.pad(tokens.to(ids.device), (0, longest - len(tokens)), value=0) for tokens in written]
        whole = torch.cat([ids, torch.stack(filled)], dim=1)
        seen = None if mask is None else F.pad(mask, (0, longest), value=True)
        prompt = self._decoder_prompt(encoded, whole, seen)
        given = prompt.inputs | ({} if prompt.mask is None else {"decoder_attention_mask": prompt.mask})
        outputs = self.model(decoder_input_ids=whole, use_cache=False, output_attentions=True, **given)
        found: list[Tensor | None] = []
        for place, (row, tokens, verdict) in enumerate(zip(rows, written, verdicts, strict=True)):
            attention = heads_of(outputs.cross_attentions, self.speech.alignment_heads or (), place)
            attention = attention[:, begin : begin + len(tokens), : self._heard(row) // STRIDE]
            times = token_times(attention, self.model.config.median_filter_width, self.speech.time_precision)
            found.append(times if verdict.ended else torch.cat([times, times[-1:] if len(times) else torch.zeros(1)]))
        return found

    def _heard(self, row: Row) -> int:
        """Frames of a row's window that are sound, as far as is known."""
        return self.window if self.heard is None else max(self.heard[row.source] - row.seek, 0)

    # What is returned

    def result(self) -> Any:
        rows: list[list[Segment]] = [[] for _ in self.rows]
        for place, segment in self.windows():
            rows[place].append(segment)
        asked, times = self.settings.return_dict_in_generate, self.speech.return_token_timestamps
        if asked and not self.speech.return_timestamps and len(self.outputs) == 1:
            return self.outputs[0]
        sequences = self._padded([[segment.tokens for segment in row] for row in rows], self.settings.pad_token_id or 0)
        if not (asked or times or self.speech.return_segments):
            return sequences
        found: dict[str, Any] = {"sequences": sequences}
        if times:
            seconds = [[segment.times for segment in row if segment.times is not None] for row in rows]
            found["token_timestamps"] = self._padded(seconds, None)
        if asked or self.speech.return_segments:
            found["segments"] = [[segment.as_dict() for segment in row] for row in rows]
        return found

    def _padded(self, parts: Sequence[Sequence[Tensor]], filler: float | None) -> Tensor:
        """(R, T) of rows in pieces, filled up with a number, or with the last one of the row."""
        empty = torch.zeros(0, dtype=torch.long if filler is not None else torch.float32)
        rows = [torch.cat([empty, *(part.cpu() for part in row)]) for row in parts]
        longest = max(map(len, rows))
        last = [float(row[-1]) if filler is None and len(row) else filler or 0 for row in rows]
        padded = [F.pad(row, (0, longest - len(row)), value=value) for row, value in zip(rows, last, strict=True)]
        return torch.stack(padded).to(self.model.device)
