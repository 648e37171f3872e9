"""Embeddings of sentences that are near where sentences mean the same (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transept.errors import InputError, refuse
from transept.layers import pool
from transept.objectives.embeddings import cosine_regression, in_batch_negatives, ranked_cosines, triplets
from transept.objectives.terms import LossTerm, total
from transept.training.checkpoint.generators import Generators
from transept.training.objective import Batch, Counts
from transept.training.trainers.objective import ObjectiveTrainer

TERM, IDS = "sentences", "_input_ids"
Loss = Literal["multiple_negatives", "cosine", "triplet", "cosent"]


class SentenceTrainer(ObjectiveTrainer):
    """Trains a text backbone whose pooled states are embeddings; a saved one is what ``text-embedding`` reads.

    Batches are those of :class:`transept.training.collate.padding.DataCollatorForPairs`, in the order of their
    columns: pairs or triplets for ``multiple_negatives`` (Henderson et al. 2017; the same sentence twice is SimCSE, Gao
    et al. 2021), pairs with ``labels`` for ``cosine`` and ``cosent``, anchor, positive and negative for ``triplet``.

    Args:
        model: a backbone, such as a ``BertModel``.
        loss: which of these.
        pooling: ``mean`` over real tokens, or the state of the ``first``.
        mini_batch_size: texts that are embedded at a time. The gradient is exactly that of the whole batch, whose
            negatives are all seen (Gao et al. 2021b), at the price of a second forward pass. A batch at once when absent.
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
        what = f"there is no loss {loss!r}: use multiple_negatives, cosine, triplet or cosent."
        refuse(loss not in get_args(Loss), what)
        refuse(pooling not in ("mean", "first"), f"`pooling` must be 'mean' or 'first', but is {pooling!r}.")
        is_wrong = mini_batch_size is not None and mini_batch_size < 1
        refuse(is_wrong, f"`mini_batch_size` must be at least 1, but is {mini_batch_size}.")
        self.loss, self.pooling, self.mini_batch_size = loss, pooling, mini_batch_size
        self.options = dict(options or {})
        super().__init__(model, args, **others)

    def count(self, batch: Batch) -> Counts | None:
        return {TERM: float(_rows(texts_of(batch)[0]))}

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
            why = "compares each row with all others (`mini_batch_size` embeds a few at a time)"
            return f"the loss {self.loss!r} {why}"
        return super().divide(batch)

    # --- a few texts at a time -----------------------------------------------------------------------------------

    def passes(self, batch: Batch) -> int:
        return 1 if self.mini_batch_size is None else len(self._chunks(batch))

    def begin(
        self, model: nn.Module, batch: Batch, items: Counts | None, parts: int, passes: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """The embeddings are computed without a graph first, and the loss over all of them gives the gradient of each.

        Then they are computed again, some at a time, with dropout as before, and their gradients go on from there.
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
        by_text = torch.split(leaf, [_rows(text) for text in texts_of(batch)])
        loss = total({TERM: self.term([*by_text], batch.get("labels"))}, items, parts=parts)
        (gradient,) = torch.autograd.grad(loss, leaf)
        gradients = torch.split(gradient, [_rows(chunk) for chunk in chunks[:real]])
        return loss, self._again(model, chunks, states, gradients)

    def _again(
        self,
        model: nn.Module,
        chunks: Sequence[Mapping[str, Tensor]],
        states: Sequence[Generators],
        gradients: Sequence[Tensor],
    ) -> Iterator[Tensor]:
        """Scalars whose gradients are those that go on from the embeddings of each chunk; none where it is another's."""
        for chunk, state, gradient in zip_longest(chunks, states, gradients):
            now = Generators.now()
            state.restore()
            embeddings = self.embed(model, chunk)
            now.restore()
            yield (embeddings * (0.0 if gradient is None else gradient)).sum()

    def _chunks(self, batch: Batch) -> list[dict[str, Tensor]]:
        """The inputs of all texts, of so many rows at a time."""
        size = self.mini_batch_size or 1
        return [
            {name: value[start : start + size] for name, value in text.items()}
            for text in texts_of(batch)
            for start in range(0, _rows(text), size)
        ]


def texts_of(batch: Batch) -> list[dict[str, Tensor]]:
    """The inputs of each text of the rows, in their order, under the names that the model takes."""
    prefixes = [name.removesuffix("input_ids") for name in batch if name.endswith(IDS)]
    if not prefixes:
        what = f"a batch of sentences has {', '.join(batch)}, but no input of a name such as anchor{IDS}."
        raise InputError(what)
    return [
        {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)} for prefix in prefixes
    ]


def _rows(text: Mapping[str, Tensor]) -> int:
    return len(next(iter(text.values())))
