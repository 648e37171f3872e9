"""The base of settings: each is checked when it is set, or refused; older names; JSON; setting groups of them."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from inspect import Signature, signature
from typing import Any, ClassVar, NoReturn, Self, get_args

from transept.config.fields import HIDDEN, Spec, checked, plain, specs, without_secrets
from transept.errors import ConfigError, UnsupportedError, naming, nearest
from transept.storage.files import PathName, dump_json, load_object, parse_json
from transept.training.optim.optimizers import OPTIMIZERS, PACKAGED
from transept.training.state import HubStrategy, IntervalStrategy, SaveStrategy

# Older names of fields -> today's.
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
}
# Settings that may be given as JSON texts.
_JSON = {"lr_scheduler_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "adversarial"}
_FILES = {"deepspeed", "fsdp_config"}  # or the name of a file that has it
_JSON |= _FILES

_LIGER = ("the Liger kernels are not used.", "Leave it out; losses over vocabularies are computed in parts anyway.")
_TRACKIO = ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")
_OPTIMIZER = "optimizers=(optimizer, None)"
# Settings that cannot be honoured: why, and what to do instead. Defaults and empty values are never refused.
LIMITS = {
    "parallelism_config": ("it is an object of accelerate's.", "Set tp_size, pp_size, fsdp or zero_stage."),
    "accelerator_config": ("accelerate is not used.", "Leave it out; `data_seed` seeds the order of rows."),
    "use_liger_kernel": _LIGER,
    "liger_kernel_config": _LIGER,
    "skip_memory_metrics": ("memory is not measured.", "Leave it out."),
    "debug": ("there are no debug modes.", 'nan_policy="error" names the module whose output is not finite.'),
    **dict.fromkeys(_TRACKIO, ("Trackio is not among the reports.", "Choose another in `report_to`.")),
    "train_sampling_strategy": ("batches are not rebalanced.", 'Use "group_by_length" or "token_budget".'),
    "sortish_sampler": ("there is one way to sort by length.", 'Use train_sampling_strategy="group_by_length".'),
    "hub_strategy": ("checkpoints are not published.", 'Use "every_save" or "end".'),
    "average_tokens_across_devices": ("a loss is divided by the items of all processes.", "Leave it out."),
    "optim_target_modules": (
        "only optimizers of other packages (GaLore, APOLLO) choose modules by it.",
        f"Leave it out; `freeze` chooses what is trained, and {_OPTIMIZER} passes an optimizer of your own.",
    ),
    "save_on_each_node": (
        "all processes write one checkpoint together.",
        "Leave it out, and let `output_dir` be a folder that all machines share.",
    ),
    "optim": ("it is an optimizer of a package that is not used.", f"Pass an instance of it: {_OPTIMIZER}."),
}
# Which values of a setting are refused; of other settings, those that are true.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "accelerator_config": lambda value: not (isinstance(value, dict) and value.keys() <= {"use_configured_state"}),
    "skip_memory_metrics": operator.not_,
    "average_tokens_across_devices": operator.not_,
    "train_sampling_strategy": lambda value: value == "batch_rebalance",
    "hub_strategy": lambda value: "checkpoint" in value,
    "optim": lambda value: value not in OPTIMIZERS and value not in PACKAGED,
    **dict.fromkeys(("parallelism_config", "trackio_static_space_id"), lambda value: True),
}
# Names in groups for evaluations -> names of fields.
_EVALUATION = {"batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only"}


class _Renaming(type):
    """Lets a class be called with older names of its fields; an unknown name is an error that names those like it.

    A derived class may have a constructor of its own, whose parameters are known.
    """

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        settings = {RENAMED.get(name, name): value for name, value in settings.items()}
        share = settings.pop("warmup_ratio", None)
        if share and not settings.get("warmup_steps"):
            settings["warmup_steps"] = share
        if settings.pop("group_by_length", False):
            settings["train_sampling_strategy"] = "group_by_length"
        if not settings.pop("save_safetensors", True):
            reason = "weights are saved as safetensors only."
            raise UnsupportedError(f"`save_safetensors=False` cannot be honoured: {reason}")
        settings.pop("overwrite_output_dir", None)  # checkpoints are replaced one by one
        for name in settings.keys() - specs(cls).keys() - signature(cls.__init__).parameters.keys():  # type: ignore[misc]
            raise ConfigError(f"{cls.__name__} has no setting {name!r}.", hint=nearest(name, specs(cls)))
        return super().__call__(*args, **settings)

    @property
    def __signature__(cls) -> Signature:
        of_init = signature(cls.__init__)  # type: ignore[misc]
        return of_init.replace(parameters=[*of_init.parameters.values()][1:])


class ArgumentsBase(metaclass=_Renaming):
    """The base of dataclasses of settings."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = []  # settings of derived classes that may be given as JSON texts

    def __setattr__(self, name: str, value: Any) -> None:
        name = RENAMED.get(name, name)
        spec = _library_fields(type(self)).get(name)
        if spec is None:
            if name in self._VALID_DICT_FIELDS and isinstance(value, str) and value.startswith("{"):
                value = parse_json(value)
            object.__setattr__(self, name, value)
            return
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if name in _JSON and isinstance(value, str) and (name not in _FILES or value.lstrip().startswith("{")):
            value = parse_json(value)
        if value is not None and (enum := _enum(spec.kind)) is not None:
            value = enum(value)
        value = checked(value, spec.kind, name, type(self).__name__)
        if name in LIMITS and value not in (spec.default(), None, [], {}) and _REFUSED.get(name, bool)(value):
            reason, remedy = LIMITS[name]
            raise UnsupportedError(f"`{name}={str(value)[:80]!r}` cannot be honoured: {reason}", hint=remedy)
        object.__setattr__(self, name, value)
        for rule in spec.rules:
            rule.check(self, name)

    def __getattr__(self, name: str) -> Any:
        if name in RENAMED:
            return getattr(self, RENAMED[name])
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    def fail(self, name: str, rule: str, remedy: str | None = None) -> NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        value = getattr(self, name)
        text = repr(value.value if isinstance(value, Enum) else value)[:80]
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {text}.", hint=remedy)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types; secrets are left out."""
        names = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]  # of dataclasses
        values = {name: getattr(self, name) for name in names}
        values = {name: value.value if isinstance(value, Enum) else plain(value) for name, value in values.items()}
        return {name: _hidden(name) if value == HIDDEN else value for name, value in without_secrets(values).items()}

    def to_json_string(self) -> str:
        return dump_json(self.to_dict())

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Settings and batch sizes as numbers, texts and booleans."""
        settings = self.to_dict() | {name: getattr(self, name) for name in ("train_batch_size", "eval_batch_size")}
        texts = {name: str(value) for name, value in settings.items() if not isinstance(value, int | float | str)}
        return settings | texts

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Settings as :meth:`to_dict` gives them."""
        return cls(**{name: value for name, value in values.items() if value != _hidden(name)})

    @classmethod
    def from_json_file(cls, json_file: PathName) -> Self:
        """Settings of a file (``FileError``, ``FormatError``, ``ConfigError``)."""
        with naming(json_file):
            return cls.from_dict(load_object(json_file))

    def __repr__(self) -> str:
        lines = [f"{name}={value!r},\n" for name, value in sorted(self.to_dict().items())]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    __str__ = __repr__


class SettingGroups(ArgumentsBase):
    """Methods of settings that set one group of them and return the settings; names and defaults are the reference's.

    A method sets all settings of its group, those that are not passed to their default. Each is checked, then all of
    the run together, so that a setting that another one needs is to be set before it. An error changes nothing.
    """

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that contradict each other."""

    def _set(self, arguments: dict[str, Any], prefix: str = "", **renamed: str) -> Self:
        """Set what a method was called with: fields of these names, of ``renamed`` ones, or else with a prefix."""
        before = dict(vars(self))
        names = specs(type(self))
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


def _hidden(name: str) -> str:
    """What the reference writes in the place of a secret."""
    return f"<{name.upper()}>"


@cache
def _enum(kind: Any) -> type[Enum] | None:
    """The names that a field holds one of, where its type is an ``Enum`` or a text."""
    return next((part for part in get_args(kind) if isinstance(part, type) and issubclass(part, Enum)), None)


@cache
def _library_fields(cls: type[Any]) -> dict[str, Spec]:
    """The fields that the library defines; those that users add hold anything."""
    return specs(next(base for base in cls.__mro__ if base.__module__.startswith(f"{__package__}.")))
