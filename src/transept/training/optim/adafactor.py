"""Adafactor (Shazeer & Stern 2018): second moments of a matrix are kept as one row and one column."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import ParamsT

from transept.errors import InputError, refuse


class Adafactor(Optimizer):
    """Adafactor with the reference's arguments, numbers and state.

    Args:
        lr: none where ``relative_step`` sets it: to the inverse square root of the step, and 0.01 at most.
        eps: what is added to squared gradients, and the least scale of a parameter.
        clip_threshold: the root mean square that an update is brought down to.
        decay_rate: the power of the step by which the second moments' decay rises to 1.
        beta1: decay of the first moment; none is kept without it.
        scale_parameter: multiply the rate by the parameter's root mean square.
        warmup_init: the relative rate begins at one millionth of the step.

    ``InputError``: a rate beside ``relative_step``, none without it, or ``warmup_init`` without it.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        defaults = {name: value for name, value in locals().items() if name not in ("self", "params", "__class__")}
        both = lr is not None and relative_step
        refuse(both, "`lr` has no effect beside `relative_step=True`.", "Set one of them.")
        refuse(warmup_init and not relative_step, "`warmup_init=True` needs `relative_step=True`.")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; ``closure`` computes the loss and its gradients again, and the loss is returned."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        refuse(gradient.is_sparse, "Adafactor cannot use sparse gradients.", "Use embeddings with `sparse=False`.")
        weights: Tensor = parameter
        if parameter.dtype in (torch.float16, torch.bfloat16):
            gradient, weights = gradient.float(), parameter.float()
        state = self._state(parameter, gradient, group)
        state["step"] += 1
        state["RMS"] = _rms(weights)
        rate, decay = self._get_lr(group, state), 1.0 - math.pow(state["step"], group["decay_rate"])
        squares = gradient**2 + group["eps"][0]
        if gradient.ndim >= 2:
            row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
            row.mul_(decay).add_(squares.mean(dim=-1), alpha=1.0 - decay)
            column.mul_(decay).add_(squares.mean(dim=-2), alpha=1.0 - decay)
            inverse = (row / row.mean(dim=-1, keepdim=True)).rsqrt_()[..., None] * column[..., None, :].rsqrt()
        else:
            inverse = state["exp_avg_sq"].mul_(decay).add_(squares, alpha=1.0 - decay).rsqrt()
        update = inverse.mul_(gradient)
        update.div_((_rms(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if group["weight_decay"] != 0:
            weights.add_(weights, alpha=-group["weight_decay"] * rate)
        weights.sub_(update)
        if weights is not parameter:
            parameter.copy_(weights)

    def _state(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """A parameter's state, of the gradient's type; made at its first update."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"], state["RMS"] = 0, 0
            if group["beta1"] is not None:
                state["exp_avg"] = torch.zeros_like(gradient)
            if gradient.ndim >= 2:
                state["exp_avg_sq_row"] = gradient.new_zeros(gradient.shape[:-1])
                state["exp_avg_sq_col"] = gradient.new_zeros(gradient.shape[:-2] + gradient.shape[-1:])
            else:
                state["exp_avg_sq"] = torch.zeros_like(gradient)
        state.update({name: value.to(gradient) for name, value in state.items() if name.startswith("exp_avg")})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's, which would round the moments to the type of weights in half precision."""
        super().load_state_dict(state_dict)
        for group, loaded in zip(self.param_groups, state_dict["param_groups"]):
            for parameter, number in zip(group["params"], loaded["params"]):
                for name, value in state_dict["state"].get(number, {}).items():
                    if isinstance(value, Tensor):
                        self.state[parameter][name] = value.to(parameter.device, copy=True)

    @staticmethod
    def _get_lr(group: dict[str, Any], state: dict[str, Any]) -> Any:
        """The rate of the coming update, by the parameter's step and size."""
        rate = group["lr"]
        if group["relative_step"]:
            most = 1e-6 * state["step"] if group["warmup_init"] else 1e-2
            rate = min(most, 1.0 / math.sqrt(state["step"]))
        if rate is None:
            raise InputError("Adafactor needs a learning rate.", hint="Set `lr`, or `relative_step=True`.")
        return (max(group["eps"][1], state["RMS"]) if group["scale_parameter"] else 1.0) * rate


def _rms(values: Tensor) -> Tensor:
    mean: Tensor = torch.linalg.vector_norm(values) / values.numel() ** 0.5
    return mean


class AdafactorSchedule(LambdaLR):
    """Shows the rates that :class:`Adafactor` sets by itself, where a schedule is asked for; it changes nothing."""

    def __init__(self, optimizer: Adafactor, initial_lr: float = 0.0) -> None:
        self.initial_lr = initial_lr
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer, self._first)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def _first(self, step: int) -> float:
        return self.initial_lr

    def get_lr(self) -> list[Any]:
        """The rate of each group's first parameter; ``initial_lr`` before the first update."""
        states = [(group, self.optimizer.state.get(group["params"][0])) for group in self.optimizer.param_groups]
        rates = [Adafactor._get_lr(group, state) for group, state in states if state]
        return rates or list(self.base_lrs)


def get_adafactor_schedule(optimizer: Adafactor, initial_lr: float = 0.0) -> AdafactorSchedule:
    """See :class:`AdafactorSchedule`."""
    return AdafactorSchedule(optimizer, initial_lr)
