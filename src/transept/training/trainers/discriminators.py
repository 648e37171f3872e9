"""A generator and a discriminator that are trained together: ELECTRA's replaced tokens, and GANs.

Shapes: B batch, T positions, N hidden tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transept.core.task import TaskModel
from transept.errors import InputError, refuse
from transept.objectives import adversarial
from transept.objectives.classification import IGNORED, Unscored, cross_entropy, widened
from transept.objectives.terms import LossTerm
from transept.storage.files import make_directory
from transept.training.arguments.training import TrainingArguments
from transept.training.objective import Batch, Counts, counts_of
from transept.training.trainers.objective import ObjectiveTrainer, with_prefix


class ReplacedTokens(nn.Module):
    """Two models of this library that are trained and saved together (``InputError``: others, or other sizes)."""

    def __init__(self, generator: Any, discriminator: Any, *, share_embeddings: bool, weight: float) -> None:
        super().__init__()
        for name, model in {"generator": generator, "discriminator": discriminator}.items():
            hint = "Use an ElectraForMaskedLM as generator and an ElectraForPreTraining as discriminator."
            what = f"the {name} must be a model of this library with a head, but is {type(model).__name__}."
            refuse(not isinstance(model, TaskModel), what, hint)
        self.generator, self.discriminator, self.weight = generator, discriminator, weight
        small, large = (tuple(model.get_input_embeddings().weight.shape) for model in (generator, discriminator))
        refuse(small[0] != large[0], f"the generator has {small[0]} tokens, but the discriminator has {large[0]}.")
        if not share_embeddings:
            return
        what = f"embeddings of {small[1]} numbers, which the generator has, and of {large[1]} cannot be shared."
        refuse(small != large, what, hint="Give both models one `embedding_size`, or pass share_embeddings=False.")
        generator.set_input_embeddings(discriminator.get_input_embeddings())
        tables = [getattr(model.body, "embed_positions", None) for model in (generator, discriminator)]
        shapes = [table.weight.shape for table in tables if isinstance(table, nn.Embedding)]
        if len(shapes) == 2 and shapes[0] == shapes[1]:
            generator.body.embed_positions = tables[1]

    def forward(self, input_ids: Tensor, labels: Tensor, **inputs: Any) -> dict[str, LossTerm]:
        """The loss of masked ids (B, T), whose hidden tokens are the ``labels`` (B, T), -100 elsewhere."""
        hidden = labels != IGNORED
        logits = self.generator.for_loss(input_ids=input_ids, **inputs).logits
        scores = logits.score(logits.states[hidden]) if isinstance(logits, Unscored) else logits[hidden]  # (N, V)
        drawn = labels[hidden]
        if len(scores):
            with torch.no_grad():
                drawn = torch.multinomial(widened(scores).softmax(dim=-1), 1).squeeze(-1)
        original = torch.where(hidden, labels, input_ids)
        filled = original.masked_scatter(hidden, drawn.to(original.dtype))
        replaced = _without_padding((filled != original).long(), inputs)
        terms = self.discriminator(input_ids=filled, labels=replaced, **inputs).loss_terms
        weighted = {name: replace(term, weight=term.weight * self.weight) for name, term in terms.items()}
        return {"masked_lm": cross_entropy(scores, labels[hidden])} | weighted

    def save_pretrained(self, directory: Any, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the discriminator, as what the directory holds, and the generator below it, in ``generator``."""
        folder = make_directory(directory)
        for name, path in {"discriminator": folder, "generator": make_directory(folder / "generator")}.items():
            weights = None if state_dict is None else with_prefix(state_dict, f"{name}.")
            getattr(self, name).save_pretrained(path, state_dict=weights)


