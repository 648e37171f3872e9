"""Learning rates over time, under the reference's names: warm-up, then constant, linear, cosine, polynomial and others.

Each schedule is PyTorch's ``LambdaLR`` of a module's function with its settings, so that it can be pickled and its
``state_dict`` holds numbers alone. Steps are updates of the optimizer, and a factor multiplies the optimizer's own rate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from inspect import signature
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from transept.errors import InputError, InputTypeError, TranseptWarning, nearest, refuse
from transept.training.optim.greedy import GreedyLR


class SchedulerType(StrEnum):
    """Names of schedules, as ``lr_scheduler_type`` takes them."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"

    @classmethod
    def _missing_(cls, value: object) -> SchedulerType:
        raise InputError(f"no schedule is called {value!r}.", hint=nearest(str(value), [name.value for name in cls]))


# --- shapes: the factor at a step, after warm-up --------------------------------------------------------------------


def _rising(step: int, *, warmup: float, shape: Callable[[int], float]) -> float:
    return float(step) / max(1, warmup) if step < warmup else shape(step)


def _one(step: int) -> float:
    return 1.0


def _line(step: int, *, warmup: float, total: float) -> float:
    return max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, *, warmup: float, total: float, cycles: float, least: float = 0.0) -> float:
    height = 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * (step - warmup) / max(1, total - warmup)))
    return max(0.0, height * (1 - least) + least)


def _restarts(step: int, *, warmup: float, total: float, cycles: float) -> float:
    progress = (step - warmup) / max(1, total - warmup)
    return 0.0 if progress >= 1.0 else 0.5 * (1.0 + math.cos(math.pi * ((cycles * progress) % 1.0)))


def _power(step: int, *, warmup: float, total: float, power: float, last: float) -> float:
    return last if step > total else (1 - last) * (1 - (step - warmup) / max(1, total - warmup)) ** power + last


def _root(step: int, *, warmup: float, timescale: float) -> float:
    return 1.0 / math.sqrt((step - warmup + timescale) / timescale)


def _early_cosine(step: int, *, first: float | None, warmup: float, **settings: float) -> float:
    """A warm-up that is one step ahead, so that no update has the rate 0, and a cosine that is so too."""
    if step < warmup:
        return (step + 1) / max(1, warmup) if first is None else first + (1 - first) * step / max(1, warmup - 1)
    return _cosine(step + 1, warmup=warmup, **settings)


_RAMPS: dict[str, Callable[[float], float]] = {
    "linear": float,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
    "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
}


def _stable(step: int, *, warmup: float, stable: float, decay: float, up: str, down: str, least: float, cycles: float) -> float:
    if step < warmup:
        factor = _RAMPS[up](step / max(1, warmup))
    elif step < warmup + stable:
        return 1.0
    elif step < warmup + stable + decay:
        progress = (step - warmup - stable) / max(1, decay)
        wave = 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))
        factor = wave if down == "cosine" else _RAMPS[down](1.0 - progress)
    else:
        return least
    return max(0.0, factor * (1.0 - least) + least)


def _warmed(optimizer: Optimizer, warmup: float, last_epoch: int, shape: Callable[..., float], **settings: float) -> LambdaLR:
    """A straight rise from 0 in so many updates, then a shape."""
    shape = partial(shape, warmup=warmup, **settings) if settings else shape
    return LambdaLR(optimizer, partial(_rising, warmup=warmup, shape=shape), last_epoch)


def _least(optimizer: Optimizer, rate: float | None, share: float | None) -> float:
    """The least factor, from a rate or a share of the optimizer's."""
    if (rate is None) == (share is None):
        what = "this schedule needs `min_lr` or `min_lr_rate`, and not both."
        raise InputError(what, hint="Set `lr_scheduler_kwargs`.")
    return float(share or 0.0) if rate is None else rate / float(optimizer.defaults["lr"])


