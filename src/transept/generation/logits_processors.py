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

from transept.config.fields import Range
from transept.errors import GenerationError, InputError, InputTypeError, refuse
from transept.generation.config import setting
from transept.generation.rules import Chain, biases, number, sequences, token_ids

Ids = int | Sequence[int] | Tensor
Device = torch.device | str | None


class LogitsProcessor:
    """Base of all processors; any callable of the same form serves as well."""

    by_row: tuple[str, ...] = ()  # attributes that hold a tensor with one row for each of the batch, or None
    reads_ids = True  # whether the scores that it gives depend on the ids so far
    rows_alone = False  # whether one that a caller passes may go on with some of the rows; the settings' own may

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of the next token, from the ids so far (B, T) and the scores before."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch."""
        for name in self.by_row:
            if isinstance(kept := getattr(self, name), Tensor):
                setattr(self, name, kept.index_select(0, rows.to(kept.device)))

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the same prompts, as beams do; for processors that keep something of the text."""


class LogitsProcessorList(Chain[Callable[..., Tensor]]):
    """Processors applied one after the other."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **others: Any) -> Tensor:
        """Scores (B, V) after all of them; ``others`` are what some take besides, such as tokens of earlier groups of beams."""
        for processor in self:
            given: Any = processor(input_ids, scores, **_arguments(processor, others))
            if not _are_scores(given, scores.shape):
                raise _no_scores(processor, given, scores.shape)
            scores = given
        return scores

    def select(self, rows: Tensor) -> None:
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.select(rows)

    def reorder(self, rows: Tensor) -> None:
        for processor in self:
            if isinstance(processor, LogitsProcessor):
                processor.reorder(rows)


def _are_scores(given: Any, shape: torch.Size) -> bool:
    if not isinstance(given, Tensor) or given.is_nested or given.layout != torch.strided or given.is_meta:
        return False
    return given.shape == shape and given.is_floating_point()


def _name(processor: Any) -> str:
    return str(getattr(processor, "__name__", type(processor).__name__))


def _no_scores(processor: Any, given: Any, wanted: torch.Size) -> InputError:
    """The error about what a processor returned in place of scores."""
    what = "None" if given is None else type(given).__name__
    if isinstance(given, Tensor) and given.is_nested:
        what = "a nested tensor"
    elif isinstance(shape := getattr(given, "shape", None), tuple):
        what = f"{what} of {given.dtype} and the shape {tuple(shape)}, {getattr(given, 'layout', '')}".rstrip(", ")
    form = f"a dense tensor of floats of the shape {tuple(wanted)} (rows, vocabulary)"
    hint = "Return the scores that it was given, or changed ones, all of them."
    return InputTypeError(f"The logits processor {_name(processor)} must return {form}, but returned {what}.", hint=hint)


# By class, since looking a signature up costs more than most processors.
_PARAMETERS: dict[type, tuple[inspect.Parameter, ...]] = {}


def _arguments(processor: Callable[..., Tensor], others: dict[str, Any]) -> dict[str, Any]:
    """Those of ``others`` that a processor takes besides ids and scores."""
    if (parameters := _PARAMETERS.get(type(processor))) is None:
        parameters = _beside_scores(processor)
        if not inspect.isroutine(processor):
            _PARAMETERS[type(processor)] = parameters
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return others
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if needed and parameter.name not in others:
            what = f"{_name(processor)} needs `{parameter.name}`"
            hint = "Processors are called with ids and scores; diverse beam search adds what its groups need."
            raise InputError(f"The logits processor {what}, which is not given at this step.", hint=hint)
    return {parameter.name: others[parameter.name] for parameter in parameters if parameter.name in others}


def _beside_scores(processor: Callable[..., Tensor]) -> tuple[inspect.Parameter, ...]:
    """The parameters of a processor behind ids and scores; none where it does not tell them, as built-in functions do not."""
    try:
        signature = inspect.signature(processor)
    except ValueError:
        return ()
    parameters = tuple(signature.parameters.values())
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(places) < 2 and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        what = f"The logits processor {_name(processor)} takes {signature}, but is called with ids and scores."
        raise InputTypeError(what, hint="Define it as (input_ids, scores) -> scores.")
    return parameters[2:]


def changed(scores: Tensor, ids: Tensor, change: Callable[[Tensor], Tensor] | float) -> Tensor:
    """Scores (B, V) with a function of them, or a number, at ids (B, N), of which those from V on stand for nothing."""
    vocabulary = scores.shape[-1]
    spare, ids = F.pad(scores, (0, 1)), ids.clamp(max=vocabulary)
    spare.scatter_(1, ids, change if isinstance(change, float) else change(spare.gather(1, ids)))
    return spare[:, :vocabulary]


def per_row(rows: Tensor, scores: Tensor, name: str) -> Tensor:
    """One row of ``rows`` (N, ...) for each of the scores (B, V), where each prompt has B / N of them."""
    if rows.shape[0] == 0 or scores.shape[0] % rows.shape[0]:
        raise InputError(f"`{name}` has {rows.shape[0]} rows, of which {scores.shape[0]} rows of scores are no multiple.")
    times, rows = scores.shape[0] // rows.shape[0], rows.to(scores.device)
    return rows if times == 1 else rows.repeat_interleave(times, dim=0)


