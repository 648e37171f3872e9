"""The weights of a pipeline's stages: new ones, those of a checkpoint, and one checkpoint of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from transept.checkpoint.load import LoadReport, check, fill, plan, put, share
from transept.checkpoint.names import Names
from transept.checkpoint.store import Store, open_store, split, write_checkpoint
from transept.checkpoint.writing import Entry, in_order, write_stream
from transept.core.loading import dtype_named
from transept.core.model import Model
from transept.parallel.parts import whole
from transept.source import Source, model_name, take_source_options


@dataclass
class Planned:
    """A model on the meta device, and which stored tensors are to fill it."""

    model: Model
    names: Names
    store: Store
    report: LoadReport
    dtype: torch.dtype
    source: Source

    @classmethod
    def of(cls, kind: type[Model], path: Any, options: dict[str, Any]) -> Self:
        """The plan for a whole checkpoint, of which headers alone are read; raises as ``from_pretrained`` does."""
        options = dict(options)
        hub, dtype, strict = take_source_options(options), options.pop("dtype", "auto"), options.pop("strict", True)
        variant, config = options.pop("variant", None), options.pop("config", None)
        config = kind._config(path, config, options, hub)
        source = Source(model_name(path), **hub)
        store = open_store(source, variant=variant)
        model = kind._without_memory(config, {})
        report, names = plan(model, model.checkpoint_names(), store)
        check(model, names, report, store, strict=strict, ignore_mismatched=False)
        return cls(model, names, store, report, dtype_named(dtype, config, store), source)

    def fill(self, owned: set[str], device: torch.device) -> None:
        """Read what a model has that keeps ``owned`` parameters and all buffers outside the layers that were left out."""
        kept, owner, report = self.model.state_dict().keys(), self.names.keys.owner, self.report
        own = replace(
            report,
            filled={name: stored for name, stored in report.filled.items() if owner(name) in kept},
            missing=[name for name in report.missing if owner(name) in kept],
            fixed=[name for name in report.fixed if owner(name) in kept],
        )
        fill(self.model, self.names, self.store, own, dtype=self.dtype, device=device)
        self.model.config.dtype = self.dtype
        self.model.name_or_path = self.model.config.name_or_path = self.source.name
        self.model.eval()
        self.model.loaded(self.source)


def initialize(model: Model, owned: set[str], ties: dict[str, str], device: torch.device) -> None:
    """Draw new weights for a model on the meta device, module by module, and keep those that are owned, and the buffers.

    All processes draw all weights, so that with one seed these do not depend on how many stages there are.
    """
    for path, module, initializer in _initializers(model):
        leaves = {leaf: getattr(module, leaf) for leaf in (*module._parameters, *module._buffers)}
        shapes = {f"{path}.{leaf}".lstrip("."): tensor for leaf, tensor in leaves.items() if tensor is not None}
        for name, shape in shapes.items():
            put(model, name, torch.empty_like(shape, device=device))
        with torch.no_grad():
            initializer(module)
        for name, shape in shapes.items():
            if isinstance(shape, nn.Parameter) and name not in owned:
                put(model, name, shape.detach())
    share(model, ties)


def _initializers(model: Model, prefix: str = "") -> Iterator[tuple[str, nn.Module, Callable[[nn.Module], None]]]:
    """The modules of a model, those of models within first, and what fills each of them."""
    inner: set[int] = set()
    for name, child in model.named_children():
        if isinstance(child, Model):
            inner |= {id(module) for module in child.modules()}
            yield from _initializers(child, f"{prefix}{name}.")
    for path, module in model.named_modules(prefix=prefix.rstrip(".")):
        if id(module) not in inner:
            yield path, module, model.initialize_module


@dataclass
class Share:
    """What a process has of a model: ``counted`` are the names of what no earlier one has, ``stored`` those of all files."""

    model: Model
    counted: set[str]
    stored: list[str]
    group: dist.ProcessGroup
    device: torch.device

    def save(self, directory: Any, limit: int, writes: bool) -> None:
        """Write the model of all processes in files of so many bytes at most; all must call it together.

        Of several groups that have the same model one ``writes``, and the others give it their shards.
        """
        _Saving(self).run(directory, limit, writes)


class _Saving:
    """One checkpoint, which the first process writes, and for which all send what they have."""

    def __init__(self, own: Share) -> None:
        self.own, model = own, own.model
        self.rank, self.size = dist.get_rank(own.group), dist.get_world_size(own.group)
        names = model.checkpoint_names()
        self.keys, known = names.keys, own.counted | {name for name, _ in model.named_buffers()}
        kept = {name: tensor for name, tensor in model.state_dict().items() if name not in names.tied}
        self.state = {name: tensor for name, tensor in kept.items() if name in known}
        self.parts: dict[str, list[str]] = {}
        for name in self.keys.slots(self.state):
            self.parts.setdefault(self.keys.recipe(name).stored, []).append(self.keys.owner(name))
        self.entries, self.owner = self._ask()

    def _ask(self) -> tuple[dict[str, Entry], dict[str, int]]:
        """All tensors that are stored, in the order of the whole model's, and who has them."""
        shapes = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in self.state.items()}
        own = self.keys.save(shapes)
        told: list[Any] = [None] * self.size
        mine = {name: Entry(tuple(tensor.shape), tensor.dtype) for name, tensor in own.items()}
        dist.all_gather_object(told, mine, group=self.own.group)
        owner = {name: rank for rank in reversed(range(len(told))) for name in told[rank]}
        return {name: told[owner[name]][name] for name in self.own.stored}, owner

    def run(self, directory: Any, limit: int, writes: bool) -> None:
        shards = split({name: entry.nbytes for name, entry in self.entries.items()}, limit)
        order = iter([name for shard in shards for name in in_order({name: self.entries[name] for name in shard})])
        if self.rank > 0 or not writes:
            for name in order:
                if self.owner[name] == self.rank:
                    tensor = self._own(name)
                    if writes:
                        dist.send(tensor, group=self.own.group, group_dst=0)
            return

        def write(names: list[str], path: Path) -> None:
            write_stream({name: self.entries[name] for name in names}, lambda name: self._take(next(order)), path)

        sizes, texts = {name: entry.nbytes for name, entry in self.entries.items()}, self.own.model.texts()
        try:
            write_checkpoint(shards, sizes, texts, directory, write)
        finally:  # others wait until what they send is taken
            for name in order:
                self._take(name)

    def _own(self, stored: str) -> Tensor:
        """One of the tensors that this process has, as it is stored."""
        parts = {name: whole(self.state[name].detach()) for name in self.parts[stored]}
        return self.keys.save(parts)[stored].contiguous()

    def _take(self, stored: str) -> Tensor:
        """A tensor of any process, which sends it at this very moment."""
        if (rank := self.owner[stored]) == 0:
            return self._own(stored)
        entry = self.entries[stored]
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device=self.own.device)
        dist.recv(tensor, group=self.own.group, group_src=rank)
        return tensor
