"""Two networks against each other: one makes rows, the other tells them from real ones (Goodfellow et al. 2014)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transept.errors import InputError, refuse
from transept.objectives import adversarial
from transept.objectives.terms import LossTerm
from transept.training.arguments.training import TrainingArguments
from transept.training.objective import Batch, Counts
from transept.training.trainers.objective import ObjectiveTrainer


class AdversarialNetworks(nn.Module):
    """A generator and a discriminator as one model: real rows -> the logits (B) of real and of generated rows."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module, noise_size: int) -> None:
        super().__init__()
        self.generator, self.discriminator, self.noise_size = generator, discriminator, noise_size

    def forward(self, rows: Tensor, with_generator: bool = True) -> dict[str, Tensor]:
        """``real`` and ``fake`` move the discriminator alone; ``made``, which judges the same rows, the generator alone."""
        rows_made = self.sample(len(rows), rows.device)
        logits = {"real": self.judge(rows), "fake": self.judge(rows_made.detach())}
        return logits | ({"made": self.judge(rows_made, fixed=True)} if with_generator else {})

    def sample(self, rows: int, device: torch.device) -> Tensor:
        made: Tensor = self.generator(torch.randn(rows, self.noise_size, device=device))
        return made

    def judge(self, rows: Tensor, fixed: bool = False) -> Tensor:
        """The discriminator's logits (B), with ``fixed`` without gradients of its weights."""
        weights = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        logits: Tensor = functional_call(self.discriminator, weights, (rows,)) if fixed else self.discriminator(rows)
        if logits.numel() != len(rows):
            raise InputError(f"the discriminator must give one number a row, but gave {tuple(logits.shape)}.")
        return logits.reshape(-1)


def stacked(rows: list[Any]) -> dict[str, Tensor]:
    """Rows that are tensors, or whose first part is one, as a batch."""
    return {"rows": torch.stack([row if isinstance(row, Tensor) else row[0] for row in rows])}


class GANTrainer(ObjectiveTrainer):
    """Trains a generator and a discriminator together: every update moves both, by the one optimizer of the arguments.

    Args:
        generator: noise (B, ``noise_size``) -> rows as those of the data.
        discriminator: rows -> logits (B) or (B, 1), above zero for real ones.
        args: as for :class:`Trainer`, and so are all other arguments by name.
        train_dataset: real rows, tensors of one shape.
        noise_size: numbers that a row is made of.
        kind: ``non-saturating`` or ``hinge``.
        discriminator_steps: the updates of the discriminator for each one of the generator, which moves in the last of
            them.

    Logs have ``discriminator_loss`` and ``generator_loss`` of the last micro-batch beside ``loss``, which is their sum.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        args: TrainingArguments | None = None,
        train_dataset: Any = None,
        noise_size: int = 64,
        kind: adversarial.Kind = "non-saturating",
        discriminator_steps: int = 1,
        **options: Any,
    ) -> None:
        refuse(discriminator_steps < 1, f"`discriminator_steps` must be at least 1, but is {discriminator_steps}.")
        self.kind, self.discriminator_steps, self.losses = kind, discriminator_steps, dict[str, Tensor]()
        model = AdversarialNetworks(generator, discriminator, noise_size)
        super().__init__(model, args, train_dataset=train_dataset, **{"data_collator": stacked, **options})

    def count(self, batch: Batch) -> Counts | None:
        return dict.fromkeys(("real", "fake", "made"), float(len(batch["rows"])))

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        # Evaluations measure the generator always.
        moves_generator = not self.model.training or (self.state.global_step + 1) % self.discriminator_steps == 0
        logits = model(batch["rows"], moves_generator)
        terms = adversarial.discriminator(logits["real"], logits["fake"], self.kind)
        if moves_generator:
            terms["made"] = adversarial.generator(logits["made"], self.kind)
            self.losses["generator_loss"] = terms["made"].mean.detach()
        self.losses["discriminator_loss"] = (terms["real"].mean + terms["fake"].mean).detach()
        return terms

    def sample(self, rows: int) -> Tensor:
        """Rows that the generator makes."""
        made: Tensor = self.model.sample(rows, self.args.device)
        return made

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: float(loss) for name, loss in self.losses.items()}
        super().log(logs, start_time)
