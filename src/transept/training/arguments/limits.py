"""Settings, or values of them, that cannot be honoured: why, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transept.training.optim.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Limit:
    """Why a setting cannot be honoured, what to do, and for which of its values."""

    reason: str
    remedy: str | None = None
    applies: Callable[[Any], bool] = bool


def _any(value: Any) -> bool:
    return True


_LIGER = Limit("the Liger kernels are not used.", "Leave it out; losses over vocabularies are computed in parts anyway.")
_TRACKIO = Limit("Trackio is not among the reports.", "Leave it out, and choose another in `report_to`.")

LIMITS: dict[str, Limit] = {
    "deepspeed": Limit("DeepSpeed is not used.", "Train without it."),
    "parallelism_config": Limit("it is an object of accelerate's.", "Set tp_size, pp_size, fsdp or zero_stage.", _any),
    "accelerator_config": Limit("accelerate is not used.", "Leave it out; `data_seed` seeds the order of rows."),
    "use_liger_kernel": _LIGER,
    "liger_kernel_config": _LIGER,
    "enable_jit_checkpoint": Limit("there is another setting for it.", "Use save_on_signal, which is on by default."),
    "skip_memory_metrics": Limit("memory is not measured.", "Leave it out.", lambda value: value is False),
    "debug": Limit("there are no debug modes.", 'nan_policy="error" names the module whose output is not finite.'),
    "project": _TRACKIO,
    "trackio_space_id": _TRACKIO,
    "trackio_bucket_id": _TRACKIO,
    "trackio_static_space_id": Limit(_TRACKIO.reason, _TRACKIO.remedy, _any),
    "train_sampling_strategy": Limit(
        "batches are not rebalanced.", 'Use "group_by_length" or "token_budget".', lambda value: value == "batch_rebalance"
    ),
    "sortish_sampler": Limit("there is one way to sort by length.", 'Use train_sampling_strategy="group_by_length".'),
    "hub_strategy": Limit("checkpoints are not published.", 'Use "every_save" or "end".', lambda value: "checkpoint" in value),
    "tf32": Limit("it is PyTorch's own setting.", 'Call torch.set_float32_matmul_precision("high").', _any),
    "torch_empty_cache_steps": Limit("caches are emptied when memory runs out.", "Leave it out."),
    "hub_always_push": Limit("every upload is waited for.", "Leave it out."),
    "packing": Limit("rows are packed by a collator.", "Use DataCollatorWithFlattening."),
    "average_tokens_across_devices": Limit(
        "a loss is divided by the items of all processes, whatever their number.", "Leave it out.", lambda value: not value
    ),
    "optim_target_modules": Limit(
        "only optimizers of other packages (GaLore, APOLLO) choose modules by it.",
        "Leave it out; `freeze` chooses what is trained, and optimizers=(optimizer, None) passes an optimizer of your own.",
    ),
    "save_on_each_node": Limit(
        "all processes write one checkpoint together.",
        "Leave it out, and let `output_dir` be a folder that all machines share.",
    ),
    "eval_use_gather_object": Limit("evaluations gather whatever a model gives.", "Leave it out."),
    "optim": Limit(
        "it is an optimizer of another package.",
        "Pass an instance of it to the trainer: optimizers=(optimizer, None).",
        lambda value: value not in OPTIMIZERS,
    ),
}
