"""Settings of a run: the reference's fields and defaults, older names, checks, and JSON."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from tests.training.small import reference_warnings
from transept import Seq2SeqTrainingArguments, TrainingArguments
from transept.errors import ConfigError, FileError, FormatError, InputError, TranseptError, TranseptWarning, UnsupportedError

OURS = {"nan_policy", "max_tokens_per_batch", "layerwise_lr_decay", "freeze", "unfreeze_schedule", "adversarial"}
OURS |= {"save_on_signal", "find_batch_size", "ema_decay", "deterministic", "precompute"}
OURS |= {"zero_stage", "tp_size", "pp_size", "pp_schedule", "pp_microbatches", "dp_replicate_size", "enable_sequence_parallel"}


@pytest.mark.reference
@pytest.mark.parametrize("name", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_fields_and_defaults_are_the_references(name: str) -> None:
    import transformers

    mine = {each.name: each for each in dataclasses.fields(getattr(transept, name))}
    theirs = {each.name: each for each in dataclasses.fields(getattr(transformers, name))}
    assert set(mine) - set(theirs) == OURS
    assert set(theirs) <= set(mine)
    for field, other in theirs.items():
        assert mine[field].default == other.default or mine[field].default is other.default
        assert (mine[field].default_factory is dataclasses.MISSING) == (other.default_factory is dataclasses.MISSING)
    order = [field for field in mine if field in theirs]
    assert order == list(theirs)
    assert list(inspect.signature(getattr(transept, name)).parameters)[:2] == ["output_dir", "per_device_train_batch_size"]


@pytest.mark.reference
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"eval_strategy": "steps", "logging_steps": 7},
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        {"load_best_model_at_end": True, "save_strategy": "best", "metric_for_best_model": "f1"},
        {"report_to": "none", "include_num_input_tokens_seen": True, "warmup_steps": 0.1},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": false}'},
        {"torch_compile_mode": "default", "seed": 3, "data_seed": 5},
    ],
)
def test_what_follows_is_the_references(given: dict[str, Any]) -> None:
    import transformers

    with reference_warnings():
        theirs = transformers.TrainingArguments("x", use_cpu=True, **given)
    mine = TrainingArguments("x", use_cpu=True, **given)
    differ = {"disable_tqdm", "hub_token", "accelerator_config", "dataloader_pin_memory", "torch_compile_backend", "local_rank"}
    for name, value in theirs.to_dict().items():
        if name not in differ:
            assert getattr(mine, name) == value or mine.to_dict()[name] == value, name
    for steps in (1, 7, 1000):
        assert mine.get_warmup_steps(steps) == theirs.get_warmup_steps(steps)
    for name in ("train_batch_size", "eval_batch_size", "world_size", "process_index", "should_log", "should_save", "device"):
        assert getattr(mine, name) == getattr(theirs, name)


def test_older_names() -> None:
    args = TrainingArguments(
        "x", evaluation_strategy="epoch", no_cuda=True, warmup_ratio=0.1, group_by_length=True, save_safetensors=True
    )
    assert (args.eval_strategy, args.use_cpu, args.warmup_steps) == ("epoch", True, 0.1)
    assert args.train_sampling_strategy == "group_by_length"
    assert args.evaluation_strategy == "epoch"
    args.evaluation_strategy = "no"
    assert args.eval_strategy == "no"
    assert TrainingArguments("x", warmup_ratio=0.1, warmup_steps=5).warmup_steps == 5


WRONG: list[tuple[dict[str, Any], type[TranseptError], str]] = [
    ({"learning_rate": "fast"}, ConfigError, "must be float"),
    ({"learning_rate": -1.0}, ConfigError, "at least 0"),
    ({"learning_rate": float("nan")}, ConfigError, "must be"),
    ({"learnig_rate": 1e-3}, ConfigError, "Did you mean 'learning_rate'"),
    ({"per_device_train_batch_size": 0}, ConfigError, "at least 1"),
    ({"per_device_train_batch_size": 2.5}, ConfigError, "must be int"),
    ({"gradient_accumulation_steps": -1}, ConfigError, "at least 1"),
    ({"num_train_epochs": -1}, ConfigError, "at least 0"),
    ({"label_smoothing_factor": 1.0}, ConfigError, r"\[0, 1\)"),
    ({"seed": -1}, ConfigError, r"\[0, 4294967295\]"),
    ({"bf16": "yes"}, ConfigError, "must be bool"),
    ({"bf16": True, "fp16": True}, ConfigError, "contradicts"),
    ({"eval_strategy": "sometimes"}, InputError, "no IntervalStrategy"),
    ({"lr_scheduler_type": "zigzag"}, InputError, "no SchedulerType"),
    ({"optim": "magic"}, InputError, "no optimizer"),
    ({"optim": "lomo"}, UnsupportedError, "a package that is not used"),
    ({"logging_steps": 0}, ConfigError, "must not be zero"),
    ({"logging_steps": 2.5}, ConfigError, "whole number"),
    ({"load_best_model_at_end": True}, ConfigError, "must be as `eval_strategy`"),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4},
        ConfigError,
        "multiple of `eval_steps`",
    ),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, ConfigError, "needs evaluations"),
    ({"dataloader_prefetch_factor": 2}, ConfigError, "needs workers"),
    ({"max_tokens_per_batch": 100}, ConfigError, "need each other"),
    ({"train_sampling_strategy": "token_budget"}, ConfigError, "need each other"),
    ({"nan_policy": "hope"}, ConfigError, "must be Literal"),
    ({"ema_decay": 1.0}, ConfigError, r"in \(0, 1\)"),
    ({"deepspeed": "zero3.json"}, FileError, "zero3.json"),
    ({"deepspeed": {"zero_optimization": {"stage": 4}}}, ConfigError, "0, 1, 2 or 3"),
    ({"deepspeed": {"gradient_clipping": 3.0}}, ConfigError, "gradient_clipping=3.0, which by the arguments is 1.0"),
    ({"deepspeed": {"zero_optimization": {"offload_param": {"device": "nvme"}}}}, ConfigError, "'nvme'"),
    ({"deepspeed": {"scheduler": {"type": "WarmupLR"}}}, ConfigError, "lr_scheduler_type='constant_with_warmup'"),
    ({"deepspeed": {"scheduler": {"type": "WarmupDecayLR"}}, "warmup_steps": 3}, UnsupportedError, "by a line"),
    ({"deepspeed": {"flops_profiler": {"enabled": True}}}, UnsupportedError, "flops_profiler.enabled"),
    ({"parallelism_config": {"tp_size": 2}}, UnsupportedError, "tp_size"),
    ({"zero_stage": 4}, ConfigError, "zero_stage"),
    ({"accelerator_config": {"split_batches": True}}, UnsupportedError, "accelerate"),
    ({"use_liger_kernel": True}, UnsupportedError, "Liger"),
    ({"skip_memory_metrics": False}, UnsupportedError, "memory"),
    ({"debug": "underflow_overflow"}, UnsupportedError, "nan_policy"),
    ({"train_sampling_strategy": "batch_rebalance"}, UnsupportedError, "group_by_length"),
    ({"trackio_space_id": "me/space"}, UnsupportedError, "Trackio"),
    ({"hub_strategy": "all_checkpoints"}, UnsupportedError, "every_save"),
    ({"save_safetensors": False}, UnsupportedError, "safetensors"),
    ({"lr_scheduler_kwargs": "{"}, FormatError, "JSON"),
    ({"average_tokens_across_devices": False}, UnsupportedError, "items of all processes"),
    ({"optim_target_modules": ["attn"]}, UnsupportedError, "GaLore"),
    ({"save_on_each_node": True}, UnsupportedError, "one checkpoint together"),
]


@pytest.mark.parametrize(("given", "kind", "what"), WRONG, ids=[f"{[*given][-1]}-{n}" for n, (given, *_) in enumerate(WRONG)])
def test_what_is_wrong_is_said(given: dict[str, Any], kind: type[TranseptError], what: str) -> None:
    with pytest.raises(kind, match=what):
        TrainingArguments("x", **given)


def test_settings_are_checked_when_they_are_set_later() -> None:
    args = TrainingArguments("x")
    with pytest.raises(ConfigError, match="at least 0"):
        args.learning_rate = -1
    with pytest.raises(UnsupportedError):
        args.optim = "lomo"
    args.learning_rate = 1
    assert type(args.learning_rate) is float


@dataclass
class Own(TrainingArguments):
    """Settings that a script adds to."""

    color: str = None  # type: ignore[assignment]  # as scripts write it
    sizes: tuple[int, ...] = (1, 2)


def test_settings_of_scripts() -> None:
    args = Own("x", color="red", warmup_ratio=0.5)
    assert (args.color, args.sizes, args.warmup_steps) == ("red", (1, 2), 0.5)
    assert Own().color is None


class Distillation(TrainingArguments):
    """Settings with a constructor of their own, as guides on distillation write them."""

    def __init__(self, *args: Any, alpha: float = 0.5, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha = alpha


def test_constructors_of_scripts() -> None:
    args = Distillation("x", alpha=0.25, evaluation_strategy="no", seed=3)
    assert (args.alpha, args.seed, args.output_dir) == (0.25, 3, "x")
    with pytest.raises(ConfigError, match="no setting 'alpa'"):
        Distillation("x", alpa=0.25)


def test_json_and_back(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(
        tmp_path / "run",  # type: ignore[arg-type]  # paths are taken too
        eval_strategy="epoch",
        hub_token="secret",
        lr_scheduler_kwargs={"num_cycles": 2},
        include_for_metrics=["loss"],
        optim="sgd",
    )
    text = args.to_json_string()
    assert "secret" not in text
    (tmp_path / "args.json").write_text(text)
    again = Seq2SeqTrainingArguments.from_json_file(tmp_path / "args.json")
    assert again.to_dict() == args.to_dict() | {"hub_token": None}
    assert json.loads(text)["eval_strategy"] == "epoch"
    for twin in (pickle.loads(pickle.dumps(args)), copy.deepcopy(args), dataclasses.replace(args, seed=3)):
        assert twin.eval_strategy == args.eval_strategy
    assert all(isinstance(value, bool | int | float | str) for value in args.to_sanitized_dict().values())
    (tmp_path / "args.json").write_text('{"learning_rate": "fast"}')
    with pytest.raises(ConfigError, match=r"args\.json"):
        TrainingArguments.from_json_file(tmp_path / "args.json")
    assert "learning_rate=5e-05" in str(args)


def test_bf16_warns_where_the_processor_has_no_products() -> None:
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() or torch.cuda.is_available():
        TrainingArguments("x", bf16=True)
        return
    with pytest.warns(TranseptWarning, match="no bf16 products"):
        TrainingArguments("x", bf16=True)


GROUPS: dict[str, list[dict[str, Any]]] = {
    "set_training": [
        {},
        {"learning_rate": 1e-4, "batch_size": 32, "activation_checkpointing": True, "max_steps": 9, "seed": 7},
    ],
    "set_evaluate": [{}, {"strategy": "steps", "steps": 100, "accumulation_steps": 3, "delay": 2, "loss_only": True}],
    "set_testing": [{}, {"batch_size": 32, "loss_only": True}],
    "set_save": [{}, {"strategy": "epoch", "total_limit": 2}, {"strategy": "best"}],
    "set_logging": [{}, {"strategy": "epoch", "steps": 3, "level": "info", "nan_inf_filter": True, "replica_level": "error"}],
    "set_push_to_hub": [{"model_id": "me/it"}, {"model_id": "me/it", "strategy": "end", "token": "t", "revision": "dev"}],
    "set_optimizer": [{}, {"name": "sgd", "beta1": 0.8, "args": "momentum=0.5"}],
    "set_lr_scheduler": [{}, {"name": "cosine", "warmup_steps": 0.05, "num_epochs": 1.5}],
    "set_dataloader": [
        {},
        {"train_batch_size": 16, "num_workers": 2, "prefetch_factor": 3, "sampler_seed": 5, "drop_last": True},
    ],
}


@pytest.mark.reference
@pytest.mark.parametrize(("name", "given"), [(name, given) for name, cases in GROUPS.items() for given in cases])
def test_groups_of_settings_are_the_references(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    mine, theirs = getattr(TrainingArguments, name), getattr(transformers.TrainingArguments, name)
    own, other = inspect.signature(mine).parameters, inspect.signature(theirs).parameters
    assert [(each.name, each.default) for each in own.values()] == [(each.name, each.default) for each in other.values()]
    begin: dict[str, Any] = {"use_cpu": True, "seed": 3, "save_total_limit": 5, "weight_decay": 0.5, "eval_delay": 4}
    args = TrainingArguments(str(tmp_path), **begin)
    own_before = dataclasses.asdict(args)
    assert getattr(args, name)(**given) is args
    with reference_warnings():
        other_args = transformers.TrainingArguments(str(tmp_path), report_to="none", **begin)
        before = copy.copy(vars(other_args))
        getattr(other_args, name)(**given)
    changed = {field: value for field, value in vars(other_args).items() if field in own_before and value != before[field]}
    assert len(changed) >= 2 or not given
    changed |= {"eval_delay": given.get("delay", 0)} if name == "set_evaluate" else {}
    changed.pop("report_to", None)
    now = dataclasses.asdict(args)
    assert {field: value for field, value in now.items() if value != own_before[field] and field != "find_batch_size"} == {
        field: value for field, value in changed.items() if value != own_before[field]
    }


def test_groups_follow_one_another_and_are_checked() -> None:
    args = TrainingArguments().set_training(batch_size=4).set_save(strategy="no").set_dataloader(auto_find_batch_size=True)
    assert (args.per_device_train_batch_size, args.save_strategy, args.find_batch_size) == (8, "no", True)
    with pytest.warns(FutureWarning, match="write `activation_checkpointing`"):
        assert args.set_training(gradient_checkpointing=True).activation_checkpointing
    for call in (args.set_evaluate, args.set_save, args.set_logging):
        with pytest.raises(ConfigError, match=f"`steps` of {call.__name__} must be positive"):
            call(strategy="steps", steps=0)
    with pytest.raises(InputError, match="'often' is no IntervalStrategy"):
        args.set_evaluate(strategy="often")
    with pytest.raises(ConfigError, match="learning_rate"):
        args.set_optimizer(learning_rate=-1.0)
    with pytest.raises(UnsupportedError, match="optim"):
        args.set_optimizer("lomo")


CONTRADICTIONS: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    ({"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"}, "set_evaluate", {}, "lr_scheduler_type"),
    ({}, "set_lr_scheduler", {"name": "greedy"}, "lr_scheduler_type"),
    (
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        *("set_save", {"strategy": "steps"}, "save_strategy"),
    ),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 100},
        *("set_save", {"steps": 150}, "save_steps"),
    ),
    ({}, "set_dataloader", {"prefetch_factor": 2}, "dataloader_prefetch_factor"),
    ({}, "set_logging", {"steps": 2.5}, "logging_steps"),
]


@pytest.mark.parametrize(("begin", "group", "given", "wrong"), CONTRADICTIONS)
def test_groups_refuse_what_contradicts_other_settings(
    begin: dict[str, Any], group: str, given: dict[str, Any], wrong: str
) -> None:
    args = TrainingArguments("x", **begin)
    before = args.to_dict()
    with pytest.raises(ConfigError, match=f"`{wrong}` of TrainingArguments"):
        getattr(args, group)(**given)
    assert args.to_dict() == before


def test_a_schedule_that_follows_a_metric_gets_one() -> None:
    args = TrainingArguments("x").set_evaluate(strategy="epoch").set_lr_scheduler("reduce_lr_on_plateau")
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)


def test_errors_show_plain_words() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingArguments(load_best_model_at_end=True, eval_strategy="epoch")
    assert "but is 'steps'" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        TrainingArguments(lr_scheduler_type="reduce_lr_on_plateau")
    assert "but is 'reduce_lr_on_plateau'" in str(caught.value)