class SomeTokens(LogitsProcessor):
    """Bans some tokens, or all others, where the ids so far have one of some lengths."""

    def __init__(self, name: str, ids: Any, device: Device, lengths: range, forced: bool = False) -> None:
        self._ids = torch.tensor(token_ids(name, ids), dtype=torch.long, device=device)
        self._known, self._lengths, self._forced = (-1, self._ids), lengths, forced

    def on(self, scores: Tensor) -> Tensor:
        """The ids (N,) that scores (B, V) have a column for, on their device."""
        size, known = self._known
        if size != scores.shape[-1] or known.device != scores.device:
            known = self._ids[self._ids < scores.shape[-1]].to(scores.device)
            self._known = (scores.shape[-1], known)
        return known

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[-1] not in self._lengths:
            return scores
        if self._forced:
            return torch.full_like(scores, -math.inf).index_fill_(-1, self.on(scores), 0)
        return scores.index_fill(-1, self.on(scores), -math.inf)


class MinLengthLogitsProcessor(SomeTokens):
    """No end before the whole sequence, with the prompt, has ``min_length`` tokens."""

    def __init__(self, min_length: int, eos_token_id: Ids, device: Device = None) -> None:
        self.min_length = setting("min_length", min_length, whole=True)
        super().__init__("eos_token_id", eos_token_id, device, range(self.min_length))


class MinNewTokensLengthLogitsProcessor(MinLengthLogitsProcessor):
    """No end before ``min_new_tokens`` tokens follow the prompt of ``prompt_length_to_skip`` tokens."""

    def __init__(self, prompt_length_to_skip: int, min_new_tokens: int, eos_token_id: Ids, device: Device = None) -> None:
        self.prompt_length_to_skip = number("prompt_length_to_skip", prompt_length_to_skip, Range(0), whole=True)
        self.min_new_tokens = setting("min_new_tokens", min_new_tokens, whole=True)
        super().__init__(self.prompt_length_to_skip + self.min_new_tokens, eos_token_id, device)


class ForcedBOSTokenLogitsProcessor(SomeTokens):
    """One token comes first: right after the decoder's start."""

    def __init__(self, bos_token_id: int) -> None:
        super().__init__("forced_bos_token_id", bos_token_id, None, range(1, 2), forced=True)


class ForcedEOSTokenLogitsProcessor(SomeTokens):
    """The last of ``max_length`` tokens is the end."""

    def __init__(self, max_length: int, eos_token_id: Ids, device: Device = None) -> None:
        self.max_length = number("max_length", max_length, Range(0), whole=True)
        last = range(self.max_length - 1, self.max_length)
        super().__init__("forced_eos_token_id", eos_token_id, device, last, forced=True)


class SuppressTokensLogitsProcessor(SomeTokens):
    """Some tokens never come."""

    def __init__(self, suppress_tokens: Sequence[int], device: Device = None) -> None:
        super().__init__("suppress_tokens", suppress_tokens, device, range(2**63))


class SuppressTokensAtBeginLogitsProcessor(SomeTokens):
    """Some tokens do not come first; ``begin_index`` is the length of the sequence before the first new token."""

    def __init__(self, begin_suppress_tokens: Sequence[int], begin_index: int, device: Device = None) -> None:
        super().__init__("begin_suppress_tokens", begin_suppress_tokens, device, range(0))
        self.set_begin_index(begin_index)

    def set_begin_index(self, begin_index: int) -> None:
        """Let another length be the beginning."""
        self.begin_index, self._lengths = begin_index, range(begin_index, begin_index + 1)


class KnowsRows(LogitsProcessor):
    """A processor that knows which rows of the first batch the present ones are."""

    _left: Tensor | None = None

    def row(self, place: int) -> int:
        return place if self._left is None else int(self._left[place])

    def select(self, rows: Tensor) -> None:
        self._left = rows.cpu() if self._left is None else self._left[rows.cpu()]


