"""Collators for encoder–decoders that restore texts: span corruption (Raffel et al. 2020), denoising (Lewis et al. 2020)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import DrawingCollator, checked_rows, filled, ids_of, padded


def random_parts(total: int, parts: int, generator: torch.Generator | None = None) -> list[int]:
    """``total`` things in so many parts of at least one, all splits alike likely."""
    cuts = (torch.randperm(total - 1, generator=generator)[: parts - 1] + 1).sort().values.tolist()
    return [end - start for start, end in zip([0, *cuts], [*cuts, total])]


@dataclass
class DataCollatorForSpanCorruption(DrawingCollator):
    """T5's objective: spans become a sentinel each, and the labels are the sentinels with what stood there.

    A row of n tokens loses ``round(n * noise_density)`` of them, in ``round`` of that over ``mean_noise_span_length`` spans.
    Both the lost and the kept tokens are split into so many random parts, and a row begins with kept ones. Inputs and labels
    end with one end token; special tokens of a row are dropped first.

    The batch has ``input_ids``, ``attention_mask`` and ``labels``.

    Args:
        tokenizer: with the sentinels ``<extra_id_0>``, ``<extra_id_1>`` and so on, and an end token.
        noise_density: the share of tokens that are lost.
        mean_noise_span_length: the mean number of tokens in a span.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a share outside 0 to 1, or a row with fewer than two tokens or more spans than sentinels, by its number.
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
        found = {int(name[1]): index for token, index in self.tokenizer.get_vocab().items() if (name := _SENTINEL(token))}
        self.sentinels = [found[number] for number in range(len(found)) if number in found]
        hint = "Add them: tokenizer.add_special_tokens({'additional_special_tokens': ['<extra_id_0>', ...]})."
        refuse(not self.sentinels, "the vocabulary has no sentinels <extra_id_0>, <extra_id_1> ...", hint)

    def collate(self, features: Any) -> Any:
        special = set(self.tokenizer.all_special_ids)
        inputs, labels = [], []
        for number, row in enumerate(checked_rows(features, "input_ids")):
            ids = [index for index in ids_of(row, number) if index not in special]
            refuse(len(ids) < 2, f"row {number} has {len(ids)} tokens, but span corruption needs two.")
            lost, spans = self.sizes(len(ids))
            if spans > len(self.sentinels):
                what = (
                    f"row {number} of {len(ids)} tokens needs {spans} sentinels, but the vocabulary has {len(self.sentinels)}."
                )
                raise InputError(what, hint="Cut the rows, or raise `mean_noise_span_length`.")
            read, written = self.corrupt(ids, lost, spans)
            inputs.append({"input_ids": read})
            labels.append(written)
        batch = padded(self.tokenizer, inputs, pad_to_multiple_of=self.pad_to_multiple_of)
        batch["labels"] = filled("labels", labels)
        return batch

    def sizes(self, length: int) -> tuple[int, int]:
        """How many tokens a row of that length loses, and in how many spans."""
        lost = min(max(round(length * self.noise_density), 1), length - 1)
        return lost, min(max(round(lost / self.mean_noise_span_length), 1), length - lost)

    def corrupt(self, ids: Sequence[int], lost: int, spans: int) -> tuple[list[int], list[int]]:
        """What is read, and what is to be written."""
        read: list[int] = []
        written: list[int] = []
        at = 0
        parts = [random_parts(total, spans, self.generator) for total in (len(ids) - lost, lost)]
        for sentinel, kept, gone in zip(self.sentinels, *parts):
            read += [*ids[at : at + kept], sentinel]
            written += [sentinel, *ids[at + kept : at + kept + gone]]
            at += kept + gone
        end = int(self.tokenizer.eos_token_id)
        return [*read, end], [*written, end]


_SENTINEL = re.compile(r"<extra_id_(\d+)>").fullmatch


