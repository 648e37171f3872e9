"""Direct preference optimization: the preferred one of two answers becomes the likelier (Rafailov et al. 2023)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.objectives.preference import Kind, log_probabilities, preference
from transept.objectives.terms import LossTerm
from transept.training.objective import Batch, Counts, unsummed_rows
from transept.training.trainers.objective import ObjectiveTrainer

TERM, NAMES = "preference", ("prompt", "chosen", "rejected")


@dataclass
class DataCollatorForPreference:
    """Rows of ``prompt``, ``chosen`` and ``rejected`` texts -> (2 B, T): all chosen answers, then all rejected ones.

    The labels are the answers' tokens, with the one that ends a text; those of prompts are -100.

    Args:
        tokenizer: what encodes and pads.
        max_length: a prompt is cut at its beginning so that prompt and answer are no longer; not at all when absent.
    """

    tokenizer: Any
    max_length: int | None = None

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        for number, row in enumerate(features):
            for name in NAMES:
                if not isinstance(row.get(name), str):
                    raise InputError(f"row {number} has no text {name!r}: it has {', '.join(row)}.")
        rows = [self._row(row["prompt"], row[name]) for name in NAMES[1:] for row in features]
        padded = self.tokenizer.pad([{"input_ids": ids} for ids, _ in rows], return_tensors="pt")
        labels = torch.full_like(padded["input_ids"], IGNORED)
        for place, (ids, answer) in enumerate(rows):
            answered = padded["attention_mask"][place].nonzero()[:, 0][len(ids) - answer :]
            labels[place, answered] = padded["input_ids"][place, answered]
        return {"input_ids": padded["input_ids"], "attention_mask": padded["attention_mask"], "labels": labels}

    def _row(self, prompt: str, answer: str) -> tuple[list[int], int]:
        """The ids of prompt and answer, and how many of them are the answer's."""
        before = list(self.tokenizer(prompt)["input_ids"])
        after = list(self.tokenizer(answer, add_special_tokens=False)["input_ids"])
        end = self.tokenizer.eos_token_id
        if end is not None:
            before, after = before[: len(before) - (before[-1:] == [end])], [*after, end]
        if self.max_length is not None:
            after = after[: self.max_length - 1]
            before = before[max(0, len(before) + len(after) - self.max_length) :]
        return before + after, len(after)


class DPOTrainer(ObjectiveTrainer):
    """Trains a language model on pairs of answers, without a reward model.

    Args:
        model: the language model.
        ref_model: what it may not move far from; a copy of the model as it is when absent, or the model without its
            adapters where it has some. A ``simpo`` loss needs none.
        beta, loss_type, label_smoothing, margin: as for :func:`transept.objectives.preference.preference`.
        others: as for :class:`transept.training.trainer.Trainer`; batches are those of
            :class:`DataCollatorForPreference`, with the chosen answers in their first half, the rejected ones in their
            second.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        ref_model: nn.Module | None = None,
        args: Any = None,
        *,
        beta: float = 0.1,
        loss_type: Kind = "sigmoid",
        label_smoothing: float = 0.0,
        margin: float = 0.0,
        **others: Any,
    ) -> None:
        self.kind, self.ref_model = loss_type, ref_model
        self.options: dict[str, Any] = {"beta": beta, "smoothing": label_smoothing, "margin": margin}
        super().__init__(model, args, **others)

    def _default_collator(self) -> Any:
        if self.processing_class is None:
            raise InputError("pairs of answers need a tokenizer: pass `processing_class`.")
        return DataCollatorForPreference(self.processing_class)

    def _place_model(self) -> None:
        super()._place_model()
        if self.ref_model is None and self.kind != "simpo" and not hasattr(self.model, "disable_adapter"):
            self.ref_model = copy.deepcopy(self.model)
        if self.ref_model is not None:
            self.ref_model.eval().requires_grad_(False).to(self.args.device)

    def count(self, batch: Batch) -> Counts | None:
        return {TERM: len(batch["labels"]) / 2}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        scores = [*self.scores(model, batch)]
        if self.kind != "simpo":
            adapted = self.model.disable_adapter() if self.ref_model is None else nullcontext()
            with torch.no_grad(), adapted:
                scores += self.scores(self.model if self.ref_model is None else self.ref_model, batch)
        return {TERM: preference(*scores, kind=self.kind, **self.options)}

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The log-probabilities (B) of the chosen and of the rejected answers: sums, or means for some losses."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        sums, counts = log_probabilities(model(**inputs).logits, batch["labels"])
        values = sums if self.kind == "sigmoid" else sums / counts.clamp(min=1)
        chosen, rejected = values.chunk(2)
        return chosen, rejected

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """Half of the pairs, with both answers of each."""
        if (reason := unsummed_rows(self.model)) is not None:
            return reason
        pairs = len(batch["labels"]) // 2
        if pairs < 2:
            return "a single pair of answers is too large"
        middle = (pairs + 1) // 2
        first, second = (
            {name: torch.cat([value[start:stop], value[pairs + start : pairs + stop]]) for name, value in batch.items()}
            for start, stop in ((0, middle), (middle, pairs))
        )
        return first, second
