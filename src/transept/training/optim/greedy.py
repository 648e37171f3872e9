"""GreedyLR: a learning rate that rises while a metric gets better, and falls while it does not (arXiv 2512.14527)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from transept.environment import logging
from transept.errors import InputTypeError, refuse

log = logging.get_logger(__name__)


class GreedyLR:
    """Divides the rate by ``factor`` after better metrics, and multiplies it after worse ones, if they come in a row.

    Args:
        mode: ``min`` where less is better, ``max`` where more is.
        factor: below 1.
        patience: how many metrics in a row change nothing yet.
        threshold: how much better than the best one a metric must be: a share of it if ``threshold_mode`` is ``rel``.
        cooldown, warmup: metrics that are passed over after the rate fell, or rose.
        min_lr, max_lr: the bounds of the rate, one number for all groups or one for each.
        eps: the least change of a rate that is made.
        smooth: look at the mean of the last ``window_size`` metrics.
        reset_start: how often the rate may be about to fall below ``min_lr`` before it starts anew.

    ``InputError``: a setting is out of its range. ``InputTypeError``: what is passed is no optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | Sequence[float] = 1e-3,
        max_lr: float | Sequence[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        refuse(factor >= 1.0, f"`factor` must be below 1, but is {factor}.")
        refuse(mode not in ("min", "max"), f"`mode` must be 'min' or 'max', but is {mode!r}.")
        message = f"`threshold_mode` must be 'rel' or 'abs', but is {threshold_mode!r}."
        refuse(threshold_mode not in ("rel", "abs"), message)
        if not isinstance(optimizer, Optimizer):
            raise InputTypeError(f"`optimizer` must be an optimizer, but is {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode, self.eps = threshold, threshold_mode, eps
        self.cooldown, self.warmup, self.verbose = cooldown, warmup, verbose
        self.smooth, self.window_size = smooth, window_size
        self.min_lrs, self.max_lrs = self._by_group("min_lr", min_lr), self._by_group("max_lr", max_lr)
        self.reset_start_original = reset_start
        self.last_epoch = 0
        self._init_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._last_lr = list(self._init_lrs)
        self._start()

    def _by_group(self, name: str, rate: float | Sequence[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        rates = list(rate) if isinstance(rate, Sequence) else [rate] * groups
        refuse(len(rates) != groups, f"`{name}` has {len(rates)} rates for {groups} groups of parameters.")
        return rates

    def _start(self) -> None:
        """Begin with no metric."""
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.num_good_epochs = self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._recent: list[float] = []

    def step(self, metrics: float, epoch: int | None = None) -> None:
        """Set the rates by a metric."""
        current = float(metrics)
        if self.smooth:
            self._recent = [*self._recent, current][-self.window_size :]
            current = sum(self._recent) / len(self._recent)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
        elif self.warmup_counter > 0:
            self.warmup_counter -= 1
        else:
            self._compare(current)
        self._last_lr = self._rates

    @property
    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _compare(self, current: float) -> None:
        if self.is_better(current, self.best):
            self.best = current
            self.num_good_epochs, self.num_bad_epochs = self.num_good_epochs + 1, 0
        else:
            self.num_good_epochs, self.num_bad_epochs = 0, self.num_bad_epochs + 1
        if self.num_good_epochs > self.patience:
            self._change([max(rate, min(rate / self.factor, high)) for rate, high in zip(self._rates, self.max_lrs)])
            self.reset_start = self.reset_start_original
            self.warmup_counter, self.num_good_epochs = self.warmup, 0
        elif self.num_bad_epochs > self.patience:
            self._change([min(rate, max(rate * self.factor, low)) for rate, low in zip(self._rates, self.min_lrs)])
            if all(rate <= low for rate, low in zip(self._rates, self.min_lrs)):
                self.reset_start -= 1
                if self.reset_start <= 0:
                    self._restore(self._init_lrs)
                    self._start()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def is_better(self, current: float, best: float) -> bool:
        """Whether a metric is better than the best one by more than the threshold."""
        sign = 1.0 if self.mode == "min" else -1.0
        margin = sign * self.threshold
        limit = best * (1.0 - margin) if self.threshold_mode == "rel" else best - margin
        return sign * current < sign * limit

    def _change(self, rates: Sequence[float]) -> None:
        for number, (group, rate) in enumerate(zip(self.optimizer.param_groups, rates)):
            if abs(rate - group["lr"]) > self.eps:
                group["lr"] = rate
                if self.verbose:
                    message = "The learning rate of group %d is %.4e from metric %d on."
                    log.warning(message, number, rate, self.last_epoch)

    def _restore(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """The rates of all groups, as of the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """All settings and counters; the smoothed metrics under ``_streaming_avg``, as the reference writes them."""
        state = {name: value for name, value in vars(self).items() if name not in ("optimizer", "_recent")}
        if self.smooth:
            values = list(self._recent)
            state["_streaming_avg"] = {"window_size": self.window_size, "values": values, "sum": sum(values)}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, and set the optimizer's rates to its last ones."""
        for name in self.state_dict().keys() & state_dict.keys() - {"_streaming_avg"}:
            setattr(self, name, state_dict[name])
        if "_streaming_avg" in state_dict:
            self._recent = list(state_dict["_streaming_avg"]["values"])
        self._restore(self._last_lr)
