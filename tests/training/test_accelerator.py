"""What overriding code calls: the accelerator, methods of the reference's trainer, and the files of a save."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import transept
from transept import Seq2SeqTrainer, Trainer, TrainingArguments
from transept.errors import InputError, TranseptWarning, UnsupportedError
from transept.training.data.loader import begin_epoch
from transept.training.trainer_base import UNCALLED

from .small import head, ours, pair, quiet, reference_warnings, rows

CLASS, ViT = head("BertForSequenceClassification"), head("ViTForImageClassification")


def weighted(base: Any) -> Any:
    """A trainer of either library, as guides write it."""

    class Weighted(base):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weight = torch.tensor([1.0, 2.0, 3.0])
            loss = nn.functional.cross_entropy(outputs.logits, labels, weight=weight, reduction="sum")
            loss = loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    return Weighted


def inherited(base: Any) -> Any:
    class Inherited(base):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            return (loss, outputs) if return_outputs else loss

    return Inherited


def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


@pytest.mark.reference
@pytest.mark.parametrize("made", [weighted, inherited, summed])
def test_a_loss_that_divides_by_the_number_is_the_references(made: Any, tmp_path: Path) -> None:
    """A loss of one's own and micro-batches: losses are the reference's, after updates too."""
    import transformers

    models, found = pair(ViT), []
    for library, model in zip((transept, transformers), models):
        kind, more = (library.Trainer, {"compute_loss_func": summed}) if made is summed else (made(library.Trainer), {})
        given = quiet(tmp_path, per_device_train_batch_size=3, gradient_accumulation_steps=2, max_steps=4)
        given |= {"learning_rate": 1e-2, "report_to": "none", "remove_unused_columns": False}
        with reference_warnings():
            args = library.TrainingArguments(**given)  # type: ignore[attr-defined]
            trainer = kind(model, args, train_dataset=rows("picture", 16), **more)
            trainer.train()
        found.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert len(found[0]) == 4
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5)


def _trainer(folder: Path, cls: type[Trainer] = Trainer, **more: Any) -> Trainer:
    args = TrainingArguments(**quiet(folder, per_device_train_batch_size=4, max_steps=2) | more)
    return cls(ours(CLASS), args, train_dataset=rows("class", 8), eval_dataset=rows("class", 4))


def test_a_loop_of_ones_own_over_the_accelerator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = _trainer(tmp_path)
    here = trainer.accelerator
    loader, model = here.prepare(trainer.get_eval_dataloader(), trainer.model)
    gathered = []
    with here.main_process_first(), here.local_main_process_first(), trainer.args.main_process_first(desc="map"):
        for batch in loader:
            with here.autocast(), here.accumulate(model):
                output = model(**batch)
            here.backward(output.loss)
            logits, labels = here.gather_for_metrics((output.logits, batch["labels"]))
            gathered.append(here.pad_across_processes(logits, dim=1))
    here.wait_for_everyone()
    assert float(here.clip_grad_norm_(model.parameters(), 1.0)) > 0
    assert torch.cat(gathered).shape == (4, 3)
    assert labels.shape == (4,)
    assert float(here.reduce(torch.tensor(2.0), "mean")) == 2
    assert here.gather(torch.tensor(1.0)).shape == (1,)
    assert here.gather_for_metrics(["a", "b"], use_gather_object=True) == ["a", "b"]
    assert (here.num_processes, here.process_index, here.is_main_process, here.is_local_main_process) == (1, 0, True, True)
    assert (here.device, here.mixed_precision) == (trainer.args.device, "no")
    assert here.unwrap_model(torch.compile(model, backend="eager"), keep_torch_compile=False) is model
    assert here.on_main_process(len)("abc") == 3
    assert (here.parallelism_config, here.state.distributed_type, trainer.args.distributed_state.num_processes) == (
        None,
        "NO",
        1,
    )
    here.print("one", 2)
    assert "one 2" in capsys.readouterr().out
    with pytest.raises(AttributeError, match=r"has no 'load_state'. It has: .*backward"):
        here.load_state("x")


def test_the_arguments_are_pickled_beside_a_save(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, save_strategy="steps", save_steps=1, hub_token="secret")
    trainer.train()
    trainer.save_model()
    for folder in (tmp_path, tmp_path / "checkpoint-1"):
        args = torch.load(folder / "training_args.bin", weights_only=False)
        assert args.to_dict() == trainer.args.to_dict() | {"hub_token": None}
        assert args.hub_token is None

    @dataclass
    class Local(TrainingArguments):
        pass

    trainer.args = Local(**quiet(tmp_path))
    with pytest.warns(TranseptWarning, match=r"training_args\.bin is not written: Local cannot be pickled"):
        trainer.save_model(str(tmp_path / "other"))
    assert (tmp_path / "other" / "model.safetensors").exists()


class Hooks(Trainer):
    """Methods of the reference's trainer that libraries override and call."""

    called: list[str] = []

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.called.append(f"load {Path(resume_from_checkpoint).name}")
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        assert self.push_in_progress is None
        self.called.append(f"push {Path(checkpoint_folder).name}")

    def get_optimizer_cls_and_kwargs(self, args: Any, model: Any = None) -> Any:  # type: ignore[override]
        kind, options = super().get_optimizer_cls_and_kwargs(args, model)
        return kind, {**options, "optimizer_dict": [{"params": [*self.model.classifier.parameters()], "weight_decay": 0.5}]}


