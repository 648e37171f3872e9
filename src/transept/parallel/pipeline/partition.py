"""Cutting a task model into the stages of a pipeline: which layers each has, and which of the other parameters.

The layers of all stacks stand one behind the other, an encoder's before a decoder's. Parameters outside layers belong where
they are used, which a pass of shapes through the rest of the model tells: embeddings to the stage of the first layer, what
follows the layers to that of the last, and what all layers share by way of the context (such as a bias for each distance) to
all of them. A parameter that several stages need is on each of them, and its gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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
    if stages > sum(sizes):
        what = f"a pipeline of {stages} stages needs as many layers, but {type(model).__name__} has {sum(sizes)}."
        raise ConfigError(what, hint=f"Set `pp_size` to {sum(sizes)} at most, or half of it where processes have two stages.")
    paths = {id(module): path for path, module in model.named_modules()}
    where = _Places({paths[id(stack)]: _reached(model, stack) for stack in stacks})
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    bounds = divide(_costs(model, where, names, sizes), stages)
    found = Partition(bounds, sizes, {}, any(reached.context for reached in where.reached.values()))
    of_layer = [stage for stage in range(stages) for _ in range(bounds[stage], bounds[stage + 1])]
    needed: dict[str, set[int]] = {}
    for name in names:
        needed.setdefault(_root(name, ties), set()).update(where.stages(name, of_layer, sizes))
    for name in names:
        found.stages[name] = tuple(sorted(needed[_root(name, ties)] or {0, stages - 1}))
    return found


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


def _costs(model: Model, where: _Places, names: Sequence[str], sizes: Sequence[int]) -> list[float]:
    """What each layer costs in weights that are multiplied, the first and the last of all with what stands around them."""
    starts = dict(zip(where.reached, [0, *accumulate(sizes)]))
    costs = [0.0] * sum(sizes)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    experts = {id(p) for m in model.modules() if isinstance(m, Experts) for p in m.parameters()}
    chosen = model.config.num_experts_per_tok / model.config.num_local_experts if experts else 1.0
    for name in names:
        parameter, (stack, layer) = model.get_parameter(name), where.layer(name)
        is_output = stack is None and not name.startswith("model.")
        size = parameter.numel() * (TABLE_SHARE if id(parameter) in tables and not is_output else 1.0)
        size *= chosen if id(parameter) in experts else 1.0
        costs[-1 if is_output else 0 if stack is None else starts[stack] + (layer or 0)] += size
    return costs


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


@dataclass(frozen=True)
class _Reached:
    """The names of a stack's parameters that its beginning, its context and its end read."""

    begin: set[str]
    context: set[str]
    end: set[str]


@dataclass(frozen=True)
class _Places:
    """Where the names of a model stand: for the path of each stack, what reads its parameters outside layers."""

    reached: dict[str, _Reached]

    def layer(self, name: str) -> tuple[str | None, int | None]:
        """The path of the stack that a name belongs to, and the number of its layer."""
        for path in self.reached:
            if name.startswith(f"{path}."):
                part, _, rest = name.removeprefix(f"{path}.").partition(".")
                return path, int(rest.partition(".")[0]) if part == "layers" else None
        return None, None

    def stages(self, name: str, of_layer: Sequence[int], sizes: Sequence[int]) -> set[int]:
        """The stages that need a name, without regard to ties; none where nothing tells."""
        path, layer = self.layer(name)
        if path is None:
            return set() if name.startswith("model.") else {of_layer[-1]}
        index = list(self.reached).index(path)
        own = of_layer[sum(sizes[:index]) : sum(sizes[: index + 1])]
        if layer is not None:
            return {own[layer]}
        reached = self.reached[path]
        found = {*own} if name in reached.context else set[int]()
        found |= {own[0]} if name in reached.begin else set()
        return found | ({own[-1]} if name in reached.end else set()) or {own[0], own[-1]}


def _reached(model: Model, stack: Backbone) -> _Reached:
    """What reads which parameters of a stack, seen by passing shapes through it."""
    with torch.enable_grad():
        try:
            x, ctx = stack.begin(**{stack.main_input_name: _sample(stack)})
            recorded = [n for n in ("hidden_states", "attentions", "router_logits", "stages") if getattr(ctx, n) is not None]
            states = torch.empty_like(x).requires_grad_()
            out: Any = None if recorded else stack.end(states, ctx)
        except (RuntimeError, TypeError, AttributeError) as error:
            what = f"{type(stack).__name__} cannot be cut into stages ({' '.join(str(error).split())[:200]})."
            raise UnsupportedError(what, hint=_NEAREST) from error
    if recorded:
        what = f"{type(model).__name__} is to show the {recorded[0]} of all layers, which no stage of a pipeline has."
        raise UnsupportedError(what, hint=f"Set `output_{recorded[0]}` to False in its config.")
    _check_shapes(stack, x, ctx)
    shown = out if isinstance(out, tuple) else tuple(out.values())
    tensors = [value for value in vars(ctx).values() if not isinstance(value, nn.Module)]
    return _Reached(*(_names(model, leaves) for leaves in ([x], pytree.tree_leaves(tensors), pytree.tree_leaves(shown))))


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
    variables = {id(variable) for variable in _variables(leaves)}
    return {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in variables}


def _variables(leaves: Iterable[Any]) -> Iterator[Any]:
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    yield from tensors
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while waiting:
        if (node := waiting.pop()) is None or node in seen:
            continue
        seen.add(node)
        yield getattr(node, "variable", None)
        waiting.extend(parent for parent, _ in node.next_functions)


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
