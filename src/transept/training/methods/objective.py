"""A trainer whose loss is another one than the model's own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from transept.objectives.terms import LossTerm, total
from transept.training.evaluate import Prediction
from transept.training.faults.halving import check_sums
from transept.training.step import Counts
from transept.training.trainer import Trainer


class ObjectiveTrainer(Trainer):
    """Trains any module by the terms of a loss; subclasses say which terms, and how many items each has in a batch."""

    loss_is_scaled_for_ga: ClassVar[bool | None] = True

    def loss_terms(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        """The terms of the loss of a batch."""
        raise NotImplementedError

    def count_items(self, inputs: dict[str, Any]) -> Counts | None:
        """The items that each of these terms has in a batch, before any forward pass."""
        raise NotImplementedError

    def check_model(self) -> None:
        """The model needs no loss of its own."""

    def _place_model(self) -> None:
        super()._place_model()
        self._takes_any = True  # batches hold more than one pass reads

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        terms = self.loss_terms(model, inputs)
        if self.loop is not None and self.loop.divided:
            check_sums(terms)
        loss = total(terms, num_items_in_batch, parts=self.parts)
        return (loss, {"loss": loss}) if return_outputs else loss

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        with torch.no_grad(), self.compute_loss_context_manager():
            terms = self.loss_terms(model, self._prepare_inputs(inputs))
        return Prediction(total(terms), terms, None, None)
