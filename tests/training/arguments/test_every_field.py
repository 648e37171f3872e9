"""No field of the reference's settings is read and ignored: a run reads it, it has the effect shown here, or it is refused."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from tests.training.small import head, ours, quiet, rows
from transept import EarlyStoppingCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from transept.errors import ConfigError, TranseptError, UnsupportedError
from transept.training.files import TrainedModel
from transept.training.run import TrainingRun, prepared

pytestmark = pytest.mark.reference

# For scripts, which read them; neither trainer does.
SCRIPTS = {"do_train", "do_eval", "do_predict", "resume_from_checkpoint", "local_rank"}

REFUSED: dict[str, Any] = {
    "parallelism_config": {"tp_size": 2},
    "accelerator_config": {"split_batches": True},
    "use_liger_kernel": True,
    "liger_kernel_config": {"rope": True},
    "skip_memory_metrics": False,
    "debug": "underflow_overflow",
    "project": "mine",
    "trackio_space_id": "me/space",
    "trackio_bucket_id": "me/bucket",
    "trackio_static_space_id": True,
    "sortish_sampler": True,
    "average_tokens_across_devices": False,
    "optim_target_modules": ["attn"],
    "save_on_each_node": True,
}


def _args(**given: Any) -> TrainingArguments:
    return TrainingArguments("x", use_cpu=True, **given)


def _options_of_ddp(**given: Any) -> Any:
    made: Any = Trainer(ours(head("BertForSequenceClassification")), _args(report_to="none", **given))
    made.devices.alone = False
    return made.devices.form(made.model).options


def _compiled(**given: Any) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    model = torch.nn.Linear(1, 1)
    model.compile = lambda **options: calls.append(options)  # type: ignore[method-assign, assignment]
    with prepared(model, _args(use_cache=True, **given), recomputes=False):
        return calls[0]


def _published(**given: Any) -> dict[str, Any]:
    called: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainedModel, "push_to_hub", lambda self, name, **options: called.update(options, name=name))
        Trainer(ours(head("BertForSequenceClassification")), _args(**given)).push_to_hub()
    return called


def _mean_of_nan(**given: Any) -> float:
    """The loss that is logged after losses of 2 and of NaN."""
    args = _args(**given)
    tally = SimpleNamespace(waiting=[torch.tensor(2.0), torch.tensor(float("nan"))], loss=0.0, learned=0)
    run: Any = SimpleNamespace(args=args, tally=tally, devices=SimpleNamespace(replicas=SimpleNamespace(among=list)))
    TrainingRun.add_up_losses(run)
    return float(tally.loss)


def _error(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        _args(**given)
    return str(caught.value)


EFFECTS: dict[str, Callable[[], bool]] = {
    "auto_find_batch_size": lambda: _args(auto_find_batch_size=True).find_batch_size is True,
    "gradient_checkpointing": lambda: _args(gradient_checkpointing=True).activation_checkpointing is True,
    "gradient_checkpointing_kwargs": lambda: (
        _args(gradient_checkpointing_kwargs={"a": 1}).activation_checkpointing_kwargs == {"a": 1}
    ),
    "activation_checkpointing_kwargs": lambda: (
        _args(activation_checkpointing_kwargs={"a": 1}).gradient_checkpointing_kwargs == {"a": 1}
    ),
    "enable_jit_checkpoint": lambda: _args(save_on_signal=False, enable_jit_checkpoint=True).save_on_signal,
    "per_device_train_batch_size": lambda: _args(per_device_train_batch_size=3).train_batch_size == 3,
    "per_device_eval_batch_size": lambda: _args(per_device_eval_batch_size=3).eval_batch_size == 3,
    "use_cpu": lambda: _args().device.type == "cpu",
    "warmup_steps": lambda: _args(warmup_steps=0.5).get_warmup_steps(8) == 4,
    "log_level": lambda: _args(log_level="error").get_process_log_level() == 40,
    "log_level_replica": lambda: _replica(log_level_replica="error").get_process_log_level() == 40,
    "log_on_each_node": lambda: not _replica(local=0, log_on_each_node=False).should_log and _replica(local=0).should_log,
    "tf32": lambda: torch.cuda.is_available() or "needs a GPU" in _error(tf32=True),
    "torch_compile_backend": lambda: _compiled(torch_compile_backend="eager")["backend"] == "eager",
    "torch_compile_mode": lambda: _compiled(torch_compile_mode="max-autotune")["mode"] == "max-autotune",
    "ddp_find_unused_parameters": lambda: _options_of_ddp(ddp_find_unused_parameters=False)["find_unused_parameters"] is False,
    "ddp_bucket_cap_mb": lambda: _options_of_ddp(ddp_bucket_cap_mb=3)["bucket_cap_mb"] == 3,
    "ddp_broadcast_buffers": lambda: _options_of_ddp(ddp_broadcast_buffers=False)["broadcast_buffers"] is False,
    "ddp_static_graph": lambda: _options_of_ddp(ddp_static_graph=True)["static_graph"] is True,
    "hub_model_id": lambda: _published(hub_model_id="me/it")["name"] == "me/it",
    "hub_private_repo": lambda: _published(hub_private_repo=True)["private"] is True,
    "hub_token": lambda: _published(hub_token="t")["token"] == "t",
    "hub_revision": lambda: _published(hub_revision="dev")["revision"] == "dev",
    "logging_nan_inf_filter": lambda: _mean_of_nan() == 2 != _mean_of_nan(logging_nan_inf_filter=False),
    # What they ask for is done always: any object is gathered, and each upload is waited for.
    "eval_use_gather_object": lambda: _args(eval_use_gather_object=True).eval_use_gather_object,
    "hub_always_push": lambda: _args(hub_always_push=True).hub_always_push,
    "hub_strategy": lambda: "`hub_strategy='checkpoint'` cannot be" in _unsupported(hub_strategy="checkpoint"),
    "run_name": lambda: _named_run() == "mine",
}


def _unsupported(**given: Any) -> str:
    with pytest.raises(UnsupportedError) as caught:
        Seq2SeqTrainingArguments("x", **given)
    return str(caught.value)


def _named_run() -> Any:
    from transept.training.callbacks.reports import WandbCallback

    named: dict[str, Any] = {}
    program = SimpleNamespace(run=None, init=lambda **options: named.update(options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", program)  # type: ignore[arg-type]
        WandbCallback.begin(None, _args(run_name="mine"), {})  # type: ignore[arg-type]
    return named["name"]


def _replica(local: int = 1, **given: Any) -> Any:
    class Replica(TrainingArguments):
        world_size = property(lambda self: 4)  # type: ignore[assignment]
        process_index = property(lambda self: 3)  # type: ignore[assignment]
        local_process_index = property(lambda self: local)  # type: ignore[assignment]

    return Replica("x", use_cpu=True, **given)


class Watched(Seq2SeqTrainingArguments):
    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        place = sys._getframe(1).f_globals["__name__"]
        if not place.startswith(("transept.training.arguments", "dataclasses", __name__)):
            Watched.read.add(name)
        return object.__getattribute__(self, name)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The fields that a run with evaluations, a resumed one, and predictions read, outside of the arguments' own modules."""
    folder = tmp_path_factory.mktemp("run")
    given = quiet(folder, per_device_train_batch_size=2, lr_scheduler_type="cosine", load_best_model_at_end=True)
    given |= {"train_sampling_strategy": "group_by_length", "predict_with_generate": True, "dataloader_num_workers": 1}
    for checkpoint in (None, folder / "checkpoint-2"):
        args = Watched(**given | {"save_strategy": "epoch", "eval_strategy": "epoch", "num_train_epochs": 2})
        model = ours(head("T5ForConditionalGeneration"))
        sets = {"train_dataset": rows("pair", 4), "eval_dataset": rows("pair", 3)}
        trainer = Seq2SeqTrainer(model, args, compute_metrics=lambda prediction: {"n": 1.0}, **sets)
        trainer.add_callback(EarlyStoppingCallback(9))
        trainer.train(checkpoint and str(checkpoint))
        trainer.predict(rows("pair", 2))
    return Watched.read & {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}


def test_every_field_is_honoured_or_refused(read: set[str]) -> None:
    import transformers

    theirs = {field.name for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    assert theirs <= read | SCRIPTS | EFFECTS.keys() | REFUSED.keys()
    assert not REFUSED.keys() & read


@pytest.mark.parametrize("name", [*EFFECTS])
def test_a_field_has_its_effect(name: str) -> None:
    assert EFFECTS[name]()


@pytest.mark.parametrize("name", [*REFUSED])
def test_a_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(TranseptError, match=f"`{name}=.*cannot be honoured") as caught:
        Seq2SeqTrainingArguments("x", **{name: REFUSED[name]})
    assert caught.value.hint
