"""Settings of a run by groups, as scripts set them one after another: ``args.set_training(...).set_save(...)``."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any, Self

from transept.errors import ConfigError
from transept.training.state import HubStrategy, IntervalStrategy, SaveStrategy

_EVALUATION = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}


class SettingGroups:
    """Methods of settings that set one group of them and return the settings; names and defaults are the reference's.

    A method sets all settings of its group, those that are not passed to their default. Each is checked, then all of
    the run together, so that a setting that another one needs is to be set before it. An error changes nothing.
    """

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that contradict each other."""

    def _set(self, arguments: dict[str, Any], prefix: str = "", **renamed: str) -> Self:
        """Set what a method was called with: fields of these names, of ``renamed`` ones, or else with a prefix."""
        before = dict(vars(self))
        names = {field.name for field in fields(self)}  # type: ignore[arg-type]  # settings are dataclasses
        try:
            for name, value in arguments.items():
                if name != "self":
                    setattr(self, renamed.get(name, name if name in names else prefix + name), value)
            self.check()
        except Exception:
            vars(self).update(before)
            raise
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> Self:
        """The settings of training; ``gradient_checkpointing`` is an older name of ``activation_checkpointing``."""
        if gradient_checkpointing is not None:
            message = "`gradient_checkpointing` is an older name here: write `activation_checkpointing`."
            warnings.warn(message, FutureWarning, stacklevel=2)
            activation_checkpointing = gradient_checkpointing
        gradient_checkpointing = activation_checkpointing
        arguments = {**locals(), "do_train": True}
        return self._set(arguments, batch_size="per_device_train_batch_size", num_epochs="num_train_epochs")

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Self:
        """When and how a model is evaluated in training; without ``delay`` from the beginning on."""
        _check_steps(strategy, steps, "set_evaluate")
        arguments = {**locals(), "delay": delay or 0, "do_eval": IntervalStrategy(strategy) != IntervalStrategy.NO}
        return self._set(arguments, "eval_", **_EVALUATION)

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """How predictions are made."""
        return self._set({**locals(), "do_predict": True}, **_EVALUATION)

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """When checkpoints are saved, and how many stay."""
        _check_steps(strategy, steps, "set_save")
        return self._set(locals(), "save_")

    def set_logging(
        self,
        strategy: str | IntervalStrategy = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """When metrics are logged, and to whom they are reported."""
        _check_steps(strategy, steps, "set_logging")
        arguments = {**locals(), "report_to": programs(report_to)}
        levels = {"level": "log_level", "replica_level": "log_level_replica"}
        return self._set(arguments, "logging_", on_each_node="log_on_each_node", **levels)

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str | HubStrategy = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Where and when the model is published."""
        return self._set({**locals(), "push_to_hub": True}, "hub_")

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """The optimizer."""
        return self._set(locals(), "adam_", name="optim", args="optim_args")

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> Self:
        """The schedule, and how long it is."""
        return self._set(locals(), name="lr_scheduler_type", num_epochs="num_train_epochs")

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """How batches are read."""
        arguments = {**locals(), "find_batch_size": auto_find_batch_size or None}
        sizes = {f"{kind}_batch_size": f"per_device_{kind}_batch_size" for kind in ("train", "eval")}
        return self._set(arguments, "dataloader_", sampler_seed="data_seed", **sizes)


def programs(report_to: str | list[str] | None) -> list[str]:
    """What ``report_to`` names, as a list."""
    if report_to in (None, "none", ["none"]):
        return []
    return [report_to] if isinstance(report_to, str) else list(report_to or [])


def _check_steps(strategy: str, steps: int, method: str) -> None:
    if strategy == IntervalStrategy.STEPS and not steps:
        raise ConfigError(f"`steps` of {method} must be positive with strategy='steps', but is {steps}.")
