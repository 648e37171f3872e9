"""Logits processors: what must, may or must not come next, whatever the model says.

A processor takes the ids so far (B, T) and the scores of the next token (B, V), logits or log-probabilities, and returns
scores (B, V). It leaves the tensor passed in as it was, and each row depends on that row alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from transept.errors import GenerationError, InputError
from transept.generation.chain import Chain
from transept.generation.checks import Range, number, token_ids

_LENGTH = Range(0)


class LogitsProcessor:
    """Base of all processors; any callable of the same form serves as well."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of the next token, from the ids so far (B, T) and the scores before."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch; for processors that keep something of each row."""

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the same prompts, as beams do; for processors that keep something of the text."""


class LogitsProcessorList(Chain[Callable[..., Tensor]]):
    """Processors applied one after the other."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **others: Any) -> Tensor:
        """Scores (B, V) after all of them.

        Args:
            others: what some processors take besides, such as the tokens of earlier groups of beams.

        Raises:
            InputError: a processor needs an argument that is not among ``others``.
        """
        for processor in self:
            scores = processor(input_ids, scores, **_arguments(processor, others))
        return scores

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch, in all processors that keep something of each row."""
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.select(rows)

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the same prompts, in all processors that keep something of the text."""
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.reorder(rows)


_ARGUMENTS: dict[type, tuple[inspect.Parameter, ...]] = {}


def _parameters(processor: Callable[..., Tensor]) -> tuple[inspect.Parameter, ...]:
    """What a processor takes besides ids and scores; looking it up costs more than most processors."""
    kind = type(processor)
    if inspect.isroutine(processor):
        return tuple(inspect.signature(processor).parameters.values())[2:]
    if kind not in _ARGUMENTS:
        _ARGUMENTS[kind] = tuple(inspect.signature(processor).parameters.values())[2:]
    return _ARGUMENTS[kind]


def _arguments(processor: Callable[..., Tensor], others: dict[str, Any]) -> dict[str, Any]:
    chosen = {}
    for parameter in _parameters(processor):
        if parameter.kind is parameter.VAR_KEYWORD:
            return others
        if parameter.name in others:
            chosen[parameter.name] = others[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            name = getattr(processor, "__name__", type(processor).__name__)
            raise InputError(
                f"The logits processor {name} needs `{parameter.name}`, which is not given at this step.",
                hint="Processors are called with ids and scores; diverse beam search adds what its groups need.",
            )
    return chosen


class _Rows:
    """Which rows of the first batch the present ones are."""

    def __init__(self) -> None:
        self._left: list[int] | None = None

    def __getitem__(self, row: int) -> int:
        return row if self._left is None else self._left[row]

    def select(self, rows: Tensor) -> None:
        self._left = [self[row] for row in rows.tolist()]


class _TokenIds:
    """Token ids as a tensor where they are needed, without those beyond the vocabulary.

    Args:
        name: the argument they come from, for errors.
        ids: an id, or a list or tensor of ids.
        device: where they are first needed.
    """

    def __init__(self, name: str, ids: Any, device: torch.device | str | None = None) -> None:
        self._ids = torch.tensor(token_ids(name, ids), dtype=torch.long, device=device)
        self._known = (-1, self._ids)

    def on(self, scores: Tensor) -> Tensor:
        """The ids (N,) that scores (B, V) have a column for, on their device."""
        size, known = self._known
        if size != scores.shape[-1] or known.device != scores.device:
            known = self._ids[self._ids < scores.shape[-1]].to(scores.device)
            self._known = (scores.shape[-1], known)
        return known

    def banned(self, scores: Tensor) -> Tensor:
        """Scores in which these tokens are impossible."""
        return scores.index_fill(-1, self.on(scores), -math.inf)

    def forced(self, scores: Tensor) -> Tensor:
        """Scores in which these tokens alone are possible, each with score 0."""
        return torch.full_like(scores, -math.inf).index_fill_(-1, self.on(scores), 0)


Ids = int | Sequence[int] | Tensor


class MinLengthLogitsProcessor(LogitsProcessor):
    """No end before the whole sequence, with the prompt, has ``min_length`` tokens."""

    def __init__(self, min_length: int, eos_token_id: Ids, device: torch.device | str | None = None) -> None:
        self.min_length = number("min_length", min_length, whole=True)
        self._eos = _TokenIds("eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) without the end while the sequence is too short."""
        return self._eos.banned(scores) if input_ids.shape[-1] < self.min_length else scores


