"""Two networks against each other: one makes rows, the other tells them from real ones (Goodfellow et al. 2014)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from transept.environment import set_seed
from transept.errors import GenerationError, InputError
from transept.objectives import adversarial
from transept.objectives.terms import total
from transept.training.arguments import TrainingArguments


@dataclass
class GANTrainer:
    """Trains a generator and a discriminator in turns, each by an optimizer of its own.

    Args:
        generator: noise (B, ``noise_size``) -> rows as those of the data.
        discriminator: rows -> logits (B) or (B, 1), above zero for real ones.
        args: the learning rate, Adam's betas, the batch size, the number of updates (``max_steps``) and the seed.
        train_dataset: real rows, tensors of one shape.
        noise_size: numbers that a row is made of.
        kind: ``non-saturating`` or ``hinge``.
        discriminator_steps: updates of the discriminator for each one of the generator.
        on_log: is told the step and the losses every ``args.logging_steps`` updates.
    """

    generator: nn.Module
    discriminator: nn.Module
    args: TrainingArguments
    train_dataset: Any
    noise_size: int = 64
    kind: adversarial.Kind = "non-saturating"
    discriminator_steps: int = 1
    on_log: Callable[[int, dict[str, float]], None] | None = None
    log_history: list[dict[str, float]] = field(default_factory=list)

    def train(self) -> list[dict[str, float]]:
        """Make ``max_steps`` updates of each; returns the logged losses."""
        args = self.args
        if args.max_steps <= 0:
            raise InputError("training two networks against each other needs `max_steps` in the arguments.")
        set_seed(args.seed)
        for network in (self.generator, self.discriminator):
            network.to(args.device).train()
        options: Any = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2)}
        makes, tells = (torch.optim.Adam(each.parameters(), **options) for each in (self.generator, self.discriminator))
        rows = self._rows()
        for step in range(1, args.max_steps + 1):
            for _ in range(self.discriminator_steps):
                real = next(rows)
                with torch.no_grad():
                    fake = self.sample(len(real))
                terms = adversarial.discriminator(self.judged(real), self.judged(fake), self.kind)
                told = self._update(tells, total(terms), step)
            made = self._update(makes, adversarial.generator(self.judged(self.sample(len(real))), self.kind).mean, step)
            if step % int(args.logging_steps) == 0 or step == args.max_steps:
                self.log_history.append({"step": step, "discriminator_loss": told, "generator_loss": made})
                if self.on_log is not None:
                    self.on_log(step, self.log_history[-1])
        return self.log_history

    def sample(self, rows: int) -> Tensor:
        """Rows that the generator makes."""
        made: Tensor = self.generator(torch.randn(rows, self.noise_size, device=self.args.device))
        return made

    def judged(self, rows: Tensor) -> Tensor:
        """The discriminator's logits (B)."""
        logits: Tensor = self.discriminator(rows)
        if logits.numel() != len(rows):
            raise InputError(f"the discriminator must give one number a row, but gave {tuple(logits.shape)}.")
        return logits.reshape(-1)

    def _rows(self) -> Iterator[Tensor]:
        """Batches of real rows without end, in an order that the seed tells."""
        order, size = torch.Generator().manual_seed(self.args.seed), self.args.train_batch_size
        loader: DataLoader[Any] = DataLoader(self.train_dataset, size, shuffle=True, generator=order)
        while True:
            for batch in loader:
                yield (batch if isinstance(batch, Tensor) else batch[0]).to(self.args.device)

    @staticmethod
    def _update(optimizer: torch.optim.Optimizer, loss: Tensor, step: int) -> float:
        if not torch.isfinite(loss):
            raise GenerationError(f"a loss of update {step} is {float(loss.detach())}.", hint="Lower `learning_rate`.")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())
