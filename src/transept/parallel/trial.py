"""Tries on this machine what several processes can do together: ``torchrun --nproc-per-node 2 -m transept.parallel.trial``.

The first process prints what was found as JSON.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from transept.files import dump_json
from transept.parallel.forms import Form, Replicated, ShardedOptimizer
from transept.parallel.mesh import DistributedConfig, Layout
from transept.parallel.processes import device_kind, everywhere, join
from transept.parallel.sharded import Divided, Sharding
from transept.parallel.streams import whole

_BYTES, _TIMES, _WIDTH, _TOLERANCE = 2**24, 5, 8, 1e-5


# The forms in which processes hold a model, by their names in the documentation; made of a grid and a model.
FORMS: dict[str, Callable[[Any, nn.Sequential], Form]] = {
    "data parallel": lambda mesh, model: Replicated(),
    "ZeRO 1": lambda mesh, model: ShardedOptimizer(),
    "ZeRO 2": lambda mesh, model: Divided(DistributedConfig(), Sharding(mesh, model, reshard=False)),
    "ZeRO 3": lambda mesh, model: Divided(DistributedConfig(), Sharding(mesh, model)),
    "ZeRO 3 with offload": lambda mesh, model: Divided(DistributedConfig(), Sharding(mesh, model, offload=True)),
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


def tensor_parallel_works(mesh: Any, first: nn.Sequential, rows: Tensor) -> bool:
    """Whether a matrix by columns and one by rows give what they give as wholes, and its gradient."""
    held = copy.deepcopy(first)
    parallelize_module(held, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for model in (first, held):
        model.zero_grad()
        model(rows).square().sum().backward()
    return _same_gradients(first, held)


def pipeline_works(mesh: Any, first: nn.Sequential, rows: Tensor) -> bool:
    """Whether as many layers as there are processes give the gradient in a pipeline that they give one behind the other."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = nn.Sequential(*(copy.deepcopy(first[number % len(first)]) for number in range(world)))
    own = copy.deepcopy(layers[rank])
    layers(rows).square().sum().backward()
    shape = rows.chunk(world)[0].to("meta").requires_grad_()
    stage = PipelineStage(own, rank, world, rows.device, input_args=(shape,), output_args=(shape,), group=mesh.get_group())
    schedule = Schedule1F1B(stage, world, loss_fn=lambda output, target: output.square().sum(), scale_grads=False)
    schedule.step(*((rows,) if rank == 0 else ()), target=rows if rank == world - 1 else None)
    return _same_gradients(layers[rank], own)


def _same_gradients(one: nn.Module, other: nn.Module) -> bool:
    pairs = [(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    return all(a is not None and b is not None and torch.allclose(a, whole(b), atol=_TOLERANCE) for a, b in pairs)


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
    tries: dict[str, Callable[[Any, nn.Sequential, Tensor], bool]] = {
        name: partial(works, make) for name, make in FORMS.items()
    }
    tries |= {"tensor parallel": tensor_parallel_works, "pipeline parallel": pipeline_works}
    for name, attempt in tries.items():
        try:
            answer = "works" if attempt(mesh, model, rows) else "gives other weights than one process"
        except Exception as error:  # what a machine cannot do is told, and the rest is tried
            answer = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        answers = everywhere(answer)
        found[name] = next((each for each in answers if each != "works"), "works")
    speed = bandwidth(device)
    if dist.get_rank() == 0:
        told = {"backend": dist.get_backend(), "processes": world, "bytes_per_second": speed, "forms": found}
        sys.stdout.write(dump_json(told))


if __name__ == "__main__":
    main()
