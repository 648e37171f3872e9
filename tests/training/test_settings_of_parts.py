"""Frozen parts, schedules of unfreezing and moved embeddings, as settings of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import transept
from tests.training.trainers.test_methods import arguments, batched, config, rows
from transept.errors import ConfigError, InputError, TrainingError, TranseptWarning


def run(folder: Path, **settings: object) -> tuple[dict[str, torch.Tensor], transept.BertForSequenceClassification]:
    """The weights before a run, and the model after it."""
    torch.manual_seed(0)
    model = transept.BertForSequenceClassification(config(num_hidden_layers=2))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    transept.Trainer(model, arguments(folder, **settings), batched, rows(8)).train()
    return before, model


def changed(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if not torch.equal(before[name], weight)}


def test_frozen_weights_stay_to_the_bit(tmp_path: Path) -> None:
    before, model = run(tmp_path, freeze="backbone", weight_decay=0.1)
    assert changed(before, model) == {"classifier.weight", "classifier.bias"}
    before, model = run(tmp_path, freeze=["embeddings", 1], weight_decay=0.1)
    found = changed(before, model)
    assert not any(name.startswith(("bert.embeddings", "bert.encoder.layer.0.")) for name in found)
    assert any(name.startswith("bert.encoder.layer.1.") for name in found)
    with pytest.raises(InputError, match="2 layers, not 5"):
        run(tmp_path, freeze=5)


def test_parts_are_unfrozen_epoch_by_epoch(tmp_path: Path) -> None:
    settings = {"freeze": "backbone", "unfreeze_schedule": {"1": 1}, "num_train_epochs": 2, "per_device_train_batch_size": 8}
    before, model = run(tmp_path, max_steps=1, **{**settings, "num_train_epochs": 1})
    assert not any(name.startswith("bert.") for name in changed(before, model))
    before, model = run(tmp_path, max_steps=-1, **settings)
    found = {name.split(".")[3] for name in changed(before, model) if name.startswith("bert.encoder.layer.")}
    assert found == {"1"}


def test_a_run_learns_at_moved_embeddings_too(tmp_path: Path) -> None:
    _, plain = run(tmp_path, max_steps=1)
    _, moved = run(tmp_path, max_steps=1, adversarial={"kind": "fgm", "epsilon": 0.5})
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), moved.parameters()))
    with pytest.raises(ConfigError, match="no kind 'fgsm'"):
        run(tmp_path, adversarial={"kind": "fgsm"})


def test_states_that_are_computed_once_train_the_head_alike(tmp_path: Path) -> None:
    settings = {"freeze": "backbone", "max_steps": 5, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    _, plain = run(tmp_path, **settings)
    before, once = run(tmp_path, precompute=True, **settings)
    for a, b in zip(plain.parameters(), once.parameters()):
        # Rows are computed in other batches, and so rounded otherwise.
        assert torch.allclose(a, b, atol=1e-6, rtol=0)
    assert changed(before, once) == {"classifier.weight", "classifier.bias"}
    for wrong in ({}, {"freeze": 1}, {"freeze": "backbone", "neftune_noise_alpha": 5.0}):
        with pytest.raises(ConfigError, match="`precompute` of TrainingArguments needs freeze='backbone'"):
            run(tmp_path, precompute=True, **wrong)


def test_what_is_not_finite_is_found_at_its_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transept.BertForSequenceClassification(config(num_hidden_layers=2))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.backbone.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output / 0)
    trainer = transept.Trainer(model, arguments(tmp_path), batched, rows(8))
    with pytest.raises(TrainingError, match=r"the output of 'bert\.encoder\.layer\.1\.mlp' \(MLP\)") as caught:
        trainer.train()
    assert "in the rows 0, 1, 2, 3 of micro-batch 0" in str(caught.value)
    assert not changed(before, model)


def test_a_batch_that_is_too_large_is_halved(tmp_path: Path) -> None:
    def weights(most: int) -> tuple[list[torch.Tensor], list[int]]:
        torch.manual_seed(0)
        model = transept.BertForSequenceClassification(config())
        seen: list[int] = []

        def full(module: torch.nn.Module, inputs: object, named: dict[str, torch.Tensor]) -> None:
            if len(named["input_ids"]) > most:
                raise torch.OutOfMemoryError("too large")
            seen.append(len(named["input_ids"]))

        model.backbone.register_forward_pre_hook(full, with_kwargs=True)
        args = arguments(tmp_path, per_device_train_batch_size=8, max_steps=2, auto_find_batch_size=True)
        data = [{**row, "attention_mask": [1] * 5} for row in rows(8)]
        transept.Trainer(model, args, batched, data).train()
        return [weight.detach() for weight in model.parameters()], seen

    whole, seen = weights(8)
    assert seen == [8, 8]
    with pytest.warns(TranseptWarning, match="going on with at most 4"):
        halved, seen = weights(4)
    assert set(seen) == {4}
    for a, b in zip(whole, halved):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)  # sums of float32 in another order
