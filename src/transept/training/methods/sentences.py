"""Embeddings of sentences that are near where sentences mean the same (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers import pool
from transept.objectives.embeddings import cosine_regression, in_batch_negatives, ranked_cosines, triplets
from transept.objectives.terms import LossTerm, total
from transept.training.methods.objective import ObjectiveTrainer
from transept.training.step import Counts

TERM, IDS = "sentences", "_input_ids"
Loss = Literal["multiple_negatives", "cosine", "triplet", "cosent"]


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

    def count_items(self, inputs: dict[str, Any]) -> Counts | None:
        first = next((value for name, value in inputs.items() if name.endswith(IDS)), None)
        if first is None:
            raise InputError(f"a batch of sentences has {', '.join(inputs)}, but no input of a name such as anchor{IDS}.")
        return {TERM: float(len(first))}

    def loss_terms(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        found = [self.embed(model, text) for text in texts_of(inputs)]
        return {TERM: self.objective(found, inputs.get("labels"))}

    def embed(self, model: nn.Module, text: Mapping[str, Tensor]) -> Tensor:
        """The embeddings (B, D) of one text of each row."""
        hidden = getattr(model(**text), "last_hidden_state", None)
        if hidden is None:
            raise InputError("the model gives no hidden states to pool.", hint="Train a backbone, such as a BertModel.")
        pooled: Tensor = pool.mean(hidden, text.get("attention_mask")) if self.pooling == "mean" else hidden[:, 0]
        return pooled

    def objective(self, embeddings: list[Tensor], labels: Tensor | None) -> LossTerm:
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

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """As for every trainer; with ``mini_batch_size`` in two passes."""
        if self.mini_batch_size is None:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        inputs = self._prepare_inputs(inputs)
        parts = [list(self._parts(text)) for text in texts_of(inputs)]
        states: list[Any] = []
        with torch.no_grad(), self.compute_loss_context_manager():
            kept = [torch.cat([self._seen(model, part, states) for part in text]) for text in parts]
        leaves = [embeddings.requires_grad_() for embeddings in kept]
        term = {TERM: self.objective(leaves, inputs.get("labels"))}
        loss = total(term, num_items_in_batch, parts=self.parts) * self.loss_share
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        order = iter(states)
        for text, leaf in zip(parts, leaves):
            assert leaf.grad is not None
            for part, gradient in zip(text, torch.split(leaf.grad, self.mini_batch_size)):
                with torch.random.fork_rng():
                    _restore(next(order))
                    with self.compute_loss_context_manager():
                        again = self.embed(model, part)
                (again * gradient).sum().backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _parts(self, text: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        assert self.mini_batch_size is not None
        for start in range(0, len(next(iter(text.values()))), self.mini_batch_size):
            yield {name: value[start : start + self.mini_batch_size] for name, value in text.items()}

    def _seen(self, model: nn.Module, part: Mapping[str, Tensor], states: list[Any]) -> Tensor:
        """Embeddings without a graph; the generators' states before are kept, so that dropout can be repeated."""
        states.append((torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None))
        return self.embed(model, part)


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
