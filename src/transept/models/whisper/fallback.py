"""Whether what a window wrote is to be kept (Radford et al. 2022, section 3.8): repetitive or unlikely texts are not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transept.generation.config import GenerationConfig
from transept.generation.decoding import Step
from transept.generation.outputs import transition_scores
from transept.generation.prompt import end_tokens
from transept.generation.run import Run
from transept.models.whisper.settings import SpeechSettings


@dataclass
class Written:
    """What one run wrote: ids (R, N) behind the prompt, the sums of their log-probabilities (R,), and its output."""

    ids: Tensor
    sums: Tensor
    output: Any


@dataclass
class Verdict:
    """What a row wrote and what it is worth.

    Args:
        tokens: (N,) ids, on the processor, without the end.
        ended: whether the row wrote an end.
        temperature: at which it was written.
        wrong: whether it should be written again.
        silent: whether it is no speech, and its text is to be thrown away.
        result: the ids (T,) with the prompt, or what the run's output has of the row.
    """

    tokens: Tensor
    ended: bool
    temperature: float
    wrong: bool
    silent: bool
    result: Any


class Judge:
    """Compares what is written with thresholds; ``vocabulary`` is the model's number of tokens."""

    def __init__(self, speech: SpeechSettings, vocabulary: int, settings: GenerationConfig) -> None:
        self.speech, self.bytes = speech, int(math.log2(vocabulary) / 8) + 1
        self.ends = end_tokens(settings)

    def listen(self, run: Run, temperature: float) -> Written:
        """Let a run write, and sum up the log-probabilities of its tokens as the model had them before the temperature."""
        sums = torch.zeros(run.decoding.rows, device=run.prompt.ids.device)
        open_ = torch.ones_like(sums, dtype=torch.bool)
        scale = temperature or 1.0

        def add_scores(step: Step) -> None:
            chances = (step.scores * scale).log_softmax(dim=-1).gather(1, step.tokens[:, None])[:, 0]
            sums[step.rows] += chances.masked_fill(~open_[step.rows], 0.0)
            open_[step.rows] &= ~step.done

        judged = self.speech.logprob_threshold is not None and run.beams == 1
        output: Any = run.result(add_scores if judged else None)
        ids = output if isinstance(output, Tensor) else output.sequences
        if run.beams > 1:
            sums = sums[:: run.beams]
            if not isinstance(output, Tensor) and output.scores is not None:
                scores = (output.sequences, output.scores, output.beam_indices)
                sums = transition_scores(*scores, normalize_logits=True).sum(dim=1)
        return Written(ids[:, run.start :], sums, output)

    def judge(self, written: Written, temperature: float, silence: Sequence[float]) -> list[Verdict]:
        """One verdict a row; ``silence`` is how likely it has no speech."""
        found = []
        for row, (ids, total) in enumerate(zip(written.ids.tolist(), written.sums.tolist(), strict=True)):
            length = next((place for place, index in enumerate(ids) if index in self.ends), len(ids))
            ended = length < len(ids)
            counted = ids[: length + ended]  # the end counts
            wrong, silent = self._is_wrong(counted, total / max(len(counted), 1), silence[row])
            tokens = torch.tensor(ids[:length], dtype=torch.long)
            found.append(Verdict(tokens, ended, temperature, wrong, silent, self._result(written, row)))
        return found

    def _is_wrong(self, ids: list[int], mean: float, silence: float) -> tuple[bool, bool]:
        """Whether a text is too repetitive or too unlikely, and whether it is that since nobody speaks."""
        speech, wrong = self.speech, False
        if speech.compression_ratio_threshold is not None and ids:
            data = b"".join([index.to_bytes(self.bytes, "little") for index in ids])
            wrong = len(data) / len(zlib.compress(data)) > speech.compression_ratio_threshold
        unlikely = speech.logprob_threshold is not None and mean < speech.logprob_threshold
        quiet = speech.no_speech_threshold is not None and silence > speech.no_speech_threshold
        silent = quiet and (unlikely or speech.logprob_threshold is None)
        return (wrong or unlikely) and not silent, silent

    def _result(self, written: Written, row: int) -> Any:
        output = written.output
        if isinstance(output, Tensor):
            return output[row].cpu()
        steps = {
            name: [step[row].cpu() for step in output[name]] for name in ("scores", "logits") if output.get(name) is not None
        }
        return {"sequences": output.sequences[row].cpu()} | steps
