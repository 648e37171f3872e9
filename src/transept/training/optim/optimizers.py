"""Optimizers by name, the groups of parameters that they get, and a moving average of the updated weights."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from transept.checkpoint.load import Loadable
from transept.core.naming import reference_names
from transept.errors import InputError, TranseptError, UnsupportedError, nearest, refuse
from transept.layers.norm import RMSNorm
from transept.parallel.forms import local
from transept.parallel.processes import gather_objects
from transept.training.optim.adafactor import Adafactor


class OptimizerNames(StrEnum):
    """Names of optimizers, as ``optim`` takes them. Those below ``RMSPROP`` are of other packages."""

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
        raise InputError(f"no optimizer is called {value!r}.", hint=nearest(str(value), map(str, OPTIMIZERS)))


# A name -> its class, and the arguments that are fixed for it.
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    OptimizerNames.ADAMW_TORCH: (AdamW, {}),
    OptimizerNames.ADAMW_TORCH_FUSED: (AdamW, {"fused": True}),
    OptimizerNames.ADAFACTOR: (Adafactor, {"scale_parameter": False, "relative_step": False}),
    OptimizerNames.SGD: (SGD, {}),
    OptimizerNames.ADAGRAD: (Adagrad, {}),
    OptimizerNames.RMSPROP: (RMSprop, {}),
}
# A name -> the package that has it, and its class there.
PACKAGED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"), ("bitsandbytes", "AdamW")),
    **dict.fromkeys(("lion_8bit", "lion_32bit", "paged_lion_32bit", "paged_lion_8bit"), ("bitsandbytes", "Lion")),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"), ("bitsandbytes", "RMSprop")),
    **dict.fromkeys(("ademamix", "ademamix_8bit"), ("bitsandbytes", "AdEMAMix")),
    **dict.fromkeys(("paged_ademamix_32bit", "paged_ademamix_8bit"), ("bitsandbytes", "AdEMAMix")),
    "adamw_torch_4bit": ("torchao", "AdamW4bit"),
    "adamw_torch_8bit": ("torchao", "AdamW8bit"),
}
# Kinds of devices whose AdamW PyTorch can do in one kernel.
FUSED = frozenset({"cpu", "cuda", "hpu", "mps", "mtia", "xpu"})
# What weight decay leaves out: parameters with such a name, in lower case, and those of such modules.
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")
NORMS = (RMSNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def get_optimizer_cls_and_kwargs(args: Any) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class that ``args.optim`` names, and its arguments beside the groups of parameters.

    ``InputError``: an unknown name, or argument in ``args.optim_args``. ``UnsupportedError``: its package is missing.
    """
    name = OptimizerNames(args.optim)
    if name not in PACKAGED and name not in OPTIMIZERS:
        hint = "Pass an instance of it to the trainer: optimizers=(optimizer, None)."
        raise UnsupportedError(f"`optim={name.value!r}` is an optimizer of a package that is not used.", hint=hint)
    cls, fixed = _of_package(name) if name in PACKAGED else OPTIMIZERS[name]
    options, betas = {"lr": args.learning_rate, **fixed}, (args.adam_beta1, args.adam_beta2)
    if cls.__name__ in ("AdEMAMix", "Lion"):
        options["betas"] = betas if cls.__name__ == "Lion" else (*betas, 0.9999)
    if cls.__name__.startswith(("AdamW", "AdEMAMix")):
        options = {"betas": betas, "eps": args.adam_epsilon} | options
    return cls, options | _read_optim_args(args.optim_args, cls)


def _of_package(name: str) -> tuple[type[Optimizer], dict[str, Any]]:
    package, kind = PACKAGED[name]
    try:
        cls = getattr(importlib.import_module(f"{package}.optim"), kind)
    except ImportError as error:
        what = f"`optim={str(name)!r}` needs the package {package!r}."
        raise UnsupportedError(what, hint=f"Install it: pip install {package}.") from error
    if package == "torchao":
        return cls, {"block_size": 256, "bf16_stochastic_round": False}
    fixed = {"optim_bits": 8 if "8bit" in name else 32}
    return cls, fixed | ({"is_paged": "paged" in name} if kind != "RMSprop" else {})


def _read_optim_args(settings: str | Mapping[str, Any] | None, cls: type[Optimizer]) -> dict[str, Any]:
    """The arguments of ``optim_args``, such as ``"momentum=0.9, nesterov=true"``, checked against the class's own."""
    if not isinstance(settings, Mapping):
        settings = dict(_pair(part.strip()) for part in (settings or "").split(",") if part.strip())
    defaults = {name: parameter.default for name, parameter in signature(cls).parameters.items() if name != "params"}
    for name, value in settings.items():
        setting = {"lr": "learning_rate", "weight_decay": "weight_decay"}.get(name)
        refuse(setting, f"`optim_args` sets {name!r}, which has no effect there.", f"Set `{setting}`.")
        message = f"`optim_args`: {cls.__name__} has no argument {name!r}."
        refuse(name not in defaults, message, nearest(name, defaults))
        message = f"`optim_args`: {name!r} of {cls.__name__} cannot be {value!r}."
        refuse(not _is_like(value, defaults[name]), message, f"Its default is {defaults[name]}.")
    return dict(settings)


