"""A generator and a discriminator that are trained together: GANs, and ELECTRA's replaced tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transept.core.task import TaskModel
from transept.errors import InputError, refuse
from transept.files import make_directory
from transept.objectives import adversarial
from transept.objectives.classification import IGNORED, Unscored, cross_entropy, widened
from transept.objectives.terms import LossTerm
from transept.training.arguments.training import TrainingArguments
from transept.training.objective import Batch, Counts, counts_of
from transept.training.trainers.objective import ObjectiveTrainer


class ReplacedTokens(nn.Module):
    """A generator and a discriminator, which are trained together and saved together.

    Args:
        generator: fills masks, such as an ``ElectraForMaskedLM``; a quarter to a half of the discriminator's width is
            best.
        discriminator: tells for each token whether it was replaced, such as an ``ElectraForPreTraining``.
        share_embeddings: the generator takes over the discriminator's embeddings of tokens and, of their size, of
            positions.
        weight: of the discriminator's loss.

    Raises:
        InputError: models that are not of this library, or other vocabularies or sizes of embeddings.
    """

    def __init__(self, generator: nn.Module, discriminator: nn.Module, *, share_embeddings: bool, weight: float) -> None:
        super().__init__()
        for name, model in {"generator": generator, "discriminator": discriminator}.items():
            if not isinstance(model, TaskModel):
                hint = "Use an ElectraForMaskedLM as generator and an ElectraForPreTraining as discriminator."
                what = f"the {name} must be a model of this library with a head, but is {type(model).__name__}."
                raise InputError(what, hint=hint)
        self.generator, self.discriminator, self.weight = generator, discriminator, weight
        _check_and_share(generator, discriminator, share_embeddings)

    def forward(self, input_ids: Tensor, labels: Tensor, **inputs: Any) -> dict[str, LossTerm]:
        """The terms of the loss of masked ids (B, T), whose hidden tokens are the ``labels`` (B, T); -100 elsewhere."""
        hidden = labels != IGNORED
        generator: Any = self.generator
        logits = generator.for_loss(input_ids=input_ids, **inputs).logits
        is_unscored = isinstance(logits, Unscored)
        scores = logits.score(logits.states[hidden]) if is_unscored else logits[hidden]  # (N, V)
        drawn = labels[hidden]
        if len(scores):
            with torch.no_grad():
                drawn = torch.multinomial(widened(scores).softmax(dim=-1), 1).squeeze(-1)
        original = torch.where(hidden, labels, input_ids)
        given = original.masked_scatter(hidden, drawn.to(original.dtype))
        replaced = _without_padding((given != original).long(), inputs)
        terms = self.discriminator(input_ids=given, labels=replaced, **inputs).loss_terms
        weighted = {name: replace(term, weight=term.weight * self.weight) for name, term in terms.items()}
        return {"masked_lm": cross_entropy(scores, labels[hidden])} | weighted

    def save_pretrained(self, directory: Any, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the discriminator, as what the directory holds, and the generator below it, in ``generator``."""
        folder = make_directory(directory)
        folders = {"discriminator": folder, "generator": make_directory(folder / "generator")}
        for part, path in folders.items():
            options: dict[str, Any] = {}
            if state_dict is not None:
                prefix = f"{part}."
                own = {name: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
                options["state_dict"] = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
            getattr(self, part).save_pretrained(path, **options)


class ReplacedTokensTrainer(ObjectiveTrainer):
    """Trains ELECTRA: the generator by its masked tokens, the discriminator by all, some of which it has replaced.

    Batches are those of a masked language model (:class:`DataCollatorForLanguageModeling`). What takes the place of a
    hidden token is drawn from the generator's distribution, through which no gradient goes; a token that is drawn as it
    was counts as original. The loss is the generator's and ``discriminator_weight`` times the discriminator's, the mean
    over all real tokens.

    Args:
        model: the discriminator, which is what is used afterwards: the saved model is this one.
        generator, discriminator_weight, share_embeddings: as for :class:`ReplacedTokens`.
        others: as for :class:`transept.training.trainer.Trainer`.
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
        what = f"`discriminator_weight` must be positive, but is {discriminator_weight}."
        refuse(not discriminator_weight > 0, what)
        both = ReplacedTokens(generator, model, share_embeddings=share_embeddings, weight=discriminator_weight)
        super().__init__(both, args, **others)

    def count(self, batch: Batch) -> Counts | None:
        """The items of each term: hidden tokens, and all real ones."""
        if "labels" not in batch:
            hint = "Pass a DataCollatorForLanguageModeling as `data_collator`."
            raise InputError(f"a batch has no `labels`, the hidden tokens, but {', '.join(batch)}.", hint=hint)
        labels = _without_padding(torch.zeros_like(batch["input_ids"]), batch)
        counts = counts_of(self.model.discriminator, {**batch, "labels": labels}) or {}
        hidden = float((batch["labels"] != IGNORED).sum())
        return {"masked_lm": hidden} | {name: float(count) for name, count in counts.items()}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        terms: dict[str, LossTerm] = model(**batch)
        return terms


def _check_and_share(generator: Any, discriminator: Any, share: bool) -> None:
    own, other = (tuple(model.get_input_embeddings().weight.shape) for model in (generator, discriminator))
    refuse(own[0] != other[0], f"the generator has {own[0]} tokens, but the discriminator has {other[0]}.")
    if not share:
        return
    what = f"embeddings of {own[1]} numbers, which the generator has, and of {other[1]} cannot be shared."
    refuse(own != other, what, hint="Give both models one `embedding_size`, or pass share_embeddings=False.")
    generator.set_input_embeddings(discriminator.get_input_embeddings())
    small, large = (getattr(model.backbone, "embed_positions", None) for model in (generator, discriminator))
    if isinstance(small, nn.Embedding) and isinstance(large, nn.Embedding) and small.weight.shape == large.weight.shape:
        generator.backbone.embed_positions = large


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