class PrefixConstrainedLogitsProcessor(KnowsRows):
    """Only what a function allows after the tokens so far (constrained generation; De Cao et al., 2020).

    It gives, from the number of the prompt in the batch and the ids so far (T,), the ids that may follow, at least one.
    """

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, Tensor], Iterable[int]], num_beams: int) -> None:
        self._allowed = prefix_allowed_tokens_fn
        self._num_beams = setting("num_beams", num_beams, whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of allowed tokens; where processors before banned all of them, they are all alike."""
        mask = torch.full_like(scores, -math.inf)
        for row, ids in enumerate(input_ids):
            prompt = self.row(row) // self._num_beams
            allowed = token_ids("prefix_allowed_tokens_fn's answer", self._allowed(prompt, ids))
            if not allowed or max(allowed) >= scores.shape[-1]:
                what = f"the token {max(allowed)}, but the model has {scores.shape[-1]}" if allowed else "no token"
                hint = "Return at least one token of the vocabulary for every prefix, such as the end of the sequence."
                raise InputError(f"`prefix_allowed_tokens_fn` allows {what}, for prompt {prompt}.", hint=hint)
            mask[row, allowed] = 0
        result = scores + mask
        hopeless = result.amax(-1).isneginf().view(-1, self._num_beams).all(-1, keepdim=True)
        return torch.where(hopeless.repeat_interleave(self._num_beams, dim=0), mask, result)


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


class EncoderNoRepeatNGramLogitsProcessor(LogitsProcessor):
    """No n-gram of the encoder's input, (N, S) with B / N rows of scores for each, or (S,), comes again."""

    by_row = ("encoder_input_ids",)

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Tensor) -> None:
        self.ngram_size = number("encoder_ngram_size", encoder_ngram_size, Range(1), whole=True)
        self.encoder_input_ids = encoder_input_ids.unsqueeze(0) if encoder_input_ids.dim() == 1 else encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.encoder_input_ids.shape[1] < self.ngram_size or input_ids.shape[1] + 1 < self.ngram_size:
            return scores
        windows = self.encoder_input_ids.unfold(1, self.ngram_size, 1)
        return _ban_repeats(scores, per_row(windows, scores, "encoder_input_ids"), input_ids)


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to the token that would complete a sequence: ``{(1, 2): 3.0}`` or ``[[[1, 2], 3.0]]``.

    ``-inf`` bans, ``inf`` forces.
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
            if (length := prefixes.shape[1]) <= input_ids.shape[1]:
                found = (input_ids[:, None, -length:] == prefixes).all(-1)
                bias = bias.expand_as(scores).index_add(1, last, torch.where(found, values, 0.0).to(bias.dtype))
        return scores + bias

    def _prepare(self, scores: Tensor) -> None:
        """Tensors on the scores' device: the biases of single tokens (V,), and the longer sequences by length."""
        vocabulary, device = scores.shape[-1], scores.device
        if beyond := [ids for ids in self.sequence_bias if max(ids) >= vocabulary]:
            raise InputError(f"`{self.name}` names tokens beyond the {vocabulary} of the model: {str(beyond)[:80]}.")
        self._single, self._longer = scores.new_zeros(vocabulary), []
        for length in dict.fromkeys(map(len, self.sequence_bias)):
            group = {ids: bias for ids, bias in self.sequence_bias.items() if len(ids) == length}
            tokens, values = torch.tensor([*group], device=device), [*group.values()]
            if length == 1:
                self._single[tokens[:, 0]] = scores.new_tensor(values)
            else:
                self._longer.append((tokens[:, :-1], tokens[:, -1], torch.tensor(values, device=device)))


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Some sequences of tokens never come; the end of the text is not one of them."""

    name = "bad_words_ids"

    def __init__(self, bad_words_ids: list[list[int]], eos_token_id: Ids | None = None) -> None:
        self.bad_word_ids = sequences(self.name, bad_words_ids)
        ends = [] if eos_token_id is None else [[index] for index in token_ids("eos_token_id", eos_token_id)]
        words = [ids for ids in self.bad_word_ids if ids not in ends]
        hint = "To keep texts from ending early use min_new_tokens."
        refuse(not words, f"`{self.name}` holds only the end of the sequence, {ends}.", hint)
        super().__init__({tuple(ids): -math.inf for ids in words})


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """NaN becomes 0, and infinities the largest and smallest numbers of the scores' type."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.nan_to_num(nan=0.0)


class NonFiniteError(GenerationError):
    """Logits that are NaN or infinite."""


class FiniteLogitsCheck(KnowsRows):
    """An error in place of text made from NaN or infinity, or from a vocabulary that is banned as a whole.

    Single tokens may be impossible, ``-inf``; of the ``num_beams`` rows of a prompt one with a possible token is enough.
    """

    def __init__(self, prompt_length: int, num_beams: int = 1) -> None:
        self.prompt_length, self.num_beams = prompt_length, num_beams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores (B, V) themselves; errors name the row, or with beams the prompt, and the number of the new token."""
        best = scores.amax(-1)  # NaN, or infinite, where any of the row is
        if bool(best.isfinite().all()):
            return scores
        best = best.view(-1, self.num_beams)
        wrong = best.isnan().any(-1) | (best == math.inf).any(-1)
        hopeless = wrong if bool(wrong.any()) else best.amax(-1) == -math.inf
        if not bool(hopeless.any()):
            return scores
        row = int(hopeless.int().argmax())
        place = f"new token {input_ids.shape[-1] - self.prompt_length + 1} of row {self.row(row)}"
        if bool(wrong[row]):
            what = "NaN" if bool(best[row].isnan().any()) else "infinity"
            hint = "Its weights, inputs or dtype make it: float16 overflows where bfloat16 and float32 do not. "
            hint += "To go on with such values replaced pass remove_invalid_values=True."
            raise NonFiniteError(f"The logits for {place} hold {what}.", hint=hint)
        hint = "Loosen what bans them, such as bad_words_ids, suppress_tokens, no_repeat_ngram_size or min_new_tokens."
        raise GenerationError(f"Every token is banned as {place}.", hint=hint)
