"""Tries on this machine what several processes can do together: ``torchrun --nproc-per-node 2 -m transept.parallel.trial``.

The first process prints what was found as JSON.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from transept.files import dump_json
from transept.parallel.forms import Form
from transept.parallel.launch import device_kind, everywhere, join
from transept.parallel.mesh import Layout
from transept.parallel.replicated import Replicated, ShardedOptimizer
from transept.parallel.sharded import Sharded

_BYTES, _TIMES, _WIDTH, _TOLERANCE = 2**24, 5, 8, 1e-5


# The forms in which processes hold a model, by their names in the documentation; made of a grid and a model.
FORMS: dict[str, Callable[[Any, nn.Sequential], Form]] = {
    "data parallel": lambda mesh, model: Replicated(),
    "ZeRO 1": lambda mesh, model: ShardedOptimizer(),
    "ZeRO 2": lambda mesh, model: Sharded(mesh, model, reshard=False),
    "ZeRO 3": Sharded,
    "ZeRO 3 with offload": lambda mesh, model: Sharded(mesh, model, offload=True),
}


def works(make: Callable[[Any, nn.Sequential], Form], mesh: Any, first: nn.Sequential, rows: Tensor) -> bool:
    """Whether an update of SGD in that form gives the weights that it gives in one process."""
    rank, world = dist.get_rank(), dist.get_world_size()
    alone, held = copy.deepcopy(first), copy.deepcopy(first)
    form = make(mesh, held)
    wrapped = form.wrap(held)
    own = rows.chunk(world)[rank]
    for model, data, scale, optimizer in (
        (alone, rows, 1, torch.optim.SGD(alone.parameters(), lr=1.0)),
        (wrapped, own, world, form.optimizer(torch.optim.SGD, [{"params": [*held.parameters()]}], {"lr": 1.0})),
    ):
        (model(data).square().sum() * scale).backward()
        optimizer.step()
    found = form.collect(dict(held.named_parameters()))
    pairs = ((found[name], each.detach().cpu()) for name, each in alone.named_parameters() if name in found)
    return all(torch.allclose(one.detach().cpu(), other, atol=_TOLERANCE) for one, other in pairs)


def bandwidth(device: str) -> float:
    """Bytes of a tensor that are added up over the processes in a second."""
    tensor = torch.ones(_BYTES // 4, device=device)
    dist.all_reduce(tensor)
    began = time.perf_counter()
    for _ in range(_TIMES):
        dist.all_reduce(tensor)
    if device == "cuda":
        torch.cuda.synchronize()
    return _TIMES * _BYTES / (time.perf_counter() - began)


def main() -> None:
    """Try all, and print it."""
    join()
    device, world = device_kind(), dist.get_world_size()
    mesh = Layout(dp_shard=world).mesh(device)["dp_shard"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)).to(device)
    rows = torch.randn(2 * world, _WIDTH, device=device)
    found: dict[str, str] = {}
    for name, make in FORMS.items():
        try:
            answer = "works" if works(make, mesh, model, rows) else "gives other weights than one process"
        except Exception as error:  # what a machine cannot do is told, and the rest is tried
            answer = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        answers = everywhere(answer)
        found[name] = next((each for each in answers if each != "works"), "works")
    speed = bandwidth(device)
    if dist.get_rank() == 0:
        told = {"backend": dist.get_backend(), "processes": world, "bytes_per_second": speed, "forms": found}
        sys.stdout.write(dump_json(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
