"""Freezing parts of a model: by name, by depth, and epoch by epoch from the head down (Howard and Ruder 2018).

Frozen parameters get no gradient, so that no backward pass runs through what lies before the first trained one, and frozen
modules stay in evaluation mode. The parts are those of :func:`layer_groups`: embeddings, layers, head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from transept.checkpoint.paths import matches
from transept.core.model import Backbone, Model
from transept.core.training import FROZEN
from transept.errors import InputError, InputTypeError, nearest
from transept.layers.links import parts
from transept.storage.patterns import compile_pattern

What = str | int | Iterable[str]
# What a stack has behind its layers; all else beside them is before.
_BEHIND = ("norm", "pooler", "project_out", "adapter", "map_norms", "head")


def _compiled(pattern: str) -> Any:
    return compile_pattern("`forbidden_layer_names`", pattern, "a pattern of parameters")


def get_parameter_names(
    model: nn.Module, forbidden_layer_types: Iterable[type[nn.Module]], forbidden_layer_names: Iterable[str] | None = None
) -> list[str]:
    """Names of the parameters in no module of these types, of which no end, in lower case, has one of these patterns."""
    kinds, patterns = tuple(forbidden_layer_types), [*map(_compiled, forbidden_layer_names or ())]

    def names(module: nn.Module) -> list[str]:
        children = [(path, child) for path, child in module.named_children() if not isinstance(child, kinds)]
        inner = [f"{path}.{name}" for path, child in children for name in names(child)]
        inner += [name for name, weight in module._parameters.items() if weight is not None]
        return [name for name in inner if not any(pattern.search(name.lower()) for pattern in patterns)]

    return names(model)


def layer_groups(model: Model) -> list[list[str]]:
    """The names of all parameters in groups: the embeddings, each layer from the first to the last, and the head.

    The stacks of a model made of several follow each other, such as the encoder's layers and then the decoder's. With the
    embeddings is what makes the first layer's inputs, such as patches or convolutions over sound; with the last layer of a
    stack is what follows it in the backbone, such as a norm, a pooler or a projector; the head is what is in no backbone. A
    tensor that two names share is listed once, by the first, in the group of what it is tied to. The first and the last
    group may be empty.
    """
    stacks = {id(stack): number for number, stack in enumerate(model.stacks)}
    paths = {id(module): path for path, module in model.named_modules()}
    starts = [1 + sum(map(_depth, model.stacks[:number])) for number in range(len(stacks) + 1)]
    groups: list[list[str]] = [[] for _ in range(starts[-1] + 1)]
    place: dict[str, int] = {}
    begun = 0  # stacks that stand before a module
    for path, module in model.named_modules():
        inside = place.get(path.rpartition(".")[0], len(groups) - 1) if path else len(groups) - 1
        if (number := stacks.get(id(module))) is not None:
            begun, place[path] = max(begun, number + 1), 0
            place |= {f"{path}.{name}".removeprefix("."): 0 for name in module._modules}
            for part in (getattr(module, name, None) for name in _BEHIND if _depth(module)):
                if isinstance(part, nn.Module):
                    place[paths[id(part)]] = starts[begun] - 1
            for index, layer in enumerate(_layers(module)):
                elsewhere = [part for part in parts(layer).values() if id(part) in paths]  # parts that hang outside of it
                place |= {paths[id(part)]: starts[number] + index for part in (layer, *elsewhere)}
        elif isinstance(module, Backbone):
            place[path] = 0
        elif path not in place:
            between = inside == 0 and begun and isinstance(_parent(model, path), Backbone)
            place[path] = starts[begun] - 1 if between else inside
    depth: dict[int, int] = {}  # of a tensor that two parts share, the first one's
    for name, parameter in model.named_parameters(remove_duplicate=False):
        depth[id(parameter)] = min(depth.get(id(parameter), len(groups)), place[name.rpartition(".")[0]])
    for name, parameter in model.named_parameters():
        groups[depth[id(parameter)]].append(name)
    return groups


def _layers(stack: nn.Module) -> list[nn.Module]:
    """The layers of a stack, each once, though several steps may share one."""
    layers = getattr(stack, "layers", None)
    return [*dict.fromkeys(layers)] if isinstance(layers, nn.ModuleList | list) else []


def _depth(stack: nn.Module) -> int:
    return len(_layers(stack))


def _parent(model: nn.Module, path: str) -> nn.Module:
    return model.get_submodule(path.rpartition(".")[0])


def freeze(model: Model, *what: What, evaluation: bool = True) -> list[str]:
    """Keep parameters out of training: their ``requires_grad`` becomes false.

    Args:
        what: ``"embeddings"``, ``"backbone"`` (all but the head), ``"head"``; a number of layers, which are frozen from the
            first on and the embeddings with them (a negative one leaves out so many last layers); or names of modules and
            parameters, in the tree or as the model's modules call them, in which ``*`` stands for any one part. Without it,
            all is frozen.
        evaluation: whether modules of which all is frozen stay in evaluation mode, so that they drop out nothing.

    Returns:
        The names of these parameters.

    Raises:
        InputError: a name that no parameter has, or more layers than there are.
    """
    chosen = _chosen(model, what, first=True)
    parameters = dict(model.named_parameters())
    for name in chosen:
        parameters[name].requires_grad_(False)
    if evaluation:
        known = {id(p) for module in model.modules() if FROZEN in module.__dict__ for p in module.parameters()}
        known |= {id(parameters[name]) for name in chosen}
        for module in model.modules():
            if (own := {id(p) for p in module.parameters()}) and own <= known:
                module.__dict__[FROZEN] = True
                module.eval()
    return chosen


def unfreeze(model: Model, *what: What) -> list[str]:
    """Train parameters again that were frozen.

    Args:
        what: as for :func:`freeze`, but a number counts layers from the last one back, and the head is trained with them: 0
            is the head alone. What a model never trains, such as computed positions, stays as it is.

    Returns:
        The names of these parameters.

    Raises:
        InputError: a name that no parameter has, or more layers than there are.
    """
    names, parameters = model.checkpoint_names(), dict(model.named_parameters())
    chosen = [name for name in _chosen(model, what, first=False) if not names.is_fixed(name)]
    for name in chosen:
        parameters[name].requires_grad_(True)
    for module in model.modules():
        if FROZEN in module.__dict__ and any(parameter.requires_grad for parameter in module.parameters()):
            del module.__dict__[FROZEN]
    model.train(model.training)
    return chosen


def _chosen(model: Model, what: tuple[What, ...], *, first: bool) -> list[str]:
    """The names of the parameters that are meant; numbers count layers from the first one on, or from the last one back."""
    chosen: dict[str, None] = {} if what else dict.fromkeys(name for name, _ in model.named_parameters())
    groups = layer_groups(model)
    parts = {"embeddings": groups[:1], "backbone": groups[:-1], "head": groups[-1:]}
    for each in what:
        if isinstance(each, bool) or not isinstance(each, str | int | Iterable):
            raise InputTypeError(f"what to freeze is a name or a number of layers, not {type(each).__name__}: {each!r:.60}.")
        if isinstance(each, int):
            found = _deep(model, groups, each, first)
        elif isinstance(each, str):
            found = parts[each] if each in parts else [find_parameters(model, each)]
        else:
            found = [_chosen(model, tuple(each), first=first)] if (each := list(each)) else []
        chosen |= dict.fromkeys(name for group in found for name in group)
    return list(chosen)


def find_parameters(model: Model, *names: str) -> list[str]:
    """The names of the parameters at or below some names.

    The ``names`` are of modules or parameters, in the tree or as the model's modules call them, with or without the
    backbone's prefix (``"encoder.layer.0"``); ``*`` stands for any one part. A name that no parameter has is an ``InputError``.
    """
    base, dialect = f"{model.base_model_prefix}.", model.checkpoint_names().dialect
    spellings = {
        name: (name, name.removeprefix(base), own, own.removeprefix("backbone."))
        for name, _ in model.named_parameters()
        for own in [dialect(name)]
    }
    chosen: dict[str, None] = {}
    for name in names:
        length = name.count(".") + 1
        begin = {path: {".".join(each.split(".")[:length]) for each in spelled} for path, spelled in spellings.items()}
        found = [path for path, parts in begin.items() if any(matches(name, part) for part in parts)]
        if not found:
            what = f"{type(model).__name__} has no parameters below {name!r}."
            raise InputError(what, hint=nearest(name, set().union(*begin.values())))
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _deep(model: Model, groups: list[list[str]], count: int, first: bool) -> list[list[str]]:
    layers = len(groups) - 2
    if not -layers <= count <= layers:
        raise InputError(f"{type(model).__name__} has {layers} layers, not {abs(count)}.", hint="Name what is meant.")
    count = count if count >= 0 else layers + count
    return groups[: 1 + count] if first else groups[len(groups) - 1 - count :]


def gradual_unfreezing(model: Model, epochs: int = 1) -> dict[int, What]:
    """A schedule that trains the head first, and one layer more every so many epochs (Howard and Ruder 2018).

    The embeddings are trained last. See :func:`unfreeze_until`.
    """
    if epochs < 1:
        raise InputError(f"`epochs` between two steps must be at least 1, but is {epochs}.")
    layers = len(layer_groups(model)) - 2
    found: dict[int, What] = {epochs * step: step for step in range(layers + 1)}
    return found | {epochs * (layers + 1): ["embeddings"]}


def unfreeze_until(model: Model, schedule: Mapping[Any, What], epoch: float) -> list[str]:
    """Unfreeze all that a schedule ``{epoch: what}`` asks for up to an epoch, that of a run that was resumed too.

    Args:
        schedule: epochs from 0 on (texts of numbers where they are read from a file), and what :func:`unfreeze` takes.
        epoch: the epoch that begins.

    Returns:
        The names of the parameters that are trained from now on and were not before.
    """
    due: list[What] = []
    for when, what in schedule.items():
        try:
            begins = float(when)
        except (TypeError, ValueError) as error:
            raise InputError(f"a schedule of unfreezing needs numbers of epochs, but has {when!r:.60}.") from error
        if begins <= epoch:
            due.append(what)
    if not due:
        return []
    before = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return [name for name in unfreeze(model, *due) if name in before]
