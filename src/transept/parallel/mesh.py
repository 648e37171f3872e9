"""How processes share the work: how many take other rows, have other parts of each matrix, or run other layers.

The processes of a run make a grid with the axes ``pp`` (pipeline), ``dp_replicate`` and ``dp_shard`` (data, whose
weights are whole and sharded) and ``tp`` (tensor, between neighbours). The names are the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Literal

from transept.errors import ConfigError, UnsupportedError, refuse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
_SIZES = ("pp_size", "dp_replicate_size", "fsdp_size", "tp_size")  # the setting of each axis

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

    A size that is ``None`` is 1, but for ``dp_replicate_size``, which takes the processes that are left in training,
    and ``tp_size``, which takes them where ``tp_plan`` is given.

    Args:
        tp_size: processes that have other parts of each matrix.
        tp_plan: ``"auto"``, or rules that replace those of the plan by name (:mod:`transept.parallel.tensor.plan`).
        enable_sequence_parallel: split positions between the same processes, where no matrix is.
        fsdp_size: processes between which the weights are sharded, and which take other rows.
        dp_replicate_size: groups of such processes; each group has all weights.
        fsdp_cpu_offload: keep sharded weights and the optimizer's state in the processor's memory.
        fsdp_mixed_precision: compute with bfloat16 weights, and add up gradients in float32.
        pp_size: processes that run other layers.
        pp_schedule: the order of a pipeline's passes, such as ``"GPipe"``, ``"1F1B"`` or ``"Interleaved1F1B"``.
        pp_microbatches: parts of a batch in a pipeline; by default twice as many as it has stages.
        zero_stage: what is sharded (Rajbhandari et al. 2020): 1 the optimizer's state, 2 also gradients, 3 also weights;
            by default 3 where ``fsdp_size`` is above 1.

    Raises:
        InputError: a size below 1.
        ConfigError: settings that contradict each other.
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
        for name in (*_SIZES, "pp_microbatches"):
            size = getattr(self, name)
            refuse(size is not None and size < 1, f"`{name}` must be at least 1, but is {size}.")
        stage = self.zero_stage
        refuse(stage not in (None, 1, 2, 3), f"`zero_stage` is 1, 2 or 3, not {stage!r}.", kind=ConfigError)
        what = "`fsdp_cpu_offload` needs sharded weights, and `zero_stage=1` shards the optimizer alone."
        refuse(stage == 1 and self.fsdp_cpu_offload, what, kind=ConfigError)
        where = "all processes that take other rows"
        what = f"`zero_stage=1` shards the optimizer between {where}, and `fsdp_size` weights."
        refuse(stage == 1 and (self.fsdp_size or 1) > 1, what, "Leave out one of them.", ConfigError)
        what = "`enable_sequence_parallel` needs `tp_size` above 1."
        refuse(self.enable_sequence_parallel and self.tp_size == 1, what, kind=ConfigError)

    @property
    def schedule(self) -> tuple[str, int, bool]:
        """The name of ``pp_schedule``, and the row of :data:`SCHEDULES` (``ConfigError``: there is none)."""
        for name, stages in SCHEDULES.items():
            if name.lower() == self.pp_schedule.lower():
                return name, *stages
        raise ConfigError(f"there is no `pp_schedule` {self.pp_schedule!r}.", hint=f"Use {', '.join(SCHEDULES)}.")

    def layout(self, world: int) -> Layout:
        """The sizes of the grid for so many processes (``ConfigError``: the sizes do not make up that number)."""
        sizes = {name: getattr(self, name) or 1 for name in _SIZES}
        product = math.prod(sizes.values())
        free = "tp_size" if self.tp_size is None and self.tp_plan else "dp_replicate_size"
        if getattr(self, free) is None:
            sizes[free] = max(1, world // product)
        layout = Layout(*sizes.values())
        if layout.world != world:
            chosen = " x ".join(f"{name}={size}" for name, size in sizes.items() if getattr(self, name) or size > 1)
            near = sorted({max(product, world // product * product), -(-world // product) * product})
            hint = f"Start {' or '.join(map(str, near))} processes, or change the sizes."
            raise ConfigError(f"{world} processes cannot be laid out as {chosen or 'nothing'}.", hint=hint)
        return layout


@dataclass(frozen=True)
class Layout:
    """The sizes of the grid of processes along its axes, of which ``data`` (R) processes take other rows."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1

    @property
    def data(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def world(self) -> int:
        return self.pp * self.data * self.tp

    def data_rank(self, rank: int) -> int:
        """Which of the R shares of the rows a process takes."""
        return rank // self.tp % self.data

    def mesh(self, device: str) -> DeviceMesh:
        """PyTorch's grid of the processes, which all of them make together; once for the same sizes."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        if any(world is not dist.group.WORLD for world, _ in _GRIDS.values()):
            _GRIDS.clear()  # those processes have parted
        if (self, device) not in _GRIDS:
            grid = init_device_mesh(device, astuple(self), mesh_dim_names=AXES)
            _GRIDS[self, device] = dist.group.WORLD, grid
        return _GRIDS[self, device][1]


_GRIDS: dict[tuple[Layout, str], tuple[object, DeviceMesh]] = {}  # of the processes that met


def needs_torchrun(sizes: DistributedConfig) -> None:
    """Refuse more than one process where only one was started (``UnsupportedError``)."""
    wanted = math.prod(getattr(sizes, name) or 1 for name in _SIZES)
    hint = f"Start it by `torchrun --nproc-per-node {wanted} ...`."
    refuse(wanted > 1, f"the settings need {wanted} processes, but this is one.", hint, UnsupportedError)
