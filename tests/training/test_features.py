"""What settings do: precision, averages, noise, freezing, and updates that are not finite."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from transept import Trainer, TrainerCallback, TrainingArguments
from transept.errors import TrainingError, UnsupportedError

from .small import head, ours, quiet, rows
from .test_trainer import Foreign

CASE = head("BertForSequenceClassification")


def run(folder: Path, model: Any = None, data: Any = None, callbacks: Any = None, **settings: Any) -> Trainer:
    args = TrainingArguments(**quiet(folder, **({"max_steps": 4, "per_device_train_batch_size": 4} | settings)))
    trainer = Trainer(model or ours(CASE), args, train_dataset=data or rows("class", 16), callbacks=callbacks)
    trainer.train()
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.filterwarnings("ignore:this processor has no bf16:transept.errors.TranseptWarning")
def test_mixed_precision_is_near(tmp_path: Path) -> None:
    plain = losses(run(tmp_path))
    for settings in ({"bf16": True}, {"fp16": True}):
        trainer = run(tmp_path, **settings)
        assert losses(trainer) == pytest.approx(plain, abs=3e-2)
        assert losses(trainer) != plain
        assert all(weight.dtype == torch.float32 for weight in trainer.model.parameters())


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    dropped = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    plain = run(tmp_path, ours(CASE, **dropped))
    again = run(tmp_path, ours(CASE, **dropped), gradient_checkpointing=True)
    assert losses(again) == pytest.approx(losses(plain), rel=1e-6)
    assert not again.model.is_gradient_checkpointing
    with pytest.raises(UnsupportedError, match="cannot recompute"):
        run(tmp_path, Foreign(), rows("tokens", 8), gradient_checkpointing=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # PyTorch's compiler looks at it
def test_compiled_blocks_are_near(tmp_path: Path) -> None:
    plain, compiled = run(tmp_path), run(tmp_path, torch_compile=True, torch_compile_backend="eager")
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-5)
    assert [*compiled.model.state_dict()] == [*plain.model.state_dict()]


def test_the_mean_of_the_weights_is_what_is_left(tmp_path: Path) -> None:
    means: list[Any] = []

    class Look(TrainerCallback):
        def on_step_end(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            now = model.head.out_proj.weight.detach().clone()
            means.append(now if not means else 0.5 * means[-1] + 0.5 * now)

    model = ours(CASE)
    means.append(model.head.out_proj.weight.detach().clone())
    trainer = run(tmp_path, model, ema_decay=0.5, callbacks=[Look], learning_rate=1e-2)
    torch.testing.assert_close(trainer.model.head.out_proj.weight.detach(), means[-1], rtol=1e-6, atol=1e-7)
    trainer.save_model(tmp_path / "saved")
    again = transept.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(again.head.out_proj.weight, trainer.model.head.out_proj.weight)


def test_noise_on_embeddings_is_of_its_size(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(TrainerCallback):
        def on_step_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append((model.get_input_embeddings().weight.detach().clone(), model.get_input_embeddings()))

    plain, noisy = run(tmp_path), run(tmp_path, neftune_noise_alpha=5.0, callbacks=[Look])
    assert losses(noisy) != losses(plain)
    table = noisy.model.get_input_embeddings()
    ids = torch.arange(5)[None]
    assert torch.equal(table.train()(ids), table.weight[ids])


def test_what_is_frozen_stays(tmp_path: Path) -> None:
    model = ours(CASE)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = run(tmp_path, model, freeze="backbone", learning_rate=1e-2)
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {"classifier.weight", "classifier.bias"}
    with pytest.raises(UnsupportedError, match="model of this library"):
        run(tmp_path, Foreign(), rows("tokens", 8), freeze="backbone")


def test_a_schedule_unfreezes_epoch_by_epoch(tmp_path: Path) -> None:
    trained: list[set[str]] = []

    class Look(TrainerCallback):
        def on_epoch_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            trained.append({name.split(".layer.")[-1][:2] for name, weight in model.named_parameters() if weight.requires_grad})

    settings = {"max_steps": -1, "num_train_epochs": 3, "learning_rate": 1e-2}
    model = ours(CASE)
    first = model.backbone.layers[1].mlp.up_proj.weight.detach().clone()
    trainer = run(tmp_path, model, callbacks=[Look], unfreeze_schedule={0: 0, 1: 1, 2: 2}, **settings)
    assert [("1." in each, "0." in each) for each in trained] == [(False, False), (True, False), (True, True)]
    assert not torch.equal(trainer.model.backbone.layers[1].mlp.up_proj.weight, first)


def test_rates_fall_from_the_head_on(tmp_path: Path) -> None:
    trainer = run(tmp_path, layerwise_lr_decay=0.5, learning_rate=1e-2, lr_scheduler_type="constant")
    assert sorted(set(trainer.get_learning_rates())) == pytest.approx([1.25e-3, 2.5e-3, 5e-3, 1e-2])


class Spoil(TrainerCallback):
    """Makes a gradient that is no number in the second update."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.hook = model.head.out_proj.weight.register_hook(lambda g: g * float("nan") if state.global_step == 1 else g)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.hook.remove()


def test_updates_that_are_not_finite(tmp_path: Path) -> None:
    model = ours(CASE)
    with pytest.raises(TrainingError, match="update 2"):
        run(tmp_path, model, callbacks=[Spoil])
    assert all(weight.isfinite().all() for weight in model.parameters())
    trainer = run(tmp_path, callbacks=[Spoil], nan_policy="skip")
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())
    assert [log.get("skipped_updates", 0) for log in trainer.state.log_history[:-1]] == [0, 1, 1, 1]
    spoilt = run(tmp_path, callbacks=[Spoil], nan_policy="ignore")
    assert not all(weight.isfinite().all() for weight in spoilt.model.parameters())


