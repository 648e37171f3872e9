"""Collators for encoder–decoders that restore texts: span corruption and denoising."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch

from transept.errors import refuse
from transept.training.collate.rows import DrawingCollator, checked_rows, filled, token_ids

_SENTINEL = re.compile(r"<extra_id_(\d+)>").fullmatch


def random_parts(total: int, parts: int, generator: torch.Generator | None = None) -> list[int]:
    """``total`` things in so many parts of at least one, all splits alike likely."""
    cuts = (torch.randperm(total - 1, generator=generator)[: parts - 1] + 1).sort().values.tolist()
    return [end - start for start, end in pairwise([0, *cuts, total])]


class RestoringCollator(DrawingCollator):
    """Makes ``input_ids`` and ``attention_mask`` of corrupted rows, and ``labels`` that restore them."""

    def collate(self, features: Any) -> Any:
        rows = token_ids(checked_rows(features, "input_ids"))
        inputs, labels = zip(*(self.restored(ids, number) for number, ids in enumerate(rows)))
        batch = self.pad([{"input_ids": ids} for ids in inputs])
        batch["labels"] = filled("labels", labels)
        return batch

    def restored(self, ids: list[int], number: int) -> tuple[list[int], list[int]]:
        """The inputs and the labels that are made of a row."""
        raise NotImplementedError


@dataclass
class DataCollatorForSpanCorruption(RestoringCollator):
    """T5's objective (Raffel et al. 2020): spans become a sentinel each; the labels are the sentinels with the spans.

    A row of n tokens loses ``round(n * noise_density)`` of them, in ``round`` of that over ``mean_noise_span_length``
    spans. Both the lost and the kept tokens are split into so many random parts, and a row begins with kept ones.
    Inputs and labels end with one end token; special tokens of a row are dropped first.

    Args:
        tokenizer: with the sentinels ``<extra_id_0>``, ``<extra_id_1>`` and so on, and an end token.
        noise_density: the share of tokens that are lost.
        mean_noise_span_length: the mean number of tokens in a span.
    """

    tokenizer: Any
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    seed: int | None = None
    sentinels: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        share, mean = self.noise_density, self.mean_noise_span_length
        refuse(not 0 < share < 1, f"`noise_density` must be between 0 and 1, but is {share!r}.")
        refuse(mean < 1, f"`mean_noise_span_length` must be at least 1, but is {mean!r}.")
        refuse(self.tokenizer.eos_token_id is None, "span corruption needs an end token.", "Set tokenizer.eos_token.")
        vocabulary = self.tokenizer.get_vocab().items()
        indices = {int(match[1]): index for token, index in vocabulary if (match := _SENTINEL(token))}
        self.sentinels = [indices[number] for number in range(len(indices)) if number in indices]
        hint = "Add them: tokenizer.add_special_tokens({'additional_special_tokens': ['<extra_id_0>', ...]})."
        refuse(not self.sentinels, "the vocabulary has no sentinels <extra_id_0>, <extra_id_1> ...", hint)

    def restored(self, ids: list[int], number: int) -> tuple[list[int], list[int]]:
        special = set(self.tokenizer.all_special_ids)
        ids = [index for index in ids if index not in special]
        length, sentinels = len(ids), len(self.sentinels)
        refuse(length < 2, f"row {number} has {length} tokens, but span corruption needs two.")
        lost = min(max(round(length * self.noise_density), 1), length - 1)
        spans = min(max(round(lost / self.mean_noise_span_length), 1), length - lost)
        message = f"row {number} of {length} tokens needs {spans} sentinels, but the vocabulary has {sentinels}."
        refuse(spans > sentinels, message, hint="Cut the rows, or raise `mean_noise_span_length`.")
        inputs, labels, place = list[int](), list[int](), 0
        parts = [random_parts(total, spans, self.generator) for total in (length - lost, lost)]
        for sentinel, kept, gone in zip(self.sentinels, *parts):
            inputs += [*ids[place : place + kept], sentinel]
            labels += [sentinel, *ids[place + kept : place + kept + gone]]
            place += kept + gone
        end = int(self.tokenizer.eos_token_id)
        return [*inputs, end], [*labels, end]


@dataclass
class DataCollatorForDenoising(RestoringCollator):
    """BART's objective (Lewis et al. 2020): the labels are the row, and the inputs are what noise makes of it.

    In this order: sentences change places, spans become one mask each, tokens are deleted, and the row is turned.
    Special tokens at the ends of a row stay there.

    Args:
        mask_ratio: the share of tokens in spans.
        poisson_lambda: the mean length of spans, which are Poisson distributed; one of length 0 inserts a mask.
        permute_sentences: whether sentences change places.
        delete_ratio: the share of tokens that are deleted without a trace.
        rotate_ratio: the share of rows that begin at a random token.
        sentence_ends: ids of tokens that end sentences; ``.``, ``!`` and ``?`` of the vocabulary when absent.
    """

    tokenizer: Any
    mask_ratio: float = 0.3
    poisson_lambda: float = 3.0
    permute_sentences: bool = True
    delete_ratio: float = 0.0
    rotate_ratio: float = 0.0
    sentence_ends: Sequence[int] | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        self.check_shares("mask_ratio", "delete_ratio", "rotate_ratio")
        refuse(self.poisson_lambda <= 0, f"`poisson_lambda` must be above 0, but is {self.poisson_lambda!r}.")
        refuse(self.mask_ratio > 0 and self.tokenizer.mask_token_id is None, "this tokenizer has no mask token.")
        if self.sentence_ends is None:
            tokens = self.tokenizer.get_vocab().items()
            self.sentence_ends = [index for token, index in tokens if token.lstrip("Ġ▁") in (".", "!", "?")]

    def restored(self, ids: list[int], number: int) -> tuple[list[int], list[int]]:
        return self.corrupt(ids, number), ids

    def corrupt(self, ids: list[int], number: int = 0) -> list[int]:
        """The noisy form of a row (``InputError``: a row of special tokens alone)."""
        special = set(self.tokenizer.all_special_ids)
        plain = [place for place, index in enumerate(ids) if index not in special]
        refuse(not plain, f"row {number} has no tokens but special ones.")
        first, last = plain[0], plain[-1] + 1
        inner = ids[first:last]
        if self.permute_sentences:
            inner = self._permuted(inner)
        if self.mask_ratio > 0:
            inner = self._masked(inner)
        if self.delete_ratio > 0:
            kept = torch.rand(len(inner), generator=self.generator) >= self.delete_ratio
            inner = [index for index, stays in zip(inner, kept.tolist()) if stays]
        if self.rotate_ratio > 0 and inner and float(torch.rand(1, generator=self.generator)) < self.rotate_ratio:
            turn = int(torch.randint(len(inner), (1,), generator=self.generator))
            inner = inner[turn:] + inner[:turn]
        return [*ids[:first], *inner, *ids[last:]]

    def _permuted(self, ids: list[int]) -> list[int]:
        ends = [place for place, index in enumerate(ids, 1) if index in set(self.sentence_ends or ())]
        bounds = [0, *ends] if ends and ends[-1] == len(ids) else [0, *ends, len(ids)]
        sentences = [ids[start:end] for start, end in pairwise(bounds)]
        order = torch.randperm(len(sentences), generator=self.generator).tolist()
        return [index for place in order for index in sentences[place]]

    def _masked(self, ids: list[int]) -> list[int]:
        """Spans whose lengths add up to the share become one mask each, and do not touch where there is room."""
        lengths = self._lengths(round(len(ids) * self.mask_ratio))
        spans, inserted = [length for length in lengths if length], lengths.count(0)
        kept, mask = len(ids) - sum(spans), int(self.tokenizer.mask_token_id)
        # Between two spans stands one token at least, as long as there are so many; the rest is split at random.
        between = min(max(len(spans) - 1, 0), kept)
        gaps = [size - 1 for size in random_parts(kept - between + len(spans) + 1, len(spans) + 1, self.generator)]
        gaps = [gap + (0 < place <= between) for place, gap in enumerate(gaps)]
        masked, place = ids[: gaps[0]], gaps[0]
        for span, gap in zip(spans, gaps[1:]):
            place += span
            masked += [mask, *ids[place : place + gap]]
            place += gap
        places = torch.rand(inserted, generator=self.generator) * (len(masked) + 1)
        for place in places.long().sort(descending=True).values.tolist():
            masked.insert(place, mask)
        return masked

    def _lengths(self, total: int) -> list[int]:
        """Poisson lengths that add up to ``total``, of which the last is cut."""
        lengths: list[int] = []
        while (left := total - sum(lengths)) > 0:
            mean = torch.full((max(4, int(left / self.poisson_lambda) + 1),), self.poisson_lambda)
            drawn = [int(length) for length in torch.poisson(mean, generator=self.generator).tolist()]
            enough = next((count for count, whole in enumerate(accumulate(drawn), 1) if whole >= left), len(drawn))
            drawn = drawn[:enough]
            drawn[-1] -= max(0, sum(drawn) - left)
            lengths += drawn
        return lengths
