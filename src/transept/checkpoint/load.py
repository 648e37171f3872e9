"""Filling a model with a checkpoint's weights, strictly.

The model is built without memory (on the meta device) and tells, for each of its parameters, how it is stored. What the
checkpoint does not have, has in excess or has in another shape is one error that lists all of it, with two exceptions:
weights of another head or an unused pooler are skipped, and a head or pooler that is absent is newly initialised, with a
warning that names it.

Shapes are the parameters' own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transept.checkpoint.keymap import KeyMap, Recipe
from transept.checkpoint.store import Store
from transept.errors import CheckpointError, ConfigError, TranseptWarning

MAX_LISTED = 100


class Loadable(Protocol):
    """What a model tells about its weights."""

    def key_map(self) -> KeyMap:
        """The table of checkpoint names."""

    def canonical_names(self, stored: Iterable[str]) -> dict[str, str]:
        """Stored names, in whatever spelling, to those that the table knows; values are the names in the file."""

    def active_ties(self) -> dict[str, str]:
        """Our names that share another's tensor."""

    def untie(self) -> None:
        """Give every tied name a tensor of its own from now on."""

    def may_be_new(self, name: str) -> str | None:
        """The group (pooler, head) that our name belongs to, if that group may be absent from a checkpoint."""

    def may_be_skipped(self, stored: str) -> bool:
        """Whether a stored name belongs to another head, an unused pooler or a buffer that is computed."""

    def is_fixed(self, name: str) -> bool:
        """Whether our name is not trained and has a value of its own where a checkpoint lacks it."""

    def dtype_of(self, name: str, wanted: torch.dtype) -> torch.dtype:
        """The type that a floating-point tensor of ours gets in a model of the wanted one."""

    def initialize(self, names: Iterable[str]) -> None:
        """Fill newly made parameters."""


@dataclass
class LoadReport:
    """What loading did.

    ``filled`` maps every parameter to the stored name it came from; ``missing`` were newly initialised; ``fixed`` are
    absent too and have values that are not trained; ``unexpected`` were skipped; ``mismatched`` had another shape:
    (name, stored shape, model's shape); ``mistyped`` hold integers where the model computes, or the reverse: (name,
    stored type); ``untied`` would share a tensor, but are stored with other values.
    """

    filled: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    mistyped: list[tuple[str, torch.dtype]] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)

    @property
    def new(self) -> list[str]:
        """The names that the checkpoint has no value for."""
        return [*self.missing, *self.fixed, *(name for name, _, _ in self.mismatched)]

    def as_dict(self) -> dict[str, Any]:
        """The reference's ``output_loading_info``."""
        return {
            "missing_keys": set(self.missing),
            "unexpected_keys": set(self.unexpected),
            "mismatched_keys": set(self.mismatched),
            "error_msgs": [],
        }


def plan(model: nn.Module, loadable: Loadable, store: Store) -> LoadReport:
    """Match every parameter with a stored tensor by name, shape and kind; only doubtful ties are read.

    Where tied names are stored with different values, the model is untied and nothing is lost.
    """
    report = _match(model, loadable, store)
    untied = _settle_ties(report, loadable, store)
    if not untied:
        return report
    loadable.untie()
    apart = _match(model, loadable, store)  # other names may depend on it
    apart.filled = report.filled | apart.filled
    apart.missing = [name for name in apart.missing if name not in apart.filled]
    apart.unexpected = [stored for stored in apart.unexpected if stored in report.unexpected]
    apart.untied = untied
    return apart


def _match(model: nn.Module, loadable: Loadable, store: Store) -> LoadReport:
    report, keys, ties = LoadReport(), loadable.key_map(), loadable.active_ties()
    canonical, used = loadable.canonical_names(store), set()
    state = keys.slots(model.state_dict(), canonical)
    for name, ours in state.items():
        recipe = keys.recipe(name)
        if (stored := canonical.get(recipe.stored)) is None:
            if name not in ties:
                (report.fixed if loadable.is_fixed(name) else report.missing).append(name)
            continue
        used.add(stored)
        expected = recipe.stored_shape([state[part].shape for part in recipe.parts or (name,)])
        tensor = store[stored]
        if tensor.is_floating_point() != ours.is_floating_point() or tensor.is_complex() != ours.is_complex():
            report.mistyped.append((name, tensor.dtype))
        elif tuple(tensor.shape) != expected:
            report.mismatched.append((name, tuple(tensor.shape), expected))
        else:
            report.filled[name] = stored
    report.unexpected = [stored for stored in store if stored not in used]
    return report


