"""Stopping criteria: which rows of a batch are finished.

A criterion takes the ids so far (B, T), and the scores of each new token as a tuple of (B, V) or ``None`` where they are not
kept, and returns (B,) booleans.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from transept.config.fields import Range
from transept.errors import InputTypeError, TranseptWarning, refuse
from transept.generation.config import GenerationConfig, setting
from transept.generation.rules import Chain, number, token_ids

Scores = tuple[Tensor, ...] | None


class StoppingCriteria:
    """Base of all criteria; any callable of the same form serves as well."""

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        """Whether each row is finished (B,)."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")


class StoppingCriteriaList(Chain[Callable[..., Any]]):
    """Criteria of which one is enough."""

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        """Whether each row is finished (B,), by any of them."""
        done = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            found = criterion(input_ids, scores, **kwargs)
            dense = isinstance(found, Tensor) and not found.is_nested and found.layout == torch.strided and not found.is_meta
            of_rows = dense and found.dtype is torch.bool and found.shape in ((), done.shape)
            if not of_rows and not isinstance(found, bool):
                name = getattr(criterion, "__name__", type(criterion).__name__)
                what = f"a tensor of {found.dtype}, {tuple(found.shape)}" if dense else repr(found)[:80]
                raise InputTypeError(f"The stopping criterion {name} must return True, False or one boolean a row, not {what}.")
            done |= found.to(done.device) if of_rows else found
        return done

    @property
    def max_length(self) -> int | None:
        """The length that ends every sequence, if one does."""
        return next((criterion.max_length for criterion in self if isinstance(criterion, MaxLengthCriteria)), None)


def _all(input_ids: Tensor, done: bool) -> Tensor:
    return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)


class MaxLengthCriteria(StoppingCriteria):
    """All rows end at ``max_length`` tokens, with the prompt.

    Args:
        max_position_embeddings: how many positions the model knows; longer sequences are warned of, once.
    """

    def __init__(self, max_length: int, max_position_embeddings: int | None = None) -> None:
        self.max_length = number("max_length", max_length, Range(0), whole=True)
        self.max_position_embeddings = max_position_embeddings
        self._warned = False

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        length, most = input_ids.shape[1], self.max_position_embeddings
        done = length >= self.max_length
        if most is not None and not done and length > most and not self._warned:
            self._warned = True
            message = f"The sequence has {length} tokens, more than the {most} positions that the model was made for."
            warnings.warn(message, TranseptWarning, stacklevel=2)
        return _all(input_ids, done)


class MaxTimeCriteria(StoppingCriteria):
    """All rows end after ``max_time`` seconds since ``initial_timestamp`` (of ``time.time()``), or since it was made."""

    def __init__(self, max_time: float, initial_timestamp: float | None = None) -> None:
        self.max_time = setting("max_time", max_time)
        self.initial_timestamp = time.time() if initial_timestamp is None else initial_timestamp

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        return _all(input_ids, time.time() - self.initial_timestamp > self.max_time)


class EosTokenCriteria(StoppingCriteria):
    """A row ends with the token, or one of the tokens, that end a sequence."""

    def __init__(self, eos_token_id: int | Sequence[int] | Tensor) -> None:
        self.eos_token_id = torch.tensor(token_ids("eos_token_id", eos_token_id), dtype=torch.long)

    def __call__(self, input_ids: Tensor, scores: Scores = None, new_token_length: int = 1, **kwargs: Any) -> Tensor:
        if self.eos_token_id.device != input_ids.device:
            self.eos_token_id = self.eos_token_id.to(input_ids.device)
        return (input_ids[:, -new_token_length:, None] == self.eos_token_id).flatten(1).any(-1)


class ConfidenceCriteria(StoppingCriteria):
    """A draft ends where its model gives its last token a probability below the threshold."""

    def __init__(self, assistant_confidence_threshold: float) -> None:
        self.assistant_confidence_threshold: float = setting("assistant_confidence_threshold", assistant_confidence_threshold)

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        refuse(not scores, "ConfidenceCriteria needs the scores of the last token.", "Keep them: output_scores=True.")
        assert scores
        return scores[-1].softmax(-1).gather(1, input_ids[:, -1:]).squeeze(1) < self.assistant_confidence_threshold