@dataclass
class DataCollatorForDenoising(DrawingCollator):
    """BART's objective: the labels are the row, and the inputs are what noise makes of it.

    In this order: sentences change places, spans become one mask each, tokens are deleted, and the row is turned. Special
    tokens at the ends of a row stay there.

    The batch has ``input_ids``, ``attention_mask`` and ``labels``.

    Args:
        tokenizer: what pads and has the mask token.
        mask_ratio: the share of tokens in spans.
        poisson_lambda: the mean length of spans, which are Poisson distributed; one of length 0 inserts a mask.
        permute_sentences: whether sentences change places.
        delete_ratio: the share of tokens that are deleted without a trace.
        rotate_ratio: the share of rows that begin at a random token.
        sentence_ends: ids of tokens that end sentences; ``.``, ``!`` and ``?`` of the vocabulary when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a share outside 0 to 1, a tokenizer without a mask token, or an empty row, by its number.
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
        for name in ("mask_ratio", "delete_ratio", "rotate_ratio"):
            refuse(not 0 <= getattr(self, name) <= 1, f"`{name}` must be from 0 to 1, but is {getattr(self, name)!r}.")
        refuse(self.poisson_lambda <= 0, f"`poisson_lambda` must be above 0, but is {self.poisson_lambda!r}.")
        refuse(self.mask_ratio > 0 and self.tokenizer.mask_token_id is None, "this tokenizer has no mask token.")
        if self.sentence_ends is None:
            tokens = self.tokenizer.get_vocab().items()
            self.sentence_ends = [index for token, index in tokens if token.lstrip("Ġ▁") in (".", "!", "?")]

    def collate(self, features: Any) -> Any:
        rows = [ids_of(row, number) for number, row in enumerate(checked_rows(features, "input_ids"))]
        inputs = [{"input_ids": self.corrupt(ids, number)} for number, ids in enumerate(rows)]
        batch = padded(self.tokenizer, inputs, pad_to_multiple_of=self.pad_to_multiple_of)
        batch["labels"] = filled("labels", rows, fill=IGNORED)
        return batch

    def corrupt(self, ids: list[int], number: int = 0) -> list[int]:
        """The noisy form of a row."""
        special = set(self.tokenizer.all_special_ids)
        first = next((place for place, index in enumerate(ids) if index not in special), None)
        if first is None:
            raise InputError(f"row {number} has no tokens but special ones.")
        last = next(place for place in reversed(range(len(ids))) if ids[place] not in special) + 1
        inner = ids[first:last]
        if self.permute_sentences:
            inner = self._permuted(inner)
        if self.mask_ratio > 0:
            inner = self._masked(inner)
        if self.delete_ratio > 0:
            kept = torch.rand(len(inner), generator=self.generator) >= self.delete_ratio
            inner = [index for index, stays in zip(inner, kept.tolist()) if stays]
        if self.rotate_ratio > 0 and inner and float(self._uniform(1)) < self.rotate_ratio:
            turn = int(torch.randint(len(inner), (1,), generator=self.generator))
            inner = inner[turn:] + inner[:turn]
        return [*ids[:first], *inner, *ids[last:]]

    def _uniform(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator)

    def _permuted(self, ids: list[int]) -> list[int]:
        ends = [place + 1 for place, index in enumerate(ids) if index in set(self.sentence_ends or ())]
        bounds = [0, *ends] if ends and ends[-1] == len(ids) else [0, *ends, len(ids)]
        sentences = [ids[start:end] for start, end in pairwise(bounds)]
        order = torch.randperm(len(sentences), generator=self.generator).tolist()
        return [index for place in order for index in sentences[place]]

    def _masked(self, ids: list[int]) -> list[int]:
        """Spans whose lengths add up to the share become one mask each, and do not touch where there is room."""
        lengths = self._lengths(round(len(ids) * self.mask_ratio))
        spans, inserted = [length for length in lengths if length], sum(not length for length in lengths)
        kept, mask = len(ids) - sum(spans), int(self.tokenizer.mask_token_id)
        # Between two spans stands one token at least, as long as there are so many; the rest is split at random.
        between = min(max(len(spans) - 1, 0), kept)
        gaps = [size - 1 for size in random_parts(kept - between + len(spans) + 1, len(spans) + 1, self.generator)]
        gaps = [gap + (0 < place <= between) for place, gap in enumerate(gaps)]
        result: list[int] = []
        at = 0
        for gap, span in zip(gaps, [*spans, 0]):
            result += [*ids[at : at + gap], *([mask] if span else [])]
            at += gap + span
        for place in (self._uniform(inserted) * (len(result) + 1)).long().sort(descending=True).values.tolist():
            result.insert(place, mask)
        return result

    def _lengths(self, total: int) -> list[int]:
        """Poisson lengths that add up to ``total``, of which the last is cut."""
        lengths: list[int] = []
        while (left := total - sum(lengths)) > 0:
            mean = torch.full((max(4, int(left / self.poisson_lambda) + 1),), self.poisson_lambda)
            drawn = [int(length) for length in torch.poisson(mean, generator=self.generator).tolist()]
            stop = next((place + 1 for place, whole in enumerate(accumulate(drawn)) if whole >= left), len(drawn))
            drawn = drawn[:stop]
            drawn[-1] -= max(0, sum(drawn) - left)
            lengths += drawn
        return lengths
