"""What a call of ``from_pretrained`` says of weights of few bits: whether they stay so, or are rounded while they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from transept.checkpoint.few_bits import Replace, replace
from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.keys import KeyMap
from transept.checkpoint.quantized import QuantizedStore, Store
from transept.errors import InputError, refuse
from transept.layers.linear import Conv1D
from transept.quantized.grouped import can_multiply
from transept.quantized.settings import BitsAndBytesConfig, rounding_of


class FewBits:
    """The settings, which are taken out of the options of a call.

    Args:
        options: of ``from_pretrained``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.settings = options.pop("quantization_config", None)
        short = {name: options.pop(name) for name in ("load_in_8bit", "load_in_4bit") if name in options}
        if any(short.values()):
            refuse(self.settings is not None, "bits are given by `quantization_config` or by `load_in_...`, not by both.")
            self.settings = BitsAndBytesConfig(**short)

    def keeps(self, store: Store, device: torch.device, *, alone: bool) -> bool:
        """Whether layers multiply by the bits that the checkpoint has; ``alone`` where no other process shares the model."""
        stored = isinstance(store, GGUFStore | QuantizedStore)
        unpacks = getattr(self.settings, "dequantize", False)
        return stored and alone and device.type == "cpu" and not unpacks and can_multiply()

    def rounds(self, model: Any, keys: KeyMap, store: Store, device: torch.device, *, alone: bool) -> Replace | None:
        """Puts rounded layers in the place of a plain checkpoint's, one by one while they are read.

        Raises:
            InputError: they cannot be on that device, or when processes share the model.
        """
        if self.settings is None or isinstance(store, GGUFStore | QuantizedStore):
            return None
        if device.type != "cpu" or not alone:
            raise InputError(f"weights of few bits are for one process on the CPU, not for {str(device)!r}.")
        rounding, output = rounding_of(self.settings), model.get_output_embeddings()
        make = rounding.maker(writes=model.can_generate())

        def round_layer(model: nn.Module, name: str) -> None:
            path, _, leaf = name.rpartition(".")
            layer = model.get_submodule(path)
            plain = leaf == "weight" and type(layer) in (nn.Linear, Conv1D) and layer is not output
            if plain and not rounding.skips(keys.recipe(name).stored.removesuffix(".weight")):
                replace(model, path, make(layer))

        return round_layer