class StopStringCriteria(StoppingCriteria):
    """A row ends with the token that completes one of some strings, wherever the tokens' boundaries are.

    The string must overlap the last token, which may go on behind it: ``"stop"`` ends ``["st", "op"]`` and
    ``["las", "topper"]``, but not ``["st", "op", "at"]``. Strings are compared with what each token stands for by itself,
    for tokenizers of bytes as bytes; so a string may end in the middle of a character's tokens, and the prompt's end counts.

    ``tokenizer`` is the model's own; none of the ``stop_strings`` may be empty.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | Sequence[str]) -> None:
        self.stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        given: tuple[Any, ...] = self.stop_strings  # as they came
        wrong = not given or not all(isinstance(text, str) and text for text in given)
        refuse(wrong, f"`stop_strings` must be one or more non-empty strings, but is {str(stop_strings)[:80]!r}.")
        self._pieces = _Pieces(tokenizer)
        self._stops = [self._pieces.encode(text) for text in self.stop_strings]
        self._longest = max(map(len, self._stops))

    def __call__(self, input_ids: Tensor, scores: Scores = None, **kwargs: Any) -> Tensor:
        rows = input_ids[:, -self._longest :].tolist()  # a token each character at most
        return torch.tensor([self._completes(ids) for ids in rows], dtype=torch.bool, device=input_ids.device)

    def _completes(self, ids: list[int]) -> bool:
        known = takewhile(lambda piece: piece is not None, (self._pieces[index] for index in reversed(ids)))
        last, *before = [*known] or [""]
        text = last[:0].join([*reversed(before), last])
        start = len(text) - len(last)  # an end before this was there before the last token
        return bool(last) and any(text.find(stop, max(0, start + 1 - len(stop))) >= 0 for stop in self._stops)


class _Pieces(dict[int, Any]):
    """What each token stands for by itself, found when it is first asked for; ``None`` for ids that are no tokens.

    Pieces are bytes where the tokenizer's are, so that parts of a character can be compared, and else strings.
    """

    prefix = "abcdef"  # in front of a token, whose own space would be dropped at the beginning of a text

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        state = getattr(decoder, "__getstate__", bytes)() or b""
        state = state.decode() if isinstance(state, bytes) else str(state)
        # A decoder that knows both writes bytes that have no token of their own as <0xNN>.
        self._fallback = '"type":"ByteFallback"' in state
        self._bytes = '"type":"ByteLevel"' in state and not self._fallback
        ids = tokenizer(self.prefix, add_special_tokens=False)["input_ids"]
        self._before = [token for index in ids if (token := tokenizer.convert_ids_to_tokens(int(index))) is not None]

    def encode(self, text: str) -> Any:
        """Text in the form of the pieces."""
        return text.encode() if self._fallback or self._bytes else text

    def __missing__(self, index: int) -> Any:
        token = self._tokenizer.convert_ids_to_tokens(index)
        self[index] = piece = None if token is None else self._piece(token)
        return piece

    def _piece(self, token: str) -> Any:
        if self._bytes and all(character in _BYTES for character in token):
            return bytes(_BYTES[character] for character in token)
        if self._fallback and (code := re.fullmatch("<0x([0-9a-fA-F]{2})>", token)):
            return bytes.fromhex(code[1])
        text = self._tokenizer.convert_tokens_to_string([*self._before, token])
        what = f"The tokenizer writes {self.prefix!r} as {text[:40]!r}: stop strings cannot be compared with its tokens."
        refuse((found := text.find(self.prefix)) < 0, what, "Stop at tokens instead, with eos_token_id.")
        return self.encode(text[found + len(self.prefix) :])


# The printable characters that byte-level vocabularies write for bytes: their own, or those from 256 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}


def build_criteria(
    config: GenerationConfig, max_length: int, *, tokenizer: Any = None, max_positions: int | None = None, custom: Any = None
) -> StoppingCriteriaList:
    """The stopping criteria that settings ask for, and the caller's own; arguments as for the criteria (``InputError``)."""
    made = StoppingCriteriaList([MaxLengthCriteria(max_length, max_positions)])
    if config.max_time is not None:
        made.append(MaxTimeCriteria(config.max_time))
    if config.stop_strings is not None:
        refuse(tokenizer is None, "`stop_strings` needs the tokenizer.", "Pass it: generate(..., tokenizer=tokenizer).")
        made.append(StopStringCriteria(tokenizer, config.stop_strings))
    if config.eos_token_id is not None:
        made.append(EosTokenCriteria(config.eos_token_id))
    if config.is_assistant and config.assistant_confidence_threshold:
        made.append(ConfidenceCriteria(config.assistant_confidence_threshold))
    return made.with_custom(custom)
