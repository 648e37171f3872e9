"""What the arguments of a run say about several processes: which form holds the model, and who takes which rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from transept.environment.packages import set_seed
from transept.errors import ConfigError, UnsupportedError, nearest, refuse
from transept.parallel.forms import Copied, Form, Replicated, ShardedOptimizer
from transept.parallel.mesh import DistributedConfig, needs_torchrun
from transept.parallel.processes import Replicas, gather_objects, join, world_size
from transept.storage.files import dump_json, load_object
from transept.training.arguments.deepspeed import read_deepspeed
from transept.training.callbacks.base import length_of
from transept.training.checkpoint.digests import digest_rows
from transept.training.loss import precision
from transept.training.objective import task_of

# What `fsdp` may say -> the ZeRO stage.
_STAGES: dict[str, Literal[2, 3]] = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "hybrid_shard_zero2": 2}
_OTHER_WORDS = ("auto_wrap", "true", "offload", "no_shard", "false")  # blocks are always wrapped by themselves
_HONOURED = (
    *("cpu_offload", "offload_params", "reshard_after_forward", "activation_checkpointing"),
    *("version", "state_dict_type"),
)
# Settings of `fsdp_config` of which PyTorch's `fully_shard` does the one thing that it can do.
_SETTLED = (
    *("auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "backward_prefetch", "forward_prefetch"),
    *("limit_all_gathers", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading"),
)
_FILES = {"FULL_STATE_DICT": False, "SHARDED_STATE_DICT": True}  # whether each process writes a file of its own
_ALIGNMENT = 64  # of PyTorch's own memory, in bytes
_COMPARED = 16  # values of each weight that processes compare


@dataclass(frozen=True)
class Fsdp:
    """What ``fsdp`` and ``fsdp_config`` ask for; by default nothing is sharded."""

    stage: Literal[1, 2, 3] | None = None
    offload: bool = False
    recompute: bool = False
    writes_shards: bool = False

    @classmethod
    def of(cls, fsdp: Any, config: Mapping[str, Any] | str | None) -> Fsdp:
        """Read the two arguments (``ConfigError``: they say what is not known; ``UnsupportedError``: version 1)."""
        words = [str(word).lower() for word in (fsdp if isinstance(fsdp, list | tuple) else str(fsdp or "").split())]
        for word in words:
            if word not in _STAGES and word not in _OTHER_WORDS:
                raise ConfigError(f"`fsdp` has the word {word!r}.", hint=nearest(word, (*_STAGES, *_OTHER_WORDS)))
        config = load_object(config) if isinstance(config, str) else config or {}
        settings = {name.removeprefix("fsdp_"): value for name, value in config.items()}
        for name in settings:
            if name not in _SETTLED and name not in _HONOURED:
                raise ConfigError(f"`fsdp_config` has no setting {name!r}.", hint=nearest(name, _HONOURED))
        what = "`fsdp_config` asks for version 1 of FSDP; models are sharded by version 2, `fully_shard`."
        refuse(settings.get("version", 2) != 2, what, kind=UnsupportedError)
        files = str(settings.get("state_dict_type", "FULL_STATE_DICT"))
        what, hint = f"`fsdp_config` has the `state_dict_type` {files!r:.60}.", f"Use {' or '.join(_FILES)}."
        refuse(files not in _FILES, what, hint, ConfigError)
        if not words or {"no_shard", "false"} & {*words}:
            return cls()
        keeps_weights = 2 in map(_STAGES.get, words) or settings.get("reshard_after_forward") is False
        offload = "offload" in words or bool(settings.get("cpu_offload") or settings.get("offload_params"))
        recompute = bool(settings.get("activation_checkpointing"))
        return cls(2 if keeps_weights else 3, offload, recompute, _FILES[files])


def distributed_config(args: Any, fsdp: Fsdp, world: int) -> DistributedConfig:
    """The arguments' settings of several processes (``ConfigError``: they contradict each other)."""
    stage = fsdp.stage or args.zero_stage
    what = f"`zero_stage={args.zero_stage}` contradicts `fsdp={args.fsdp!r}`, which is stage {stage}."
    refuse(args.zero_stage not in (None, stage), what, kind=ConfigError)
    others = (args.tp_size or 1) * (args.pp_size or 1) * (args.dp_replicate_size or 1)
    sharded = max(1, world // others) if stage in (2, 3) else None
    return DistributedConfig(
        tp_size=args.tp_size,
        enable_sequence_parallel=args.enable_sequence_parallel,
        pp_size=args.pp_size,
        pp_schedule=args.pp_schedule,
        pp_microbatches=args.pp_microbatches,
        dp_replicate_size=args.dp_replicate_size if sharded is None else args.dp_replicate_size or 1,
        fsdp_size=sharded,
        zero_stage=stage,
        fsdp_cpu_offload=fsdp.offload,
        fsdp_mixed_precision=fsdp.stage in (2, 3) and args.bf16,
    )


class Devices:
    """The processes of a run, which have met."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.copies: nn.DataParallel[nn.Module] | None = None
        self.kind = "cuda" if args.device.type == "cuda" else "cpu"
        join(args.ddp_backend, args.ddp_timeout, self.kind)
        world, fsdp = world_size(), Fsdp.of(args.fsdp, args.fsdp_config)
        if args.deepspeed:
            refuse(fsdp.stage, "`deepspeed` and `fsdp` contradict each other.", "Pass one of them.", ConfigError)
            stage, offload = read_deepspeed(args)
            fsdp = Fsdp(cast(Any, stage or None), offload)
        self.config = distributed_config(args, fsdp, world)
        self.recomputes = fsdp.recompute  # whether `fsdp_config` asks to, as `gradient_checkpointing` does
        self.writes_shards = fsdp.writes_shards and world > 1  # each process its part of a checkpoint
        self.alone = world == 1
        if self.alone:
            needs_torchrun(self.config)
        self.layout = self.config.layout(world)
        self.is_staged = self.layout.pp > 1  # processes have other layers
        self.replicas = Replicas.of(self.layout, is_v=self.is_staged and self.config.schedule[2])

    def check(self, replaced_passes: Sequence[str]) -> None:
        """Refuse what several processes cannot do (``UnsupportedError``), the same in all of them."""
        if self.alone:
            return
        args, config, staged = self.args, self.config, self.is_staged
        divided = staged or self.layout.tp > 1
        sharded = divided or config.zero_stage in (2, 3)
        freeze = "Freeze what is not trained by `freeze`, or use one process."
        whole = "Leave out `pp_size`: the layers of a pipeline never run as one model."
        rules = {
            "unfreeze_schedule": (args.unfreeze_schedule, freeze),
            "find_batch_size": (args.find_batch_size, "Lower `per_device_train_batch_size`; results are the same."),
            "precompute": (args.precompute, "Leave it out."),
            "fp16": (args.fp16 and sharded, "Use `bf16` with sharded weights."),
            "torch_compile": (args.torch_compile and sharded, "Leave it out."),
            "zero_stage": (divided and config.zero_stage == 1, "Use `fsdp` beside `tp_size` and `pp_size`."),
            "adversarial": (args.adversarial and sharded, "Use `fsdp` without it, or it without `fsdp`."),
            "enable_sequence_parallel": (staged and args.enable_sequence_parallel, "Leave it out beside `pp_size`."),
            "label_smoothing_factor": (staged and args.label_smoothing_factor, whole),
            **dict.fromkeys(replaced_passes, (staged, whole)),
        }
        for name, (is_set, hint) in rules.items():
            what = f"`{name}` cannot be honoured with {self.layout.world} processes."
            refuse(is_set, what, hint, UnsupportedError)

    def check_optimizer(self, optimizer: Any, model: nn.Module) -> None:
        """Refuse an optimizer that was made before the weights, or its state, were divided (``UnsupportedError``)."""
        weights = {*model.parameters()}
        is_others = any(weight not in weights for group in optimizer.param_groups for weight in group["params"])
        kind, is_wrong = type(optimizer).__name__, is_others or self.config.zero_stage == 1
        what = f"the {kind} in `optimizers` has whole weights, of which each process is to have a part."
        hint = "Pass its class: optimizer_cls_and_kwargs=(AdamW, {'lr': 1e-3}), or set `optim`."
        refuse(not self.alone and is_wrong, what, hint, UnsupportedError)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model that is trained: the one inside an ``nn.DataParallel``, which then copies it to its devices."""
        if not isinstance(model, nn.DataParallel):
            return model
        what = f"`DataParallel` copies a model to the devices of one process, and there are {self.layout.world}."
        hint = "Pass the model itself: each process computes on a device of its own."
        refuse(not self.alone, what, hint, UnsupportedError)
        self.copies = model
        return cast(nn.Module, model.module)

    def prepare(self, model: nn.Module, dataset: Any) -> tuple[Form, nn.Module]:
        """Put a model into the form in which the processes hold it; returns this, and the module to call in training.

        Each share of the rows gets its own random numbers, for dropout; the first share those of a run by itself.
        ``ConfigError``: a process has another version, settings, weights or data than the first one; names both.
        """
        if not self.alone:
            first, *others = gather_objects(self._description(model, dataset))
            for rank, other in enumerate(others, start=1):
                for name, value in other.items():
                    values = f"process {rank} has {value[:60]}, and process 0 {first[name][:60]}"
                    what = f"the processes do not have the same {name}: {values}."
                    refuse(value != first[name], what, "Give all the same.", ConfigError)
            if self.replicas.rank:
                set_seed(self.args.seed + self.replicas.rank)
        form = self.form(model)
        if not self.is_staged:
            align(model)
        form.model = model
        wrapped = form.wrap(model)
        if self.is_staged:  # the layers of others are not read
            align(model)
        return form, wrapped

    def _description(self, model: nn.Module, dataset: Any) -> dict[str, str]:
        """What must be the same in all processes."""
        from transept import __version__

        may_differ = ("local_rank", "output_dir")
        settings = {name: value for name, value in self.args.to_dict().items() if name not in may_differ}
        shapes = {name: [*weight.shape] for name, weight in model.named_parameters()}
        unsplit = (weight for weight in model.parameters() if not hasattr(weight, "placements"))
        values = [weight.detach().flatten()[:_COMPARED].cpu().tolist() for weight in unsplit]
        size = length_of(dataset)
        data = str(digest_rows(dataset, [0, size // 2, size - 1])) if size else None
        described = {"settings": settings, "parameters": shapes, "weights": values, "data": data}
        digests = {name: hashlib.sha256(dump_json(value).encode()).hexdigest() for name, value in described.items()}
        return {"version of transept": __version__, "version of PyTorch": torch.__version__} | digests

    def form(self, model: nn.Module) -> Form:
        """The form in which the processes hold a model."""
        args, config, layout, copies = self.args, self.config, self.layout, self.copies
        if self.alone:
            return Form() if copies is None or copies.module is not model else Copied(copies)
        if layout.pp == 1 and layout.tp == 1 and config.zero_stage not in (2, 3):
            unused = args.ddp_find_unused_parameters
            if unused is None:  # what is recomputed must not be looked for twice
                unused = not getattr(model, "is_gradient_checkpointing", False)
            options: dict[str, Any] = {
                "find_unused_parameters": unused,
                "bucket_cap_mb": args.ddp_bucket_cap_mb,
                "broadcast_buffers": args.ddp_broadcast_buffers,
                "static_graph": args.ddp_static_graph,
            }
            options = {name: value for name, value in options.items() if value is not None}
            return ShardedOptimizer(**options) if config.zero_stage == 1 else Replicated(**options)
        from transept.parallel.sharded import Divided, Sharding  # PyTorch's parts of these take a while to import

        mesh, sharding = layout.mesh(self.kind), None  # which all processes make together
        if layout.data > 1 and (layout.pp == 1 or config.zero_stage in (2, 3)):
            axes = ("dp_replicate", "dp_shard") if layout.dp_replicate > 1 else ("dp_shard",)
            task = task_of(model)
            blocks = [layer for stack in (() if task is None else task.stacks) for layer in stack.layers]
            offload, mixed = config.fsdp_cpu_offload, config.fsdp_mixed_precision
            reshard = config.zero_stage == 3
            sharding = Sharding(mesh[axes], blocks, reshard=reshard, offload=offload, mixed=mixed)
        if self.is_staged:
            from transept.parallel.pipeline.form import Staged

            return Staged(config, sharding, mesh, partial(precision, args))
        return Divided(config, sharding, mesh["tp"] if layout.tp > 1 else None)


def align(model: nn.Module) -> None:
    """Let weights of the CPU begin where new ones do, which those of a mapped file need not.

    On some processors the place of a matrix decides in which order products are summed, and so their last bits: a run
    that is resumed would not be the run that was not interrupted.
    """
    for weight in model.parameters():
        if weight.device.type == "cpu" and type(weight.data) is Tensor and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()
