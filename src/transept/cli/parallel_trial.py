"""Tries on this machine what processes can do together: ``torchrun --nproc-per-node 2 -m transept.cli.parallel_trial``.

The first process prints the answers as JSON.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from transept.parallel.forms import Form, Replicated, ShardedOptimizer
from transept.parallel.mesh import DistributedConfig, Layout
from transept.parallel.processes import device_kind, gather_objects, join
from transept.parallel.sharded import Divided, Sharding
from transept.parallel.streams import whole
from transept.storage.files import dump_json

_BYTES, _TIMES, _WIDTH, _TOLERANCE = 2**24, 5, 8, 1e-5
Pairs = Iterator[tuple[Any, Any]]  # tensors that several processes computed, and the same of one process


def updated(make: Callable[[Any, nn.Sequential], Form], mesh: Any, layers: nn.Sequential, rows: Tensor) -> Pairs:
    """Weights after an update of SGD in the form that ``make`` gives for a mesh and a model."""
    rank, world = dist.get_rank(), dist.get_world_size()
    alone, shared = copy.deepcopy(layers), copy.deepcopy(layers)
    form = make(mesh, shared)
    wrapped = form.wrap(shared)
    optimizer = form.optimizer(torch.optim.SGD, [{"params": [*shared.parameters()]}], {"lr": 1.0})
    (wrapped(rows.chunk(world)[rank]).square().sum() * world).backward()
    optimizer.step()
    optimizer = torch.optim.SGD(alone.parameters(), lr=1.0)
    alone(rows).square().sum().backward()
    optimizer.step()
    weights = form.collect(dict(shared.named_parameters()))  # nothing but on the first process
    yield from ((weights[name], weight) for name, weight in alone.named_parameters() if name in weights)


def tensor_parallel(mesh: Any, layers: nn.Sequential, rows: Tensor) -> Pairs:
    """Gradients of a matrix that is split by columns and of one that is split by rows."""
    shared = copy.deepcopy(layers)
    parallelize_module(shared, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for model in (layers, shared):
        model.zero_grad()
        model(rows).square().sum().backward()
    yield from ((whole(one.grad), other.grad) for one, other in zip(shared.parameters(), layers.parameters()))


def pipeline_parallel(mesh: Any, layers: nn.Sequential, rows: Tensor) -> Pairs:
    """Gradients of a layer of each process in a pipeline of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = nn.Sequential(*(copy.deepcopy(layers[number % len(layers)]) for number in range(world)))
    layer = copy.deepcopy(alone[rank])
    alone(rows).square().sum().backward()
    shape = rows.chunk(world)[0].to("meta").requires_grad_()
    options: Any = {"input_args": (shape,), "output_args": (shape,), "group": mesh.get_group()}
    stage = PipelineStage(layer, rank, world, rows.device, **options)
    schedule = Schedule1F1B(stage, world, loss_fn=lambda output, target: output.square().sum(), scale_grads=False)
    schedule.step(*((rows,) if rank == 0 else ()), target=rows if rank == world - 1 else None)
    yield from ((one.grad, other.grad) for one, other in zip(layer.parameters(), alone[rank].parameters()))


def _sharded(mesh: Any, model: nn.Sequential, **options: bool) -> Form:
    return Divided(DistributedConfig(), Sharding(mesh, model, **options))


# What is tried, by its name in the documentation; each gives pairs of tensors that should be the same.
TRIALS: dict[str, Callable[[Any, nn.Sequential, Tensor], Pairs]] = {
    "data parallel": partial(updated, lambda mesh, model: Replicated()),
    "ZeRO 1": partial(updated, lambda mesh, model: ShardedOptimizer()),
    "ZeRO 2": partial(updated, partial(_sharded, reshard=False)),
    "ZeRO 3": partial(updated, _sharded),
    "ZeRO 3 with offload": partial(updated, partial(_sharded, offload=True)),
    "tensor parallel": tensor_parallel,
    "pipeline parallel": pipeline_parallel,
}


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
    layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)).to(device)
    rows = torch.randn(2 * world, _WIDTH, device=device)
    forms: dict[str, str] = {}
    for name, trial in TRIALS.items():
        try:
            pairs = [(one.detach().cpu(), other.detach().cpu()) for one, other in trial(mesh, layers, rows)]
            is_same = all(torch.allclose(one, other, atol=_TOLERANCE) for one, other in pairs)
            answer = "works" if is_same else "gives other weights than one process"
        except Exception as error:  # what a machine cannot do is told, and the rest is tried
            answer = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        forms[name] = next((text for text in gather_objects(answer) if text != "works"), "works")
    speed = bandwidth(device)
    report = {"backend": dist.get_backend(), "processes": world, "bytes_per_second": speed, "forms": forms}
    if dist.get_rank() == 0:
        sys.stdout.write(dump_json(report))


if __name__ == "__main__":
    main()
