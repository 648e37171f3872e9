"""Cutting a task model into the stages of a pipeline: which layers each has, and which of the other parameters.

The layers of all stacks stand one behind the other, an encoder's before a decoder's. Parameters outside layers belong where
they are used, which a pass of shapes through the rest of the model tells: embeddings to the stage of the first layer, what
follows the layers to that of the last, and what all layers share by way of the context (such as a bias for each distance) to
all of them. A parameter that several stages need is on each of them, and its gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from transept.core.model import Backbone, Model, written
from transept.core.pixels import PatchBackbone
from transept.core.seq2seq import EncoderDecoderBackbone
from transept.core.spectrograms import SpectrogramBackbone
from transept.core.task import TaskModel
from transept.core.text import TextBackbone
from transept.core.waves import AudioBackbone
from transept.errors import ConfigError, UnsupportedError
from transept.layers.context import Context
from transept.layers.moe import Experts

# A table is looked up and not multiplied; its gradient and its update cost about this share of a product of its size.
TABLE_SHARE = 0.125
_NEAREST = "Shard the weights in place of it (fsdp_size), which works for every family."


@dataclass(frozen=True)
class Partition:
    """A model's stages.

    ``bounds`` are the numbers of the layers that stages begin with, and of all layers; ``sizes`` those of each stack.
    ``stages`` maps each parameter's name to the stages that need it, tied ones by all their names, and ``shares`` tells
    whether layers of one stage share some.
    """

    bounds: tuple[int, ...]
    sizes: tuple[int, ...]
    stages: dict[str, tuple[int, ...]]
    shares: bool

    def ranges(self, stage: int) -> list[tuple[int, int]]:
        """The layers of each stack that a stage has: from one number to before another."""
        first, last = self.bounds[stage], self.bounds[stage + 1]
        starts = [0, *accumulate(self.sizes)]
        return [(min(max(first - at, 0), size), min(max(last - at, 0), size)) for at, size in zip(starts, self.sizes)]

    def owned(self, stages: Iterable[int]) -> set[str]:
        """The names of the parameters that any of some stages needs."""
        wanted = {*stages}
        return {name for name, needed in self.stages.items() if wanted & {*needed}}


def partition(model: Model, stages: int, ties: dict[str, str]) -> Partition:
    """Divide a model on the meta device into so many stages, by cost; ``ties`` are names -> the names they share tensors with.

    Raises:
        UnsupportedError: a family or a task whose layers cannot run apart.
        ConfigError: more stages than layers.
    """
    stacks = _stacks(model)
    sizes = tuple(len(stack.layers) for stack in stacks)
    count = sum(sizes)
    if stages > count:
        what = f"a pipeline of {stages} stages needs as many layers, but {type(model).__name__} has {count}."
        raise ConfigError(what, hint=f"Set `pp_size` to {count} at most, or half of it where processes have two stages.")
    uses = _uses(model, stacks)
    bounds = divide(_costs(model, uses, count), stages)
    stage_of = [stage for stage in range(stages) for _ in range(bounds[stage], bounds[stage + 1])]
    needed: dict[str, set[int]] = {}
    for name, use in uses.items():
        needed.setdefault(_root(name, ties), set()).update(stage_of[layer] for layer in use.layers)
    stages_of = {name: tuple(sorted(needed[_root(name, ties)] or {0, stages - 1})) for name in uses}
    return Partition(bounds, sizes, stages_of, shares=any(use.in_context for use in uses.values()))


def _root(name: str, ties: dict[str, str]) -> str:
    while name in ties:
        name = ties[name]
    return name


def divide(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """Bounds of so many parts of neighbours, each with one at least, of which the dearest is as cheap as can be."""
    total = [0.0, *accumulate(costs)]
    best: list[list[tuple[float, int]]] = [[(total[stop], 0) for stop in range(len(total))]]
    for part in range(1, parts):
        row = [(float("inf"), 0)] * (part + 1)
        for stop in range(part + 1, len(total)):
            row.append(min((max(best[-1][start][0], total[stop] - total[start]), start) for start in range(part, stop)))
        best.append(row)
    bounds = [len(costs)]
    for row in reversed(best):
        bounds.append(row[bounds[-1]][1])
    return tuple(reversed(bounds))


def _stacks(model: Model) -> tuple[Backbone, ...]:
    """The stacks of layers of a task model, which must all run in the common way."""
    name = type(model).__name__
    if not isinstance(model, TaskModel):
        raise UnsupportedError(f"{name} has no loss by itself, or is made of several models: no pipeline.", hint=_NEAREST)
    backbone, stacks = model.backbone, model.stacks
    inner = backbone if len(stacks) == 1 else None
    common = {written(kind) for kind in (Backbone, TextBackbone)}
    usual = all(type(s).run is Backbone.run and written(type(s)) in common and s.context_class is Context for s in stacks)
    whole = isinstance(backbone, EncoderDecoderBackbone) and written(type(backbone)) is written(EncoderDecoderBackbone)
    if not usual or not (whole or inner is stacks[0]):
        what = f"the layers of {name} do not run one after the other on states alone, and cannot be cut into stages."
        raise UnsupportedError(what, hint=_NEAREST)
    return stacks


class _Use(NamedTuple):
    """The layers that a parameter is needed with, by their number in all stacks; none where nothing tells.

    ``place`` is the layer that its cost is added to, and ``in_context`` tells whether all layers share it.
    """

    place: int
    layers: set[int]
    in_context: bool = False


def _uses(model: Model, stacks: Sequence[Backbone]) -> dict[str, _Use]:
    """Where each parameter of a model is used, by all of its names."""
    paths = {id(module): path for path, module in model.named_modules()}
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    last = sum(len(stack.layers) for stack in stacks) - 1
    uses = {name: _Use(0, set()) if name.startswith("model.") else _Use(last, {last}) for name in names}
    first = 0
    for stack in stacks:
        own, prefix = range(first, first + len(stack.layers)), f"{paths[id(stack)]}."
        begin, context, end = _reached(model, stack)
        for name in names:
            part, _, rest = name.removeprefix(prefix).partition(".")
            if not name.startswith(prefix):
                continue
            if part == "layers":
                layer = own[int(rest.partition(".")[0])]
                uses[name] = _Use(layer, {layer}, name in context)
                continue
            layers = {*own} if name in context else set[int]()
            layers |= {own[0]} if name in begin else set()
            layers |= {own[-1]} if name in end else set()
            uses[name] = _Use(own[0], layers or {own[0], own[-1]}, name in context)
        first += len(own)
    return uses


def _costs(model: Model, uses: Mapping[str, _Use], count: int) -> list[float]:
    """What each layer costs in weights that are multiplied, the first and the last of all with what stands around them."""
    costs = [0.0] * count
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    experts = {id(p) for m in model.modules() if isinstance(m, Experts) for p in m.parameters()}
    chosen = model.config.num_experts_per_tok / model.config.num_local_experts if experts else 1.0
    for name, use in uses.items():
        parameter = model.get_parameter(name)
        is_table = id(parameter) in tables and name.startswith("model.")  # not the matrix of logits, with which it may be one
        share = TABLE_SHARE if is_table else chosen if id(parameter) in experts else 1.0
        costs[use.place] += parameter.numel() * share
    return costs


def _reached(model: Model, stack: Backbone) -> list[set[str]]:
    """The names of the parameters that a stack's beginning, its context and its end read, seen by passing shapes through."""
    with torch.enable_grad():
        try:
            x, ctx = stack.begin(**{stack.main_input_name: _sample(stack)})
            recorded = [n for n in ("hidden_states", "attentions", "router_logits", "stages") if getattr(ctx, n) is not None]
            out: Any = () if recorded else stack.end(torch.empty_like(x).requires_grad_(), ctx)
        except (RuntimeError, TypeError, AttributeError) as error:
            what = f"{type(stack).__name__} cannot be cut into stages ({' '.join(str(error).split())[:200]})."
            raise UnsupportedError(what, hint=_NEAREST) from error
    if recorded:
        what = f"{type(model).__name__} is to show the {recorded[0]} of all layers, which no stage of a pipeline has."
        raise UnsupportedError(what, hint=f"Set `output_{recorded[0]}` to False in its config.")
    _check_shapes(stack, x, ctx)
    shared = [value for value in vars(ctx).values() if not isinstance(value, nn.Module)]
    shown = out if isinstance(out, tuple) else tuple(out.values())
    return [_names(model, pytree.tree_leaves(values)) for values in (x, shared, shown)]