class MinNewTokensLengthLogitsProcessor(LogitsProcessor):
    """No end before ``min_new_tokens`` tokens follow the prompt of ``prompt_length_to_skip`` tokens."""

    def __init__(
        self,
        prompt_length_to_skip: int,
        min_new_tokens: int,
        eos_token_id: Ids,
        device: torch.device | str | None = None,
    ) -> None:
        self.prompt_length_to_skip = number("prompt_length_to_skip", prompt_length_to_skip, _LENGTH, whole=True)
        self.min_new_tokens = number("min_new_tokens", min_new_tokens, whole=True)
        self._eos = _TokenIds("eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) without the end while too few tokens are new."""
        new = input_ids.shape[-1] - self.prompt_length_to_skip
        return self._eos.banned(scores) if new < self.min_new_tokens else scores


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Only what a function allows after the tokens so far (constrained generation; De Cao et al., 2020).

    Args:
        prefix_allowed_tokens_fn: from the number of the prompt in the batch and the ids so far (T,), the ids that may follow.
        num_beams: rows per prompt.
    """

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, Tensor], Iterable[int]], num_beams: int) -> None:
        self._allowed, self._rows = prefix_allowed_tokens_fn, _Rows()
        self._num_beams = number("num_beams", num_beams, whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of allowed tokens; where processors before banned all of them, they are all alike.

        Raises:
            InputError: nothing is allowed after a row's tokens, or an id that is none.
        """
        rows: list[int] = []
        columns: list[int] = []
        for row, ids in enumerate(input_ids):
            prompt = self._rows[row] // self._num_beams
            allowed = self._checked(self._allowed(prompt, ids), prompt, scores.shape[-1])
            rows += [row] * len(allowed)
            columns += allowed
        mask = torch.full_like(scores, -math.inf)
        mask[torch.tensor(rows, device=scores.device), torch.tensor(columns, device=scores.device)] = 0
        result = scores + mask
        hopeless = result.amax(-1).isneginf().view(-1, self._num_beams).all(-1, keepdim=True)
        return torch.where(hopeless.repeat_interleave(self._num_beams, dim=0), mask, result)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch."""
        self._rows.select(rows)

    def _checked(self, allowed: Iterable[int], prompt: int, vocabulary: int) -> list[int]:
        ids = token_ids("prefix_allowed_tokens_fn's answer", allowed)
        if not ids or max(ids) >= vocabulary:
            what = f"the token {max(ids)}, but the model has {vocabulary}" if ids else "no token"
            raise InputError(
                f"`prefix_allowed_tokens_fn` allows {what}, for prompt {prompt}.",
                hint="Return at least one token of the vocabulary for every prefix, such as the end of the sequence.",
            )
        return ids


class ForcedBOSTokenLogitsProcessor(LogitsProcessor):
    """One token comes first: right after the decoder's start."""

    def __init__(self, bos_token_id: int) -> None:
        self._bos = _TokenIds("forced_bos_token_id", bos_token_id)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V), for the first token those that force it."""
        return self._bos.forced(scores) if input_ids.shape[-1] == 1 else scores


class ForcedEOSTokenLogitsProcessor(LogitsProcessor):
    """The last of ``max_length`` tokens is the end."""

    def __init__(self, max_length: int, eos_token_id: Ids, device: torch.device | str | None = None) -> None:
        self.max_length = number("max_length", max_length, _LENGTH, whole=True)
        self._eos = _TokenIds("forced_eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V), for the last token those that force the end."""
        return self._eos.forced(scores) if input_ids.shape[-1] == self.max_length - 1 else scores


