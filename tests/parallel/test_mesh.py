"""How processes are laid out, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from transept.errors import ConfigError, TrainingError
from transept.parallel.mesh import AXES, DistributedConfig, Layout
from transept.parallel.processes import join, same_on_all

from .ranks import Ranks


@pytest.mark.parametrize(
    ("settings", "world", "expected"),
    [
        ({}, 1, Layout()),
        ({}, 4, Layout(dp_replicate=4)),
        ({"tp_size": 2}, 4, Layout(dp_replicate=2, tp=2)),
        ({"tp_plan": "auto"}, 4, Layout(tp=4)),
        ({"tp_plan": "auto", "fsdp_size": 2}, 4, Layout(dp_shard=2, tp=2)),
        ({"pp_size": 2, "fsdp_size": 2, "tp_size": 2}, 8, Layout(pp=2, dp_shard=2, tp=2)),
        ({"fsdp_size": 2, "dp_replicate_size": 2}, 4, Layout(dp_replicate=2, dp_shard=2)),
    ],
)
def test_sizes_are_filled_up_to_the_number_of_processes(settings: Any, world: int, expected: Layout) -> None:
    layout = DistributedConfig(**settings).layout(world)
    assert layout == expected
    assert layout.world == world
    shares = [layout.data_rank(rank) for rank in range(world)]
    assert shares == [d for _ in range(layout.pp) for d in range(layout.data) for _ in range(layout.tp)]


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({"tp_size": 2, "pp_size": 2}, 6, r"6 processes cannot be laid out as pp_size=2 x tp_size=2.*4 or 8"),
        ({"tp_size": 3}, 2, r"2 processes cannot be laid out as tp_size=3.*Start 3 processes"),
        ({"fsdp_size": 2, "dp_replicate_size": 1}, 3, r"Start 2 or 4 processes"),
    ],
)
def test_sizes_that_do_not_make_up_the_number_of_processes(settings: Any, world: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistributedConfig(**settings).layout(world)


@pytest.mark.parametrize(
    "settings",
    [
        {"tp_size": 0},
        {"pp_microbatches": 0},
        {"zero_stage": 4},
        {"zero_stage": 1, "fsdp_cpu_offload": True},
        {"zero_stage": 1, "fsdp_size": 2},
        {"tp_size": 1, "enable_sequence_parallel": True},
    ],
)
def test_settings_that_contradict_each_other(settings: Any) -> None:
    with pytest.raises((ConfigError, ValueError)):
        DistributedConfig(**settings)


def _coordinates(config: DistributedConfig) -> tuple[list[int], list[int]]:
    rank = join()
    layout = config.layout(dist.get_world_size())
    mesh = layout.mesh("cpu")
    total = torch.ones(())
    dist.all_reduce(total, group=mesh["tp"].get_group())
    return list(mesh.get_coordinate() or []), [int(total), layout.data_rank(rank)]


def test_the_grid_has_neighbours_in_its_last_axis(ranks: Ranks) -> None:
    assert AXES[-1] == "tp"
    found = ranks.run(4, _coordinates, DistributedConfig(tp_size=2))
    assert found == [([0, d, 0, t], [2, d]) for d in range(2) for t in range(2)]


def _fail_on(rank: int) -> str:
    join()
    with same_on_all():
        if dist.get_rank() == rank:
            raise ConfigError("the file is not here.")
    return "well"


def test_all_processes_fail_where_one_does(ranks: Ranks) -> None:
    answers = ranks.ask(2, _fail_on, 1)
    assert [kind for _, (kind, _, _) in answers] == [TrainingError.__name__, ConfigError.__name__]
    assert "process 1 failed, and so all 2 end: ConfigError: the file is not here." in answers[0][1][1]
    assert ranks.run(2, _fail_on, 5) == ["well", "well"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "only 2"),
    ],
)
def test_an_environment_that_is_not_torchrun_s(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        join()
