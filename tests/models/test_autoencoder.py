"""Autoencoders: codes, rows made again, losses against plain computations, and files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from transept.errors import InputError, InputTypeError

SIZES: dict[str, Any] = {"input_size": 12, "hidden_sizes": [16, 8], "latent_size": 3}


def model(**settings: Any) -> transept.AutoencoderForReconstruction:
    torch.manual_seed(0)
    return transept.AutoencoderForReconstruction(transept.AutoencoderConfig(**SIZES | settings)).double().eval()


def data(rows: int = 6) -> torch.Tensor:
    return torch.rand(rows, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_loss_is_the_plain_one() -> None:
    network, values = model(variational=True, beta=2.0), data()
    output = network(values)
    assert output.reconstruction.shape == values.shape
    assert output.latents.shape == output.log_variance.shape == (6, 3)
    squares = (output.reconstruction - values).square().sum() / 6
    normal = torch.distributions.Normal(torch.zeros(6, 3).double(), torch.ones(6, 3).double())
    code = torch.distributions.Normal(output.latents, (output.log_variance / 2).exp())
    plain = squares + 2 * torch.distributions.kl_divergence(code, normal).sum() / 6
    torch.testing.assert_close(output.loss, plain, atol=1e-12, rtol=1e-12)
    assert {name: float(term.count) for name, term in output.loss_terms.items()} == {
        name: float(count) for name, count in network.count({"values": values}).items()
    }
    bernoulli = model(loss_type="bernoulli")(values)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(bernoulli.reconstruction, values, reduction="sum") / 6
    torch.testing.assert_close(bernoulli.loss, plain, atol=1e-12, rtol=1e-12)


def test_parts_of_a_batch_give_its_gradient() -> None:
    network, values = model(variational=True), data()
    network(values).loss.backward()
    whole = {name: weight.grad.clone() for name, weight in network.named_parameters()}
    network.zero_grad()
    items = {name: float(count) for name, count in network.count({"values": values}).items()}
    for part in (values[:1], values[1:]):
        network(part, num_items_in_batch=items).loss.backward()
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight.grad, whole[name], atol=1e-12, rtol=1e-12)


def test_only_training_disturbs_and_draws() -> None:
    values = data()
    for settings in ({"noise": 0.5}, {"variational": True}):
        network = model(**settings)
        assert torch.equal(network(values).reconstruction, network(values).reconstruction)
        network.train()
        assert not torch.equal(network(values).reconstruction, network(values).reconstruction)


def test_files(tmp_path: Path) -> None:
    network, values = model(variational=True).float(), data().float()
    network.save_pretrained(tmp_path)
    again = transept.AutoencoderForReconstruction.from_pretrained(tmp_path)
    assert torch.equal(again(values).reconstruction, network(values).reconstruction)
    encoder = transept.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(encoder(values).latents, network(values).latents)
    assert torch.equal(pickle.loads(pickle.dumps(network))(values).latents, network(values).latents)


def test_it_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = [{"values": torch.outer(torch.rand(3), torch.rand(4))} for _ in range(64)]  # of 7 numbers each
    network = transept.AutoencoderForReconstruction(transept.AutoencoderConfig(**SIZES | {"noise": 0.01}))
    args = transept.TrainingArguments(
        str(tmp_path), num_train_epochs=40, learning_rate=1e-2, report_to="none", disable_tqdm=True, save_strategy="no"
    )
    trainer = transept.Trainer(network, args, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5 * before


def test_wrong_inputs() -> None:
    network = model()
    with pytest.raises(InputError, match="`values` has 8 numbers a row, but `input_size` is 12"):
        network(torch.zeros(2, 8))
    with pytest.raises(InputTypeError, match="must be a tensor"):
        network.encoder([1.0])
    with pytest.raises(InputError, match="values"):
        network(torch.full((2, 12), torch.nan))


@pytest.mark.parametrize("settings", [{}, {"variational": True}, {"loss_type": "bernoulli"}])
def test_compiles_and_exports(settings: dict[str, Any]) -> None:
    network, values = model(**settings), data()
    with torch.no_grad():
        wanted = network(values)
        torch._dynamo.reset()
        compiled = torch.compile(network, fullgraph=True, backend="eager")(values)
        exported = torch.export.export(network, (values,)).module()(values)
    for found in (compiled, exported):
        torch.testing.assert_close(found.reconstruction, wanted.reconstruction, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.loss, wanted.loss, rtol=1e-12, atol=1e-12)
