"""A model that is wrapped in ``nn.DataParallel`` learns as it does alone, with copies on as many devices as it may.

CUDA alone has several devices, so a stand-in makes copies on the processor: it divides rows, runs the copies in threads, and
gathers their outputs, by the methods of PyTorch's class.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from tests.training.small import head, ours, quiet, rows
from transept import Trainer, TrainingArguments
from transept.errors import UnsupportedError
from transept.training.loss import loss_of


class Copies(nn.DataParallel):  # type: ignore[type-arg]
    """Two copies on the processor."""

    def forward(self, **inputs: Any) -> Any:
        size = next(len(value) for value in inputs.values())
        parts = [{name: value[part] for name, value in inputs.items()} for part in torch.arange(size).chunk(2)]
        with_gradients = torch.is_grad_enabled()

        def run(part: dict[str, Tensor]) -> Any:
            with torch.set_grad_enabled(with_gradients):
                return self.module(**part)

        with ThreadPoolExecutor(2) as threads:
            outputs = list(threads.map(run, parts))
        return outputs[0] if len(outputs) == 1 else self.gather(outputs, "cpu")


def learn(model: Any, kind: str, folder: Path, **settings: Any) -> Trainer:
    more = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "optim": "sgd", "learning_rate": 0.1}
    arguments = TrainingArguments(**quiet(folder, max_steps=4, save_strategy="steps", save_steps=2, **(more | settings)))
    trainer = Trainer(model, arguments, train_dataset=rows(kind, 19), eval_dataset=rows(kind, 7, seed=1))
    trainer.train()
    return trainer


@pytest.mark.parametrize("wrapper", [nn.DataParallel, Copies])
@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel", "ViTForImageClassification"])
def test_copies_learn_as_one(name: str, wrapper: Any, tmp_path: Path) -> None:
    made = head(name)
    alone = learn(ours(made), made.rows, tmp_path / "alone", max_grad_norm=0.5)
    copied = learn(wrapper(ours(made)), made.rows, tmp_path / "copied", max_grad_norm=0.5)
    one, two = ([each["loss"] for each in trainer.state.log_history if "loss" in each] for trainer in (alone, copied))
    np.testing.assert_allclose(two, one, atol=1e-5)
    for (key, expected), found in zip(alone.model.named_parameters(), copied.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=key)
    one, two = alone.predict(alone.eval_dataset), copied.predict(alone.eval_dataset)
    assert two.metrics["test_loss"] == pytest.approx(one.metrics["test_loss"], abs=1e-5)
    np.testing.assert_allclose(two.predictions, one.predictions, atol=1e-4)


def test_what_is_saved_is_the_model(tmp_path: Path) -> None:
    made = head("BertForMaskedLM")
    trainer = learn(Copies(ours(made)), made.rows, tmp_path)
    for folder in ("checkpoint-2", "checkpoint-4"):
        assert (tmp_path / folder / "config.json").is_file()
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            assert not [key for key in file.keys() if key.startswith("module.")]  # noqa: SIM118
    again = Trainer(Copies(ours(made)), trainer.args, train_dataset=rows(made.rows, 19))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for one, two in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        # Gradients of copies that run at once are added up in any order.
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def test_the_losses_of_a_foreign_models_copies_are_averaged() -> None:
    """Of these PyTorch makes a vector."""
    assert loss_of({"loss": torch.tensor([1.0, 3.0])}, {}, None, 1).tolist() == 2.0


def test_copies_within_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transept.training.devices import Devices

    make = Devices.__init__

    def make_of_several(devices: Devices, args: TrainingArguments) -> None:
        make(devices, args)
        devices.alone = False

    monkeypatch.setattr(Devices, "__init__", make_of_several)
    with pytest.raises(UnsupportedError, match="`DataParallel` copies a model to the devices of one process"):
        Trainer(Copies(ours(head("BertForMaskedLM"))), TrainingArguments(**quiet(tmp_path)))