# --- the reference's names ------------------------------------------------------------------------------------------


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """The optimizer's own rate throughout."""
    return LambdaLR(optimizer, _one, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """A straight rise from 0 in ``num_warmup_steps`` updates, then the optimizer's own rate."""
    return _warmed(optimizer, num_warmup_steps, last_epoch, _one)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then a straight fall to 0 at ``num_training_steps``."""
    return _warmed(optimizer, num_warmup_steps, last_epoch, _line, total=num_training_steps)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then ``num_cycles`` waves of a cosine; half a one falls to 0 (Loshchilov & Hutter 2017)."""
    return _warmed(optimizer, num_warmup_steps, last_epoch, _cosine, total=num_training_steps, cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then ``num_cycles`` falls to 0, each half a cosine (Loshchilov & Hutter 2017)."""
    return _warmed(optimizer, num_warmup_steps, last_epoch, _restarts, total=num_training_steps, cycles=num_cycles)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """A straight rise from 0, then a fall to the rate ``lr_end`` as a power of what is left.

    Raises:
        InputError: ``lr_end`` is not below the optimizer's rate.
    """
    rate = float(optimizer.defaults["lr"])
    refuse(not rate > lr_end, f"`lr_end` is {lr_end:g}, but must be below the learning rate, which is {rate:g}.")
    last = lr_end / rate
    return _warmed(optimizer, num_warmup_steps, last_epoch, _power, total=num_training_steps, power=power, last=last)


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then a fall with the square root of the steps (Zhai et al. 2022).

    Steps are counted in units of ``timescale``: unless it is given, the warm-up's steps, or 10,000 where it has none.
    """
    return _warmed(optimizer, num_warmup_steps, last_epoch, _root, timescale=timescale or num_warmup_steps or 10_000)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """A straight rise from 0, then a cosine down to ``min_lr``, or to that share of the optimizer's rate.

    Raises:
        InputError: not exactly one of ``min_lr`` and ``min_lr_rate`` is given.
    """
    settings = {"total": num_training_steps, "cycles": num_cycles, "least": _least(optimizer, min_lr, min_lr_rate)}
    return _warmed(optimizer, num_warmup_steps, last_epoch, _cosine, **settings)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """The same, one step ahead, so that no update has the rate 0.

    The warm-up begins with the share ``warmup_lr_rate`` of the optimizer's rate; unless it is given, with one part of
    the warm-up's steps.

    Raises:
        InputError: not exactly one of ``min_lr`` and ``min_lr_rate`` is given.
    """
    shape = partial(_early_cosine, first=warmup_lr_rate, warmup=num_warmup_steps, total=num_training_steps)
    least = _least(optimizer, min_lr, min_lr_rate)
    return LambdaLR(optimizer, partial(shape, cycles=num_cycles, least=least), last_epoch)


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm-up, a stable phase, and decay (Hu et al. 2024), from and to ``min_lr_ratio`` of the optimizer's rate.

    ``num_stable_steps`` counts before ``num_training_steps``, which is the sum of the three phases. The types are
    ``linear``, ``cosine`` and ``1-sqrt``.

    Raises:
        InputError: an unknown type, or neither number is given.
    """
    for name, kind in {"warmup_type": warmup_type, "decay_type": decay_type}.items():
        refuse(kind not in _RAMPS, f"`{name}` is {kind!r}.", hint=f"It is one of: {', '.join(_RAMPS)}.")
    if num_stable_steps is None:
        if num_training_steps is None:
            raise InputError("this schedule needs `num_training_steps` or `num_stable_steps`.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        what = "`num_stable_steps` is given, so `num_training_steps` has no effect."
        warnings.warn(what, TranseptWarning, stacklevel=2)
    phases = {"warmup": num_warmup_steps, "stable": num_stable_steps, "decay": num_decay_steps}
    shape = partial(_stable, **phases, up=warmup_type, down=decay_type, least=min_lr_ratio, cycles=num_cycles)
    return LambdaLR(optimizer, shape, last_epoch)


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """PyTorch's schedule that lowers the rate when a metric no longer gets better; its ``step`` takes the metric."""
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """A rate that rises while a metric gets better and falls while it does not; see :class:`GreedyLR`."""
    return GreedyLR(optimizer, **kwargs)


SCHEDULES: dict[SchedulerType, Callable[..., LRScheduler | GreedyLR]] = {
    SchedulerType.LINEAR: get_linear_schedule_with_warmup,
    SchedulerType.COSINE: get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: get_wsd_schedule,
    SchedulerType.GREEDY: get_greedy_schedule,
}
_FOLLOW_METRICS = {SchedulerType.REDUCE_ON_PLATEAU: ReduceLROnPlateau, SchedulerType.GREEDY: GreedyLR}


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
) -> LRScheduler | GreedyLR:
    """The schedule of that name.

    Args:
        name: one of :class:`SchedulerType`.
        optimizer: whose rates it sets.
        num_warmup_steps: updates of the warm-up, for schedules that have one.
        num_training_steps: updates in all, for schedules that end.
        scheduler_specific_kwargs: the other arguments of that schedule's own function.

    Raises:
        InputError: an unknown name, or a number of steps that is missing or negative.
        InputTypeError: arguments that this schedule does not have.
    """
    name = SchedulerType(name)
    known = dict(signature(_FOLLOW_METRICS.get(name, SCHEDULES[name])).parameters)
    del known["optimizer"]
    given: dict[str, Any] = {}
    for step, number in {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}.items():
        if step in known and number is not None:
            refuse(number < 0, f"`{step}` must not be negative, but is {number}.")
            given[step] = number
    given |= scheduler_specific_kwargs or {}
    for unknown in sorted(given.keys() - known.keys()):
        hint = f"It has: {', '.join(argument for argument in known if argument != 'last_epoch')}."
        raise InputTypeError(f"the schedule {name.value!r} has no argument {unknown!r}.", hint=hint)
    for argument, parameter in known.items():
        if parameter.default is parameter.empty and argument not in given:
            is_step = argument in ("num_warmup_steps", "num_training_steps")
            remedy = None if is_step else "Pass it in `lr_scheduler_kwargs`."
            raise InputError(f"the schedule {name.value!r} needs `{argument}`.", hint=remedy)
    return SCHEDULES[name](optimizer, **given)
