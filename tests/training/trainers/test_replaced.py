"""ELECTRA's generator and discriminator, trained together: the loss and its gradients are those of a plain computation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transept
from transept.errors import InputError
from transept.training.trainers.discriminators import ReplacedTokens, ReplacedTokensTrainer

from .test_methods import TINY, arguments, batched

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 12}
EXACT = 1e-12  # float64: max|difference|, where only a difference in the mathematics can show


def models(**settings: Any) -> tuple[Any, Any]:
    """A generator of half the discriminator's width, in float64."""
    torch.manual_seed(0)
    given = TINY | STILL | {"embedding_size": 8, "initializer_range": 0.5} | settings
    small = given | {"hidden_size": 8, "intermediate_size": 16}
    generator = transept.ElectraForMaskedLM(transept.ElectraConfig(**small))
    return generator.double(), transept.ElectraForPreTraining(transept.ElectraConfig(**given)).double()


def batch() -> dict[str, Tensor]:
    """Two texts of 8 tokens, the second with two of padding; of their tokens five are hidden by 3."""
    torch.manual_seed(1)
    ids, hidden = torch.randint(5, 40, (2, 8)), torch.zeros(2, 8, dtype=torch.bool)
    hidden[0, [1, 4, 6]] = hidden[1, [2, 3]] = True
    mask = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
    masked, labels = ids.masked_fill(hidden, 3) * mask, ids.masked_fill(~hidden, -100)
    return {"input_ids": masked, "labels": labels, "attention_mask": mask}


def plain(generator: Any, discriminator: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The mean loss of hidden tokens and 50 times that of all real ones."""
    mask, hidden = inputs["attention_mask"], inputs["labels"] >= 0
    logits = generator(inputs["input_ids"], attention_mask=mask).logits[hidden]
    torch.manual_seed(2)
    drawn = torch.multinomial(logits.detach().softmax(-1), 1)[:, 0]
    original, given = inputs["input_ids"].clone(), inputs["input_ids"].clone()
    original[hidden], given[hidden] = inputs["labels"][hidden], drawn
    told = discriminator(given, attention_mask=mask).logits
    right = torch.where(given == original, 1 - told.sigmoid(), told.sigmoid())[mask == 1]
    assert (given == original)[hidden].any()  # what is drawn as it was counts as original
    assert not (given == original)[hidden].all()
    loss: Tensor = F.cross_entropy(logits, inputs["labels"][hidden]) + 50 * right.log().neg().mean()
    return loss


def test_the_loss_and_its_gradients_are_the_plain_ones(tmp_path: Path) -> None:
    generator, discriminator = models()
    with torch.no_grad():  # so that some are drawn as they were
        generator.lm_head.decoder.bias[batch()["labels"][0, 1]] += 4
    others = copy.deepcopy((generator, discriminator))
    trainer = ReplacedTokensTrainer(
        discriminator, arguments(tmp_path), generator=generator, share_embeddings=False, data_collator=batched, train_dataset=[]
    )
    inputs = batch()
    expected = plain(*others, inputs)
    expected.backward()  # type: ignore[no-untyped-call]
    torch.manual_seed(2)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=EXACT)
    for own, other in zip((generator, discriminator), others):
        for (name, weight), reference in zip(own.named_parameters(), other.parameters()):
            assert (weight.grad is None) == (reference.grad is None), name
            if weight.grad is not None:
                torch.testing.assert_close(weight.grad, reference.grad, rtol=0, atol=EXACT, msg=name)


def test_embeddings_are_shared() -> None:
    generator, discriminator = models()
    both = ReplacedTokens(generator, discriminator, share_embeddings=True, weight=50.0)
    table = discriminator.get_input_embeddings()
    assert generator.get_input_embeddings() is table
    assert generator.lm_head.decoder.weight is table.weight
    assert generator.backbone.embed_positions is discriminator.backbone.embed_positions
    assert len({id(each) for each in both.parameters()}) == len(list(both.parameters()))
    sum(term.sum for term in both(**batch()).values()).backward()
    assert table.weight.grad.abs().sum() > 0


def test_items_are_counted_before_they_are_seen(tmp_path: Path) -> None:
    generator, discriminator = models()
    args: Any = {"args": arguments(tmp_path), "data_collator": stacked, "train_dataset": []}
    trainer = ReplacedTokensTrainer(discriminator, generator=generator, **args)
    for inputs in (batch(), {name: each for name, each in batch().items() if name != "attention_mask"}):
        terms = trainer.objective.terms(trainer.model, inputs)
        assert {name: float(term.count) for name, term in terms.items()} == trainer.objective.count(inputs)
        assert [term.weight for term in terms.values()] == [1.0, 50.0]
    assert trainer.objective.count(batch()) == {"masked_lm": 5, "replaced": 14}
    nothing = batch() | {"labels": torch.full((2, 8), -100)}
    assert trainer.model(**nothing)["masked_lm"].sum.item() == 0


def test_a_run_goes_on_to_the_bit_and_opens_as_both_models(tmp_path: Path) -> None:
    one, other = ({name: each[row] for name, each in batch().items()} for row in (0, 1))

    def run(folder: Path, **given: Any) -> Any:
        generator, discriminator = models()
        args = arguments(folder, max_steps=4, save_strategy="steps", save_steps=2)
        rows = [one, other] * 4
        trainer = ReplacedTokensTrainer(discriminator, args, generator=generator, data_collator=stacked, train_dataset=rows)
        trainer.train(**given)
        return trainer

    whole = run(tmp_path)
    again = run(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name
    found = transept.ElectraForPreTraining.from_pretrained(tmp_path / "checkpoint-4", torch_dtype=torch.float64)
    writes = transept.ElectraForMaskedLM.from_pretrained(tmp_path / "checkpoint-4" / "generator", torch_dtype=torch.float64)
    for model, own in ((found, whole.model.discriminator), (writes, whole.model.generator)):
        for name, weight in own.state_dict().items():
            assert torch.equal(model.state_dict()[name], weight), name


def stacked(features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in features]) for name in features[0]}


def test_wrong_models_and_batches(tmp_path: Path) -> None:
    generator, discriminator = models()
    args: Any = {"args": arguments(tmp_path), "data_collator": stacked, "train_dataset": []}
    with pytest.raises(InputError, match="a `generator`"):
        ReplacedTokensTrainer(discriminator, **args)
    with pytest.raises(InputError, match="the generator must be a model of this library with a head, but is Linear"):
        ReplacedTokensTrainer(discriminator, generator=nn.Linear(2, 2), **args)
    with pytest.raises(InputError, match="must be positive, but is 0"):
        ReplacedTokensTrainer(discriminator, generator=generator, discriminator_weight=0, **args)
    with pytest.raises(InputError, match="40 tokens, but the discriminator has 50"):
        ReplacedTokensTrainer(models(vocab_size=50)[1], generator=generator, **args)
    with pytest.raises(InputError, match="embeddings of 8 numbers, which the generator has, and of 16 cannot be shared"):
        ReplacedTokensTrainer(models(embedding_size=16)[1], generator=generator, **args)
    trainer = ReplacedTokensTrainer(discriminator, generator=generator, **args)
    with pytest.raises(InputError, match="no `labels`, the hidden tokens, but input_ids"):
        trainer.objective.count({"input_ids": batch()["input_ids"]})
