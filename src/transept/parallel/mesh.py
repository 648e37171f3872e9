"""How processes share the work: how many take other rows, hold other parts of each matrix, or run other layers.

The processes of a run make a grid with the axes ``pp`` (pipeline), ``dp_replicate`` and ``dp_shard`` (data, with whole and with
sharded weights) and ``tp`` (tensor), the last of which has the neighbours. The names are the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from transept.errors import ConfigError, UnsupportedError, refuse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
_FIELDS = {"pp": "pp_size", "dp_replicate": "dp_replicate_size", "dp_shard": "fsdp_size", "tp": "tp_size"}

# Names of schedules -> how many stages a process has, and whether the second ones come in the reverse order (a V).
SCHEDULES = {
    "GPipe": (1, False),
    "1F1B": (1, False),
    "Interleaved1F1B": (2, False),
    "LoopedBFS": (2, False),
    "InterleavedZeroBubble": (2, False),
    "ZBVZeroBubble": (2, True),
}


@dataclass(frozen=True)
class DistributedConfig:
    """How the processes share a model, under the reference's names.

    A size that is ``None`` is 1, but for ``dp_replicate_size``, which takes the processes that are left in training, and
    ``tp_size``, which takes them where ``tp_plan`` is given.

    Args:
        tp_size: processes that hold other parts of each matrix.
        tp_plan: ``"auto"``, or rules that replace those of the plan by name (see :mod:`transept.parallel.tensor.plan`).
        enable_sequence_parallel: split positions between the same processes, where no matrix is.
        fsdp_size: processes between which the weights are sharded, and which take other rows.
        dp_replicate_size: groups of such processes; each group has all weights.
        fsdp_cpu_offload: keep sharded weights and the optimizer's state in the processor's memory.
        fsdp_mixed_precision: compute with bfloat16 weights, and add up gradients in float32.
        pp_size: processes that run other layers.
        pp_schedule: in which order a pipeline does its passes, such as ``"GPipe"``, ``"1F1B"`` or ``"Interleaved1F1B"``.
        pp_microbatches: in how many parts a batch goes through the pipeline; by default twice as many as it has stages.
        zero_stage: what is sharded (Rajbhandari et al. 2020): 1 the optimizer's state, 2 gradients too, 3 weights too; by
            default 3 where ``fsdp_size`` is above 1.

    Raises:
        ConfigError: a size below 1, or settings that contradict each other.
    """

    tp_size: int | None = None
    tp_plan: Mapping[str, str] | Literal["auto"] | None = None
    enable_sequence_parallel: bool = False
    fsdp_size: int | None = None
    dp_replicate_size: int | None = None
    fsdp_cpu_offload: bool = False
    fsdp_mixed_precision: bool = False
    pp_size: int | None = None
    pp_schedule: str = "1F1B"
    pp_microbatches: int | None = None
    zero_stage: Literal[1, 2, 3] | None = None

    def __post_init__(self) -> None:
        for name in (*_FIELDS.values(), "pp_microbatches"):
            size = getattr(self, name)
            refuse(size is not None and size < 1, f"`{name}` must be at least 1, but is {size}.")
        if self.zero_stage not in (None, 1, 2, 3):
            raise ConfigError(f"`zero_stage` is 1, 2 or 3, not {self.zero_stage!r}.")
        sharded = (self.fsdp_size or 1) > 1
        if self.fsdp_cpu_offload and self.zero_stage == 1:
            raise ConfigError("`fsdp_cpu_offload` needs sharded weights, and `zero_stage=1` shards the optimizer alone.")
        if self.zero_stage == 1 and sharded:
            what = "`zero_stage=1` shards the optimizer between all processes that take other rows, and `fsdp_size` weights."
            raise ConfigError(what, hint="Leave out one of them.")
        if self.enable_sequence_parallel and self.tp_size == 1:
            raise ConfigError("`enable_sequence_parallel` needs `tp_size` above 1.")

    @property
    def schedule(self) -> tuple[str, int, bool]:
        """The name of ``pp_schedule``, how many stages a process has, and whether the second come in the reverse order.

        Raises:
            ConfigError: there is no schedule of that name.
        """
        for name, found in SCHEDULES.items():
            if name.lower() == self.pp_schedule.lower():
                return name, *found
        raise ConfigError(f"there is no `pp_schedule` {self.pp_schedule!r}.", hint=f"Use {', '.join(SCHEDULES)}.")

    def layout(self, world: int) -> Layout:
        """The sizes of the grid for so many processes.

        Raises:
            ConfigError: the sizes do not make up that number.
        """
        known = {axis: getattr(self, name) for axis, name in _FIELDS.items()}
        free = "tp" if known["tp"] is None and self.tp_plan else "dp_replicate" if known["dp_replicate"] is None else None
        sizes = {axis: size or 1 for axis, size in known.items()}
        if free is not None:
            sizes[free] = 1
            rest = math.prod(sizes.values())
            sizes[free] = max(1, world // rest)
        if math.prod(sizes.values()) != world:
            told = " x ".join(f"{_FIELDS[axis]}={size}" for axis, size in sizes.items() if known[axis] or size > 1)
            product = math.prod(size or 1 for size in known.values())
            near = sorted({max(product, world // product * product), -(-world // product) * product})
            hint = f"Start {' or '.join(map(str, near))} processes, or change the sizes."
            raise ConfigError(f"{world} processes cannot be laid out as {told or 'nothing'}.", hint=hint)
        return Layout(sizes["pp"], sizes["dp_replicate"], sizes["dp_shard"], sizes["tp"])


@dataclass(frozen=True)
class Layout:
    """The sizes of the grid of processes along its axes."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1

    @property
    def data(self) -> int:
        """How many processes take other rows: R."""
        return self.dp_replicate * self.dp_shard

    @property
    def world(self) -> int:
        return self.pp * self.data * self.tp

    def data_rank(self, rank: int) -> int:
        """Which of the R shares of the rows a process takes."""
        return rank // self.tp % self.data

    def mesh(self, device: str) -> DeviceMesh:
        """PyTorch's grid of the processes; all of them must call this together. The same sizes give the same grid again."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        for key in [key for key, (met, _) in _GRIDS.items() if met is not dist.group.WORLD]:
            del _GRIDS[key]  # those processes have parted
        if (self, device) not in _GRIDS:
            grid = init_device_mesh(device, (self.pp, self.dp_replicate, self.dp_shard, self.tp), mesh_dim_names=AXES)
            _GRIDS[self, device] = dist.group.WORLD, grid
        return _GRIDS[self, device][1]


_GRIDS: dict[tuple[Layout, str], tuple[object, DeviceMesh]] = {}  # of the processes that met


def needs_torchrun(sizes: DistributedConfig) -> None:
    """Refuse more than one process where only one was started (``UnsupportedError``)."""
    wanted = math.prod(getattr(sizes, name) or 1 for name in _FIELDS.values())
    if wanted > 1:
        command = f"torchrun --nproc-per-node {wanted}"
        raise UnsupportedError(f"the settings need {wanted} processes, but this is one.", hint=f"Start it by `{command} ...`.")
