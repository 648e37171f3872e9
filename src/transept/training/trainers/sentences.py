"""Embeddings of sentences that are near where sentences mean the same (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers import pool
from transept.objectives.embeddings import cosine_regression, in_batch_negatives, ranked_cosines, triplets
from transept.objectives.terms import LossTerm, total
from transept.training.objective import Batch, Counts, Objective
from transept.training.trainers.objective import ObjectiveTrainer

TERM, IDS = "sentences", "_input_ids"
Loss = Literal["multiple_negatives", "cosine", "triplet", "cosent"]


class Sentences(Objective):
    """A loss over the embeddings of the texts of all rows; see :class:`SentenceTrainer` for the arguments."""

    rows_apart = False

    def __init__(
        self, model: nn.Module, loss: Loss, pooling: str, mini_batch_size: int | None, options: Mapping[str, Any]
    ) -> None:
        super().__init__(model)
        self.loss, self.pooling, self.mini_batch_size, self.options = loss, pooling, mini_batch_size, options

    def count(self, batch: Batch) -> Counts | None:
        first = next((value for name, value in batch.items() if name.endswith(IDS)), None)
        if first is None:
            raise InputError(f"a batch of sentences has {', '.join(batch)}, but no input of a name such as anchor{IDS}.")
        return {TERM: float(len(first))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        return {TERM: self.term([self.embed(model, text) for text in texts_of(batch)], batch.get("labels"))}

    def embed(self, model: nn.Module, text: Mapping[str, Tensor]) -> Tensor:
        """The embeddings (B, D) of one text of each row."""
        hidden = getattr(model(**text), "last_hidden_state", None)
        if hidden is None:
            raise InputError("the model gives no hidden states to pool.", hint="Train a backbone, such as a BertModel.")
        pooled: Tensor = pool.mean(hidden, text.get("attention_mask")) if self.pooling == "mean" else hidden[:, 0]
        return pooled

    def term(self, embeddings: list[Tensor], labels: Tensor | None) -> LossTerm:
        """The loss of embeddings (B, D) of each text."""
        if (labels is None) == (self.loss in ("cosine", "cosent")):
            raise InputError(f"the loss {self.loss!r} needs {'labels' if labels is None else 'no labels'}.")
        wanted = {"triplet": 3, "multiple_negatives": max(2, len(embeddings))}.get(self.loss, 2)
        if len(embeddings) != wanted:
            raise InputError(f"the loss {self.loss!r} needs {wanted} texts a row, but there are {len(embeddings)}.")
        if self.loss == "multiple_negatives":
            return in_batch_negatives(embeddings[0], torch.cat(embeddings[1:]), **self.options)
        if labels is None:
            return triplets(*embeddings, **self.options)
        function = cosine_regression if self.loss == "cosine" else ranked_cosines
        return function(embeddings[0], embeddings[1], labels, **self.options)

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        if self.loss in ("multiple_negatives", "cosent"):
            return f"the loss {self.loss!r} compares each row with all others (`mini_batch_size` embeds a few at a time)"
        return super().divide(batch)

    # --- a few texts at a time ----------------------------------------------------------------------------------------------

    def passes(self, batch: Batch) -> int:
        return sum(len(chunks) for chunks in self._chunks(batch)) if self.mini_batch_size is not None else 1

    def begin(
        self, model: nn.Module, batch: Batch, items: Counts | None, parts: int, passes: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """The embeddings are computed without a graph first, and the loss over all of them gives the gradient of each.

        Then they are computed again, some at a time, with dropout as before, and their gradients go on from there.
        """
        chunks = [chunk for text in self._chunks(batch) for chunk in text]
        chunks += chunks[-1:] * (passes - len(chunks))  # other processes wait for as many passes
        states, embeddings = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(_generators())
                embeddings.append(self.embed(model, chunk))
        starts = iter(embeddings)
        leaves = [torch.cat([next(starts) for _ in text]).requires_grad_() for text in self._chunks(batch)]
        loss = total({TERM: self.term(leaves, batch.get("labels"))}, items, parts=parts)
        size = self.mini_batch_size or 1
        gradients = [part for each in torch.autograd.grad(loss, leaves) for part in torch.split(each, size)]
        return loss, self._again(model, chunks, states, gradients)

    def _again(
        self, model: nn.Module, chunks: list[dict[str, Tensor]], states: list[Any], gradients: list[Tensor]
    ) -> Iterator[Tensor]:
        for chunk, state, gradient in zip_longest(chunks, states, gradients):
            with torch.random.fork_rng():
                _restore(state)
                embeddings = self.embed(model, chunk)
            yield (embeddings * (0.0 if gradient is None else gradient)).sum()

    def _chunks(self, batch: Batch) -> list[list[dict[str, Tensor]]]:
        """For each text of the rows, its inputs for so many rows at a time."""
        size = self.mini_batch_size or 1
        return [
            [
                {name: value[start : start + size] for name, value in text.items()}
                for start in range(0, len(next(iter(text.values()))), size)
            ]
            for text in texts_of(batch)
        ]


class SentenceTrainer(ObjectiveTrainer):
    """Trains a text backbone whose pooled states are embeddings; a saved one is what ``text-embedding`` reads.

    Batches are those of :class:`transept.training.collate.sentences.DataCollatorForPairs`, in the order of their columns:
    pairs or triplets for ``multiple_negatives`` (Henderson et al. 2017; the same sentence twice is SimCSE, Gao et al. 2021),
    pairs with ``labels`` for ``cosine`` and ``cosent``, anchor, positive and negative for ``triplet``.

    Args:
        model: a backbone, such as a ``BertModel``.
        loss: which of these.
        pooling: ``mean`` over real tokens, or the state of the ``first``.
        mini_batch_size: texts that are embedded at a time. The gradient is exactly that of the whole batch, whose negatives
            are all seen (Gao et al. 2021b), at the price of a second forward pass. A batch at once when absent.
        options: arguments of the loss, such as ``scale``, ``symmetric`` or ``margin``.
        others: as for :class:`transept.training.trainer.Trainer`.
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
        if loss not in ("multiple_negatives", "cosine", "triplet", "cosent"):
            raise InputError(f"there is no loss {loss!r}: use multiple_negatives, cosine, triplet or cosent.")
        if pooling not in ("mean", "first"):
            raise InputError(f"`pooling` must be 'mean' or 'first', but is {pooling!r}.")
        if mini_batch_size is not None and mini_batch_size < 1:
            raise InputError(f"`mini_batch_size` must be at least 1, but is {mini_batch_size}.")
        self.loss, self.pooling, self.mini_batch_size = loss, pooling, mini_batch_size
        self.options = dict(options or {})
        super().__init__(model, args, **others)

    def make_objective(self) -> Objective:
        return Sentences(self.model, self.loss, self.pooling, self.mini_batch_size, self.options)


def _generators() -> tuple[Tensor, Tensor | None]:
    """The states of the generators that dropout draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _restore(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


def texts_of(inputs: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """The inputs of each text of the rows, in their order, under the names that the model takes."""
    prefixes = [name.removesuffix(IDS) for name in inputs if name.endswith(IDS)]
    return [
        {name.removeprefix(f"{prefix}_"): value for name, value in inputs.items() if name.startswith(f"{prefix}_")}
        for prefix in prefixes
    ]
