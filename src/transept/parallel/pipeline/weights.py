"""The weights of a pipeline's stages: new ones, those of a checkpoint, and one checkpoint of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn

from transept.checkpoint.load import LoadReport, check, fill, plan, put, share
from transept.checkpoint.names import Names
from transept.checkpoint.store import Store, open_store
from transept.core.loading import dtype_named
from transept.core.model import Model
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