def test_what_libraries_override_is_called(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 1, "push_to_hub": True}
    _trainer(tmp_path, Hooks, **options).train()
    trainer = _trainer(tmp_path, Hooks, **options)
    trainer.train(resume_from_checkpoint=True)
    assert Hooks.called == ["push checkpoint-1", "push checkpoint-2", "load checkpoint-2"]
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.5]
    with pytest.raises(InputError, match="`layerwise_lr_decay` makes groups of parameters"):
        _trainer(tmp_path / "other", Hooks, layerwise_lr_decay=0.5).train()


def test_rows_that_a_loader_of_ones_own_shuffles_follow_from_the_epoch(tmp_path: Path) -> None:
    """A `RandomSampler` is the reference's after `accelerator.prepare`, in a sampler of batches of one's own, too."""
    import accelerate

    here, orders = _trainer(tmp_path).accelerator, []
    theirs = accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True))
    for prepare in (here.prepare, theirs.prepare):
        torch.manual_seed(42)
        batches = BatchSampler(RandomSampler(range(10), generator=torch.Generator().manual_seed(42)), 3, False)
        loader = prepare(DataLoader(list(range(10)), batch_sampler=batches))
        orders.append([torch.cat(list(begin_epoch(loader, epoch, 0))).tolist() for epoch in (0, 1)])
    assert orders[0] == orders[1]


class Reads(Trainer):
    """A loader that people write themselves."""

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["input_ids", "labels"]

    def get_train_dataloader(self) -> DataLoader[Any]:
        rows = self._remove_unused_columns(self.train_dataset, description="training")
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        sampler = self._get_train_sampler(rows)
        loader: Any = DataLoader(rows, batch_size=self.args.train_batch_size, collate_fn=collate, sampler=sampler)
        return self.accelerator.prepare(loader)  # type: ignore[no-any-return]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert inputs.keys() == {"input_ids", "labels"}
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_a_loader_of_ones_own(tmp_path: Path) -> None:
    assert _trainer(tmp_path, Reads).train().global_step == 2


def test_groups_and_sizes_of_the_optimizer(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, gradient_accumulation_steps=3)
    trainer.create_optimizer()
    weight = next(trainer.model.parameters())
    assert any(part is weight for part in trainer.get_optimizer_group(weight)["params"])
    assert sum(map(len, trainer.get_optimizer_group())) == len([*trainer.model.parameters()])
    assert trainer.get_total_train_batch_size(trainer.args) == 12
    assert trainer._wrap_model(trainer.model) is trainer.model


# The reference's own, of parallel forms and devices that are other ones here, and of its loop's beginning.
ABSENT = {"_defer_fsdp_gradient_reduction", "_has_mixed_mesh_grads", "_mixed_mesh_grad_norm", "get_cp_size", "get_sp_size"}
ABSENT |= {"_sync_replicated_trainable_parameters", "_prepare_context_parallel_inputs", "_update_auto_batch_size", "end"}
ABSENT |= {"_finish_current_push", "_issue_warnings_after_load", "_load_callback_state"}


@pytest.mark.reference
@pytest.mark.parametrize("cls", ["Trainer", "Seq2SeqTrainer"])
def test_methods_have_the_references_parameters(cls: str) -> None:
    import transformers

    mine, theirs = getattr(transept, cls), getattr(transformers, cls)
    for name in (name for name in dir(theirs) if not name.startswith("__") and callable(getattr(theirs, name))):
        if hasattr(mine, name):
            wanted, has = (inspect.signature(getattr(kind, name)).parameters for kind in (theirs, mine))
            assert [*wanted] == [key for key in has if key in wanted], name
            assert {key: value.default for key, value in wanted.items()}.items() <= {
                key: value.default for key, value in has.items()
            }.items(), name
        else:
            assert name in UNCALLED or name in ABSENT, name


@pytest.mark.parametrize("cls", [Trainer, Seq2SeqTrainer])
def test_overrides_that_would_never_be_called_are_refused(cls: type[Trainer], tmp_path: Path) -> None:
    kind = type("Mine", (cls,), {"_maybe_log_save_evaluate": lambda self, *args: None})
    with pytest.raises(UnsupportedError, match="Mine overrides `_maybe_log_save_evaluate`, which is not called here"):
        _trainer(tmp_path, kind)
