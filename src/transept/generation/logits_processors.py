"""Logits processors that say what must, may or must not come next, whatever the model says.

A logits processor takes the ids so far (B, T) and the scores of the next token (B, V), logits or log-probabilities, and returns
scores (B, V). It leaves the tensor passed in as it was, and each row depends on that row alone. Those that only make tokens
more or less likely are in :mod:`transept.generation.logits_warpers`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.generation.checks import Chain, Range, biases, number, sequences, token_ids

Ids = int | Sequence[int] | Tensor
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
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.select(rows)

    def reorder(self, rows: Tensor) -> None:
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.reorder(rows)


# By class, since looking a signature up costs more than most processors.
_PARAMETERS: dict[type, tuple[inspect.Parameter, ...]] = {}


def _arguments(processor: Callable[..., Tensor], others: dict[str, Any]) -> dict[str, Any]:
    """Those of ``others`` that a processor takes besides ids and scores."""
    if (parameters := _PARAMETERS.get(type(processor))) is None:
        parameters = tuple(inspect.signature(processor).parameters.values())[2:]
        if not inspect.isroutine(processor):
            _PARAMETERS[type(processor)] = parameters
    chosen = {}
    for parameter in parameters:
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


class KnowsRows(LogitsProcessor):
    """A processor that knows which rows of the first batch the present ones are."""

    _left: list[int] | None = None

    def row(self, place: int) -> int:
        return place if self._left is None else self._left[place]

    def select(self, rows: Tensor) -> None:
        self._left = [self.row(place) for place in rows.tolist()]


class ReadsEncoder(LogitsProcessor):
    """A processor that looks at the encoder's input, (N, S) with B / N rows of scores for each."""

    encoder_input_ids: Tensor

    def select(self, rows: Tensor) -> None:
        self.encoder_input_ids = self.encoder_input_ids.index_select(0, rows)


def changed(scores: Tensor, ids: Tensor, change: Callable[[Tensor], Tensor] | float) -> Tensor:
    """Scores (B, V) with a function of them, or a number, at ids (B, N), of which those from V on stand for nothing."""
    vocabulary = scores.shape[-1]
    spare = F.pad(scores, (0, 1))
    ids = ids.clamp(max=vocabulary)
    if isinstance(change, float):
        spare.scatter_(1, ids, change)
    else:
        spare.scatter_(1, ids, change(spare.gather(1, ids)))
    return spare[:, :vocabulary]


def per_row(rows: Tensor, scores: Tensor, name: str) -> Tensor:
    """One row of ``rows`` (N, ...) for each of the scores (B, V), where each prompt has B / N of them."""
    if rows.shape[0] == 0 or scores.shape[0] % rows.shape[0]:
        raise InputError(f"`{name}` has {rows.shape[0]} rows, of which {scores.shape[0]} rows of scores are no multiple.")
    rows = rows.to(scores.device)
    times = scores.shape[0] // rows.shape[0]
    return rows if times == 1 else rows.repeat_interleave(times, dim=0)


class TokenIds:
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


