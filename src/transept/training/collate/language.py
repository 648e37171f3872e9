"""Collators for language models: hidden tokens and words, orders of prediction (XLNet), and sentences that follow (BERT)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, TranseptWarning, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import DrawingCollator, Row, checked_rows, filled, ids_of, listed, padded


@dataclass
class DataCollatorForLanguageModeling(DrawingCollator):
    """Pads rows of tokens and makes ``labels``: hidden tokens of masked language models, or all but padding.

    Random numbers are drawn in the reference's order.

    Args:
        tokenizer: what pads and has the mask token.
        mlm: hide tokens. Otherwise the labels are the tokens, or a row's own ``labels``, padded.
        whole_word_mask: hide all tokens of a word or none; rows need ``offset_mapping``.
        mlm_probability: the share of tokens, or of words, that are hidden; special tokens never are.
        mask_replace_prob: the share of these that the mask token replaces.
        random_replace_prob: the share of these that a random token replaces; the rest stay as they are.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: shares outside 0 to 1, a tokenizer without a mask token, or a row that does not fit, by its number.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            share = getattr(self, name)
            wrong = not isinstance(share, int | float) or not 0 <= share <= 1
            refuse(wrong and (self.mlm or share is not None), f"`{name}` must be from 0 to 1, but is {share!r}.")
        both = self.mask_replace_prob + self.random_replace_prob
        refuse(both > 1 + 1e-9, f"`mask_replace_prob` and `random_replace_prob` add up to {both:g}, which is more than 1.")
        refuse(self.whole_word_mask and not self.mlm, "`whole_word_mask` needs `mlm=True`.")
        lacks = self.mlm and getattr(self.tokenizer, "mask_token", None) is None
        refuse(lacks, "this tokenizer has no mask token.", hint="Pass mlm=False for a causal language model.")
        if self.whole_word_mask and type(self) is DataCollatorForLanguageModeling and self.mask_replace_prob < 1:
            what = "With `whole_word_mask`, the mask token replaces all hidden tokens: `mask_replace_prob` is 1."
            warnings.warn(what, TranseptWarning, stacklevel=3)
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    def collate(self, features: Any) -> Any:
        bare = len(features) > 0 and not isinstance(features[0], Mapping)
        rows = checked_rows([{"input_ids": row} for row in features] if bare else features, "input_ids")
        for number, row in enumerate(rows):
            ids_of(row, number)
        words = [self._word_starts(row, number) for number, row in enumerate(rows)] if self.whole_word_mask else None
        labels = [row.pop("labels") for row in rows] if not self.mlm and _has_labels(rows) else None
        for row in rows:
            row.pop("offset_mapping", None)
        batch = padded(self.tokenizer, rows, pad_to_multiple_of=self.pad_to_multiple_of)
        if bare:
            batch = {"input_ids": batch["input_ids"]}
        special = batch.pop("special_tokens_mask", None)
        ids, side = batch["input_ids"], self.tokenizer.padding_side
        if labels is not None:
            batch["labels"] = filled("labels", labels, ids.shape[1], side=side)
        elif not self.mlm:
            pad = self.tokenizer.pad_token_id
            batch["labels"] = ids if pad is None else ids.masked_fill(ids == pad, IGNORED)
        else:
            starts = None if words is None else filled("words", words, ids.shape[1], side=side, fill=0) != 0
            batch["input_ids"], batch["labels"] = self.hide(ids, self.special(ids) if special is None else special != 0, starts)
        return batch

    def special(self, ids: Tensor) -> Tensor:
        """(B, T) of bool: true for special tokens."""
        return torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids, dtype=ids.dtype))

    def hide(self, ids: Tensor, special: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """The ids with some of them hidden, and the labels; ``starts`` (B, T) is true where words begin."""
        return self.replace(ids, self.choose(special, starts))

    def choose(self, special: Tensor, starts: Tensor | None) -> Tensor:
        """(B, T) of bool: which tokens are hidden."""
        barred = special if starts is None else ~starts | special
        drawn = torch.full(special.shape, float(self.mlm_probability or 0.0)).masked_fill(barred, 0.0)
        chosen = torch.bernoulli(drawn, generator=self.generator).bool()
        return chosen if starts is None else spread(chosen, starts, special)

    def replace(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The ids with mask tokens, random ones or themselves in the chosen places, and the labels of these."""
        labels, ids = ids.masked_fill(~chosen, IGNORED), ids.clone()
        masked = self._drawn(ids, self.mask_replace_prob) & chosen
        ids[masked] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            changed = self._drawn(ids, min(1.0, self.random_replace_prob / (1 - self.mask_replace_prob))) & chosen & ~masked
            others = torch.randint(len(self.tokenizer), ids.shape, dtype=torch.long, generator=self.generator)
            ids[changed] = others[changed].to(ids.dtype)
        return ids, labels

    def _drawn(self, ids: Tensor, share: float) -> Tensor:
        return torch.bernoulli(torch.full(ids.shape, float(share)), generator=self.generator).bool()

    def _word_starts(self, row: Row, number: int) -> list[int]:
        """For each token of a row, 1 where a word begins."""
        ids = ids_of(row, number)
        given = row.pop("word_ids", None)
        if given is not None:
            places = listed(given)
            return [int(word is not None and (place == 0 or word != places[place - 1])) for place, word in enumerate(places)]
        special = self.special(torch.tensor(ids)).tolist()
        if "offset_mapping" in row:
            spans = [tuple(span) for span in listed(row["offset_mapping"])]
            refuse(len(spans) != len(ids), f"row {number} has {len(spans)} offsets for {len(ids)} tokens.")
            follows = [place > 0 and spans[place][0] == spans[place - 1][1] for place in range(len(ids))]
            apart = [not (follows[place] and not special[place - 1]) for place in range(len(ids))]
            return [int(new and not own) for new, own in zip(apart, special)]
        return self._starts_of_pieces(ids, special, number)

    def _starts_of_pieces(self, ids: list[int], special: list[bool], number: int) -> list[int]:
        """The same by the tokens' own marks: ``##`` goes on with a word; a space (``▁``, ``Ġ``) begins one."""
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
        vocabulary = self.tokenizer.get_vocab()
        if any(token.startswith("##") for token in vocabulary):
            return [int(not own and not token.startswith("##")) for token, own in zip(tokens, special)]
        if any(token.startswith(("▁", "Ġ")) for token in vocabulary):
            first = [place == 0 or special[place - 1] for place in range(len(ids))]
            return [int(not own and (new or token[:1] in "▁Ġ")) for token, own, new in zip(tokens, special, first)]
        hint = "Tokenize with return_offsets_mapping=True and keep `offset_mapping`."
        raise InputError(f"row {number}: tokens of this vocabulary do not show where words begin.", hint=hint)


def spread(chosen: Tensor, starts: Tensor, special: Tensor) -> Tensor:
    """Choices of words' first tokens (B, T), for all tokens of these words."""
    words = starts.cumsum(dim=1)
    picked = torch.zeros_like(words).scatter_add_(1, (words - 1).clamp(min=0), (chosen & starts).long())
    return (picked.gather(1, (words - 1).clamp(min=0)) > 0) & (words > 0) & ~special


def _has_labels(rows: list[Row]) -> bool:
    return "labels" in rows[0] and isinstance(listed(rows[0]["labels"]), list | tuple)


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """Hides whole words, drawn one by one until ``mlm_probability`` of a row's tokens are hidden, and one at least.

    A word that would exceed the number of tokens is passed over. Words begin where ``word_ids`` or ``offset_mapping`` say,
    or where the tokens' own marks do (``##``, ``▁``, ``Ġ``). The arguments are those of
    :class:`DataCollatorForLanguageModeling`; hidden tokens are replaced by the same shares.
    """

    whole_word_mask: bool = True

    def choose(self, special: Tensor, starts: Tensor | None) -> Tensor:
        if starts is None:
            return super().choose(special, starts)
        words, real = starts.cumsum(dim=1), ~special
        order = torch.rand(words.shape, generator=self.generator)
        chosen = torch.zeros_like(special)
        for row in range(len(words)):
            left = max(1, round(int(real[row].sum()) * float(self.mlm_probability or 0)))
            sizes = torch.bincount(words[row][real[row]], minlength=words.shape[1] + 1).tolist()
            for word in (order[row, : int(words[row, -1])].argsort() + 1).tolist():
                if 0 < sizes[word] <= left:
                    chosen[row] |= (words[row] == word) & real[row]
                    left -= sizes[word]
        return chosen


@dataclass
class DataCollatorForPermutationLanguageModeling(DrawingCollator):
    """Hides spans, and draws for each row an order in which these are predicted: each sees those before it in the order.

    Rows are padded to an even length, since the halves of a row are ordered apart: a model may remember the first for the
    second. Random numbers are drawn in the reference's order.

    The batch has ``input_ids``, ``perm_mask`` (B, T, T), 1 where position i may not see j, ``target_mapping`` (B, T, T), the
    unit matrices, and ``labels`` (B, T); with padding also ``attention_mask``.

    Args:
        tokenizer: what pads and has the mask token.
        plm_probability: the share of tokens that are hidden.
        max_span_length: the longest span.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a tokenizer without a mask token, a share outside 0 to 1, or a row that does not fit, by its number.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        share, longest = self.plm_probability, self.max_span_length
        refuse(not 0 < share <= 1, f"`plm_probability` must be above 0 and at most 1, but is {share!r}.")
        refuse(longest < 1, f"`max_span_length` must be at least 1, but is {longest!r}.")

    def collate(self, features: Any) -> Any:
        refuse(self.tokenizer.mask_token is None, "this tokenizer has no mask token.", "Add one to it.")
        bare = len(features) > 0 and not isinstance(features[0], Mapping)
        rows = checked_rows([{"input_ids": row} for row in features] if bare else features, "input_ids")
        ids = [{"input_ids": ids_of(row, number)} for number, row in enumerate(rows)]
        batch = padded(self.tokenizer, ids, pad_to_multiple_of=2)
        mask = batch.get("attention_mask")
        found = self.permute(batch["input_ids"])
        return found if mask is None or bool(mask.all()) else found | {"attention_mask": mask}

    def permute(self, ids: Tensor) -> dict[str, Tensor]:
        """(B, T) ids -> the batch."""
        rows, length = ids.shape
        chosen = torch.zeros(ids.shape, dtype=torch.bool)
        for row in range(rows):
            at = 0
            while at < length:
                span = int(torch.randint(1, self.max_span_length + 1, (1,), generator=self.generator))
                context = int(span / self.plm_probability)
                start = at + int(torch.randint(context - span + 1, (1,), generator=self.generator))
                chosen[row, start : start + span] = True
                at += context
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids, dtype=ids.dtype))
        chosen &= ~special
        orders = torch.stack([self._order(length) for _ in range(rows)]).masked_fill(~chosen & ~special, -1)
        return {
            "input_ids": ids.masked_fill(chosen, self.tokenizer.mask_token_id),
            "perm_mask": ((orders[:, :, None] <= orders[:, None, :]) & chosen[:, None, :]).float(),
            "target_mapping": torch.eye(length).repeat(rows, 1, 1),
            "labels": ids.masked_fill(~chosen, IGNORED),
        }

    def _order(self, length: int) -> Tensor:
        """The places of an order, in which the halves do not mix but are ordered alike."""
        halves = torch.arange(length).view(2, -1)
        return halves[:, torch.randperm(length // 2, generator=self.generator)].flatten()


@dataclass
class DataCollatorForNextSentencePrediction(DrawingCollator):
    """BERT's pretraining (Devlin et al. 2019): whether the second text of a row follows the first, and hidden tokens.

    Of the rows, which are ``first`` and ``second``, texts that follow each other, a share get another row's second text;
    where rows have a ``document``, one of another document. ``next_sentence_label`` (``labels`` without ``mlm``) is 0 where it
    follows and 1 elsewhere.

    Args:
        tokenizer: what encodes, pads and has the mask token.
        follow_probability: the share of rows that keep their second text.
        mlm: hide tokens too, for which the batch has ``labels``.
        mlm_probability: the share of tokens that are hidden.
        max_length: pairs are cut to this; the tokenizer's own limit when absent.
        pad_to_multiple_of: lengths are multiples of this.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a row that is no pair of texts, by its number.
    """

    tokenizer: Any
    follow_probability: float = 0.5
    mlm: bool = True
    mlm_probability: float = 0.15
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        share = self.follow_probability
        refuse(not 0 <= share <= 1, f"`follow_probability` must be from 0 to 1, but is {share!r}.")
        self.masking = DataCollatorForLanguageModeling(self.tokenizer, self.mlm, mlm_probability=self.mlm_probability)

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features, "first", "second")
        for number, row in enumerate(rows):
            for name in ("first", "second"):
                refuse(not isinstance(row[name], str), f"row {number}: `{name}` must be a text, but is {row[name]!r}.")
        follows = (torch.rand(len(rows), generator=self.generator) < self.follow_probability).tolist()
        pairs, labels = [], []
        for number, (row, keeps) in enumerate(zip(rows, follows)):
            others = [] if keeps else [n for n, other in enumerate(rows) if n != number and self._differs(row, other)]
            pick = others[int(torch.randint(len(others), (1,), generator=self.generator))] if others else number
            pairs.append((row["first"], rows[pick]["second"]))
            labels.append(int(pick != number))
        encoded = [dict(self.tokenizer(*pair, truncation=True, max_length=self.max_length)) for pair in pairs]
        batch = padded(self.tokenizer, encoded, pad_to_multiple_of=self.pad_to_multiple_of)
        batch["next_sentence_label" if self.mlm else "labels"] = torch.tensor(labels)
        if self.mlm:
            ids = batch["input_ids"]
            self.masking.generator = self.generator
            batch["input_ids"], batch["labels"] = self.masking.hide(ids, self.masking.special(ids), None)
        return batch

    @staticmethod
    def _differs(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether another row's second text cannot follow this one's first."""
        same = "document" in row and row["document"] == other["document"]
        return not same and other["second"] != row["second"]
