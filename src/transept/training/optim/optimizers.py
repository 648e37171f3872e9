"""Optimizers by name, and what they are made with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from inspect import signature
from typing import Any, Protocol

from torch import Tensor
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from transept.errors import InputError, TranseptError, UnsupportedError, nearest, refuse
from transept.parallel.processes import everywhere
from transept.training.optim.adafactor import Adafactor


class OptimizerNames(StrEnum):
    """Names of optimizers, as ``optim`` takes them. Those below ``RMSPROP`` are of other packages, and refused."""

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


# A name -> its class, and the arguments that are fixed for it.
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    OptimizerNames.ADAMW_TORCH: (AdamW, {}),
    OptimizerNames.ADAMW_TORCH_FUSED: (AdamW, {"fused": True}),
    OptimizerNames.ADAFACTOR: (Adafactor, {"scale_parameter": False, "relative_step": False}),
    OptimizerNames.SGD: (SGD, {}),
    OptimizerNames.ADAGRAD: (Adagrad, {}),
    OptimizerNames.RMSPROP: (RMSprop, {}),
}
# Kinds of devices whose AdamW PyTorch can do in one kernel.
FUSED = frozenset({"cpu", "cuda", "hpu", "mps", "mtia", "xpu"})
WORDS = {"true": True, "false": False, "none": None}


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
    cls, fixed = OPTIMIZERS[name]
    options = {"lr": args.learning_rate, **fixed}
    if cls is AdamW:
        options |= {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    return cls, options | read_optim_args(args.optim_args, cls)


def read_optim_args(given: str | Mapping[str, Any] | None, cls: type[Optimizer]) -> dict[str, Any]:
    """The arguments of ``optim_args``, such as ``"momentum=0.9, nesterov=true"``, checked against the class's own.

    Raises:
        InputError: what is no list of names and values, an unknown name, or a value of the wrong type.
    """
    if not isinstance(given, Mapping):
        given = dict(_pair(part) for part in (given or "").split(",") if part.strip())
    known = {name: argument.default for name, argument in signature(cls).parameters.items() if name != "params"}
    for name, value in given.items():
        if name in ("lr", "weight_decay"):
            own = "learning_rate" if name == "lr" else name
            raise InputError(f"`optim_args` sets {name!r}, which has no effect there.", hint=f"Set `{own}`.")
        refuse(name not in known, f"`optim_args`: {cls.__name__} has no argument {name!r}.", hint=nearest(name, known))
        hint = f"Its default is {known[name]}."
        refuse(not _is_like(value, known[name]), f"`optim_args`: {name!r} of {cls.__name__} cannot be {value!r}.", hint)
    return dict(given)


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of an argument's default."""
    if default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, tuple):
        return isinstance(value, tuple | list) and all(isinstance(number, int | float) for number in value)
    return isinstance(value, int | float) or not isinstance(default, int | float)


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = (part.strip() for part in text.partition("="))
    hint = "Write name=value, with commas between."
    refuse(not (name and sign and value), f"`optim_args` holds {text.strip()!r}.", hint)
    if value.lower() in WORDS:
        return name, WORDS[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def make_optimizer(
    cls: type[Optimizer],
    groups: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    make: Callable[..., Optimizer] | None = None,
) -> Optimizer:
    """The optimizer of those groups; ``fused`` is left out where a parameter's device or type has no fused kernel.

    It is what ``make(cls, groups, options)`` gives, where that is passed.

    Raises:
        InputError: there is no parameter to train.
        UnsupportedError: the class takes no such parameters, or no groups of them.
    """
    filled = [dict(group) for group in groups if group["params"]]
    parameters: list[Tensor] = [parameter for group in filled for parameter in group["params"]]
    trains = any(everywhere(bool(parameters)))  # a process may have frozen layers alone
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