def _settle_ties(report: LoadReport, loadable: Loadable, store: Store) -> list[str]:
    """Read each shared tensor once, from whichever of its names is stored.

    Returns:
        The tied names whose stored values differ; there is one switch for all ties, so the others get a copy then.
    """
    keys, ties, untied = loadable.key_map(), loadable.active_ties(), []
    for name, source in ties.items():
        if name not in report.filled:
            continue
        if source in report.missing:
            report.missing.remove(source)
            report.filled[source] = report.filled.pop(name)
        elif source in report.filled:
            one, other = (keys.recipe(n).take(store.passing(report.filled[n]), []) for n in (name, source))
            if _same(one, other):
                del report.filled[name]
            else:
                untied.append(name)
    if untied:
        copies = {name: report.filled[source] for name, source in ties.items() if source in report.filled}
        report.filled = copies | report.filled
    return untied


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, bit for bit."""
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def check(loadable: Loadable, report: LoadReport, store: Store, *, strict: bool, ignore_mismatched: bool) -> None:
    """Raise one error for all that does not fit; warn of what is newly initialised or no longer shared.

    Raises:
        CheckpointError: with all missing, unexpected and mismatched names.
    """
    found = {loadable.may_be_new(name) for name in report.filled} - {None}
    missing = [name for name in report.missing if (group := loadable.may_be_new(name)) is None or group in found]
    canonical = {stored: name for name, stored in loadable.canonical_names(store).items()}
    # A layer whose weight is used has no tensors of another head.
    used = {_module(stored) for stored in report.filled.values() if stored.endswith(".weight")}
    unexpected = [
        stored
        for stored in report.unexpected
        if not loadable.may_be_skipped(canonical.get(stored, stored)) or _module(stored) in used
    ]
    mismatched = [] if ignore_mismatched else report.mismatched
    kind = type(loadable).__name__
    if report.mistyped or mismatched or (strict and (missing or unexpected)):
        wrong = {
            "missing": missing,
            "unexpected": unexpected,
            "mismatched": [f"{name}: {stored} in the file, {ours} in the model" for name, stored, ours in mismatched],
            "mistyped": [f"{name}: {dtype} in the file" for name, dtype in report.mistyped],
        }
        raise CheckpointError(
            "\n".join([f"does not fit {kind}:", *_listed(wrong), ""]),
            path=store.files[0].parent,
            hint="Pass ignore_mismatched_sizes=True to initialise mismatched ones anew, strict=False to allow the others.",
            missing=missing,
            unexpected=unexpected,
            mismatched=[*(name for name, _, _ in mismatched), *(name for name, _ in report.mistyped)],
        )
    for note in _notes(report, loadable.active_ties()):
        warnings.warn(f"{kind}: {note}", TranseptWarning, stacklevel=3)


def _module(name: str) -> str:
    """The module that a name's tensor belongs to."""
    return name.rpartition(".")[0]


def _listed(wrong: Mapping[str, list[str]]) -> Iterator[str]:
    for what, names in wrong.items():
        yield from (f"  {what:10}  {_plain(name)}" for name in names[:MAX_LISTED])
        if len(names) > MAX_LISTED:
            yield f"  {what:10}  and {len(names) - MAX_LISTED} more"


def _plain(text: str) -> str:
    """A name out of a file, fit for a terminal."""
    return (text if text.isprintable() else ascii(text))[:300]


def _notes(report: LoadReport, ties: Mapping[str, str]) -> Iterator[str]:
    if names := ", ".join(name for name in report.new if name not in ties and name not in report.fixed):
        yield f"newly initialised, since the checkpoint does not have them: {names}. Train the model before you use it."
    if report.untied:
        names = ", ".join(report.untied)
        yield f"stored with values of their own although the config ties them, so they are kept apart: {names}."


def fill(
    model: nn.Module, loadable: Loadable, store: Store, report: LoadReport, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Make and initialise the parameters that are not stored, and put the planned tensors into the model."""
    keys, state, ties = loadable.key_map(), model.state_dict(), loadable.active_ties()
    new = list(dict.fromkeys(keys.owner(name) for name in report.new if name not in ties))
    stacked = [owner for name in report.filled if (owner := keys.owner(name)) != name]
    for name in dict.fromkeys((*new, *stacked)):
        put(model, name, _room(name, state[name], dtype=loadable.dtype_of(name, dtype), device=device))
    # Before the others are filled: initialisation also resets what shares a module with a new parameter.
    loadable.initialize(new)
    by_stored: dict[str, dict[str, Recipe]] = {}
    for name, stored in report.filled.items():
        by_stored.setdefault(stored, {})[name] = keys.recipe(name)
    for stored in store.reading_order(by_stored):
        recipes = by_stored[stored]
        lengths = {name: recipe.lengths(state) for name, recipe in recipes.items()}
        target = loadable.dtype_of(next(iter(recipes)), dtype)
        for name, tensor in _pieces(store, stored, recipes, lengths, dtype=target, device=device):
            if name in state:
                put(model, name, tensor)
            else:
                model.get_parameter(keys.owner(name)).data[int(name.rpartition(".")[2])] = tensor
    share(model, ties)
    empty = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not empty, f"{type(model).__name__} was left without values for {empty}"


def _room(name: str, like: Tensor, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a parameter that is not stored."""
    target = dtype if like.is_floating_point() else like.dtype
    try:
        return torch.empty(like.shape, dtype=target, device=device)
    except RuntimeError as error:
        size = like.numel() * target.itemsize
        raise ConfigError(f"{name} of {tuple(like.shape)} is to be newly made, but {size} bytes cannot be had.") from error


def _pieces(
    store: Store,
    stored: str,
    recipes: Mapping[str, Recipe],
    lengths: Mapping[str, list[int]],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[tuple[str, Tensor]]:
    """The parameters that one stored tensor holds, each of the wanted type, on the device and contiguous.

    Mapped memory is handed out as it is where nothing has to be done to it.
    """
    tensor = store[stored]
    target = dtype if tensor.is_floating_point() else tensor.dtype
    rearranged = any(recipe.rearranges(tensor) for recipe in recipes.values())
    if rearranged or tensor.dtype != target or device.type != "cpu":
        tensor = store.passing(stored)
    given: set[int] = set()
    for name, recipe in recipes.items():
        piece = recipe.take(tensor, lengths[name]).to(device=device, dtype=target).contiguous()
        yield name, piece.clone() if recipe.part in given else piece
        given.add(recipe.part)


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
