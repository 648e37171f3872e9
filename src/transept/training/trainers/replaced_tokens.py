"""ELECTRA's pretraining (Clark et al. 2020): a small model fills masks, and a larger one learns which tokens it put there.

Shapes: B batch, T positions, N hidden tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transept.core.task import TaskModel
from transept.errors import InputError
from transept.files import make_directory
from transept.objectives.classification import IGNORED, Unscored, cross_entropy, widened
from transept.objectives.terms import LossTerm
from transept.training.objective import Batch, Counts, Objective, counts_of
from transept.training.trainers.objective import ObjectiveTrainer

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


class ReplacedTokens(nn.Module):
    """A generator and a discriminator, which are trained together and saved together.

    Args:
        generator: fills masks, such as an ``ElectraForMaskedLM``; a quarter to a half of the discriminator's width is best.
        discriminator: tells for each token whether it was replaced, such as an ``ElectraForPreTraining``.
        share_embeddings: the generator takes over the discriminator's embeddings of tokens and, of their size, of positions.
        weight: of the discriminator's loss.

    Raises:
        InputError: models that are not of this library, or other vocabularies or sizes of embeddings.
    """

    def __init__(self, generator: nn.Module, discriminator: nn.Module, *, share_embeddings: bool, weight: float) -> None:
        super().__init__()
        for name, model in ((GENERATOR, generator), (DISCRIMINATOR, discriminator)):
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
        scores = logits.score(logits.states[hidden]) if isinstance(logits, Unscored) else logits[hidden]  # (N, V)
        with torch.no_grad():
            drawn = torch.multinomial(widened(scores).softmax(dim=-1), 1).squeeze(-1) if len(scores) else labels[hidden]
        original = torch.where(hidden, labels, input_ids)
        given = original.masked_scatter(hidden, drawn.to(original.dtype))
        replaced = _real(original, (given != original).long(), inputs)
        terms = self.discriminator(input_ids=given, labels=replaced, **inputs).loss_terms
        weighted = {name: replace(term, weight=term.weight * self.weight) for name, term in terms.items()}
        return {"masked_lm": cross_entropy(scores, labels[hidden])} | weighted

    def count(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The items of each term: hidden tokens, and all real ones."""
        ids, others = inputs["input_ids"], {name: value for name, value in inputs.items() if name != "labels"}
        found = counts_of(self.discriminator, others | {"labels": _real(ids, torch.zeros_like(ids), others)}) or {}
        return {"masked_lm": (inputs["labels"] != IGNORED).sum()} | found

    def save_pretrained(self, directory: Any, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the discriminator, as what the directory holds, and the generator below it, in ``generator``."""
        folder = make_directory(directory)
        for name, path in ((DISCRIMINATOR, folder), (GENERATOR, make_directory(folder / GENERATOR))):
            given = {} if state_dict is None else {"state_dict": dict(_below(state_dict, f"{name}."))}
            getattr(self, name).save_pretrained(path, **given)


class ReplacedTokensObjective(Objective):
    """The terms that :class:`ReplacedTokens` gives."""

    rows_apart = False

    def count(self, batch: Batch) -> Counts | None:
        if "labels" not in batch:
            hint = "Pass a DataCollatorForLanguageModeling as `data_collator`."
            raise InputError(f"a batch has no `labels`, the hidden tokens, but {', '.join(batch)}.", hint=hint)
        assert isinstance(self.model, ReplacedTokens)
        return {name: float(count) for name, count in self.model.count(batch).items()}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        terms: dict[str, LossTerm] = model(**batch)
        return terms


class ReplacedTokensTrainer(ObjectiveTrainer):
    """Trains ELECTRA: the generator by its masked tokens, the discriminator by all tokens, some of which it has replaced.

    Batches are those of a masked language model (:class:`DataCollatorForLanguageModeling`). What takes the place of a hidden
    token is drawn from the generator's distribution, through which no gradient goes; a token that is drawn as it was counts as
    original. The loss is the generator's and ``discriminator_weight`` times the discriminator's, the mean over all real tokens.

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
        if not discriminator_weight > 0:
            raise InputError(f"`discriminator_weight` must be positive, but is {discriminator_weight}.")
        both = ReplacedTokens(generator, model, share_embeddings=share_embeddings, weight=discriminator_weight)
        super().__init__(both, args, **others)

    def make_objective(self) -> Objective:
        return ReplacedTokensObjective(self.model)


def _check_and_share(generator: Any, discriminator: Any, share: bool) -> None:
    own, other = (_shape(model.get_input_embeddings()) for model in (generator, discriminator))
    if own[0] != other[0]:
        raise InputError(f"the generator has {own[0]} tokens, but the discriminator has {other[0]}.")
    if not share:
        return
    if own != other:
        what = f"embeddings of {own[1]} numbers, which the generator has, and of {other[1]} cannot be shared."
        raise InputError(what, hint="Give both models one `embedding_size`, or pass share_embeddings=False.")
    generator.set_input_embeddings(discriminator.get_input_embeddings())
    places = [getattr(model.backbone, "embed_positions", None) for model in (generator, discriminator)]
    if all(isinstance(each, nn.Embedding) for each in places) and _shape(places[0]) == _shape(places[1]):
        generator.backbone.embed_positions = places[1]


def _real(ids: Tensor, labels: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Labels (B, T) without those of padding."""
    mask = inputs.get("attention_mask")
    return labels if mask is None or mask.shape != ids.shape else labels.masked_fill(mask == 0, IGNORED)


def _shape(table: Any) -> tuple[int, ...]:
    return tuple(table.weight.shape)


def _below(tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), each) for name, each in tensors.items() if name.startswith(prefix))
