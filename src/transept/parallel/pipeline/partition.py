"""Cutting a task model into the stages of a pipeline: which layers each has, and which of the other parameters.

The layers of all stacks stand one behind the other, an encoder's before a decoder's. Parameters outside layers belong
where they are used, which a pass of shapes through the rest of the model shows: embeddings to the stage of the first
layer, what follows the layers to that of the last, and what all layers share through the context (such as a bias for
each distance) to all of them. A parameter that several stages need is on each, and its gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from transept.checkpoint.load import put, share
from transept.checkpoint.paths import join
from transept.core.classes import own_forward
from transept.core.model import Backbone, Model
from transept.core.task import TaskModel
from transept.errors import ConfigError, UnsupportedError
from transept.kinds.audio import AudioBackbone
from transept.kinds.image import PatchBackbone
from transept.kinds.seq2seq import EncoderDecoderBackbone
from transept.kinds.spectrograms import SpectrogramBackbone
from transept.kinds.text import TextBackbone
from transept.layers.links import Container, links
from transept.layers.moe import Experts

RECORDED = ("hidden_states", "attentions", "router_logits", "stages")  # what a context may record of all layers
_INSTEAD = "Shard the weights in place of it (fsdp_size), which works for every family."


@dataclass(frozen=True)
class Partition:
    """A model's stages.

    ``bounds`` are the numbers of the layers that stages begin with, and of all layers; ``sizes`` those of each stack.
    ``stages`` maps the names of each parameter, tied ones too, to the stages that need it; ``shares`` says whether
    layers of one stage share some.
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
        return {name for name, needed in self.stages.items() if {*stages} & {*needed}}

    def keep(self, model: Model, stages: Sequence[int], device: torch.device, dtype: Any = None) -> None:
        """Leave out of the model, in place, the layers and the parameters that none of some stages needs.

        In the place of such a parameter stands one NaN, expanded to its shape: the context is made in every stage, of
        states that nobody reads, and whatever does read them becomes NaN too, so that a mistake cannot stay hidden.
        """
        owned = self.owned(stages)
        paths = {id(module): f"{path}." for path, module in model.named_modules()}
        for stack, ranges in zip(model.stacks, zip(*map(self.ranges, stages))):
            present = {layer for start, stop in ranges for layer in range(start, stop)}
            for index in {*range(len(stack.layers))} - present:
                path = paths[id(stack.layers[index])]
                if not any(name.startswith(path) for name in owned):  # as what all layers read, and the first one holds
                    stack.layers[index] = nn.Identity()
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if name not in owned:
                path, _, leaf = name.rpartition(".")
                module = model.get_submodule(path)
                module._parameters.pop(leaf)
                absent = torch.full((), torch.nan, dtype=dtype or parameter.dtype, device=device)
                module.register_buffer(leaf, absent.expand(parameter.shape), persistent=False)


def partition(model: Model, stages: int, ties: dict[str, str]) -> Partition:
    """Divide a model on the meta device into stages, by cost; ``ties`` are names -> the names of their tensors.

    Raises:
        UnsupportedError: a family or a task whose layers cannot run apart.
        ConfigError: more stages than layers.
    """
    stacks = _stacks(model)
    sizes = tuple(len(stack.layers) for stack in stacks)
    count = sum(sizes)
    if stages > count:
        what = f"a pipeline of {stages} stages needs as many layers, but {type(model).__name__} has {count}."
        hint = f"Set `pp_size` to {count} at most, or half of it where processes have two stages."
        raise ConfigError(what, hint=hint)
    uses, shares = _uses(model, stacks)
    bounds = divide(_costs(model, uses, count), stages)
    stage_of = [stage for stage in range(stages) for _ in range(bounds[stage], bounds[stage + 1])]
    needed: dict[str, set[int]] = {}
    for name, layers in uses.items():
        needed.setdefault(_root(name, ties), set()).update(stage_of[layer] for layer in layers)
    stages_of = {name: tuple(sorted(needed[_root(name, ties)] or {0, stages - 1})) for name in uses}
    return Partition(bounds, sizes, stages_of, shares)


