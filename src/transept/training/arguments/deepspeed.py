"""What a configuration of DeepSpeed asks for, in our own forms of ZeRO: its stage, and whether weights are offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transept.errors import ConfigError, UnsupportedError, refuse
from transept.parallel.processes import world_size
from transept.storage.files import load_object

# Sizes of DeepSpeed's buffers, and what it prints: they change no result, and have nothing to act upon.
_BUFFERS = (
    *("bucket_size", "contiguous_gradients", "overlap_comm", "reduce_scatter", "stage3_", "sub_group_size"),
    *("allgather_partitions", "round_robin_gradients", "load_from_fp32_weights", "ignore_unused_parameters"),
)
_PRINTED = ("steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer")
_SCHEDULES = {"linear": "WarmupDecayLR", "constant_with_warmup": "WarmupLR"}


def read_deepspeed(args: Any) -> tuple[int, bool]:
    """The stage of ZeRO, and whether weights and optimizer are kept on the CPU.

    ``ConfigError``: a value that is neither ``"auto"`` nor the arguments' own; ``UnsupportedError``: what is not here.
    """
    config = load_object(args.deepspeed) if isinstance(args.deepspeed, str) else args.deepspeed
    zero: Mapping[str, Any] = config.get("zero_optimization", {})
    same = _same(args, zero.get("stage"))
    schedule = config.get("scheduler", {})
    is_curved = args.warmup_steps and schedule and schedule.get("params", {}).get("warmup_type") != "linear"
    what = "DeepSpeed's schedules grow by a logarithm at first, and those here by a line."
    refuse(is_curved, what, "Leave `scheduler` out, or give it warmup_type='linear'.", UnsupportedError)
    for name, value in _leaves(config):
        last = name.rpartition(".")[2]
        if name in _PRINTED or (name.startswith("zero_") and any(part in last for part in _BUFFERS)):
            continue
        if last == "pin_memory" or (name.startswith("fp16.") and name not in same):
            continue  # how copies are made, and how a loss is scaled at first
        what = f"`deepspeed` sets {name!r}, which is not known here."
        refuse(name not in same, what, "Leave it out, or set what there is in the arguments.", UnsupportedError)
        if value not in ("auto", "none", same[name]):
            what = f"`deepspeed` has {name}={value!r}, which by the arguments is {same[name]!r}."
            by_name = {theirs: ours for ours, theirs in (*_SCHEDULES.items(), ("adamw_torch", "AdamW"))}
            kind = "lr_scheduler_type" if name.startswith("scheduler") else "optim"
            hint = f"Pass {kind}={by_name[value]!r}." if value in by_name else 'Write "auto", and set the argument.'
            raise ConfigError(what, hint=hint)
    offloads = (zero.get(f"offload_{kind}", {}).get("device", "none") for kind in ("param", "optimizer"))
    return int(zero.get("stage", 0)), "cpu" in offloads


def _same(args: Any, stage: Any) -> dict[str, Any]:
    """What a setting may say: the value of ours that it repeats."""
    return {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "train_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * world_size(),
        "gradient_clipping": args.max_grad_norm,
        "fp16.loss_scale": 0,
        "fp16.enabled": args.fp16 or args.fp16_full_eval,
        "bf16.enabled": args.bf16 or args.bf16_full_eval,
        "optimizer.type": "AdamW" if args.optim.startswith("adamw_torch") else args.optim,
        "optimizer.params.lr": args.learning_rate,
        "optimizer.params.betas": [args.adam_beta1, args.adam_beta2],
        "optimizer.params.eps": args.adam_epsilon,
        "optimizer.params.weight_decay": args.weight_decay,
        "scheduler.type": _SCHEDULES.get(args.lr_scheduler_type),
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": args.learning_rate,
        "scheduler.params.warmup_num_steps": args.warmup_steps,
        "scheduler.params.warmup_type": "linear",
        "scheduler.params.total_num_steps": args.max_steps,
        "zero_optimization.offload_param.device": "cpu",
        "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.stage": stage if stage in range(4) else "0, 1, 2 or 3",
    }


def _leaves(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The settings of nested mappings by dotted names."""
    leaves = []
    for name, value in config.items():
        leaves += _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return leaves
