"""Learning from pairs of texts: embeddings of sentences that mean the same, and answers of which one is preferred."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transept.errors import refuse
from transept.layers import pool
from transept.objectives.classification import IGNORED
from transept.objectives.embeddings import cosine_regression, in_batch_negatives, ranked_cosines, triplets
from transept.objectives.preference import Kind, log_probabilities, preference
from transept.objectives.terms import LossTerm, total
from transept.training.checkpoint.generators import Generators
from transept.training.collate.rows import filled
from transept.training.objective import Batch, Counts, count_rows, rows_between, unsummed_rows
from transept.training.trainers.objective import ObjectiveTrainer, with_prefix

IDS = "_input_ids"
NAMES = ("prompt", "chosen", "rejected")
Loss = Literal["multiple_negatives", "cosine", "triplet", "cosent"]


class SentenceTrainer(ObjectiveTrainer):
    """Trains a text backbone whose pooled states are embeddings (Reimers and Gurevych 2019), for ``text-embedding``.

    Batches are those of :class:`transept.training.collate.padding.DataCollatorForPairs`.

    Args:
        model: a backbone, such as a ``BertModel``.
        loss: ``multiple_negatives`` (Henderson et al. 2017) takes pairs or triplets; a sentence twice is SimCSE (Gao
            et al. 2021). ``cosine`` and ``cosent`` take pairs and ``labels``, ``triplet`` takes triplets.
        pooling: ``mean`` over real tokens, or the state of the ``first``.
        mini_batch_size: texts that are embedded at a time; by default all. The gradient is exactly that of the whole
            batch with all its negatives (Gao et al. 2021b), at the price of a second forward pass.
        options: arguments of the loss, such as ``scale``, ``symmetric`` or ``margin``.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        loss: Loss = "multiple_negatives",
        pooling: Literal["mean", "first"] = "mean",
        mini_batch_size: int | None = None,
        options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        losses = get_args(Loss)
        refuse(loss not in losses, f"there is no loss {loss!r}: use {', '.join(losses[:-1])} or {losses[-1]}.")
        refuse(pooling not in ("mean", "first"), f"`pooling` must be 'mean' or 'first', but is {pooling!r}.")
        what = f"`mini_batch_size` must be at least 1, but is {mini_batch_size}."
        refuse(mini_batch_size is not None and mini_batch_size < 1, what)
        self.loss, self.pooling, self.mini_batch_size = loss, pooling, mini_batch_size
        self.options = dict(options or {})
        super().__init__(model, args, **others)

    def count(self, batch: Batch) -> Counts | None:
        return {"sentences": float(count_rows(texts_of(batch)[0]))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        embeddings = [self.embed(model, text) for text in texts_of(batch)]
        return {"sentences": self.term(embeddings, batch.get("labels"))}

    def embed(self, model: nn.Module, text: Mapping[str, Tensor]) -> Tensor:
        """The embeddings (B, D) of one text of each row."""
        hidden: Any = getattr(model(**text), "last_hidden_state", None)
        refuse(hidden is None, "the model gives no hidden states to pool.", "Train a backbone, such as a BertModel.")
        pooled: Tensor = pool.mean(hidden, text.get("attention_mask")) if self.pooling == "mean" else hidden[:, 0]
        return pooled

    def term(self, embeddings: list[Tensor], labels: Tensor | None) -> LossTerm:
        """The loss of embeddings (B, D) of each text."""
        what = f"the loss {self.loss!r} needs {'labels' if labels is None else 'no labels'}."
        refuse((labels is None) == (self.loss in ("cosine", "cosent")), what)
        wanted = {"triplet": 3, "multiple_negatives": max(2, len(embeddings))}.get(self.loss, 2)
        what = f"the loss {self.loss!r} needs {wanted} texts a row, but there are {len(embeddings)}."
        refuse(len(embeddings) != wanted, what)
        if self.loss == "multiple_negatives":
            return in_batch_negatives(embeddings[0], torch.cat(embeddings[1:]), **self.options)
        if labels is None:
            return triplets(*embeddings, **self.options)
        function = cosine_regression if self.loss == "cosine" else ranked_cosines
        return function(embeddings[0], embeddings[1], labels, **self.options)

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        if self.loss in ("multiple_negatives", "cosent"):
            rows = "each row with all others (`mini_batch_size` embeds a few at a time)"
            return f"the loss {self.loss!r} compares {rows}"
        return super().divide(batch)

    def passes(self, batch: Batch) -> int:
        return 1 if self.mini_batch_size is None else len(self._chunks(batch))

    def begin(
        self, model: nn.Module, batch: Batch, items: Counts | None, parts: int, passes: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """Embeddings are computed without a graph, which gives the loss and its gradient for each of them.

        Then they are computed again, some at a time, with dropout as before, to pass the gradients on to the weights.
        """
        chunks = self._chunks(batch)
        real = len(chunks)
        chunks += chunks[-1:] * (passes - real)  # other processes wait for as many passes
        states, embeddings = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(Generators.now())
                embeddings.append(self.embed(model, chunk))
        leaf = torch.cat(embeddings[:real]).requires_grad_()
        by_text = torch.split(leaf, [count_rows(text) for text in texts_of(batch)])
        loss = total({"sentences": self.term([*by_text], batch.get("labels"))}, items, parts=parts)
        (gradient,) = torch.autograd.grad(loss, leaf)
        gradients = torch.split(gradient, [count_rows(chunk) for chunk in chunks[:real]])

        def embedded_again() -> Iterator[Tensor]:
            for chunk, state, gradient in zip_longest(chunks, states, gradients):
                now = Generators.now()
                state.restore()
                embeddings = self.embed(model, chunk)
                now.restore()
                yield (embeddings * (0.0 if gradient is None else gradient)).sum()

        return loss, embedded_again()

    def _chunks(self, batch: Batch) -> list[dict[str, Tensor]]:
        """The inputs of all texts, of ``mini_batch_size`` rows at a time."""
        size = self.mini_batch_size or 1
        texts = ((text, start) for text in texts_of(batch) for start in range(0, count_rows(text), size))
        return [rows_between(text, start, start + size) for text, start in texts]


def texts_of(batch: Batch) -> list[dict[str, Tensor]]:
    """The inputs of each text of the rows, in their order, under the names that the model takes."""
    prefixes = [name.removesuffix("input_ids") for name in batch if name.endswith(IDS)]
    what = f"a batch of sentences has {', '.join(batch)}, but no input of a name such as anchor{IDS}."
    refuse(not prefixes, what)
    return [with_prefix(batch, prefix) for prefix in prefixes]


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
            missing = next((name for name in NAMES if not isinstance(row.get(name), str)), None)
            refuse(missing, f"row {number} has no text {missing!r}: it has {', '.join(row)}.")
        rows = [self._row(row["prompt"], row[name]) for name in NAMES[1:] for row in features]
        batch = self.tokenizer.pad([{"input_ids": ids} for ids, _ in rows], return_tensors="pt")
        length, side = batch["input_ids"].shape[1], getattr(self.tokenizer, "padding_side", "right")
        labels = filled("labels", [labels for _, labels in rows], length, side=side)
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}

    def _row(self, prompt: str, answer: str) -> tuple[list[int], list[int]]:  # ids and labels
        before = list(self.tokenizer(prompt)["input_ids"])
        after = list(self.tokenizer(answer, add_special_tokens=False)["input_ids"])
        end = self.tokenizer.eos_token_id
        if end is not None:
            before, after = before[: len(before) - (before[-1:] == [end])], [*after, end]
        if self.max_length is not None:
            after = after[: self.max_length - 1]
            before = before[max(0, len(before) + len(after) - self.max_length) :]
        return before + after, [IGNORED] * len(before) + after


class DPOTrainer(ObjectiveTrainer):
    """Direct preference optimization (Rafailov et al. 2023): a language model learns from pairs of answers.

    Batches are those of :class:`DataCollatorForPreference`, with the chosen answers in their first half.

    Args:
        ref_model: what the model may not move far from; a copy of it as it is when absent, or the model without its
            adapters where it has some. A ``simpo`` loss needs none.
        beta, loss_type, label_smoothing, margin: as for :func:`transept.objectives.preference.preference`.
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
        refuse(self.processing_class is None, "pairs of answers need a tokenizer: pass `processing_class`.")
        return DataCollatorForPreference(self.processing_class)

    def _place_model(self) -> None:
        super()._place_model()
        if self.ref_model is None and self.kind != "simpo" and not hasattr(self.model, "disable_adapter"):
            self.ref_model = copy.deepcopy(self.model)
        if self.ref_model is not None:
            self.ref_model.eval().requires_grad_(False).to(self.args.device)

    def count(self, batch: Batch) -> Counts | None:
        return {"preference": len(batch["labels"]) / 2}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        scores = [*self.scores(model, batch)]
        if self.kind != "simpo":
            adapted = self.model.disable_adapter() if self.ref_model is None else nullcontext()
            with torch.no_grad(), adapted:
                scores += self.scores(self.model if self.ref_model is None else self.ref_model, batch)
        return {"preference": preference(*scores, kind=self.kind, **self.options)}

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

        def part(rows: slice) -> Batch:
            return {name: torch.cat([answers[rows] for answers in value.chunk(2)]) for name, value in batch.items()}

        return part(slice(middle)), part(slice(middle, None))
