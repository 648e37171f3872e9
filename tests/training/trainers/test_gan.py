"""Two networks against each other, by the settings of any other run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.trainers.test_methods import arguments
from transept import GANTrainer
from transept.errors import InputError
from transept.objectives import adversarial


def networks(hidden: int = 16) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    makes = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    return makes, nn.Sequential(nn.Linear(1, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))


def rows(number: int = 16) -> Tensor:
    return torch.randn(number, 1, generator=torch.Generator().manual_seed(1)) * 0.5 + 3


def trained(folder: Path, resume: Any = None, steps: int = 1, **settings: Any) -> GANTrainer:
    trainer = GANTrainer(*networks(4), arguments(folder, **settings), rows(), noise_size=2, discriminator_steps=steps)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: GANTrainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


def test_two_networks_against_each_other_find_a_distribution(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=400, per_device_train_batch_size=64, adam_beta1=0.5, logging_steps=0.25)
    makes, tells = networks()
    trainer = GANTrainer(makes, tells, args, rows(512), noise_size=2)
    before = float(trainer.sample(256).mean().detach())
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "generator_loss" in entry]
    assert [entry["step"] for entry in history] == [100, 200, 300, 400]
    assert all(entry["discriminator_loss"] > 0 for entry in history)
    assert abs(before - 3) > 2
    assert abs(float(trainer.sample(1024).mean().detach()) - 3) < 0.7
    with pytest.raises(InputError, match="one number a row"):
        GANTrainer(makes, nn.Linear(1, 2), args, rows(), noise_size=2).train()
    with pytest.raises(InputError, match="at least 1"):
        GANTrainer(makes, tells, args, rows(), discriminator_steps=0)


def test_a_loss_moves_its_own_network(tmp_path: Path) -> None:
    trainer = trained(tmp_path, max_steps=1)
    real = rows(4)
    terms = trainer.objective.terms(trainer.model, {"rows": real})
    own = {
        name: {part for part, weight in trainer.model.named_parameters() if gradient_of(terms[name].mean, weight)}
        for name in terms
    }
    assert {name: {part.split(".")[0] for part in parts} for name, parts in own.items()} == {
        "real": {"discriminator"},
        "fake": {"discriminator"},
        "made": {"generator"},
    }
    torch.testing.assert_close(terms["real"].mean, adversarial.discriminator(trainer.model.judge(real), real)["real"].mean)


def gradient_of(loss: Tensor, weight: nn.Parameter) -> bool:
    (found,) = torch.autograd.grad(loss, weight, retain_graph=True, allow_unused=True)
    return found is not None and bool(found.abs().sum())


def test_the_settings_of_a_run_count(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 4, "lr_scheduler_type": "linear", "optim": "sgd", "optim_args": "momentum=0.5"}
    trainer = trained(tmp_path, **settings)
    assert type(trainer.optimizer) is torch.optim.SGD
    assert trainer.optimizer.defaults["momentum"] == 0.5
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([5e-3, 3.75e-3, 2.5e-3, 1.25e-3])
    epochs = trained(tmp_path, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    assert epochs.state.global_step == 4


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
    whole = trained(tmp_path, max_steps=4, steps=2, **settings)
    again = trained(tmp_path, resume=str(tmp_path / "checkpoint-2"), max_steps=4, steps=2, **settings)
    for name, weight in weights(whole).items():
        assert torch.equal(weights(again)[name], weight), name


def test_the_generator_moves_in_the_last_of_the_discriminators_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    makes, _ = networks(4)
    for number, moves in ((2, False), (3, True)):
        trainer = trained(tmp_path, steps=3, max_steps=number)
        same = all(torch.equal(one, other) for one, other in zip(trainer.model.generator.parameters(), makes.parameters()))
        assert same is not moves
