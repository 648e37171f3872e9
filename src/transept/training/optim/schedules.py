"""Schedules of the learning rate, under the reference's names: warm-up, then constant, linear, cosine and others.

Each is PyTorch's ``LambdaLR`` of a function of this module with its settings, so that it can be pickled. The function
gives the factor of the optimizer's rate at a step, which is an update of the optimizer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from transept.errors import InputError, InputTypeError, TranseptWarning, refuse
from transept.training.optim.greedy import GreedyLR
from transept.training.state import ExplicitEnum


class SchedulerType(ExplicitEnum):
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


def _warmed(step: int, *, warmup: float, shape: Callable[[int], float]) -> float:
    return float(step) / max(1, warmup) if step < warmup else shape(step)


def _constant(step: int, *, warmup: float = 0) -> float:
    return 1.0


def _linear(step: int, *, warmup: float, total: float) -> float:
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


def _stable(step: int, *, phases: Sequence[float], types: Sequence[str], least: float, cycles: float) -> float:
    """A rise, ones, and a fall, each of as many steps as ``phases`` says; ``types`` are of the rise and the fall."""
    warmup, stable, decay = phases
    rise, fall = types
    if step < warmup:
        factor = _RAMPS[rise](step / max(1, warmup))
    elif step < warmup + stable:
        return 1.0
    elif step < warmup + stable + decay:
        progress = (step - warmup - stable) / max(1, decay)
        wave = 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))
        factor = wave if fall == "cosine" else _RAMPS[fall](1.0 - progress)
    else:
        return least
    return max(0.0, factor * (1.0 - least) + least)


def _schedule(optimizer: Optimizer, warmup: float, last_epoch: int, shape: Any, **settings: float) -> LambdaLR:
    """A straight rise from 0 in ``warmup`` updates, then a shape."""
    shape = partial(shape, warmup=warmup, **settings)
    return LambdaLR(optimizer, partial(_warmed, warmup=warmup, shape=shape), last_epoch)


def _least(optimizer: Optimizer, rate: float | None, share: float | None) -> float:
    """The least factor, from a rate or a share of the optimizer's."""
    message = "this schedule needs `min_lr` or `min_lr_rate`, and not both."
    refuse((rate is None) == (share is None), message, hint="Set `lr_scheduler_kwargs`.")
    return float(share or 0.0) if rate is None else rate / float(optimizer.defaults["lr"])


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """The optimizer's own rate throughout."""
    return LambdaLR(optimizer, _constant, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """A straight rise from 0 in ``num_warmup_steps`` updates, then the optimizer's own rate."""
    return _schedule(optimizer, num_warmup_steps, last_epoch, _constant)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then a straight fall to 0 at ``num_training_steps``."""
    return _schedule(optimizer, num_warmup_steps, last_epoch, _linear, total=num_training_steps)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then ``num_cycles`` waves of a cosine; half a wave ends at 0 (arXiv 1608.03983)."""
    return _schedule(optimizer, num_warmup_steps, last_epoch, _cosine, total=num_training_steps, cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then ``num_cycles`` falls to 0, each half a wave of a cosine (arXiv 1608.03983)."""
    return _schedule(optimizer, num_warmup_steps, last_epoch, _restarts, total=num_training_steps, cycles=num_cycles)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """A straight rise from 0, then a fall as a power of the steps left to ``lr_end``, below the optimizer's rate."""
    rate = float(optimizer.defaults["lr"])
    refuse(not rate > lr_end, f"`lr_end` is {lr_end:g}, but must be below the learning rate, which is {rate:g}.")
    settings = {"total": num_training_steps, "power": power, "last": lr_end / rate}
    return _schedule(optimizer, num_warmup_steps, last_epoch, _power, **settings)


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """A straight rise from 0, then a fall with the square root of the steps in ``timescale`` (Zhai et al. 2022)."""
    timescale = timescale or num_warmup_steps or 10_000
    return _schedule(optimizer, num_warmup_steps, last_epoch, _root, timescale=timescale)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """A straight rise from 0, then a cosine down to ``min_lr`` or else ``min_lr_rate`` times the optimizer's rate."""
    settings = {"total": num_training_steps, "cycles": num_cycles, "least": _least(optimizer, min_lr, min_lr_rate)}
    return _schedule(optimizer, num_warmup_steps, last_epoch, _cosine, **settings)


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

    The warm-up begins with the share ``warmup_lr_rate`` of the optimizer's rate; by default one part of its steps.
    """
    least = _least(optimizer, min_lr, min_lr_rate)
    steps = {"warmup": num_warmup_steps, "total": num_training_steps}
    shape = partial(_early_cosine, first=warmup_lr_rate, cycles=num_cycles, least=least, **steps)
    return LambdaLR(optimizer, shape, last_epoch)


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

    ``num_training_steps`` is the sum of the three phases. The types are ``linear``, ``cosine`` and ``1-sqrt``.
    """
    for name, kind in {"warmup_type": warmup_type, "decay_type": decay_type}.items():
        refuse(kind not in _RAMPS, f"`{name}` is {kind!r}.", hint=f"It is one of: {', '.join(_RAMPS)}.")
    if num_stable_steps is None:
        if num_training_steps is None:
            raise InputError("this schedule needs `num_training_steps` or `num_stable_steps`.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    elif num_training_steps is not None:
        warnings.warn("`num_training_steps` has no effect beside `num_stable_steps`.", TranseptWarning, stacklevel=2)
    phases, types = (num_warmup_steps, num_stable_steps, num_decay_steps), (warmup_type, decay_type)
    shape = partial(_stable, phases=phases, types=types, least=min_lr_ratio, cycles=num_cycles)
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
    """The schedule of that name; ``scheduler_specific_kwargs`` are the other arguments of its function.

    ``InputError``: an unknown name, missing or negative steps. ``InputTypeError``: an argument it does not have.
    """
    name = SchedulerType(name)
    parameters = dict(signature(_FOLLOW_METRICS.get(name, SCHEDULES[name])).parameters)
    del parameters["optimizer"]
    steps = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    arguments = {key: number for key, number in steps.items() if key in parameters and number is not None}
    for key, number in arguments.items():
        refuse(number < 0, f"`{key}` must not be negative, but is {number}.")
    options = arguments | dict(scheduler_specific_kwargs or {})
    for unknown in sorted(options.keys() - parameters.keys()):
        hint = f"It has: {', '.join(key for key in parameters if key != 'last_epoch')}."
        raise InputTypeError(f"the schedule {name.value!r} has no argument {unknown!r}.", hint=hint)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            remedy = None if key in steps else "Pass it in `lr_scheduler_kwargs`."
            raise InputError(f"the schedule {name.value!r} needs `{key}`.", hint=remedy)
    return SCHEDULES[name](optimizer, **options)