class SuppressTokensLogitsProcessor(LogitsProcessor):
    """Some tokens never come."""

    def __init__(self, suppress_tokens: Sequence[int], device: torch.device | str | None = None) -> None:
        self._tokens = _TokenIds("suppress_tokens", suppress_tokens, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) without them."""
        return self._tokens.banned(scores)


class SuppressTokensAtBeginLogitsProcessor(LogitsProcessor):
    """Some tokens do not come first; ``begin_index`` is the length of the sequence before the first new token."""

    def __init__(
        self, begin_suppress_tokens: Sequence[int], begin_index: int, device: torch.device | str | None = None
    ) -> None:
        self.begin_index = begin_index
        self._tokens = _TokenIds("begin_suppress_tokens", begin_suppress_tokens, device)

    def set_begin_index(self, begin_index: int) -> None:
        """Let another length be the beginning."""
        self.begin_index = begin_index

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V), for the first token without them."""
        return self._tokens.banned(scores) if input_ids.shape[-1] == self.begin_index else scores


class ExponentialDecayLengthPenalty(LogitsProcessor):
    """The end becomes more likely with every token beyond a length.

    Args:
        exponential_decay_length_penalty: the number of new tokens that are free, and the factor that grows with each other.
        eos_token_id: the end, or several.
        input_ids_seq_length: length of the prompt.
    """

    def __init__(
        self, exponential_decay_length_penalty: tuple[int, float], eos_token_id: Ids, input_ids_seq_length: int
    ) -> None:
        name = "exponential_decay_length_penalty"
        start, factor = exponential_decay_length_penalty
        self.regulation_start = number(name, start, _LENGTH, whole=True) + input_ids_seq_length
        self.regulation_factor = number(name, factor, Range(0))
        self._eos = _TokenIds("eos_token_id", eos_token_id)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) with a higher one for the end."""
        beyond = input_ids.shape[-1] - self.regulation_start
        if beyond <= 0:
            return scores
        eos = self._eos.on(scores)
        ends = scores[:, eos]
        bonus = ends.abs() * (self.regulation_factor**beyond - 1)
        return scores.index_copy(-1, eos, ends + bonus.masked_fill(~ends.isfinite(), 0.0))


class LogitNormalization(LogitsProcessor):
    """Scores become log-probabilities again, which search over beams takes them for."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities (B, V)."""
        return scores.log_softmax(-1)


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """NaN becomes 0, and infinities the largest and smallest numbers of the scores' type."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Finite scores (B, V)."""
        return scores.nan_to_num(nan=0.0)


class NonFiniteError(GenerationError):
    """Logits that are NaN or infinite."""


class FiniteLogitsCheck(LogitsProcessor):
    """An error in place of text made from NaN or infinity, or from a vocabulary that is banned as a whole.

    Single tokens may be impossible, that is ``-inf``.

    Args:
        prompt_length: length of the prompt, for messages that count new tokens.
        num_beams: rows per prompt, of which one with a possible token is enough.
    """

    def __init__(self, prompt_length: int, num_beams: int = 1) -> None:
        self.prompt_length, self.num_beams, self._rows = prompt_length, num_beams, _Rows()

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch."""
        self._rows.select(rows)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores (B, V) themselves.

        Raises:
            GenerationError: naming the row, or with beams the prompt, and the number of the new token; a
                :class:`NonFiniteError` where it is the numbers.
        """
        best = scores.amax(-1)  # NaN, or infinite, where any of the row is
        if bool(best.isfinite().all()):
            return scores
        best = best.view(-1, self.num_beams)
        if bool(((best < math.inf) & (best.amax(-1, keepdim=True) > -math.inf)).all()):
            return scores
        wrong = best.isnan().any(-1) | (best == math.inf).any(-1)
        hopeless = wrong if bool(wrong.any()) else best.amax(-1) == -math.inf
        row = int(hopeless.int().argmax())
        place = f"new token {input_ids.shape[-1] - self.prompt_length + 1} of row {self._rows[row]}"
        if bool(wrong[row]):
            what = "NaN" if bool(best[row].isnan().any()) else "infinity"
            raise NonFiniteError(
                f"The logits for {place} hold {what}.",
                hint="Its weights, inputs or dtype make it: float16 overflows where bfloat16 and float32 do not. "
                "To go on with such values replaced pass remove_invalid_values=True.",
            )
        raise GenerationError(
            f"Every token is banned as {place}.",
            hint="Loosen what bans them, such as bad_words_ids, suppress_tokens, no_repeat_ngram_size or min_new_tokens.",
        )
