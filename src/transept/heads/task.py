"""What tasks have in common: a head over a backbone's states, and the loss of what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.core.task import LOSS_ALONE, B, TaskModel, wants_loss_alone
from transept.objectives.classification import Unscored, count_sequences, sequence_classification
from transept.objectives.terms import Items, LossTerm
from transept.outputs import ModelOutput


@contextmanager
def loss_alone() -> Iterator[None]:
    """Within it, forward passes with labels may leave their logits out, as those over a vocabulary do.

    The loss is the same. Logits are made for labelled positions alone, and not kept, which saves most of the time and of the
    memory of a small model.
    """
    token = LOSS_ALONE.set(True)
    try:
        yield
    finally:
        LOSS_ALONE.reset(token)


class Task(TaskModel[B]):
    """A task in three steps: ``encode`` (the backbone), ``predict`` (the head), and ``terms`` (the loss).

    ``labels`` are the names of what the loss needs; a forward pass without one of them gives none, nor does a task that has
    no labels.
    """

    labels: ClassVar[tuple[str, ...]] = ("labels",)
    output_class: ClassVar[type[ModelOutput]]
    head: nn.Module

    def forward(
        self, *, num_items_in_batch: Items | None = None, return_dict: bool | None = None, **inputs: Any
    ) -> ModelOutput:
        """Do the task.

        Args:
            num_items_in_batch: number of labels of the whole batch, where this is a micro-batch; for several terms one each.
            return_dict: ``False`` for a tuple.
            inputs: those of the backbone, and labels; the class says their shapes.

        Returns:
            ``logits``, what the backbone recorded, and ``loss`` where there are labels.
        """
        labels = [inputs.pop(name, None) for name in self.labels]
        complete = self.has_labels(labels, inputs)
        states = self.encode(inputs, labels[0] if complete else None)
        alone = complete and wants_loss_alone()
        output = self.unscored(states, inputs) if alone else self.predict(states, inputs)
        terms = self.all_terms(output, states, labels, inputs) if complete else None
        for name in [name for name, value in output.items() if isinstance(value, Unscored)] if alone else ():
            output[name] = None
        return self.answer(output, states, terms, num_items_in_batch, return_dict)

    def for_loss(self, **inputs: Any) -> ModelOutput:
        inputs.pop("return_dict", None)
        states = self.encode(inputs, None)
        output = self.unscored(states, inputs)
        output.complete(states)
        return output

    def has_labels(self, labels: list[Any], inputs: dict[str, Any]) -> bool:
        """Whether there is all that a loss needs."""
        return len(labels) > 0 and all(each is not None for each in labels)

    def reads_cache(self, labels: Tensor | None) -> bool:
        """Whether anybody may read what a pass caches, where the caller does not say so."""
        return True

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        """The backbone's output, without a cache that nobody would read."""
        unread = inputs.get("use_cache") is None and not self.reads_cache(labels)
        if unread and not self.backbone.cache_matters(inputs):
            inputs["use_cache"] = False
        states = self.backbone(return_dict=True, **inputs)
        if unread:
            states["past_key_values"] = None
        return states

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        """The task's output, of the backbone's."""
        return self.output_class(logits=self.head(states.last_hidden_state))

    def features(self, states: Any, inputs: dict[str, Any]) -> Tensor | None:
        """What alone the head reads of the backbone's output, (B, ...), where ``predict`` takes that in its place too."""
        return None

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        """The same for a loss alone: logits may be :class:`Unscored`."""
        return self.predict(states, inputs)

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        """The parts of the loss, of a task's output, of the backbone's, and of all that they are compared with."""
        return self.terms(output["logits"], labels[0], inputs)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        labels = [inputs.get(name) for name in self.labels]
        return self.all_counts(labels, inputs) if self.has_labels(labels, inputs) else {}

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        """The items of each additive part of the loss, by name: what :meth:`all_terms` will count."""
        return self.counts(labels[0], inputs)

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        """The parts of the loss of logits and labels."""
        return {"classification": sequence_classification(logits, labels, self.config.problem_type)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """The items of each additive part of the loss of these labels: what :meth:`terms` will count."""
        return {"classification": count_sequences(labels, self.config.num_labels, self.config.problem_type)}