def _pair(text: str) -> tuple[str, Any]:
    """``name=value``, with a value as Python writes it, or else a text."""
    name, _, value = (part.strip() for part in text.partition("="))
    refuse(not (name and value), f"`optim_args` holds {text!r}.", "Write name=value, with commas between.")
    value = value.title() if value.lower() in ("true", "false", "none") else value
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of an argument's default."""
    if default is None:
        return True
    if isinstance(default, tuple):
        return isinstance(value, tuple | list) and all(isinstance(number, int | float) for number in value)
    if isinstance(value, bool) or isinstance(default, bool):
        return type(value) is type(default)
    return isinstance(value, int | float) or not isinstance(default, int | float)


def get_decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: all but biases and the weights of norms."""
    stored = reference_names(model) if isinstance(model, Loadable) else {}
    names = [name for name, _ in model.named_parameters() if not UNDECAYED.search(stored.get(name, name).lower())]
    return [name for name in names if not isinstance(model.get_submodule(name.rpartition(".")[0]), NORMS)]


def layerwise_rates(groups: Sequence[Collection[str]], decay: float) -> dict[str, float]:
    """The factor of each parameter's learning rate: ``decay`` for each group that it is away from the last one.

    ``groups`` are names of parameters from the embeddings to the head. ULMFiT's decay is 1/2.6 (Howard & Ruder 2018).
    """
    refuse(not 0 < decay <= 1, f"`layerwise_lr_decay` must be above 0 and at most 1, but is {decay}.")
    return {name: decay ** (len(groups) - 1 - depth) for depth, names in enumerate(groups) for name in names}


def parameter_groups(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    decayed: Collection[str],  # names that weight decay applies to
    rates: Mapping[str, float] | None = None,  # factors of the learning rate
) -> list[dict[str, Any]]:
    """The parameters that are trained, in groups of one weight decay and one rate, with their ``param_names``."""
    decayed, rates = set(decayed), rates or {}
    members: dict[tuple[float, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members.setdefault((rates.get(name, 1.0), name in decayed), {})[name] = parameter
    groups = []
    for rate, decays in sorted(members, reverse=True):
        parameters = members[rate, decays]
        options = {"lr": learning_rate * rate} if rates else {}
        options |= {"weight_decay": weight_decay if decays else 0.0}
        groups.append({"params": [*parameters.values()], **options, "param_names": [*parameters]})
    return groups


def make_optimizer(
    cls: type[Optimizer],
    groups: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    make: Callable[..., Optimizer] | None = None,
) -> Optimizer:
    """The optimizer of these groups, made by ``make(cls, groups, options)`` where that is passed.

    ``InputError``: there is nothing to train. ``UnsupportedError``: the class takes no such parameters or groups.
    """
    filled = [dict(group) for group in groups if group["params"]]
    parameters: list[Tensor] = [parameter for group in filled for parameter in group["params"]]
    trains = any(gather_objects(bool(parameters)))  # a process may have frozen layers alone
    refuse(not trains, "no parameter can be trained.", hint="All of them are frozen: see `requires_grad`.")
    if not all(weight.device.type in FUSED and weight.is_floating_point() for weight in parameters):
        options = {name: value for name, value in options.items() if name != "fused"}
    try:
        return cls(filled, **options) if make is None else make(cls, filled, dict(options))
    except TranseptError:
        raise
    except ValueError as error:
        hint = f"Set `optim` to one that takes any parameters: {', '.join(OPTIMIZERS)}."
        raise UnsupportedError(f"{cls.__name__} cannot be made for this model: {error}", hint=hint) from error


class WeightAverage:
    """A moving average of a model's floating-point weights, in float32 at least (Polyak & Juditsky 1992).

    After each update it is ``decay`` times itself plus ``1 - decay`` times the weights that are trained.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        refuse(not 0 <= decay < 1, f"`ema_decay` must be at least 0 and below 1, but is {decay}.")
        self.decay = decay
        self.weights: dict[str, Tensor] = {}
        for name, weight in _trained(model).items():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.weights[name] = weight.detach().to(dtype, copy=True)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights, after an update of these."""
        weights = _trained(model)
        means = [local(mean) for mean in self.weights.values()]
        values = [local(weights[name].detach()).to(mean) for name, mean in zip(self.weights, means)]
        if means:
            torch._foreach_lerp_(means, values, 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, to evaluate or save it; its own are put back at the end."""
        weights = dict(model.named_parameters())
        before = {name: weights[name].detach().clone() for name in self.weights}
        try:
            copy_weights(self.weights, weights)
            yield
        finally:
            copy_weights(before, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the parameters' names."""
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over averages (``InputError``: names or shapes are not those of the parameters)."""
        shapes, others = ({(name, weight.shape) for name, weight in part.items()} for part in (self.weights, state))
        for name, _ in sorted(shapes ^ others):
            raise InputError(f"the averaged weights are those of another model: {name!r} differs.")
        copy_weights(state, self.weights)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    weights = dict(model.named_parameters())
    return {name: weight for name, weight in weights.items() if weight.requires_grad and weight.is_floating_point()}


@torch.no_grad()
def copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Put tensors into those of the same names, in place."""
    for name, value in source.items():
        target[name].copy_(value)
