"""Filling a model with a checkpoint's weights, strictly: all that does not fit is one error.

Weights of another head or an unused pooler are skipped, and absent ones are newly initialised, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transept.checkpoint.few_bits import Replace, keep, keep_experts
from transept.checkpoint.keys import Recipe, rows_of
from transept.checkpoint.names import Names
from transept.checkpoint.quantized import Store
from transept.environment.memory import check_memory
from transept.errors import CheckpointError, ConfigError, TranseptWarning
from transept.quantized.grouped import join_grouped
from transept.quantized.linear import QuantizedLinear

MAX_LISTED = 100
_MOST_SETTINGS = 3  # that are named for a number; where more have it, none tells anything


class Loadable(nn.Module):
    """A model that can be filled with a checkpoint's weights."""

    checkpoint_names: Callable[[], Names]  # of the model's tensors in a checkpoint, as its config has them now
    untie: Callable[[], None]  # gives every tied name a tensor of its own from now on
    initialize: Callable[..., None]  # fills all parameters, or those named and what shares a module with them


@dataclass
class LoadReport:
    """What loading did.

    ``filled`` maps every parameter to the stored name it came from; ``missing`` were newly initialised; ``fixed`` are absent
    too, with values that are not trained; ``unexpected`` were skipped; ``mistyped`` hold integers where the model computes, or
    the reverse; ``untied`` would share a tensor, but are stored with other values.
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
        names = ("missing", "unexpected", "mismatched")
        return {f"{name}_keys": set(getattr(self, name)) for name in names} | {"error_msgs": []}


def plan(model: Loadable, names: Names, store: Store) -> tuple[LoadReport, Names]:
    """Match every parameter with a stored tensor by name, shape and kind; only doubtful ties are read.

    Where tied ones are stored with different values, the model is untied, and has other names then: those returned.
    """
    report = _match(model, names, store)
    if not (untied := _settle_ties(report, names, store)):
        return report, names
    model.untie()
    names = store.names(model)  # other names may depend on it
    apart = _match(model, names, store)
    apart.filled = report.filled | apart.filled
    apart.missing = [name for name in apart.missing if name not in apart.filled]
    apart.unexpected = [stored for stored in apart.unexpected if stored in report.unexpected]
    apart.untied = untied
    return apart, names


def _match(model: nn.Module, names: Names, store: Store) -> LoadReport:
    report, keys, canonical, used = LoadReport(), names.keys, names.canonical(store), set()
    state = keys.slots(model.state_dict(), canonical)
    for name, ours in state.items():
        recipe = keys.recipe(name)
        if (stored := canonical.get(recipe.stored)) is None:
            if name not in names.tied:
                (report.fixed if names.is_fixed(name) else report.missing).append(name)
            continue
        used.add(stored)
        expected = (
            ours.shape if recipe.is_plain else recipe.stored_shape([state[part].shape for part in recipe.parts or (name,)])
        )
        tensor = store[stored]
        if tensor.is_floating_point() != ours.is_floating_point() or tensor.is_complex() != ours.is_complex():
            report.mistyped.append((name, tensor.dtype))
        elif tuple(tensor.shape) != expected:
            report.mismatched.append((name, tuple(tensor.shape), tuple(expected)))
        else:
            report.filled[name] = stored
    report.unexpected = [stored for stored in store if stored not in used]
    return report


def _settle_ties(report: LoadReport, names: Names, store: Store) -> list[str]:
    """Read each shared tensor once, from whichever of its names is stored; returns the tied names whose values differ.

    There is one switch for all ties, so where some differ the others get a copy.
    """
    untied = []
    for name, source in names.tied.items():
        if name not in report.filled:
            continue
        if source in report.missing:
            report.missing.remove(source)
            report.filled[source] = report.filled.pop(name)
        elif source in report.filled:
            one, other = (names.keys.recipe(n).take(store.passing(report.filled[n]), []).contiguous() for n in (name, source))
            if one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8)):  # bit for bit
                del report.filled[name]
            else:
                untied.append(name)
    if untied:
        copies = {name: report.filled[source] for name, source in names.tied.items() if source in report.filled}
        report.filled = copies | report.filled
    return untied


def check(model: Loadable, names: Names, report: LoadReport, store: Store, *, strict: bool, ignore_mismatched: bool) -> None:
    """Raise one ``CheckpointError`` for all that does not fit; warn of what is newly initialised or no longer shared."""
    kind = type(model).__name__
    found = {names.group(name) for name in report.filled} - {None} if report.missing else set()
    missing = [name for name in report.missing if (group := names.group(name)) is None or group in found]
    canonical = {stored: name for name, stored in names.canonical(store).items()} if report.unexpected else {}
    # A layer whose weight is used has no tensors of another head.
    used = {stored.rpartition(".")[0] for stored in report.filled.values() if stored.endswith(".weight")}
    unread = [s for s in report.unexpected if not names.ignores(canonical.get(s, s))]
    unexpected = [s for s in unread if not names.skips(canonical.get(s, s)) or s.rpartition(".")[0] in used]
    mismatched = [] if ignore_mismatched else report.mismatched
    if report.mistyped or mismatched or (strict and (missing or unexpected)):
        wrong = {"missing": missing, "unexpected": unexpected}
        by = _settings(model)
        wrong["mismatched"] = [
            f"{name}: {stored} in the file, {ours} in the model{by({*ours} - {*stored})}" for name, stored, ours in mismatched
        ]
        wrong["mistyped"] = [f"{name}: {dtype} in the file" for name, dtype in report.mistyped]
        what, path = "\n".join([f"does not fit {kind}:", *_listed(wrong), ""]), store.files[0].parent
        hint = "Pass ignore_mismatched_sizes=True to initialise mismatched ones anew, strict=False to allow the others."
        names_of = {"missing": missing, "unexpected": unexpected}
        names_of["mismatched"] = [*(name for name, _, _ in mismatched), *(name for name, _ in report.mistyped)]
        raise CheckpointError(what, path=path, hint=hint, **names_of)
    for note in _notes(report, names.tied):
        warnings.warn(f"{kind}: {note}", TranseptWarning, stacklevel=3)


def _settings(model: Loadable) -> Callable[[Iterable[int]], str]:
    """Says by which settings a tensor has such sizes, as the end of a sentence; nothing where too many settings have them."""
    config: Any = getattr(model, "config", None)
    known = {} if config is None else {"num_labels": config.num_labels, **config.to_dict()}

    def by(sizes: Iterable[int]) -> str:
        wanted = {*sizes}
        names = [f"`{name}`" for name, value in known.items() if type(value) is int and value in wanted]
        return f" by {' or '.join(names)}" if 0 < len(names) <= _MOST_SETTINGS else ""

    return by


def _listed(wrong: Mapping[str, list[str]]) -> Iterator[str]:
    for what, names in wrong.items():
        for name in names[:MAX_LISTED]:
            yield f"  {what:10}  {(name if name.isprintable() else ascii(name))[:300]}"  # fit for a terminal
        if len(names) > MAX_LISTED:
            yield f"  {what:10}  and {len(names) - MAX_LISTED} more"


def _notes(report: LoadReport, ties: Mapping[str, str]) -> Iterator[str]:
    new = "Train the model before you use it."
    if names := ", ".join(name for name in report.missing if name not in ties):
        yield f"newly initialised, since the checkpoint does not have them: {names}. {new}"
    differ = [(name, sizes) for name, *sizes in report.mismatched if name not in ties]
    if names := ", ".join(f"{name} ({stored} in the file, {ours} in the model)" for name, (stored, ours) in differ):
        yield f"newly initialised, since the checkpoint has them in other sizes: {names}. {new}"
    if report.untied:
        names = ", ".join(report.untied)
        yield f"stored with values of their own although the config ties them, so they are kept apart: {names}."


class Part(NamedTuple):
    """What a process has of a tensor: slices of its axes up to the one that is split, or all of it.

    That one may be in equal ``blocks``, such as queries, keys and values, of each of which the last slice is meant.
    """

    slices: tuple[slice, ...] = ()
    blocks: int = 1

    def of(self, tensor: Tensor) -> Tensor:
        if self.blocks == 1:
            return tensor[self.slices]
        axis = len(self.slices) - 1
        blocks = (block[self.slices] for block in tensor.chunk(self.blocks, dim=axis))
        return torch.cat([*blocks], dim=axis)

    def of_row(self, pieces: int) -> Part:
        """The part of one of so many equal pieces of a row."""
        return Part(self.slices[1:], self.blocks // pieces if self.slices else 1)


def everything(name: str) -> Part:
    """The part of a tensor that is its whole."""
    return Part()


def fill(
    model: Loadable,
    names: Names,
    store: Store,
    report: LoadReport,
    *,
    dtype: torch.dtype,
    device: torch.device,
    part: Callable[[str], Part] = everything,
    keeps_bits: bool = False,
    replace: Replace | None = None,
) -> None:
    """Make and initialise the parameters that are not stored, and put the planned tensors into the model.

    With ``keeps_bits`` linear layers and experts multiply by the bits that the checkpoint has, where there is a product for
    them; ``replace`` is called for every tensor that is filled. Mapped memory is handed out as it is where nothing has to be
    done to it. ``part`` says what of a tensor of ours is wanted, where that is not all of it; new ones are made whole. A model
    may have a part of the parameters that the names tell of, and the report be of these alone.
    """
    keys, state = names.keys, model.state_dict()
    ties = {name: source for name, source in names.tied.items() if name in state}
    kept = keep_experts(model, keys, report.filled, store) if keeps_bits else set()
    filled = {name: stored for name, stored in report.filled.items() if keys.owner(name) not in kept}
    new = _make_new(model, names, report, state, ties, filled, dtype=dtype, device=device, part=part)
    by_stored: dict[str, dict[str, Recipe]] = {}
    for name, stored in filled.items():
        by_stored.setdefault(stored, {})[name] = keys.recipe(name)
    for stored in store.reading_order(by_stored):
        recipes, given = by_stored[stored], set[int]()
        if keeps_bits and keep(model, recipes, store, stored):
            continue
        tensor = store[stored]
        target = _type(names, next(iter(recipes)), tensor, dtype)
        rearranged = any(recipe.rearranges(tensor) for recipe in recipes.values())
        if rearranged or tensor.dtype != target or device.type != "cpu" or tensor.is_meta:
            tensor = store.passing(stored)
        for name, recipe in recipes.items():
            wanted = Part() if (owner := keys.owner(name)) in new else part(owner)
            wanted = wanted if name in state else wanted.of_row(recipe.pieces)
            piece = wanted.of(tensor if recipe.is_plain else recipe.take(tensor, recipe.lengths(state)))
            piece = piece.to(device=device, dtype=target).contiguous()
            piece = piece.clone() if recipe.part in given else piece
            given.add(recipe.part)
            if name in state:
                put(model, name, piece)
                if replace is not None:
                    replace(model, name)
            else:
                rows = rows_of(model.get_parameter(owner).data, recipe.cut)
                row = rows[int(name.removeprefix(f"{owner}.").partition(".")[0])]
                row.chunk(recipe.pieces)[recipe.piece].copy_(piece)
    for name, source in ties.items():
        if keeps_bits and source in report.filled:  # the embeddings have the weight unpacked
            keep(model, {name: Recipe((name,))}, store, report.filled[source])
    if keeps_bits or replace is not None:
        join_grouped(model)
    share(model, ties)
    empty = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not empty, f"{type(model).__name__} was left without values for {empty}"


def _make_new(
    model: Loadable,
    names: Names,
    report: LoadReport,
    state: Mapping[str, Tensor],
    ties: Mapping[str, str],
    filled: Iterable[str],
    *,
    dtype: torch.dtype,
    device: torch.device,
    part: Callable[[str], Part],
) -> list[str]:
    """Make and initialise what is not stored, whose names are returned, and make what is ``filled`` row by row."""
    new = list(dict.fromkeys(names.keys.owner(name) for name in report.new if name not in ties))
    by_row = (names.keys.owner(name) for name in filled if name not in state)
    if sizes := {name: state[name].numel() * _type(names, name, state[name], dtype).itemsize for name in new}:
        largest = max(sizes, key=lambda name: sizes[name])
        shape = tuple(state[largest].shape)
        by = _settings(model)([max(shape)])
        what = f"what the checkpoint does not hold and is newly made, {largest} of {shape}{by} above all,"
        hint = "Set the config's sizes to those of the checkpoint."
        check_memory(sum(sizes.values()), device, what, hint, ConfigError)
    for name in dict.fromkeys((*new, *by_row)):
        like, kind = state[name] if name in new else part(name).of(state[name]), _type(names, name, state[name], dtype)
        try:
            put(model, name, torch.empty(like.shape, dtype=kind, device=device))
        except RuntimeError as error:
            what = f"{name} of {tuple(like.shape)} is to be newly made, but {like.numel() * kind.itemsize} bytes cannot be had."
            raise ConfigError(what) from error
    # Before the others are filled: initialisation also resets what shares a module with a new parameter.
    model.initialize(new)
    return new


def _type(names: Names, name: str, like: Tensor, wanted: torch.dtype) -> torch.dtype:
    """The type of a tensor of ours in a model of the wanted one."""
    if not like.is_floating_point():
        return like.dtype
    half = wanted in (torch.float16, torch.bfloat16)
    return torch.float32 if half and names.is_wide(name, in_bfloat16=wanted is torch.bfloat16) else wanted


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace one parameter or buffer by a tensor."""
    *path, leaf = name.split(".")
    module: Any = model
    for part in path:  # `get_submodule` asks for attributes, which takes long
        module = module._modules[part]
    if leaf in module._parameters:
        old = module._parameters[leaf]
        # As an attribute: recurrent layers of PyTorch keep a list of theirs, too.
        setattr(module, leaf, nn.Parameter(tensor, requires_grad=old is None or old.requires_grad))
    else:
        module._buffers[leaf] = tensor


def share(model: nn.Module, ties: Mapping[str, str]) -> None:
    """Make every tied name the very parameter that it is tied to."""
    absent = {name for name, _ in model.named_buffers()}  # of a pipeline's model, what another process has
    for name, source in ties.items():
        if source not in absent:
            path, _, leaf = name.rpartition(".")
            try:
                holder = model.get_submodule(path)
            except AttributeError:  # a user's module stands in the place of what is around it
                continue
            if not isinstance(holder, QuantizedLinear):  # which has the weight in few bits
                holder._parameters[leaf] = model.get_parameter(source)