class MinLengthLogitsProcessor(LogitsProcessor):
    """No end before the whole sequence, with the prompt, has ``min_length`` tokens."""

    def __init__(self, min_length: int, eos_token_id: Ids, device: torch.device | str | None = None) -> None:
        self.min_length = number("min_length", min_length, whole=True)
        self._eos = TokenIds("eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._eos.banned(scores) if input_ids.shape[-1] < self.min_length else scores


class MinNewTokensLengthLogitsProcessor(MinLengthLogitsProcessor):
    """No end before ``min_new_tokens`` tokens follow the prompt of ``prompt_length_to_skip`` tokens."""

    def __init__(
        self, prompt_length_to_skip: int, min_new_tokens: int, eos_token_id: Ids, device: torch.device | str | None = None
    ) -> None:
        self.prompt_length_to_skip = number("prompt_length_to_skip", prompt_length_to_skip, _LENGTH, whole=True)
        self.min_new_tokens = number("min_new_tokens", min_new_tokens, whole=True)
        super().__init__(self.prompt_length_to_skip + self.min_new_tokens, eos_token_id, device)


class PrefixConstrainedLogitsProcessor(KnowsRows):
    """Only what a function allows after the tokens so far (constrained generation; De Cao et al., 2020).

    Args:
        prefix_allowed_tokens_fn: from the number of the prompt in the batch and the ids so far (T,), the ids that may follow.
        num_beams: rows per prompt.
    """

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, Tensor], Iterable[int]], num_beams: int) -> None:
        self._allowed = prefix_allowed_tokens_fn
        self._num_beams = number("num_beams", num_beams, whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of allowed tokens; where processors before banned all of them, they are all alike.

        Raises:
            InputError: nothing is allowed after a row's tokens, or an id that is none.
        """
        rows: list[int] = []
        columns: list[int] = []
        for row, ids in enumerate(input_ids):
            prompt = self.row(row) // self._num_beams
            allowed = self._checked(self._allowed(prompt, ids), prompt, scores.shape[-1])
            rows += [row] * len(allowed)
            columns += allowed
        mask = torch.full_like(scores, -math.inf)
        mask[torch.tensor(rows, device=scores.device), torch.tensor(columns, device=scores.device)] = 0
        result = scores + mask
        hopeless = result.amax(-1).isneginf().view(-1, self._num_beams).all(-1, keepdim=True)
        return torch.where(hopeless.repeat_interleave(self._num_beams, dim=0), mask, result)

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
        self._bos = TokenIds("forced_bos_token_id", bos_token_id)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._bos.forced(scores) if input_ids.shape[-1] == 1 else scores


class ForcedEOSTokenLogitsProcessor(LogitsProcessor):
    """The last of ``max_length`` tokens is the end."""

    def __init__(self, max_length: int, eos_token_id: Ids, device: torch.device | str | None = None) -> None:
        self.max_length = number("max_length", max_length, _LENGTH, whole=True)
        self._eos = TokenIds("forced_eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._eos.forced(scores) if input_ids.shape[-1] == self.max_length - 1 else scores


class SuppressTokensLogitsProcessor(LogitsProcessor):
    """Some tokens never come."""

    def __init__(self, suppress_tokens: Sequence[int], device: torch.device | str | None = None) -> None:
        self._tokens = TokenIds("suppress_tokens", suppress_tokens, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._tokens.banned(scores)


class SuppressTokensAtBeginLogitsProcessor(LogitsProcessor):
    """Some tokens do not come first; ``begin_index`` is the length of the sequence before the first new token."""

    def __init__(
        self, begin_suppress_tokens: Sequence[int], begin_index: int, device: torch.device | str | None = None
    ) -> None:
        self.begin_index = begin_index
        self._tokens = TokenIds("begin_suppress_tokens", begin_suppress_tokens, device)

    def set_begin_index(self, begin_index: int) -> None:
        """Let another length be the beginning."""
        self.begin_index = begin_index

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._tokens.banned(scores) if input_ids.shape[-1] == self.begin_index else scores


def _ban_repeats(scores: Tensor, windows: Tensor, input_ids: Tensor) -> Tensor:
    """Scores (B, V) without the ends of those n-grams (B, N, n) whose beginning is what the ids (B, T) end with."""
    prefix = input_ids[:, input_ids.shape[1] + 1 - windows.shape[-1] :]
    matches = (windows[..., :-1] == prefix.unsqueeze(1)).all(-1)
    return changed(scores, windows[..., -1].masked_fill(~matches, scores.shape[-1]), -math.inf)


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """No n-gram comes twice (Paulus et al., 2017)."""

    def __init__(self, ngram_size: int) -> None:
        self.ngram_size = number("ngram_size", ngram_size, Range(1), whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] < self.ngram_size:
            return scores
        return _ban_repeats(scores, input_ids.unfold(1, self.ngram_size, 1), input_ids)


class EncoderNoRepeatNGramLogitsProcessor(ReadsEncoder):
    """No n-gram of the encoder's input, (N, S) or (S,), comes again."""

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Tensor) -> None:
        self.ngram_size = number("encoder_ngram_size", encoder_ngram_size, Range(1), whole=True)
        self.encoder_input_ids = encoder_input_ids.unsqueeze(0) if encoder_input_ids.dim() == 1 else encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.encoder_input_ids.shape[1] < self.ngram_size or input_ids.shape[1] + 1 < self.ngram_size:
            return scores
        windows = self.encoder_input_ids.unfold(1, self.ngram_size, 1)
        return _ban_repeats(scores, per_row(windows, scores, "encoder_input_ids"), input_ids)


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to the token that would complete a sequence.

    Args:
        sequence_bias: ``{(1, 2): 3.0}`` or ``[[[1, 2], 3.0]]``; ``-inf`` bans, ``inf`` forces.

    Raises:
        InputError: another form, or when called an id beyond the vocabulary.
    """

    name = "sequence_bias"

    def __init__(self, sequence_bias: Any) -> None:
        self.sequence_bias = biases(self.name, sequence_bias)
        self._single = torch.empty(0)
        self._longer: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._single.device != scores.device or self._single.shape[0] != scores.shape[-1]:
            self._prepare(scores)
        bias = self._single
        for prefixes, last, values in self._longer:
            length = prefixes.shape[1]
            if length <= input_ids.shape[1]:
                found = (input_ids[:, None, -length:] == prefixes).all(-1)
                bias = bias.expand_as(scores) if bias.dim() == 1 else bias
                bias = bias.index_add(1, last, torch.where(found, values, 0.0).to(bias.dtype))
        return scores + bias

    def _prepare(self, scores: Tensor) -> None:
        """Tensors on the scores' device: the biases of single tokens (V,), and the longer sequences by length."""
        vocabulary, device = scores.shape[-1], scores.device
        if beyond := [ids for ids in self.sequence_bias if max(ids) >= vocabulary]:
            raise InputError(f"`{self.name}` names tokens beyond the {vocabulary} of the model: {str(beyond)[:80]}.")
        self._single, self._longer = scores.new_zeros(vocabulary), []
        by_length: dict[int, list[tuple[tuple[int, ...], float]]] = {}
        for ids, bias in self.sequence_bias.items():
            by_length.setdefault(len(ids), []).append((ids, bias))
        for length, group in by_length.items():
            tokens, values = torch.tensor([ids for ids, _ in group], device=device), [bias for _, bias in group]
            if length == 1:
                self._single[tokens[:, 0]] = scores.new_tensor(values)
            else:
                self._longer.append((tokens[:, :-1], tokens[:, -1], torch.tensor(values, device=device)))


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Some sequences of tokens never come; the end of the text is not one of them.

    Raises:
        InputError: no list of lists of ids, or none but the end.
    """

    name = "bad_words_ids"

    def __init__(self, bad_words_ids: list[list[int]], eos_token_id: Ids | None = None) -> None:
        self.bad_word_ids = sequences(self.name, bad_words_ids)
        ends = [] if eos_token_id is None else [[index] for index in token_ids("eos_token_id", eos_token_id)]
        words = [ids for ids in self.bad_word_ids if ids not in ends]
        if not words:
            raise InputError(
                f"`{self.name}` holds only the end of the sequence, {ends}.",
                hint="To keep texts from ending early use min_new_tokens.",
            )
        super().__init__({tuple(ids): -math.inf for ids in words})


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """NaN becomes 0, and infinities the largest and smallest numbers of the scores' type."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.nan_to_num(nan=0.0)
