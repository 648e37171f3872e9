"""Watermarks: texts whose tokens lean to what a secret says, and how often they do tells them from others.

Shapes: B rows, T ids so far, V vocabulary, N tokens that decide a draw, K keys, H contexts that are remembered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.config.model import Config
from transept.errors import refuse
from transept.generation.logits_processors import LogitsProcessor
from transept.generation.rules import SynthIDTextWatermarkingConfig, Watermark, WatermarkingConfig

# How many of the likeliest tokens are tried with `selfhash`, and the table that their hashes come from.
_TRIED, _TABLE = 40, 1_000_003
# Knuth's linear congruential generator.
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1


class WatermarkLogitsProcessor(LogitsProcessor):
    """Favours the tokens that a secret and the tokens before choose; arguments as for :class:`WatermarkingConfig`.

    The same seed chooses other tokens on another kind of ``device``.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", *settings: Any, **named: Any) -> None:
        self.config = WatermarkingConfig(*settings, **named)
        self.vocab_size, self.generator = vocab_size, torch.Generator(device)
        self.green = int(vocab_size * self.config.greenlist_ratio)
        self._table: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] < self.config.context_width:
            return scores
        marked = scores.clone()
        for ids, old, new in zip(input_ids, scores, marked, strict=True):
            chosen = self._consistent(ids, old) if self.config.seeding_scheme == "selfhash" else self.greenlist(ids)
            new[chosen] = old[chosen] + self.config.bias
        return marked

    def greenlist(self, ids: Tensor) -> Tensor:
        """The favoured tokens after ids (T)."""
        self.generator.manual_seed(self._seed(ids[-self.config.context_width :]) % (2**64 - 1))
        return torch.randperm(self.vocab_size, device=ids.device, generator=self.generator)[: self.green]

    def _seed(self, ids: Tensor) -> int:
        key = self.config.hashing_key
        if self.config.seeding_scheme == "lefthash":
            return key * int(ids[-1])
        if self._table is None:
            self.generator.manual_seed(key)
            self._table = torch.randperm(_TABLE, generator=self.generator, device=ids.device)
        own, last = self._table[ids % _TABLE] + 1, self._table[ids[-1] % _TABLE] + 1
        return int((key * own * last).min())

    def _consistent(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Of the likeliest tokens those that are favoured where they come next themselves."""
        likeliest = scores.argsort(descending=True)[:_TRIED]
        favoured = [token in self.greenlist(torch.cat([ids, token[None]])) for token in likeliest]
        return likeliest[torch.tensor(favoured, device=likeliest.device)]


class SynthIDTextWatermarkLogitsProcessor(LogitsProcessor):
    """Lets tokens that are about as likely win or lose by what a secret and the tokens before say of each.

    Arguments as for :class:`SynthIDTextWatermarkingConfig`, and ``device``.
    """

    by_row = ("context", "history")

    def __init__(self, *settings: Any, device: torch.device | str = "cpu", **named: Any) -> None:
        self.config = c = SynthIDTextWatermarkingConfig(*settings, **named)
        generator = torch.Generator(device).manual_seed(c.sampling_table_seed)
        self.table = torch.randint(0, 2, (c.sampling_table_size,), generator=generator, device=device)
        self.keys = torch.tensor(c.keys, device=device)
        self.context: Tensor | None = None  # (B, N - 1)
        self.history: Tensor | None = None  # (B, H) hashes of contexts
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        c, rows = self.config, scores.shape[0]
        scores = torch.ones_like(scores) if c.debug_mode else scores
        if self.context is None or self.history is None:
            self.context = input_ids.new_zeros(rows, c.ngram_len - 1)
            self.history = input_ids.new_zeros(rows, c.context_history_size)
        else:
            self.context = torch.cat([self.context, input_ids[:, -1:]], dim=1)[:, 1:]
        self.calls += 1
        if c.skip_first_ngram_calls and self.calls < c.ngram_len:
            return scores
        seen = _hashed(input_ids.new_ones(rows), self.context)
        tokens = torch.arange(scores.shape[1], device=scores.device)
        marked = self._tournament(scores, self._values(_hashed(seen[:, None], tokens[None, :, None])))
        again = (self.history == seen[:, None]).any(dim=1, keepdim=True)
        self.history = torch.cat([seen[:, None], self.history], dim=1)[:, :-1]
        return torch.where(again, scores, marked)

    def _values(self, hashes: Tensor) -> Tensor:
        """(...) hashes of tokens and what is before them -> (..., K) of 0 and 1."""
        return self.table[_hashed(hashes[..., None], self.keys[:, None]) % self.table.shape[0]]

    def _tournament(self, scores: Tensor, values: Tensor) -> Tensor:
        chances = scores.softmax(dim=1)
        for value in values.unbind(dim=-1):
            chances = chances * (1 + value - (value * chances).sum(dim=1, keepdim=True))
        found = chances.log()
        return torch.where(found.isfinite(), found, torch.finfo(found.dtype).min)

    def compute_g_values(self, input_ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T - N + 1, K) of 0 and 1: marked texts have more of 1."""
        grams = input_ids.unfold(1, self.config.ngram_len, 1)
        return self._values(_hashed(torch.ones_like(grams[..., 0]), grams))

    def compute_context_repetition_mask(self, input_ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T - N + 1) of bool, false where the context was there already, so that nothing was marked."""
        grams = input_ids[:, :-1].unfold(1, self.config.ngram_len - 1, 1)
        hashes = _hashed(torch.ones_like(grams[..., 0]), grams)
        before = torch.ones_like(hashes[0, :, None] == hashes[0]).tril(-1).triu(-self.config.context_history_size)
        # The history begins with zeros, which a hash can be too.
        fresh = torch.arange(hashes.shape[1], device=hashes.device) < self.config.context_history_size
        again = ((hashes[:, :, None] == hashes[:, None]) & before).any(dim=2)
        return ~(again | (fresh & (hashes == 0)))

    def compute_eos_token_mask(self, input_ids: Tensor, eos_token_id: int) -> Tensor:
        """(B, T) ids -> (B, T) of bool, false from the first end on."""
        return (input_ids == eos_token_id).cumsum(dim=1) == 0

    def expected_mean_g_value(self, vocab_size: int, coinflip_prob: float = 0.5) -> float:
        """The mean of values in marked texts, for one key and tokens that are equally likely."""
        return coinflip_prob + coinflip_prob * (1 - coinflip_prob) * (1 - 1 / vocab_size)


def _hashed(start: Tensor, data: Tensor) -> Tensor:
    """Hashes (...) that go on with data (..., L), number by number; what does not fit 64 bits is dropped."""
    for part in data.unbind(dim=-1):
        start = (start + part) * _MULTIPLIER + _INCREMENT
    return start


def make_processor(settings: Watermark, vocab_size: int, device: torch.device | str) -> LogitsProcessor:
    """The processor that ``watermarking_config`` asks for."""
    if isinstance(settings, WatermarkingConfig):
        return WatermarkLogitsProcessor(vocab_size, device, **settings.to_dict())
    return SynthIDTextWatermarkLogitsProcessor(**settings.to_dict(), device=device)


@dataclass
class WatermarkDetectorOutput:
    """For each text: how many tokens were looked at, how many of them are favoured, and what that says."""

    num_tokens_scored: np.ndarray[Any, Any]
    num_green_tokens: np.ndarray[Any, Any]
    green_fraction: np.ndarray[Any, Any]
    z_score: np.ndarray[Any, Any]
    p_value: np.ndarray[Any, Any]
    prediction: np.ndarray[Any, Any]
    confidence: np.ndarray[Any, Any]


class WatermarkDetector:
    """Tells texts with favoured tokens from others, by the same secret (Kirchenbauer et al. 2023).

    Args:
        model_config: of the model that wrote, for its vocabulary and its first token.
        device: the kind of device that the texts were written on.
        watermarking_config: the settings that they were written with.
        ignore_repeated_ngrams: count what comes again once.
    """

    def __init__(
        self,
        model_config: Config,
        device: torch.device | str,
        watermarking_config: WatermarkingConfig | Mapping[str, Any],
        ignore_repeated_ngrams: bool = False,
    ) -> None:
        given = watermarking_config.to_dict() if isinstance(watermarking_config, Watermark) else watermarking_config
        self.processor = WatermarkLogitsProcessor(model_config.vocab_size, device, **given)
        self.first = model_config.decoder_start_token_id if model_config.is_encoder_decoder else model_config.bos_token_id
        self.ignore_repeated_ngrams = ignore_repeated_ngrams

    def __call__(
        self, input_ids: Tensor, z_threshold: float = 3.0, return_dict: bool = False
    ) -> WatermarkDetectorOutput | np.ndarray[Any, Any]:
        """Whether texts (B, T), best without their prompts, are marked: (B) of bool, or with ``return_dict`` all that is known.

        All or none begin with the token that texts begin with, which does not count. ``z_threshold`` is how many standard
        deviations more than by chance are a mark.

        Raises:
            InputError: some rows with that first token and some without, or texts that are too short.
        """
        begins = input_ids[:, 0] == (-1 if self.first is None else self.first)
        mixed = begins.any() != begins.all()
        refuse(mixed, "some texts begin with the first token, and some do not.", "Prepare all of them alike.")
        input_ids = input_ids[:, 1:] if bool(begins.all()) else input_ids
        length, width = input_ids.shape[1], self.processor.config.context_width
        refuse(length <= width, f"a text must have more than {width} tokens for one to be judged, but has {length}.")
        counts = np.array([self._count(ids) for ids in input_ids], dtype=float)
        scored, green = counts[:, 0], counts[:, 1]
        share = self.processor.config.greenlist_ratio
        z_score = (green - share * scored) / np.sqrt(scored * share * (1 - share))
        prediction = z_score > z_threshold
        if not return_dict:
            return prediction
        p_value = np.array([0.5 * math.erfc(z / math.sqrt(2)) for z in z_score])
        return WatermarkDetectorOutput(scored, green, green / scored, z_score, p_value, prediction, 1 - p_value)

    def _count(self, ids: Tensor) -> tuple[int, int]:
        """How many tokens of a text (T) were judged, and how many of them are favoured."""
        own = self.processor.config.seeding_scheme == "selfhash"
        grams = ids.unfold(0, self.processor.config.context_width + (not own), 1)
        found = Counter(map(tuple, grams.tolist()))
        found = Counter(dict.fromkeys(found, 1)) if self.ignore_repeated_ngrams else found
        green = 0
        for gram, times in found.items():
            before = ids.new_tensor(gram if own else gram[:-1])
            green += times * bool((self.processor.greenlist(before) == gram[-1]).any())
        return found.total(), green
