"""Filling a model with a checkpoint's weights, strictly.

The model is built without memory (on the meta device) and tells, for each of its parameters, how it is stored. What the
checkpoint does not have, has in excess or has in another shape is one error that lists all of it, with two exceptions:
weights of another head or an unused pooler are skipped, and a head or pooler that is absent is newly initialised, with a
warning that names it.

Shapes are the parameters' own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transept.checkpoint.keymap import KeyMap
from transept.checkpoint.store import Store
from transept.errors import CheckpointError, TranseptWarning


class Loadable(Protocol):
    """What a model tells about its weights."""

    def key_map(self) -> KeyMap:
        """The table of checkpoint names."""

    def canonical_names(self, stored: Iterable[str]) -> dict[str, str]:
        """Stored names, in whatever spelling, to those that the table knows; values are the names in the file."""

    def active_ties(self) -> dict[str, str]:
        """Our names that share another's tensor."""

    def may_be_new(self, name: str) -> str | None:
        """The group (pooler, head) that our name belongs to, if that group may be absent from a checkpoint."""

    def may_be_skipped(self, stored: str) -> bool:
        """Whether a stored name belongs to another head, an unused pooler or a buffer that is computed."""

    def initialize(self, names: Iterable[str]) -> None:
        """Fill newly made parameters."""


@dataclass
class LoadReport:
    """What loading did.

    ``filled`` maps every parameter to the stored name it came from; ``missing`` were newly initialised; ``unexpected``
    were skipped; ``mismatched`` had another shape: (name, stored shape, model's shape).
    """

    filled: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The reference's ``output_loading_info``."""
        return {
            "missing_keys": set(self.missing),
            "unexpected_keys": set(self.unexpected),
            "mismatched_keys": set(self.mismatched),
            "error_msgs": [],
        }


def plan(model: nn.Module, loadable: Loadable, store: Store) -> tuple[LoadReport, dict[str, str]]:
    """Match every parameter with a stored tensor by name and shape, reading nothing.

    Returns:
        The report, and the stored name of each parameter that can be filled.
    """
    report, keys, ties = LoadReport(), loadable.key_map(), loadable.active_ties()
    canonical = loadable.canonical_names(store)
    state, used = model.state_dict(), set()
    for name in state:
        recipe = keys.recipe(name)
        stored = canonical.get(recipe.stored)
        if stored is None:
            if name not in ties:
                report.missing.append(name)
            continue
        used.add(stored)
        if name in ties:
            continue
        expected = recipe.stored_shape([state[part].shape for part in recipe.parts or (name,)])
        if store.shape(stored) != expected:
            report.mismatched.append((name, store.shape(stored), expected))
        else:
            report.filled[name] = stored
    report.unexpected = [stored for stored in store if stored not in used]
    return report, report.filled


def check(loadable: Loadable, report: LoadReport, store: Store, *, strict: bool, ignore_mismatched: bool) -> None:
    """Raise one error for all that does not fit; warn of what is newly initialised.

    Raises:
        CheckpointError: with all missing, unexpected and mismatched names.
    """
    found = {loadable.may_be_new(name) for name in report.filled} - {None}
    new = [name for name in report.missing if (group := loadable.may_be_new(name)) and group not in found]
    missing = [name for name in report.missing if name not in new]
    canonical = {stored: name for name, stored in loadable.canonical_names(store).items()}
    unexpected = [stored for stored in report.unexpected if not loadable.may_be_skipped(canonical.get(stored, stored))]
    mismatched = [] if ignore_mismatched else report.mismatched
    if mismatched or (strict and (missing or unexpected)):
        lines = [f"  missing     {name}" for name in missing]
        lines += [f"  unexpected  {name}" for name in unexpected]
        lines += [f"  mismatched  {name}: {stored} in the file, {ours} in the model" for name, stored, ours in mismatched]
        hint = "Pass ignore_mismatched_sizes=True to initialise mismatched ones anew, strict=False to allow the others."
        raise CheckpointError(
            f"does not fit {type(loadable).__name__}:\n" + "\n".join(lines) + "\n",
            path=store.files[0].parent,
            hint=hint,
            missing=missing,
            unexpected=unexpected,
            mismatched=[name for name, _, _ in mismatched],
        )
    anew = [*report.missing, *(name for name, _, _ in report.mismatched)]
    if anew:
        warnings.warn(
            f"{type(loadable).__name__}: newly initialised, since the checkpoint does not have them: {', '.join(anew)}. "
            "Train the model before you use it.",
            TranseptWarning,
            stacklevel=4,
        )


def fill(
    model: nn.Module, loadable: Loadable, store: Store, report: LoadReport, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Put the planned tensors into the model; make and initialise the others."""
    keys, state = loadable.key_map(), model.state_dict()
    for name in state:
        if name in report.filled:
            recipe = keys.recipe(name)
            rows = [state[part].shape[0] for part in recipe.parts]
            tensor = recipe.take(store[report.filled[name]], rows)
            target = dtype if tensor.is_floating_point() else tensor.dtype
            put(model, name, tensor.to(device=device, dtype=target).contiguous())
    new = [*report.missing, *(name for name, _, _ in report.mismatched)]
    for name in new:
        like = state[name]
        target = dtype if like.is_floating_point() else like.dtype
        put(model, name, torch.empty(like.shape, dtype=target, device=device))
    share(model, loadable.active_ties())
    loadable.initialize(new)


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace one parameter or buffer by a tensor."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters:
        old = module._parameters[leaf]
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=old is None or old.requires_grad)
    else:
        module._buffers[leaf] = tensor


def share(model: nn.Module, ties: Mapping[str, str]) -> None:
    """Make every tied name the very parameter that it is tied to."""
    for name, source in ties.items():
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._parameters[leaf] = model.get_parameter(source)
