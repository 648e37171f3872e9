"""The parameters of a model in groups: which weight decay applies to, and at which learning rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from transept.checkpoint.load import Loadable
from transept.core.naming import reference_names
from transept.errors import refuse
from transept.layers.norm import RMSNorm

# Parts of a parameter's name, in lower case, that weight decay leaves out, and the modules whose parameters it leaves out.
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")
NORMS = (RMSNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def get_decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: all but biases and the weights of norms.

    A parameter is left out where the reference's name of it or the kind of its module says so.
    """
    stored = reference_names(model) if isinstance(model, Loadable) else {}
    modules = dict(model.named_modules())
    return [
        name
        for name, _ in model.named_parameters()
        if not UNDECAYED.search(stored.get(name, name).lower()) and not isinstance(modules[name.rpartition(".")[0]], NORMS)
    ]


def layerwise_rates(groups: Sequence[Collection[str]], decay: float) -> dict[str, float]:
    """What multiplies the learning rate of each parameter: ``decay`` for each group that it is away from the last one.

    Args:
        groups: names of parameters, from the embeddings to the head.
        decay: above 0 and at most 1, such as 0.9 or ULMFiT's 1/2.6 (Howard & Ruder 2018).
    """
    refuse(not 0 < decay <= 1, f"`layerwise_lr_decay` must be above 0 and at most 1, but is {decay}.")
    return {name: decay ** (len(groups) - 1 - depth) for depth, names in enumerate(groups) for name in names}


def parameter_groups(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    decayed: Collection[str],
    rates: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """The parameters that are trained, in groups of one weight decay and one learning rate.

    Args:
        model: whose parameters with ``requires_grad`` they are.
        learning_rate: for parameters that ``rates`` leaves as they are.
        weight_decay: for the parameters named in ``decayed``; 0 for all others.
        decayed: see :func:`get_decay_parameter_names`.
        rates: what multiplies the learning rate of parameters, by name; 1 for those that are not named.

    The first two groups are those of the reference, decayed and not, where all rates are 1. Each group holds
    ``param_names`` beside ``params``.
    """
    decayed, rates = set(decayed), rates or {}
    members: dict[tuple[float, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members.setdefault((rates.get(name, 1.0), name in decayed), {})[name] = parameter
    groups = []
    for (rate, decays), named in sorted(members.items(), key=lambda item: item[0], reverse=True):
        options = {"lr": learning_rate * rate} if rates else {}
        group = {"params": [*named.values()], "weight_decay": weight_decay if decays else 0.0, **options}
        groups.append(group | {"param_names": [*named]})
    return groups