class ReplacedTokensTrainer(ObjectiveTrainer):
    """ELECTRA (Clark et al. 2020): a generator fills masks, and a discriminator learns which tokens differ.

    Batches are those of a masked language model (:class:`DataCollatorForLanguageModeling`). Tokens are drawn from the
    generator's distribution, through which no gradient goes; a token that is drawn as it was counts as original. The
    loss is the generator's and ``discriminator_weight`` times the discriminator's, the mean over all real tokens.

    Args:
        model: the discriminator, such as an ``ElectraForPreTraining``, which is the saved model.
        generator: fills masks; best of a quarter to a half of the discriminator's width.
        share_embeddings: the generator uses the discriminator's tables of tokens and, if as wide, of positions.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        generator: nn.Module | None = None,
        discriminator_weight: float = 50.0,
        share_embeddings: bool = True,
        **others: Any,
    ) -> None:
        if model is None or generator is None:
            raise InputError("learning from replaced tokens needs a `model`, the discriminator, and a `generator`.")
        weight = discriminator_weight
        refuse(not weight > 0, f"`discriminator_weight` must be positive, but is {weight}.")
        both = ReplacedTokens(generator, model, share_embeddings=share_embeddings, weight=weight)
        super().__init__(both, args, **others)

    def count(self, batch: Batch) -> Counts | None:
        what = f"a batch has no `labels`, the hidden tokens, but {', '.join(batch)}."
        refuse("labels" not in batch, what, "Pass a DataCollatorForLanguageModeling as `data_collator`.")
        labels = _without_padding(torch.zeros_like(batch["input_ids"]), batch)
        counts = counts_of(self.model.discriminator, {**batch, "labels": labels}) or {}
        hidden = float((batch["labels"] != IGNORED).sum())
        return {"masked_lm": hidden} | {name: float(count) for name, count in counts.items()}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        return cast(dict[str, LossTerm], model(**batch))


def _without_padding(labels: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Labels (B, T) of real positions, -100 for padding."""
    mask = inputs.get("attention_mask")
    return labels if mask is None or mask.shape != labels.shape else labels.masked_fill(mask == 0, IGNORED)


class AdversarialNetworks(nn.Module):
    """A generator and a discriminator as one model: real rows -> the logits (B) of real and of generated rows."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module, noise_size: int) -> None:
        super().__init__()
        self.generator, self.discriminator, self.noise_size = generator, discriminator, noise_size

    def forward(self, rows: Tensor, with_generator: bool = True) -> dict[str, Tensor]:
        """``real`` and ``fake`` move the discriminator; ``made``, of the same rows as ``fake``, the generator."""
        generated = self.sample(len(rows), rows.device)
        logits = {"real": self.judge(rows), "fake": self.judge(generated.detach())}
        return logits | ({"made": self.judge(generated, fixed=True)} if with_generator else {})

    def sample(self, rows: int, device: torch.device) -> Tensor:
        return cast(Tensor, self.generator(torch.randn(rows, self.noise_size, device=device)))

    def judge(self, rows: Tensor, fixed: bool = False) -> Tensor:
        """The discriminator's logits (B), with ``fixed`` without gradients of its weights."""
        weights = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        logits: Tensor = functional_call(self.discriminator, weights, (rows,)) if fixed else self.discriminator(rows)
        what = f"the discriminator must give one number a row, but gave {tuple(logits.shape)}."
        refuse(logits.numel() != len(rows), what)
        return logits.reshape(-1)


def stacked(rows: list[Any]) -> dict[str, Tensor]:
    """Rows that are tensors, or whose first part is one, as a batch."""
    return {"rows": torch.stack([row if isinstance(row, Tensor) else row[0] for row in rows])}


class GANTrainer(ObjectiveTrainer):
    """Trains a GAN (Goodfellow et al. 2014): each update moves both networks, by the one optimizer of the arguments.

    Args:
        generator: noise (B, ``noise_size``) -> rows as those of the data.
        discriminator: rows -> logits (B) or (B, 1), above zero for real ones.
        train_dataset: real rows, tensors of one shape.
        noise_size: numbers that a row is made of.
        kind: ``non-saturating`` or ``hinge``.
        discriminator_steps: updates of the discriminator for each one of the generator, which moves in the last.

    Logs have ``discriminator_loss`` and ``generator_loss`` of the last micro-batch beside ``loss``, their sum.
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
        return cast(Tensor, self.model.sample(rows, self.args.device))

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: float(loss) for name, loss in self.losses.items()}
        super().log(logs, start_time)
