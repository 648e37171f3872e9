"""What callers of the reference pass to ``from_pretrained`` and ``save_pretrained``, and what comes of it here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from transept.config import Config
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError

# They change nothing: memory is always saved, and the environment tells the proxies.
_NEEDLESS = frozenset(
    [
        *("low_cpu_mem_usage", "max_memory", "proxies", "resume_download", "weights_only"),
        *("offload_folder", "offload_state_dict", "offload_buffers"),
    ]
)
_QUANTIZERS = ("quantization_config", "load_in_8bit", "load_in_4bit")


def needless(name: str) -> bool:
    """Whether an argument of ``from_pretrained`` is accepted and of no effect."""
    return name in _NEEDLESS


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what the reference has and this library has otherwise.

    Raises:
        UnsupportedError: naming what there is in its place.
    """
    for name in _QUANTIZERS:
        if options.get(name):
            hint = "Load the model without it, then call transept.adapt.quantize.quantize(model)."
            raise UnsupportedError(f"`{name}` is not supported: models are quantized after loading.", hint=hint)
    kernel = options.get("attn_implementation")
    if isinstance(kernel, str) and kernel.removeprefix("paged|").startswith(("flash", "kernels-community")):
        hint = (
            'Use attn_implementation="sdpa", which runs PyTorch\'s flash kernel where device and type allow, "flex" or "eager".'
        )
        raise UnsupportedError(f"there is no attention implementation {kernel!r} here.", hint=hint)


def directory_name(directory: Any) -> str:
    """A directory to save into, as text.

    Raises:
        InputTypeError: it is neither a text nor a path, or empty.
    """
    if not isinstance(directory, str | os.PathLike) or not (name := os.fspath(directory)):
        raise InputTypeError(f"`save_directory` is a directory to save into, not {directory!r:.60}.")
    return str(name)


def dtype_named(wanted: str | torch.dtype, config: Config, store: Mapping[str, Any]) -> torch.dtype:
    """The type that the weights are to have.

    Raises:
        InputError: the caller asked for what is no floating-point type.
        ConfigError: the config did.
    """
    if isinstance(wanted, torch.dtype) and wanted.is_floating_point:
        return wanted
    if wanted == "auto" and not config.dtype:
        kinds = (store[key].dtype for key in store)
        return next((kind for kind in kinds if kind.is_floating_point), torch.get_default_dtype())
    name = str(config.dtype if wanted == "auto" else wanted)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        rule = f"must be 'auto' or a floating-point type such as 'float32', but is {name[:80]!r}."
        raise ConfigError(f"`dtype` of {type(config).__name__} {rule}") if wanted == "auto" else InputError(f"`dtype` {rule}")
    return found


def device_named(device: str | int | torch.device | None, device_map: Any) -> torch.device:
    """The one place that a whole model goes to.

    Raises:
        InputError: no device, one that is not there, or a map that would part the model.
    """
    if isinstance(device_map, Mapping):
        if set(device_map) != {""}:
            raise InputError(f"`device_map` places whole models: {{'': device}}, but is {dict(device_map)!r}.")
        device_map = device_map[""]
    if device_map == "auto":
        device_map = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    chosen = device if device is not None else device_map
    if chosen is None:
        return torch.get_default_device()
    try:
        place = torch.device(chosen)
        torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError) as error:
        hint = "Use 'cpu', 'auto', or an accelerator that this machine has, such as 'cuda' or 'cuda:0'."
        name = str(chosen) if isinstance(chosen, torch.device) else chosen
        raise InputError(f"{name!r} is not a device of this machine.", hint=hint) from error
    if place.type == "meta":
        raise InputError("'meta' holds no weights.", hint="Build the model under torch.device('meta') from its config alone.")
    return place