def _root(name: str, ties: dict[str, str]) -> str:
    while name in ties:
        name = ties[name]
    return name


def divide(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """Bounds of so many parts of neighbours, each with one at least, of which the dearest is as cheap as can be."""
    total = [0.0, *accumulate(costs)]

    @cache
    def best(stop: int, parts: int) -> tuple[float, tuple[int, ...]]:
        """The cost of the dearest of so many parts of the first ``stop`` neighbours, and the bounds."""
        if parts == 1:
            return total[stop], (0, stop)
        starts = range(parts - 1, stop)
        dearest, start = min((max(best(start, parts - 1)[0], total[stop] - total[start]), start) for start in starts)
        return dearest, (*best(start, parts - 1)[1], stop)

    return best(len(costs), parts)[1]


def _stacks(model: Model) -> tuple[Backbone, ...]:
    """The stacks of layers of a task model, which must all run in the common way."""
    name = type(model).__name__
    if not isinstance(model, TaskModel):
        what = f"{name} has no loss by itself, or is made of several models: no pipeline."
        raise UnsupportedError(what, hint=_INSTEAD)
    backbone, stacks = model.body, model.stacks
    kinds, usual = {type(stack) for stack in stacks}, (own_forward(Backbone), own_forward(TextBackbone))
    run_alike = all(k.run is Backbone.run and own_forward(k) in usual for k in kinds)
    is_pair = isinstance(backbone, EncoderDecoderBackbone)
    is_pair = is_pair and own_forward(type(backbone)) is own_forward(EncoderDecoderBackbone)
    if not run_alike or not (is_pair or stacks == (backbone,)):
        what = f"the layers of {name} do not run one after the other on states alone, and cannot be cut into stages."
        raise UnsupportedError(what, hint=_INSTEAD)
    return stacks


def _uses(model: Model, stacks: Sequence[Backbone]) -> tuple[dict[str, set[int]], bool]:
    """The layers that each parameter is needed with, by their number in all stacks, and whether layers share some.

    Parameters have all of their names. There are no layers where nothing tells.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    count = sum(len(stack.layers) for stack in stacks)
    within = f"{paths[id(model.body)]}."
    uses = {name: set[int]() if name.startswith(within) else {count - 1} for name in names}
    start, shares = 0, False
    for stack in stacks:
        layers, prefix = range(start, start + len(stack.layers)), f"{paths[id(stack)]}."
        start = layers.stop
        inside = [(number, f"{paths[id(layer)]}.") for number, layer in zip(layers, stack.layers, strict=True)]
        at_begin, in_context, at_end = _reached(model, stack)
        for name in (name for name in names if name.startswith(prefix)):
            own = {number for number, path in inside if name.startswith(path)}
            shares = shares or name in in_context or len(own) > 1
            if own and name not in in_context:
                uses[name] = own
                continue
            used = {*layers} if name in in_context else set[int]()
            used |= {layers[0]} if name in at_begin else set()
            used |= {layers[-1]} if name in at_end else set()
            uses[name] = used or {layers[0], layers[-1]}
    return uses, shares


def _costs(model: Model, uses: Mapping[str, set[int]], count: int) -> list[float]:
    """What each layer costs in weights that are multiplied; those that several layers need count for the first."""
    costs = [0.0] * count
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    within = next(path for path, module in model.named_modules() if module is model.body)
    experts = {id(p) for m in model.modules() if isinstance(m, Experts) for p in m.parameters()}
    chosen = model.config.num_experts_per_tok / model.config.num_local_experts if experts else 1.0
    for name, layers in uses.items():
        parameter = model.get_parameter(name)
        share = chosen if id(parameter) in experts else 1.0
        if id(parameter) in tables and name.startswith(f"{within}."):  # not the matrix of logits, which may be the same
            share = 0.125  # it is looked up and not multiplied; its gradient and its update cost about that
        costs[min(layers, default=0)] += parameter.numel() * share
    return costs


def _reached(model: Model, stack: Backbone) -> list[set[str]]:
    """The names of the parameters that a stack's beginning, its context and its end read, from a pass of shapes."""
    kind = type(stack).__name__
    with torch.enable_grad():
        try:
            x, ctx = stack.begin(**{stack.main_input_name: _sample(stack)})
            recorded = [name for name in RECORDED if getattr(ctx, name) is not None]
            output: Any = () if recorded else stack.end(torch.empty_like(x).requires_grad_(), ctx)
        except (RuntimeError, TypeError, AttributeError) as error:
            what = f"{kind} cannot be cut into stages ({' '.join(str(error).split())[:200]})."
            raise UnsupportedError(what, hint=_INSTEAD) from error
    if recorded:
        what = f"{type(model).__name__} is to show the {recorded[0]} of all layers, which no stage of a pipeline has."
        raise UnsupportedError(what, hint=f"Set `output_{recorded[0]}` to False in its config.")
    ctx.cache = None
    for index, layer in enumerate(stack.layers):
        ctx.layer = index
        try:
            states = layer(x, ctx)
        except (RuntimeError, NotImplementedError):  # what depends on values has no result on the meta device
            break
        if not isinstance(states, Tensor) or states.shape != x.shape:
            what = f"layer {index} of {kind} makes states of another shape, so that it cannot be cut into stages."
            raise UnsupportedError(what, hint=_INSTEAD)
    shared = [value for value in vars(ctx).values() if not isinstance(value, nn.Module)]
    shown = output if isinstance(output, tuple) else tuple(output.values())
    return [_names(model, pytree.tree_leaves(values)) for values in (x, shared, shown)]


def _sample(stack: Backbone) -> Tensor:
    """The smallest input of a stack, on the meta device."""
    shape: tuple[int, ...]
    match stack:
        case TextBackbone():
            return torch.zeros(1, 2, dtype=torch.long, device="meta")
        case PatchBackbone():
            shape = (stack.config.num_channels, *stack.image_size)
        case SpectrogramBackbone():
            shape = stack.spectrogram_size
        case AudioBackbone():
            shape = (4 * stack.receptive_field,)
        case _:
            what = f"{type(stack).__name__} reads neither text, patches nor sound, and is not cut into stages."
            raise UnsupportedError(what, hint=_INSTEAD)
    return torch.zeros(1, *shape, dtype=stack.dtype, device="meta")


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


def initialize(model: Model, owned: set[str], ties: dict[str, str], device: torch.device) -> None:
    """Draw new weights for a model on the meta device, module by module; keep those that are owned, and the buffers.

    All processes draw all weights, so that with one seed these do not depend on how many stages there are.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    for module, (path, owner) in _owners(model).items():
        if isinstance(module, Container):
            continue
        shapes: dict[str, Tensor] = dict(module.named_parameters(path, recurse=False))
        shapes |= dict(module.named_buffers(path, recurse=False))
        for holder, key in links(module).values():
            if isinstance(tensor := getattr(holder, key), Tensor):
                shapes[join(paths[id(holder)], key)] = tensor
        for name, shape in shapes.items():
            put(model, name, torch.empty_like(shape, device=device))
        with torch.no_grad():
            owner.initialize_module(module)
        for name, shape in shapes.items():
            if isinstance(shape, nn.Parameter) and name not in owned:
                put(model, name, shape.detach())
    share(model, ties)


def _owners(model: Model, prefix: str = "") -> dict[nn.Module, tuple[str, Model]]:
    """The modules of a model, those of models within first, with their paths and the model that initializes each."""
    owners: dict[nn.Module, tuple[str, Model]] = {}
    for name, child in model._modules.items():  # of all modules, also those that only compute
        if isinstance(child, Model):
            owners |= _owners(child, f"{prefix}{name}.")
    for path, module in model.named_modules(prefix=prefix.rstrip(".")):
        owners.setdefault(module, (path, model))
    return owners
