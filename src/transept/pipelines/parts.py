"""The parts that a pipeline is made of: a model and what prepares its inputs, given or loaded from one checkpoint."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.config import Config
from transept.core.auto import AutoConfig, AutoModel
from transept.core.model import Model
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.pipelines.defaults import locate
from transept.source import Source


@dataclass
class Parts:
    """What was given to ``pipeline`` and where the rest comes from.

    Args:
        name: a directory, a repository, or a model that is already loaded.
        given: ``tokenizer``, ``image_processor``, ``feature_extractor`` or ``config``, as objects or names.
        hub: where to look; see :class:`transept.source.Source`.
        device: where the model runs; a GPU where there is one, else the CPU. A loaded model stays where it is when absent.
        dtype: type of the weights; the checkpoint's when absent, the device's fastest exact enough one for ``"auto"``;
            ``"int8"`` rounds those of linear layers, on the CPU.
        packed: pack linear layers of models that are loaded for the CPU.
        settings: more arguments for loading the model.
    """

    name: str | os.PathLike[str] | Model
    given: dict[str, Any] = field(default_factory=dict)
    hub: dict[str, Any] = field(default_factory=dict)
    device: str | torch.device | int | None = None
    dtype: str | torch.dtype | None = None
    packed: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source | None:
        """Where the checkpoint is; ``None`` for a model that is already loaded."""
        return None if isinstance(self.name, Model) else locate(self.name, self.hub)

    @cached_property
    def config(self) -> Config:
        """The configuration: the model's own, the one given, or the checkpoint's."""
        if isinstance(self.name, Model):
            return self.name.config
        given = self.given.get("config")
        if isinstance(given, Config):
            return given
        if given is not None:
            return AutoConfig.from_pretrained(given, **self.hub)
        assert self.source is not None
        return AutoConfig.from_pretrained(self.source.name, **self.source.options())

    @property
    def architectures(self) -> list[str]:
        """Names of the classes that the model is of, the most special first."""
        if isinstance(self.name, Model):
            return [cls.__name__ for cls in type(self.name).__mro__]
        return list(self.config.architectures or ())

    @property
    def target(self) -> torch.device:
        """The device in force.

        Raises:
            InputError: there is no such device.
        """
        device = self.device
        if device is None or device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if isinstance(device, int):
            device = "cpu" if device < 0 else f"cuda:{device}"
        try:
            return torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise InputError(f"{device!r} is not a device.", hint="Use 'cpu', 'cuda' or 'cuda:0'.") from error

    def below(self, folder: str) -> Parts:
        """The same, for a checkpoint that keeps its model in a folder of its own."""
        inner = f"{self.source.subfolder}/{folder}" if self.source is not None and self.source.subfolder else folder
        return replace(self, hub=self.hub | {"subfolder": inner})

    def model(self, auto: Any) -> Model:
        """The model, as ``auto`` loads it, or the one that was passed as an object.

        Raises:
            InputTypeError: an object that does another task.
        """
        if isinstance(self.name, Model):
            return self._adopt(self.name, auto)
        assert self.source is not None
        target, dtype = self.target, self.dtype
        if rounded := dtype in ("int8", torch.int8):
            dtype = torch.float32
        elif dtype == "auto":
            dtype = torch.bfloat16 if fast_bfloat16(target) else torch.float32
        more = self.settings if dtype is None else {**self.settings, "dtype": dtype}
        model: Model = auto.from_pretrained(
            self.source.name, config=self.config, device=target, **more, **self.source.options()
        )
        if rounded:
            return quantize(model)
        return pack(model) if self.packed and target.type == "cpu" and can_pack(model.dtype) else model

    def backbone(self) -> Model:
        """The model for its states alone: one that is loaded has no pooler, whether the checkpoint has one or not."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*newly initialised.* pooler", TranseptWarning)
            model = self.model(AutoModel)
        if self.source is not None:
            model.backbone.pooler = None
        return model

    def _adopt(self, model: Model, auto: Any) -> Model:
        kinds = self.architectures
        if "Model" not in auto.tasks and not any(kind.endswith(auto.tasks) for kind in kinds):
            wanted = " or ".join(f"...{task}" for task in auto.tasks)
            raise InputTypeError(
                f"`model` is a {kinds[0]}, but the task needs a {wanted}.",
                hint=f"Load it with {auto.__name__}.from_pretrained.",
            )
        if self.settings or self.given.get("config") is not None:
            raise InputError("`config` and `model_kwargs` are for loading a model, but `model` is an object already.")
        if self.device is not None:
            model.to(self.target)
        if isinstance(self.dtype, torch.dtype):
            model.to(self.dtype)
        return model.eval()

    def part(self, kind: str, load: Callable[..., Any]) -> Any:
        """A tokenizer or processor: the one given, or loaded from the name given, or from the checkpoint.

        Raises:
            InputTypeError: the model is an object and the part was not given.
        """
        given = self.given.get(kind)
        if given is not None and not isinstance(given, str | os.PathLike):
            return given
        if given is not None:
            return load(given, **self.hub)
        if self.source is None:
            raise InputTypeError(f"`model` is an object, so `{kind}` must be passed too.")
        return load(self.source.name, **self.source.options())


def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return device.type == "cpu" and any(bool(getattr(torch.cpu, check, bool)()) for check in checks)
