"""The settings of a run: every field of the reference with its name and default, and a few of our own."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist

from transept.config.fields import Count, Deviation, Range, Share
from transept.environment import tiles
from transept.environment.logging import CRITICAL, DEBUG, ERROR, INFO, WARNING, get_verbosity
from transept.errors import TranseptWarning
from transept.parallel.processes import ProcessView, ahead, join
from transept.training.arguments.base import SettingGroups, programs
from transept.training.arguments.deepspeed import read_deepspeed
from transept.training.optim.optimizers import OptimizerNames
from transept.training.optim.schedules import SchedulerType
from transept.training.state import HubStrategy, IntervalStrategy, ParallelMode, SaveStrategy

Below1 = Annotated[float, Range(0, 1, ")")]
Steps = Annotated[float, Range(0)]
JsonObject = dict[str, Any] | str | None
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "critical": CRITICAL}
Level = Literal["debug", "info", "warning", "error", "critical", "passive"]
Sampling = Literal["random", "sequential", "group_by_length", "batch_rebalance", "token_budget"]


@dataclass(repr=False)
class TrainingArguments(SettingGroups):
    """The settings of a run. The fields are the reference's, with its defaults, and those below.

    Args:
        nan_policy: non-finite updates: ``error`` names the module, ``skip`` leaves them out, ``ignore`` applies them.
        max_tokens_per_batch: the padded size up to which batches grow for ``train_sampling_strategy="token_budget"``.
        layerwise_lr_decay: the learning rate times this for each layer further from the head.
        freeze: what is not trained: ``embeddings``, ``backbone``, a number of layers, or names (:func:`freeze`).
        precompute: with ``freeze="backbone"``, compute its states of all rows once and train the head on these. The
            result is the same, as a frozen backbone drops out nothing; rows must be the same whenever they are read.
        unfreeze_schedule: what is trained from which epoch on; see :func:`transept.gradual_unfreezing`.
        save_on_signal: SIGTERM and Ctrl-C save a checkpoint and end the run.
        use_cache: whether decoders cache keys and values in training; the model's own config stays as it is.
        find_batch_size: out of memory, do updates again with half the rows at a time; on where there is a GPU.
        ema_decay: the decay of an exponential mean of the weights, which is evaluated and saved in their place.
        deterministic: the same as ``full_determinism``.

    ``ConfigError``: wrong types or ranges, or contradictions. ``UnsupportedError``: a setting cannot be honoured.
    """

    output_dir: str | None = None
    per_device_train_batch_size: Count = 8
    num_train_epochs: Annotated[float, Range(0)] = 3.0
    max_steps: Annotated[int, Range(-1)] = -1
    learning_rate: Deviation = 5e-5
    lr_scheduler_type: SchedulerType | str = "linear"
    lr_scheduler_kwargs: JsonObject = None
    warmup_steps: Steps = 0
    optim: OptimizerNames | str = "adamw_torch_fused"
    optim_args: str | None = None
    weight_decay: Deviation = 0.0
    adam_beta1: Below1 = 0.9
    adam_beta2: Below1 = 0.999
    adam_epsilon: Deviation = 1e-8
    optim_target_modules: str | list[str] | None = None
    gradient_accumulation_steps: Count = 1
    average_tokens_across_devices: bool = True
    max_grad_norm: Deviation = 1.0
    label_smoothing_factor: Below1 = 0.0
    bf16: bool = False
    fp16: bool = False
    bf16_full_eval: bool = False
    fp16_full_eval: bool = False
    tf32: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_kwargs: JsonObject = None
    gradient_checkpointing: bool | None = None
    gradient_checkpointing_kwargs: JsonObject = None
    torch_compile: bool = False
    torch_compile_backend: str | None = None
    torch_compile_mode: str | None = None
    use_liger_kernel: bool = False
    liger_kernel_config: dict[str, bool] | None = None
    use_cache: bool = False
    neftune_noise_alpha: Deviation | None = None
    torch_empty_cache_steps: Count | None = None
    auto_find_batch_size: bool = False
    logging_strategy: IntervalStrategy | str = "steps"
    logging_steps: Steps = 500
    logging_first_step: bool = False
    log_on_each_node: bool = True
    logging_nan_inf_filter: bool = True
    include_num_input_tokens_seen: Literal["all", "non_padding", "no"] | bool = "no"
    log_level: Level = "passive"
    log_level_replica: Level = "warning"
    disable_tqdm: bool | None = None
    report_to: str | list[str] | None = "none"
    run_name: str | None = None
    project: str = "huggingface"
    trackio_space_id: str | None = None
    trackio_bucket_id: str | None = None
    trackio_static_space_id: str | bool | None = None
    eval_strategy: IntervalStrategy | str = "no"
    eval_steps: Steps | None = None
    eval_delay: Steps = 0
    per_device_eval_batch_size: Count = 8
    prediction_loss_only: bool = False
    eval_on_start: bool = False
    eval_do_concat_batches: bool = True
    eval_use_gather_object: bool = False
    eval_accumulation_steps: Count | None = None
    include_for_metrics: list[str] = field(default_factory=list)
    batch_eval_metrics: bool = False
    save_only_model: bool = False
    save_strategy: SaveStrategy | str = "steps"
    save_steps: Steps = 500
    save_on_each_node: bool = False
    save_total_limit: Count | None = None
    enable_jit_checkpoint: bool = False
    push_to_hub: bool = False
    hub_token: str | None = None
    hub_private_repo: bool | None = None
    hub_model_id: str | None = None
    hub_strategy: HubStrategy | str = "every_save"
    hub_always_push: bool = False
    hub_revision: str | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    ignore_data_skip: bool = False
    restore_callback_states_from_checkpoint: bool = False
    full_determinism: bool = False
    seed: Annotated[int, Range(0, 2**32 - 1)] = 42
    data_seed: Annotated[int, Range(0, 2**32 - 1)] | None = None
    use_cpu: bool = False
    accelerator_config: dict[str, Any] | str | None = None
    parallelism_config: Any = None
    dataloader_drop_last: bool = False
    dataloader_num_workers: Annotated[int, Range(0)] = 0
    dataloader_pin_memory: bool = True
    dataloader_persistent_workers: bool = False
    dataloader_prefetch_factor: Count | None = None
    dataloader_multiprocessing_context: str | None = None
    dataloader_in_order: bool = True
    remove_unused_columns: bool = True
    label_names: list[str] | None = None
    train_sampling_strategy: Sampling = "random"
    length_column_name: str = "length"
    ddp_find_unused_parameters: bool | None = None
    ddp_bucket_cap_mb: Count | None = None
    ddp_broadcast_buffers: bool | None = None
    ddp_static_graph: bool | None = None
    ddp_backend: str | None = None
    ddp_timeout: Count = 1800
    fsdp: str | bool | list[str] | None = None
    fsdp_config: JsonObject = None
    deepspeed: JsonObject = None
    debug: str | list[str] = ""
    skip_memory_metrics: bool = True
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    resume_from_checkpoint: str | None = None
    local_rank: int = -1
    zero_stage: Literal[1, 2, 3] | None = None
    tp_size: Count | None = None
    enable_sequence_parallel: bool = False
    pp_size: Count | None = None
    pp_schedule: str = "1F1B"
    pp_microbatches: Count | None = None
    dp_replicate_size: Count | None = None
    nan_policy: Literal["error", "skip", "ignore"] = "error"
    max_tokens_per_batch: Count | None = None
    layerwise_lr_decay: Annotated[Share, Range(0, open="(")] | None = None
    freeze: Any = None
    precompute: bool = False
    unfreeze_schedule: dict[Any, Any] | None = None
    adversarial: dict[str, Any] | None = None
    save_on_signal: bool = True
    find_batch_size: bool | None = None
    ema_decay: Annotated[float, Range(0, 1, "()")] | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        self.output_dir = os.path.expanduser(self.output_dir or "trainer_output")
        if self.activation_checkpointing is None:
            self.activation_checkpointing = bool(self.gradient_checkpointing)
        self.gradient_checkpointing = self.activation_checkpointing
        if self.activation_checkpointing_kwargs is None:
            self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs
        self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        if self.disable_tqdm is None:
            self.disable_tqdm = get_verbosity() > WARNING
        if isinstance(self.include_num_input_tokens_seen, bool):
            self.include_num_input_tokens_seen = "all" if self.include_num_input_tokens_seen else "no"
        self.report_to = programs(self.report_to)
        self.debug = self.debug.split() if isinstance(self.debug, str) else self.debug
        self.full_determinism = self.deterministic = self.full_determinism or self.deterministic
        self.find_batch_size = self.find_batch_size or self.auto_find_batch_size or None
        self.torch_compile = self.torch_compile or bool(self.torch_compile_mode or self.torch_compile_backend)
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        if self.eval_strategy == IntervalStrategy.STEPS and not self.eval_steps:
            self.eval_steps = self.logging_steps
        self.save_on_signal = self.save_on_signal or self.enable_jit_checkpoint
        if self.tf32 is not None:
            has_tf32 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
            if self.tf32 and not has_tf32:
                self.fail("tf32", "needs a GPU of NVIDIA's Ampere or a newer one", "Leave it out.")
            setattr(torch.backends, "fp32_precision", "tf32" if self.tf32 else "ieee")  # noqa: B010
        self.check()
        uses_bf16 = self.bf16 or self.bf16_full_eval
        if (uses_bf16 or self.fp16 or self.fp16_full_eval) and self.device.type == "cpu":
            tiles.check()
            if uses_bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                message = "this processor has no bf16 products: training with bf16 is many times slower than without."
                warnings.warn(f"{message} Leave it out.", TranseptWarning, stacklevel=4)

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that contradict each other, and name the metric that is followed."""
        for kind in ("logging", "eval", "save"):
            name, steps = f"{kind}_steps", getattr(self, f"{kind}_steps")
            if getattr(self, f"{kind}_strategy") == IntervalStrategy.STEPS:
                if not steps and kind != "save":
                    self.fail(name, f"must not be zero with {kind}_strategy='steps'")
                if steps > 1 and steps != int(steps):
                    self.fail(name, "must be a whole number, or a share below 1")
                if steps >= 1:
                    object.__setattr__(self, name, int(steps))
        if (self.fp16 and self.bf16) or (self.fp16_full_eval and self.bf16_full_eval):
            self.fail("fp16", "contradicts `bf16`", "Pass one of them.")
        if self.load_best_model_at_end and self.save_strategy != SaveStrategy.BEST:
            if str(self.save_strategy) != str(self.eval_strategy):
                rule = f"must be as `eval_strategy` ({self.eval_strategy}) with `load_best_model_at_end`"
                self.fail("save_strategy", rule, 'Or pass save_strategy="best".')
            save, evaluation = self.save_steps, self.eval_steps or 1
            is_multiple = round(save * 1e6) % round(evaluation * 1e6) == 0 and (save < 1) == (evaluation < 1)
            if self.eval_strategy == IntervalStrategy.STEPS and not is_multiple:
                rule = f"must be a multiple of `eval_steps` ({self.eval_steps}) with `load_best_model_at_end`"
                self.fail("save_steps", rule)
        follows_metric = self.lr_scheduler_type in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
        if follows_metric and self.eval_strategy == IntervalStrategy.NO:
            self.fail("lr_scheduler_type", "follows a metric, and needs evaluations", 'Pass eval_strategy="epoch".')
        if (self.load_best_model_at_end or follows_metric) and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")
        if self.dataloader_num_workers == 0 and self.dataloader_prefetch_factor is not None:
            self.fail("dataloader_prefetch_factor", "needs workers", "Pass dataloader_num_workers=1 or more.")
        if (self.train_sampling_strategy == "token_budget") != (self.max_tokens_per_batch is not None):
            self.fail("max_tokens_per_batch", "and train_sampling_strategy='token_budget' need each other")
        if self.deepspeed:
            read_deepspeed(self)
        moves = self.unfreeze_schedule or self.adversarial or self.neftune_noise_alpha
        if self.precompute and (self.freeze != "backbone" or moves):
            self.fail("precompute", "needs freeze='backbone', and nothing that unfreezes it or moves its embeddings")

    @property
    def device(self) -> torch.device:
        """Where the model is trained: a GPU, where there is one and ``use_cpu`` is not set, else the processor."""
        if self.use_cpu:
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

    @property
    def world_size(self) -> int:
        """The number of processes of the group that was initialized, else 1."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def process_index(self) -> int:
        return dist.get_rank() if self.world_size > 1 else 0

    @property
    def local_process_index(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0)) if self.world_size > 1 else 0

    parallel_mode = property(lambda self: ParallelMode("distributed" if self.world_size > 1 else "not_parallel"))
    deepspeed_plugin = None  # DeepSpeed's files are read, and the library itself is not used
    distributed_state = property(ProcessView, doc="What there is of the processes, under the names there.")
    n_gpu = property(lambda self: int(self.device.type == "cuda"), doc="1 on a GPU, else 0, for one process.")
    train_batch_size = property(lambda self: self.per_device_train_batch_size, doc="Rows of a micro-batch.")
    eval_batch_size = property(lambda self: self.per_device_eval_batch_size, doc="Rows of a batch that is evaluated.")
    ddp_timeout_delta = property(lambda self: timedelta(seconds=self.ddp_timeout))
    should_save = property(lambda self: self.process_index == 0)
    should_log = property(lambda self: self.local_process_index == 0 if self.log_on_each_node else self.should_save)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let the first process, of each machine where ``local``, do something before the others do it."""
        join(self.ddp_backend, self.ddp_timeout, self.device.type)
        with ahead((self.local_process_index if local else self.process_index) == 0):
            yield

    def get_process_log_level(self) -> int:
        """The level from which on messages are shown in this process."""
        return LEVELS.get(self.log_level if self.should_log else self.log_level_replica, get_verbosity())

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """The updates of the warm-up; ``warmup_steps`` below 1 is a share of all."""
        return int(self.warmup_steps if self.warmup_steps >= 1 else math.ceil(num_training_steps * self.warmup_steps))


@dataclass(repr=False)
class Seq2SeqTrainingArguments(TrainingArguments):
    """Settings of :class:`Seq2SeqTrainer`; see :class:`TrainingArguments`.

    Args:
        predict_with_generate: evaluate what ``generate`` writes, and not the logits.
        generation_max_length, generation_num_beams: its ``max_length`` and ``num_beams``, unless others are passed.
        generation_config: the model's settings of ``generate``: an object, a directory, or the name of a repository.
    """

    sortish_sampler: bool = False
    predict_with_generate: bool = False
    generation_max_length: Count | None = None
    generation_num_beams: Count | None = None
    generation_config: Any = None
