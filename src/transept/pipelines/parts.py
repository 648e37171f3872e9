"""The parts that a pipeline is made of: a model and what prepares its inputs, given or loaded from one checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from transept.adapt.pack import can_pack, pack
from transept.backbone import Model
from transept.errors import InputError, InputTypeError
from transept.pipelines.defaults import locate
from transept.source import Source


@dataclass
class Parts:
    """What was given to ``pipeline`` and where the rest comes from.

    Args:
        name: a directory, a repository, or a model that is already loaded.
        given: ``tokenizer``, ``image_processor``, ``feature_extractor`` or ``config``, as objects or names.
        hub: where to look; see :class:`transept.source.Source`.
        device: where the model runs; a GPU where there is one, else the CPU.
        dtype: type of the weights; the checkpoint's when absent, the device's fastest exact enough one for ``"auto"``.
        packed: pack linear layers of models that are loaded for the CPU.
    """

    name: str | os.PathLike[str] | Model
    given: dict[str, Any] = field(default_factory=dict)
    hub: dict[str, Any] = field(default_factory=dict)
    device: str | torch.device | int | None = None
    dtype: str | torch.dtype | None = None
    packed: bool = True

    @property
    def source(self) -> Source | None:
        """Where the checkpoint is; ``None`` for a model that is already loaded."""
        return None if isinstance(self.name, Model) else locate(self.name, self.hub)

    @property
    def target(self) -> torch.device:
        """The device in force."""
        device = self.device
        if device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if isinstance(device, int):
            device = "cpu" if device < 0 else f"cuda:{device}"
        try:
            return torch.device(device)
        except RuntimeError as error:
            raise InputError(f"{device!r} is not a device.", hint="Use 'cpu', 'cuda' or 'cuda:0'.") from error

    def model(self, auto: Any) -> Model:
        """The model, as ``auto`` loads it; one that was passed as an object stays as it is."""
        if isinstance(self.name, Model):
            return self.name.eval()
        source = locate(self.name, self.hub)
        target, dtype = self.target, self.dtype
        if dtype == "auto":
            dtype = torch.bfloat16 if fast_bfloat16(target) else torch.float32
        more = {} if dtype is None else {"dtype": dtype}
        config = self.given.get("config")
        model: Model = auto.from_pretrained(source.name, config=config, device=target, **more, **source.options())
        return pack(model) if self.packed and target.type == "cpu" and can_pack() else model

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
        if (source := self.source) is None:
            raise InputTypeError(f"`model` is an object, so `{kind}` must be passed too.")
        return load(source.name, **source.options())


def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return device.type == "cpu" and any(bool(getattr(torch.cpu, check, bool)()) for check in checks)
