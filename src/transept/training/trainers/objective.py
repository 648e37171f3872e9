"""A trainer whose loss is another one than the model's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from transept.objectives.terms import total
from transept.training.loss import check_sums
from transept.training.objective import Objective
from transept.training.state import Prediction
from transept.training.trainer import Trainer


def with_prefix(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names begin with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


class ObjectiveTrainer(Trainer, Objective):
    """Trains any module by an :class:`transept.training.objective.Objective`.

    The trainer is the objective itself, by methods such as ``count`` and ``terms``, unless ``make_objective`` gives
    another. Subclasses take all arguments of :class:`transept.training.trainer.Trainer` by name.
    """

    loss_is_scaled_for_ga: ClassVar[bool | None] = True
    rows_apart = False

    def make_objective(self) -> Objective:
        return self

    def check_model(self) -> None:
        """The model needs no loss of its own."""

    def _place_model(self) -> None:
        super()._place_model()
        self._takes_any = True  # batches hold more than one pass reads

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        terms = self.objective.terms(model, inputs)
        if self.share.rows_are_divided:
            check_sums(terms)
        loss = total(terms, self.share.counts(num_items_in_batch), parts=self.share.parts)
        return (loss, {"loss": loss}) if return_outputs else loss

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        with torch.no_grad(), self.compute_loss_context_manager():
            terms = self.objective.terms(model, self._prepare_inputs(inputs))
        return Prediction(total(terms), terms, None, None)
