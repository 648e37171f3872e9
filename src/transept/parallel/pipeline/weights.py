"""The weights of a pipeline's stages: what of a checkpoint is read for them, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from transept.checkpoint.load import LoadReport, put, share
from transept.core.model import Model


def leave_out_absent(report: LoadReport, model: Model) -> None:
    """Leave in the report of a whole checkpoint what a model has of it from which layers were left out."""
    present, owner = model.state_dict().keys(), model.checkpoint_names().keys.owner
    report.filled = {name: stored for name, stored in report.filled.items() if owner(name) in present}
    report.missing = [name for name in report.missing if owner(name) in present]
    report.fixed = [name for name in report.fixed if owner(name) in present]
    report.mismatched = [mismatch for mismatch in report.mismatched if owner(mismatch[0]) in present]


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
