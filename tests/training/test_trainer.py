"""The trainer: callbacks, exactness of its arithmetic, evaluation, and what it refuses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import transept
from transept import Trainer, TrainingArguments
from transept.errors import ConfigError, InputError, InputTypeError, TranseptError, UnsupportedError
from transept.training.callbacks.base import EVENTS

from .small import HEADS, Head, head, ours, pair, quiet, reference_warnings, rows

CLASS = head("BertForSequenceClassification")


class Recorder:
    """A callback of both libraries: what was told, when, and with what."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)

        def note(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            flags = control.should_log, control.should_evaluate, control.should_save, control.should_training_stop
            there = sorted(key for key, value in kwargs.items() if value is not None)
            self.told.append((name, state.global_step, round(state.epoch, 6), flags, there))

        return note


@pytest.mark.reference
@pytest.mark.parametrize(
    "more",
    [
        {"num_train_epochs": 2, "eval_strategy": "epoch", "logging_steps": 2},
        {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 3, "gradient_accumulation_steps": 2},
        {"num_train_epochs": 1.5, "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 3, "logging_first_step": True},
        {
            "num_train_epochs": 2,
            "logging_strategy": "epoch",
            "dataloader_drop_last": True,
            "eval_delay": 1,
            "eval_strategy": "epoch",
        },
    ],
    ids=["epochs", "steps", "start", "drop"],
)
def test_events_are_the_references(more: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    mine, theirs = pair(CLASS)
    data, both = rows("class", 18), []
    for library, model in ((transept, mine), (transformers, theirs)):
        with reference_warnings():
            args = library.TrainingArguments(**quiet(tmp_path, per_device_train_batch_size=4, **more))
            trainer = library.Trainer(model, args, train_dataset=data, eval_dataset=data[:16], callbacks=[(told := Recorder())])
            trainer.train()
            trainer.predict(data[:8])
        both.append((told.told, [[*log] for log in trainer.state.log_history], trainer.state.max_steps))
    assert both[0][0] == both[1][0]
    assert both[0][2] == both[1][2]
    for own, other in zip(both[0][1], both[1][1], strict=True):
        assert set(own) == set(other) - {"eval_model_preparation_time"}


def first_update(model: Any, folder: Path, size: int, accumulation: int, data: Any, **more: Any) -> tuple[float, list[Any]]:
    """The loss and the gradients of the first update."""
    seen: list[Any] = []

    class Look(transept.TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            seen.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})

    given = quiet(folder, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, max_grad_norm=0.0)
    args = TrainingArguments(**given, max_steps=1, train_sampling_strategy="sequential", optim="sgd", **more)
    trainer = Trainer(model, args, train_dataset=data, callbacks=[Look])
    return trainer.train().training_loss, seen


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.name)
@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_micro_batches_make_one_batch(case: Head, wide: bool, tmp_path: Path) -> None:
    data, near = rows(case.rows, 8), 1e-12 if wide else 2e-5
    if wide:
        data = [{n: v.double() if v.is_floating_point() else v for n, v in row.items()} for row in data]
    found = []
    for size in (8, 4, 2, 1):
        model = ours(case).to(torch.float64 if wide else torch.float32)
        found.append(first_update(model, tmp_path, size, 8 // size, data))
    loss, (gradients,) = found[0]
    for other_loss, (other,) in found[1:]:
        assert other_loss == pytest.approx(loss, rel=near)
        norm = max(float(each.norm()) for each in gradients.values())
        assert all((other[name] - each).norm() <= near * norm for name, each in gradients.items())


@pytest.mark.parametrize("name", ["BertForTokenClassification", "GPT2LMHeadModel", "Wav2Vec2ForCTC"])
def test_an_uneven_last_update_is_its_rows(name: str, tmp_path: Path) -> None:
    """Eleven rows as 2 x 4: the last update of the epoch equals one batch of three rows."""
    case, seen = head(name), []
    data = rows(case.rows, 11)
    model = ours(case)

    class Look(transept.TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            seen.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))

    given = quiet(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_grad_norm=0.0, learning_rate=0.0)
    args = TrainingArguments(**given, num_train_epochs=1, train_sampling_strategy="sequential", optim="sgd")
    Trainer(model, args, train_dataset=data, callbacks=[Look]).train()
    _, (alone,) = first_update(again := ours(case), tmp_path, 3, 1, data[8:])
    last = torch.cat([alone[n].flatten() for n, weight in again.named_parameters() if n in alone])
    assert len(seen) == 2
    torch.testing.assert_close(seen[1], last, rtol=0, atol=2e-5 * float(last.norm()))


def test_labels_that_are_all_ignored_change_nothing(tmp_path: Path) -> None:
    case = head("BertForTokenClassification")
    data = [row | {"labels": torch.full((12,), -100)} for row in rows("tokens", 4)]
    loss, (gradients,) = first_update(ours(case), tmp_path, 2, 2, data)
    assert loss == 0.0
    assert all(not each.any() for each in gradients.values())


class Foreign(nn.Module):
    """A model of somebody else, whose loss is a mean over the labels that are not ignored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.table(input_ids))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Mean(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        assert num_items_in_batch is not None  # and not read
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), inputs["labels"].flatten())
        return (loss, outputs) if return_outputs else loss


class Plain(Mean):
    """As it was written before there was a number to divide by."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # type: ignore[override]
        return super().compute_loss(model, inputs, return_outputs, 1)


class Divides(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs, items = model(**inputs), kwargs["num_items_in_batch"]
        loss = nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / items
        return (loss, outputs) if return_outputs else loss


class Says(Divides):
    loss_is_scaled_for_ga = True


class Steps(Divides):
    """As people write a step of their own."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return torch.as_tensor(loss).detach()


def plain(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


def divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    items = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / items


@pytest.mark.parametrize(
    ("cls", "function"),
    [*((cls, None) for cls in (Trainer, Mean, Plain, Divides, Says, Steps)), (Trainer, plain), (Trainer, divided)],
)
def test_losses_of_others_accumulate_too(cls: Any, function: Any, tmp_path: Path) -> None:
    found = []
    for size in (8, 2):
        args = TrainingArguments(
            **quiet(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=8 // size), max_steps=1
        )
        trainer = cls(Foreign(), args, train_dataset=rows("tokens", 8), compute_loss_func=function)
        found.append((trainer.train().training_loss, [weight.detach().clone() for weight in trainer.model.parameters()]))
        evaluated = [trainer.evaluate(rows("tokens", 7))["eval_loss"]]
        args.per_device_eval_batch_size = 3
        evaluated.append(trainer.evaluate(rows("tokens", 7))["eval_loss"])
        assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)
    assert found[0][0] == pytest.approx(found[1][0], rel=2e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.name)
def test_the_loss_of_an_evaluation_is_that_of_the_set(case: Head, tmp_path: Path) -> None:
    data, found = rows(case.rows, 7), []
    for size in (1, 3, 7):
        args = TrainingArguments(**quiet(tmp_path, per_device_eval_batch_size=size))
        found.append(Trainer(ours(case), args, eval_dataset=data).evaluate()["eval_loss"])
    model = ours(case).eval()
    with torch.no_grad():
        whole = float(model(**torch.utils.data.default_collate(data)).loss)
    assert found == pytest.approx([whole] * 3, rel=2e-6)


def padded(batch: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of different lengths, padded to the longest."""
    sizes = [int(row["attention_mask"].sum()) for row in batch]
    return {name: torch.stack([row[name][: max(sizes)] if row[name].ndim else row[name] for row in batch]) for name in batch[0]}


def test_predictions_come_in_the_order_of_rows(tmp_path: Path) -> None:
    case = head("BertForTokenClassification")
    data = [{name: each[: int(row["attention_mask"].sum())] for name, each in row.items()} for row in rows("tokens", 11)]

    def collate(batch: list[Any]) -> dict[str, torch.Tensor]:
        fill = {"labels": -100}
        return {
            name: nn.utils.rnn.pad_sequence([row[name] for row in batch], batch_first=True, padding_value=fill.get(name, 0))
            for name in batch[0]
        }

    seen = []

    def metrics(found: Any) -> dict[str, Any]:
        logits, labels, *_ = found
        seen.append((logits, labels, found.losses, found.inputs))
        return {"accuracy": np.mean((logits.argmax(-1) == labels)[labels != -100])}

    model = ours(case).eval()
    for size, every in itertools.product((2, 11), (None, 3)):
        args = TrainingArguments(
            **quiet(
                tmp_path, per_device_eval_batch_size=size, eval_accumulation_steps=every, include_for_metrics=["loss", "inputs"]
            )
        )
        trainer = Trainer(model, args, collate, eval_dataset=data, compute_metrics=metrics)
        result = trainer.evaluate()
        assert isinstance(result["eval_accuracy"], float)
        output = trainer.predict(data)
        assert output.predictions.shape == (11, 12, 3) or output.predictions.shape[0] == 11
        for at, row in enumerate(data):
            length = len(row["labels"])
            with torch.no_grad():
                alone = model(row["input_ids"][None], attention_mask=row["attention_mask"][None]).logits[0]
            np.testing.assert_allclose(output.predictions[at, :length], alone, atol=2e-6)
            np.testing.assert_array_equal(output.label_ids[at, :length], row["labels"])
            np.testing.assert_array_equal(seen[-1][3][at, :length], row["input_ids"])
            assert (output.label_ids[at, length:] == -100).all()
        assert len(seen[-1][2]) == 11


class Unsized(torch.utils.data.IterableDataset[Any]):
    """Rows one after the other, nobody knows how many."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_metrics_batch_by_batch(tmp_path: Path) -> None:
    calls: list[bool] = []

    def metrics(found: Any, compute_result: bool) -> Any:
        calls.append(compute_result)
        return {"rows": 7} if compute_result else None

    args = TrainingArguments(**quiet(tmp_path, per_device_eval_batch_size=3, batch_eval_metrics=True))
    for data in (rows("class", 7), Unsized(rows("class", 7))):
        calls.clear()
        trainer = Trainer(ours(CLASS), args, eval_dataset=data, compute_metrics=metrics)
        assert trainer.evaluate()["eval_rows"] == 7
        assert calls == [False, False, True]


@pytest.mark.reference
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForTokenClassification", "LlamaForCausalLM"])
def test_smoothed_labels_are_the_references(name: str, tmp_path: Path) -> None:
    from .test_curve import compare, curves

    compare(*curves(head(name), tmp_path, label_smoothing_factor=0.1))


def test_several_sets_are_evaluated_by_name(tmp_path: Path) -> None:
    sets = {"near": rows("class", 4), "far": rows("class", 3, seed=1)}
    trainer = Trainer(ours(CLASS), TrainingArguments(**quiet(tmp_path)), eval_dataset=sets)
    assert {"eval_near_loss", "eval_far_loss"} <= trainer.evaluate().keys()
    assert "test_one_loss" in trainer.evaluate({"one": sets["near"]}, metric_key_prefix="test")


REFUSED = [
    ({}, InputError, "either a `model`"),
    ({"model": "plain"}, UnsupportedError, "has no task"),
    ({"model": CLASS, "model_init": lambda: None}, InputError, "either a `model`"),
    ({"model": CLASS, "data_collator": 3}, InputTypeError, "cannot be called"),
    ({"model": CLASS, "train_dataset": []}, InputError, "has no rows"),
    ({"model": CLASS}, InputError, "no `train_dataset`"),
    ({"model": CLASS, "train_dataset": 3}, InputTypeError, "neither indexed"),
    ({"model": CLASS, "train_dataset": iter([])}, ConfigError, "max_steps"),
    ({"model": CLASS, "train_dataset": [{"text": "a"}]}, InputError, "batch is empty"),
    ({"model": CLASS, "train_dataset": [{"input_ids": torch.ones(3, dtype=torch.long)}]}, InputError, "gave no loss"),
]


@pytest.mark.parametrize(("given", "kind", "what"), REFUSED, ids=[what for *_, what in REFUSED])
def test_what_cannot_be_trained_is_said(given: dict[str, Any], kind: type[TranseptError], what: str, tmp_path: Path) -> None:
    model: Any = given.pop("model", None) if given.get("model") is not CLASS else ours(CLASS)
    given.pop("model", None)
    if model == "plain":
        model = transept.BertModel(transept.BertConfig(**CLASS.settings))
    with pytest.raises(kind, match=what):
        Trainer(model, TrainingArguments(**quiet(tmp_path)), **given).train()


def test_weights_of_a_mapped_file_are_trained_where_new_ones_lie(tmp_path: Path) -> None:
    """Where a matrix begins decides on some processors in which order products are summed."""
    made = head("BertForSequenceClassification")
    found = []
    for place in (0, 1):
        model = ours(made)
        for weight in model.parameters():
            memory = torch.empty(weight.numel() + place)[place:].view(weight.shape)
            weight.data = memory.copy_(weight.detach())
        Trainer(model, TrainingArguments(**quiet(tmp_path, max_steps=2)), train_dataset=rows(made.rows, 8)).train()
        assert not any(weight.data_ptr() % 64 for weight in model.parameters())
        found.append(model)
    for one, two in zip(*(model.parameters() for model in found), strict=True):
        assert torch.equal(one, two)


def test_operations_are_counted_of_weights_that_are_counted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = head("BertForSequenceClassification")
    model, data = ours(made), rows(made.rows, 4)
    weights, asked = model.num_parameters(exclude_embeddings=True), []
    monkeypatch.setattr(model, "num_parameters", lambda **given: asked.append(given) or weights)
    settings = quiet(tmp_path, max_steps=3, per_device_train_batch_size=4)
    trainer = Trainer(model, TrainingArguments(**settings), train_dataset=data)
    trainer.train()
    positions = trainer.data_collator([dict(row) for row in data])["input_ids"].numel()
    assert trainer.state.total_flos == 3 * 6 * weights * positions
    assert asked == [{"exclude_embeddings": True}]
