"""Optimizers by name, the groups of parameters that they get, and a moving average of weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from transept.checkpoint.load import Loadable
from transept.core.naming import reference_names
from transept.errors import InputError, TranseptError, UnsupportedError, nearest, refuse
from transept.layers.norm import RMSNorm
from transept.parallel.forms import local
from transept.parallel.launch import everywhere
from transept.training.optim.adafactor import Adafactor


class OptimizerNames(StrEnum):
    """Names of optimizers, as ``optim`` takes them. Those below ``RMSPROP`` need packages of others, and are refused."""

    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    LION_8BIT = "lion_8bit"
    LION = "lion_32bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"

    @classmethod
    def _missing_(cls, value: object) -> OptimizerNames:
        raise InputError(f"no optimizer is called {value!r}.", hint=nearest(str(value), OPTIMIZERS))


_ADAM: dict[str, str | tuple[str, ...]] = {"betas": ("adam_beta1", "adam_beta2"), "eps": "adam_epsilon"}
# A name -> its class, what is fixed for it, and the arguments of a run that it takes.
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any], dict[str, str | tuple[str, ...]]]] = {
    OptimizerNames.ADAMW_TORCH: (AdamW, {}, _ADAM),
    OptimizerNames.ADAMW_TORCH_FUSED: (AdamW, {"fused": True}, _ADAM),
    OptimizerNames.ADAFACTOR: (Adafactor, {"scale_parameter": False, "relative_step": False}, {}),
    OptimizerNames.SGD: (SGD, {}, {}),
    OptimizerNames.ADAGRAD: (Adagrad, {}, {}),
    OptimizerNames.RMSPROP: (RMSprop, {}, {}),
}
# Kinds of devices whose AdamW PyTorch can do in one kernel.
FUSED = frozenset({"cpu", "cuda", "hpu", "mps", "mtia", "xpu"})
# Parts of a parameter's name, in lower case, that weight decay leaves out, and the modules whose parameters it leaves out.
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")
NORMS = (RMSNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class OptimizerArguments(Protocol):
    """What is read of a run's arguments."""

    optim: str
    optim_args: str | Mapping[str, Any] | None
    learning_rate: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float


