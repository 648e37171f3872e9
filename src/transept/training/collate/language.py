"""Collators for language models: hidden tokens and words, orders of prediction, and sentences that follow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, TranseptWarning, refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import DrawingCollator, Row, checked_rows, filled, listed, token_ids, token_rows


def special_tokens(tokenizer: Any, ids: Tensor) -> Tensor:
    """(B, T) of bool: true for special tokens."""
    return torch.isin(ids, torch.tensor(tokenizer.all_special_ids, dtype=ids.dtype))


@dataclass
class DataCollatorForLanguageModeling(DrawingCollator):
    """Pads rows of tokens and makes ``labels``: hidden tokens of masked language models, or all but padding.

    Masked language models are those of Devlin et al. 2019. Random numbers are drawn in the reference's order.

    Args:
        mlm: hide tokens. Otherwise the labels are the tokens, or a row's own ``labels``, padded.
        whole_word_mask: hide all tokens of a word or none; rows need ``offset_mapping``.
        mlm_probability: the share of tokens, or of words, that are hidden; special tokens never are.
        mask_replace_prob: the share of these that the mask token replaces.
        random_replace_prob: the share of these that a random token replaces; the rest stay as they are.
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
        if self.mlm or self.mlm_probability is not None:
            self.check_shares("mlm_probability")
        self.check_shares("mask_replace_prob", "random_replace_prob")
        both = self.mask_replace_prob + self.random_replace_prob
        message = f"`mask_replace_prob` and `random_replace_prob` add up to {both:g}, which is more than 1."
        refuse(both > 1 + 1e-9, message)
        refuse(self.whole_word_mask and not self.mlm, "`whole_word_mask` needs `mlm=True`.")
        lacks = self.mlm and getattr(self.tokenizer, "mask_token", None) is None
        refuse(lacks, "this tokenizer has no mask token.", hint="Pass mlm=False for a causal language model.")
        if self.whole_word_mask and type(self) is DataCollatorForLanguageModeling and self.mask_replace_prob < 1:
            message = "With `whole_word_mask`, the mask token replaces all hidden tokens: `mask_replace_prob` is 1."
            warnings.warn(message, TranseptWarning, stacklevel=3)
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0

    def collate(self, features: Any) -> Any:
        rows = token_rows(features)
        words, rows_of_ids = None, token_ids(rows)
        if self.whole_word_mask:
            words = [self._word_starts(row, ids, number) for number, (row, ids) in enumerate(zip(rows, rows_of_ids))]
        has_labels = not self.mlm and isinstance(listed(rows[0].get("labels")), list | tuple)
        labels = [row.pop("labels") for row in rows] if has_labels else None
        for row in rows:
            row.pop("offset_mapping", None)
        batch = self.pad(rows)
        if not isinstance(features[0], Mapping):
            batch = {"input_ids": batch["input_ids"]}
        special = batch.pop("special_tokens_mask", None)
        ids, side = batch["input_ids"], self.tokenizer.padding_side
        if labels is not None:
            batch["labels"] = filled("labels", labels, ids.shape[1], side=side)
        elif not self.mlm:
            pad = self.tokenizer.pad_token_id
            batch["labels"] = ids if pad is None else ids.masked_fill(ids == pad, IGNORED)
        else:
            special = special_tokens(self.tokenizer, ids) if special is None else special != 0
            starts = filled("words", words, ids.shape[1], side=side, fill=0) != 0 if words is not None else None
            batch["input_ids"], batch["labels"] = self.hide(ids, special, starts)
        return batch

    def hide(self, ids: Tensor, special: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """The ids, some of them masked or random, and the labels; words begin where ``starts`` is true."""
        chosen = self.choose(special, starts)
        labels, ids = ids.masked_fill(~chosen, IGNORED), ids.clone()
        masked = self._draw(ids, self.mask_replace_prob) & chosen
        ids[masked] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            share = min(1.0, self.random_replace_prob / (1 - self.mask_replace_prob))
            changed = self._draw(ids, share) & chosen & ~masked
            others = torch.randint(len(self.tokenizer), ids.shape, dtype=torch.long, generator=self.generator)
            ids[changed] = others[changed].to(ids.dtype)
        return ids, labels

    def choose(self, special: Tensor, starts: Tensor | None) -> Tensor:
        """(B, T) of bool: which tokens are hidden."""
        chosen = self._draw(special, self.mlm_probability or 0.0) & ~special
        return chosen if starts is None else whole_words(chosen & starts, starts, special)

    def _draw(self, like: Tensor, share: float) -> Tensor:
        return torch.bernoulli(torch.full(like.shape, float(share)), generator=self.generator).bool()

    def _word_starts(self, row: Row, ids: list[int], number: int) -> list[bool]:
        """For each token, whether a word begins: by ``word_ids``, ``offset_mapping``, or the tokens' own marks."""
        words, offsets = listed(row.pop("word_ids", None)), listed(row.get("offset_mapping"))
        if words is not None:
            return [word is not None and word != before for word, before in zip(words, [None, *words])]
        special = special_tokens(self.tokenizer, torch.tensor(ids)).tolist()
        after_special = [True, *special]
        if offsets is not None:
            refuse(len(offsets) != len(ids), f"row {number} has {len(offsets)} offsets for {len(ids)} tokens.")
            ends = [0, *(end for _, end in offsets)]
            begins = [after or start != end for (start, _), end, after in zip(offsets, ends, after_special)]
        else:
            tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
            vocabulary = self.tokenizer.get_vocab()
            if any(token.startswith("##") for token in vocabulary):  # which goes on within a word
                begins = [not token.startswith("##") for token in tokens]
            elif any(token.startswith(("▁", "Ġ")) for token in vocabulary):  # which stand for a space before
                begins = [after or token[:1] in "▁Ġ" for token, after in zip(tokens, after_special)]
            else:
                hint = "Tokenize with return_offsets_mapping=True and keep `offset_mapping`."
                raise InputError(f"row {number}: tokens of this vocabulary do not show where words begin.", hint=hint)
        return [new and not own for new, own in zip(begins, special)]


def whole_words(chosen: Tensor, starts: Tensor, special: Tensor) -> Tensor:
    """Choices of words' first tokens (B, T), for all tokens of these words."""
    words = starts.cumsum(dim=1)
    first = (words - 1).clamp(min=0)
    picked = torch.zeros_like(words).scatter_add_(1, first, (chosen & starts).long())
    return (picked.gather(1, first) > 0) & (words > 0) & ~special


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """Hides whole words, drawn one by one until ``mlm_probability`` of a row's tokens are hidden, and one at least.

    A word that would exceed the number of tokens is passed over. Words begin where ``word_ids`` or ``offset_mapping``
    say, or where the tokens' own marks do (``##``, ``▁``, ``Ġ``). All else is as in
    :class:`DataCollatorForLanguageModeling`.
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
    """Hides spans, and draws an order for each row in which each sees those before it (Yang et al. 2019).

    Rows are padded to an even length, since the halves of a row are ordered apart: a model may remember the first for
    the second. Random numbers are drawn in the reference's order.

    The batch has ``input_ids``; ``perm_mask`` (B, T, T), 1 where position i may not see j; ``target_mapping``
    (B, T, T), the unit matrices; and ``labels`` (B, T); with padding also ``attention_mask``.

    Args:
        plm_probability: the share of tokens that are hidden.
        max_span_length: the longest span.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    pad_to_multiple_of = 2  # an even length; this is no field

    def __post_init__(self) -> None:
        share, longest = self.plm_probability, self.max_span_length
        refuse(not 0 < share <= 1, f"`plm_probability` must be above 0 and at most 1, but is {share!r}.")
        refuse(longest < 1, f"`max_span_length` must be at least 1, but is {longest!r}.")

    def collate(self, features: Any) -> Any:
        refuse(self.tokenizer.mask_token is None, "this tokenizer has no mask token.", "Add one to it.")
        padded = self.pad([{"input_ids": ids} for ids in token_ids(token_rows(features))])
        batch, mask = self.permute(padded["input_ids"]), padded.get("attention_mask")
        return batch if mask is None or bool(mask.all()) else batch | {"attention_mask": mask}

    def permute(self, ids: Tensor) -> dict[str, Tensor]:
        """(B, T) ids -> the batch."""
        rows, length = ids.shape
        chosen = torch.zeros(ids.shape, dtype=torch.bool)
        for row in range(rows):
            place = 0
            while place < length:
                span = int(torch.randint(1, self.max_span_length + 1, (1,), generator=self.generator))
                context = int(span / self.plm_probability)
                start = place + int(torch.randint(context - span + 1, (1,), generator=self.generator))
                chosen[row, start : start + span] = True
                place += context
        special = special_tokens(self.tokenizer, ids)
        chosen &= ~special
        halves = torch.arange(length).view(2, -1)  # which do not mix, but are ordered alike
        orders = [halves[:, torch.randperm(length // 2, generator=self.generator)].flatten() for _ in range(rows)]
        order = torch.stack(orders).masked_fill(~chosen & ~special, -1)
        return {
            "input_ids": ids.masked_fill(chosen, self.tokenizer.mask_token_id),
            "perm_mask": ((order[:, :, None] <= order[:, None, :]) & chosen[:, None, :]).float(),
            "target_mapping": torch.eye(length).repeat(rows, 1, 1),
            "labels": ids.masked_fill(~chosen, IGNORED),
        }


@dataclass
class DataCollatorForNextSentencePrediction(DrawingCollator):
    """BERT's pretraining (Devlin et al. 2019): whether the second text of a row follows the first, and hidden tokens.

    Rows are ``first`` and ``second``, texts that follow each other. Some rows get another row's second text; where
    rows have a ``document``, one of another document. ``next_sentence_label`` (``labels`` without ``mlm``) is 0
    where it follows and 1 elsewhere.

    Args:
        follow_probability: the share of rows that keep their second text.
        mlm: hide tokens too, for which the batch has ``labels``.
        mlm_probability: the share of tokens that are hidden.
        max_length: pairs are cut to this; the tokenizer's own limit when absent.
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
        self.check_shares("follow_probability")
        self.masking = DataCollatorForLanguageModeling(self.tokenizer, self.mlm, mlm_probability=self.mlm_probability)

    def collate(self, features: Any) -> Any:
        rows = checked_rows(features, "first", "second")
        for number, row in enumerate(rows):
            for name in ("first", "second"):
                wrong = not isinstance(row[name], str)
                refuse(wrong, f"row {number}: `{name}` must be a text, but is {row[name]!r}.")
        follows = (torch.rand(len(rows), generator=self.generator) < self.follow_probability).tolist()
        encoded, labels = list[Row](), list[int]()
        for number, (row, keeps) in enumerate(zip(rows, follows)):
            others = [] if keeps else [place for place, other in enumerate(rows) if other["second"] != row["second"]]
            if "document" in row:
                others = [place for place in others if rows[place]["document"] != row["document"]]
            place = others[int(torch.randint(len(others), (1,), generator=self.generator))] if others else number
            pair = row["first"], rows[place]["second"]
            encoded.append(dict(self.tokenizer(*pair, truncation=True, max_length=self.max_length)))
            labels.append(int(place != number))
        batch = self.pad(encoded)
        batch["next_sentence_label" if self.mlm else "labels"] = torch.tensor(labels)
        if self.mlm:
            ids = batch["input_ids"]
            self.masking.generator = self.generator
            batch["input_ids"], batch["labels"] = self.masking.hide(ids, special_tokens(self.tokenizer, ids), None)
        return batch