def _check_shapes(stack: Backbone, x: Tensor, ctx: Context) -> None:
    """Refuse layers whose states have other shapes than those that go into them."""
    ctx.cache = None
    for index, layer in enumerate(stack.layers):
        ctx.layer = index
        try:
            out = layer(x, ctx)
        except (RuntimeError, NotImplementedError):  # what depends on values has no result on the meta device
            return
        if not isinstance(out, Tensor) or out.shape != x.shape:
            what = (
                f"layer {index} of {type(stack).__name__} makes states of another shape, so that it cannot be cut into stages."
            )
            raise UnsupportedError(what, hint=_NEAREST)


def _sample(stack: Backbone) -> Tensor:
    """The smallest input of a stack, on the meta device."""
    meta = torch.device("meta")
    if isinstance(stack, TextBackbone):
        return torch.zeros(1, 2, dtype=torch.long, device=meta)
    if isinstance(stack, PatchBackbone):
        return torch.zeros(1, stack.config.num_channels, *stack.image_size, dtype=stack.dtype, device=meta)
    if isinstance(stack, SpectrogramBackbone):
        return torch.zeros(1, *stack.spectrogram_size, dtype=stack.dtype, device=meta)
    if isinstance(stack, AudioBackbone):
        return torch.zeros(1, 4 * stack.receptive_field, dtype=stack.dtype, device=meta)
    what = f"{type(stack).__name__} reads neither text, patches nor sound, and is not cut into stages."
    raise UnsupportedError(what, hint=_NEAREST)


def _names(model: nn.Module, leaves: Iterable[Any]) -> set[str]:
    """The names of the parameters that the tensors among some values were made of."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    variables = {id(tensor) for tensor in tensors}
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = {None}
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            variables.add(id(getattr(node, "variable", None)))
            waiting.extend(parent for parent, _ in node.next_functions)
    return {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in variables}


def keep(model: Model, layers: Sequence[set[int]], owned: set[str], device: torch.device, dtype: torch.dtype | None) -> None:
    """Leave out of a model, in place, the layers of each stack but some, and the parameters that are not ``owned``.

    In the place of such a parameter stands one number for all, which is none: the context is made in every stage, of states
    that nobody reads, and whatever does read them becomes no number either, so that a mistake cannot stay hidden.
    """
    for stack, wanted in zip(model.stacks, layers):
        for index in range(len(stack.layers)):
            if index not in wanted:
                stack.layers[index] = nn.Identity()
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if name not in owned:
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(path)
            module._parameters.pop(leaf)
            absent = torch.full((), torch.nan, dtype=dtype or parameter.dtype, device=device).expand(parameter.shape)
            module.register_buffer(leaf, absent, persistent=False)