def get_optimizer_cls_and_kwargs(args: OptimizerArguments) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class that ``args.optim`` names, and what to build it with beside the groups of parameters.

    Raises:
        InputError: an unknown name, or an argument in ``args.optim_args`` that the class does not have.
        UnsupportedError: an optimizer of another package.
    """
    name = OptimizerNames(args.optim)
    if name not in OPTIMIZERS:
        hint = "Pass an instance of it to the trainer: optimizers=(optimizer, None)."
        raise UnsupportedError(f"`optim={name.value!r}` is an optimizer of another package.", hint=hint)
    cls, fixed, taken = OPTIMIZERS[name]
    given: dict[str, Any] = {"lr": args.learning_rate, **fixed}
    for argument, source in taken.items():
        value = getattr(args, source) if isinstance(source, str) else tuple(getattr(args, each) for each in source)
        given[argument] = value
    return cls, given | read_optim_args(args.optim_args, cls)


def read_optim_args(text: str | Mapping[str, Any] | None, cls: type[Optimizer]) -> dict[str, Any]:
    """The arguments of ``optim_args``, such as ``"momentum=0.9, nesterov=true"``, checked against the class's own.

    Raises:
        InputError: what is no list of names and values, an unknown name, or a value of the wrong type.
    """
    pairs = dict(text) if isinstance(text, Mapping) else dict(_pair(each) for each in (text or "").split(",") if each.strip())
    known = {name: each for name, each in signature(cls).parameters.items() if name not in ("params", "lr", "weight_decay")}
    for name, value in pairs.items():
        if name in ("lr", "weight_decay"):
            own = "learning_rate" if name == "lr" else name
            raise InputError(f"`optim_args` sets {name!r}, which has no effect there.", hint=f"Set `{own}`.")
        refuse(name not in known, f"`optim_args`: {cls.__name__} has no argument {name!r}.", hint=nearest(name, known))
        default = known[name].default
        number = isinstance(default, int | float) and not isinstance(default, bool)
        wrong = isinstance(default, bool) != isinstance(value, bool) if default is not None else False
        wrong = (
            wrong or (number and not isinstance(value, int | float)) or (isinstance(default, tuple) and not _is_numbers(value))
        )
        refuse(wrong, f"`optim_args`: {name!r} of {cls.__name__} cannot be {value!r}.", hint=f"Its default is {default}.")
    return pairs


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, int | float) for each in value)


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = (part.strip() for part in text.partition("="))
    refuse(
        not (name and found and value), f"`optim_args` holds {text.strip()!r}.", hint="Write name=value, with commas between."
    )
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def make_optimizer(
    cls: type[Optimizer],
    groups: Sequence[Mapping[str, Any]],
    given: Mapping[str, Any],
    make: Callable[..., Optimizer] | None = None,
) -> Optimizer:
    """The optimizer of those groups; ``fused`` is left out where a parameter's device or type has no fused kernel.

    It is what ``make(cls, groups, options)`` gives, where that is passed.

    Raises:
        InputError: there is no parameter to train.
        UnsupportedError: the class takes no such parameters, or no groups of them.
    """
    kept = [dict(group) for group in groups if group["params"]]
    parameters: list[Tensor] = [parameter for group in kept for parameter in group["params"]]
    found = any(everywhere(bool(parameters)))  # a process may have frozen layers alone
    refuse(not found, "no parameter can be trained.", hint="All of them are frozen: see `requires_grad`.")
    fits = all(each.device.type in FUSED and each.is_floating_point() for each in parameters)
    plain = {name: value for name, value in given.items() if name != "fused" or fits}
    try:
        return cls(kept, **plain) if make is None else make(cls, kept, plain)
    except ValueError as error:
        if isinstance(error, TranseptError):
            raise
        hint = f"Set `optim` to one that takes any parameters: {', '.join(OPTIMIZERS)}."
        raise UnsupportedError(f"{cls.__name__} cannot be made for this model: {error}", hint=hint) from error


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
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for rate in sorted({1.0, *rates.values()}, reverse=True):
        for decays in (True, False):
            options = {"lr": learning_rate * rate} if rates else {}
            group: dict[str, Any] = {"params": [], "weight_decay": weight_decay if decays else 0.0, **options}
            groups[rate, decays] = group | {"param_names": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = groups[rates.get(name, 1.0), name in decayed]
            group["params"].append(parameter)
            group["param_names"].append(name)
    return [group for group in groups.values() if group["params"]]


class WeightAverage:
    """An exponential moving average of a model's floating-point weights, in float32 at least (Polyak & Juditsky 1992).

    After each update it is ``decay`` times itself plus ``1 - decay`` times the weights; it begins with those at hand.

    Args:
        model: whose weights that are trained it follows.
        decay: at least 0 and below 1, such as 0.999.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        refuse(not 0 <= decay < 1, f"`ema_decay` must be at least 0 and below 1, but is {decay}.")
        self.decay = decay
        self.weights = {name: _wide(weight.detach()) for name, weight in _trained(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights, after an update of these."""
        weights, average = _trained(model), {name: local(kept) for name, kept in self.weights.items()}
        now = [local(weights[name].detach()).to(kept) for name, kept in average.items()]
        if average:
            torch._foreach_lerp_(list(average.values()), now, 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, to evaluate or save it; its own are put back at the end."""
        weights = dict(model.named_parameters())
        own = {name: weights[name].detach().clone() for name in self.weights}
        try:
            _copy(self.weights, weights)
            yield
        finally:
            _copy(own, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the parameters' names."""
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over averages (``InputError``: names or shapes are not those of the parameters)."""
        shapes = [{name: tuple(each.shape) for name, each in part.items()} for part in (self.weights, state)]
        if shapes[0] != shapes[1]:
            wrong = sorted({*shapes[0].items()} ^ {*shapes[1].items()})[0][0]
            raise InputError(f"the averaged weights are those of another model: {wrong!r} differs.")
        _copy(state, self.weights)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad and each.is_floating_point()}


def _wide(weight: Tensor) -> Tensor:
    return weight.clone() if weight.dtype == torch.float64 else weight.to(torch.float32, copy=True)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, value in source.items():
        target[name].copy_(value)
