"""Settings of a run by groups, as scripts set them one after another: ``args.set_training(...).set_save(...)``."""

from __future__ import annotations

import warnings
from typing import Any, Self

from transept.errors import ConfigError
from transept.training.state import HubStrategy, IntervalStrategy, SaveStrategy


class SettingGroups:
    """Methods of settings that set one group of them and return the settings; names and defaults are the reference's.

    All settings of the group get a value, those that are not passed their default. Each is checked when it is set, and all
    together then, so that what another setting needs is to be set before it; an error leaves them all as they were.
    """

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that contradict each other."""

    def _set(self, **values: Any) -> Self:
        before = dict(vars(self))
        try:
            for name, value in values.items():
                setattr(self, name, value)
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
            what = "`gradient_checkpointing` is an older name here: write `activation_checkpointing`."
            warnings.warn(what, FutureWarning, stacklevel=2)
            activation_checkpointing = gradient_checkpointing
        return self._set(
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            activation_checkpointing=activation_checkpointing,
            gradient_checkpointing=activation_checkpointing,
        )

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
        return self._set(
            eval_strategy=strategy,
            do_eval=IntervalStrategy(strategy) != IntervalStrategy.NO,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """How predictions are made."""
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self,
        strategy: str | SaveStrategy = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:
        """When checkpoints are saved, and how many stay."""
        _check_steps(strategy, steps, "set_save")
        return self._set(save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node)

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
        """When figures are logged, and to whom they are reported."""
        _check_steps(strategy, steps, "set_logging")
        return self._set(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=programs(report_to),
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )

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
        return self._set(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )

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
        return self._set(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> Self:
        """The schedule, and how long it is."""
        return self._set(lr_scheduler_type=name, num_train_epochs=num_epochs, max_steps=max_steps, warmup_steps=warmup_steps)

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
        return self._set(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size,
            find_batch_size=auto_find_batch_size or None,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
        )


def programs(report_to: str | list[str] | None) -> list[str]:
    """What ``report_to`` names, as a list."""
    if report_to in (None, "none", ["none"]):
        return []
    return [report_to] if isinstance(report_to, str) else list(report_to or [])


def _check_steps(strategy: str, steps: int, where: str) -> None:
    if strategy == IntervalStrategy.STEPS and not steps:
        raise ConfigError(f"`steps` of {where} must be positive with strategy='steps', but is {steps}.")