def test_tokens_are_counted(tmp_path: Path) -> None:
    data = rows("class", 16)
    every = run(tmp_path, data=data, include_num_input_tokens_seen=True)
    real = run(tmp_path, data=data, include_num_input_tokens_seen="non_padding")
    assert every.state.num_input_tokens_seen == 4 * 4 * 12
    assert real.state.num_input_tokens_seen == sum(int(row["attention_mask"].sum()) for row in data)
    assert "train_tokens_per_second" in every.state.log_history[0]


def test_early_stopping_and_the_best_model(tmp_path: Path) -> None:
    def metrics(found: Any) -> dict[str, float]:
        return {"score": {1: 0.5, 2: 0.9, 3: 0.8, 4: 0.7}[trainer.state.global_step]}

    args = TrainingArguments(
        **quiet(tmp_path, max_steps=9, per_device_train_batch_size=4, save_strategy="steps"),
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
    )
    early = transept.EarlyStoppingCallback(2)
    data = rows("class", 8)
    trainer = Trainer(ours(CASE), args, None, data, data, compute_metrics=metrics, callbacks=[early])
    assert trainer.train().global_step == 4
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, 0.9)
    best = transept.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(best.head.out_proj.weight, trainer.model.head.out_proj.weight)


def test_a_schedule_that_follows_a_metric(tmp_path: Path) -> None:
    args = TrainingArguments(
        **quiet(tmp_path, num_train_epochs=4, per_device_train_batch_size=8),
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0},
        eval_strategy="epoch",
        metric_for_best_model="error",
        greater_is_better=False,
    )
    data = rows("class", 8)
    trainer = Trainer(ours(CASE), args, None, data, data, compute_metrics=lambda found: {"error": 1.0})
    trainer.train()
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    assert rates[0] == rates[1] == 5e-5
    assert rates[-1] < rates[0]


def _caches(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each cache of keys and values that is made."""
    from transept.layers.caches.cache import DynamicCache

    first = DynamicCache.__init__

    def note(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        first(self, *args, **kwargs)

    monkeypatch.setattr(DynamicCache, "__init__", note)


@pytest.mark.parametrize(
    ("name", "kind"), [("GPT2LMHeadModel", "text"), ("LlamaForCausalLM", "text"), ("T5ForConditionalGeneration", "pair")]
)
def test_no_cache_is_made_in_training(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where labels are taken out of the inputs, for smoothing or a loss of one's own."""
    made: list[Any] = []
    model, data = ours(head(name)), rows(kind, 8)
    saved = model.config.use_cache
    _caches(made, monkeypatch)
    run(tmp_path, model, data, max_steps=1)
    run(tmp_path, model, data, max_steps=1, label_smoothing_factor=0.1)
    assert not made
    assert model.config.use_cache is saved
    ids = {"input_ids": data[0]["input_ids"][None]} | ({"decoder_input_ids": torch.tensor([[0, 3]])} if kind == "pair" else {})
    assert model(**ids).past_key_values is not None
    made.clear()
    run(tmp_path, model, data, max_steps=1, label_smoothing_factor=0.1, use_cache=True)
    assert made


def test_nan_is_never_the_best_metric(tmp_path: Path) -> None:
    """The first evaluation gives NaN, then 3, 1, NaN: the best is 1, and the first number replaced NaN."""
    values = iter([float("nan"), 3.0, 1.0, float("nan")])
    args = TrainingArguments(
        **quiet(tmp_path, max_steps=4, eval_strategy="steps", eval_steps=1)
        | {"save_strategy": "steps", "save_steps": 1, "metric_for_best_model": "error", "greater_is_better": False}
        | {"load_best_model_at_end": True}
    )
    case = head("BertForSequenceClassification")
    data = rows(case.rows, 4)
    trainer = Trainer(
        ours(case), args, train_dataset=data, eval_dataset=data, compute_metrics=lambda found: {"error": next(values)}
    )
    trainer.train()
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (1.0, 3)


def test_a_run_that_failed_is_not_in_training(tmp_path: Path) -> None:
    class Fails(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no")

    case = head("BertForSequenceClassification")
    trainer = Trainer(ours(case), TrainingArguments(**quiet(tmp_path)), train_dataset=rows(case.rows, 4), callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="no"):
        trainer.train()
    assert not trainer.is_in_train


def test_states_are_computed_of_the_weights_that_a_run_goes_on_with(tmp_path: Path) -> None:
    """With `precompute` a resumed run, whose model was made with other weights, ends as one that was not interrupted."""
    case, weights = head("BertForSequenceClassification"), []
    for steps in ((4,), (2, 4)):
        folder = tmp_path / str(len(steps))
        for number, last in enumerate(steps):
            args = TrainingArguments(
                **quiet(folder, max_steps=last, freeze="backbone", precompute=True, lr_scheduler_type="constant")
                | {"save_strategy": "steps", "save_steps": 2}
            )
            trainer = Trainer(ours(case, seed=number), args, train_dataset=rows(case.rows, 16))
            with warnings.catch_warnings(action="ignore"):  # that `max_steps` is another
                trainer.train(resume_from_checkpoint=True if number else None)
        weights.append(trainer.model.state_dict())
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=0, msg=name)
