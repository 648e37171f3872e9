"""Rounding of a model's weights to few bits, for inference on the CPU.

A model is not the same afterwards: it answers a little differently, and its weights cannot be saved or trained; adapters on top
of it can.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from transept.adapt.pack import join_projections
from transept.core.model import Model
from transept.errors import InputError
from transept.layers.linear import Conv1D
from transept.layers.mlp import MLP
from transept.quantized.eight_bits import QuantizedForManyRows
from transept.quantized.settings import Rounding, of_eight_bits
from transept.quantized.weights import GROUP

M = TypeVar("M", bound=Model)

# Positions that a feed-forward layer takes at a time: few enough that what stands between its products stays in the caches, and
# more of them where products take twice as long.
_CHUNK = 256 if torch.cpu._is_vnni_supported() else 512


def quantize(model: M, bits: int = 8, group_size: int = GROUP) -> M:
    """Round a model's linear layers to eight or four bits in place, for inference on the CPU.

    Embeddings stay, and so do a mixture's experts and its routers, whose choices small errors would change. With four bits the
    output layer has eight, and ``group_size`` numbers of a row, a multiple of 8 such as 32 or 128, have one scale.

    Raises:
        InputError: the model is in training mode or not on the CPU, the processor cannot do it, or there are no such bits.
    """
    writes = model.can_generate()
    make, eight = Rounding(bits, group_size).maker(writes=writes), of_eight_bits(writes=writes)
    if model.training or model.device.type != "cpu":
        mode = "training" if model.training else "evaluation"
        raise InputError(
            f"a model on {model.device.type!r} in {mode} mode cannot be quantized.",
            hint="Only models on the CPU in evaluation mode can.",
        )
    output = model.get_output_embeddings()
    for module in tuple(model.modules()):
        join_projections(module, make)
        if make is QuantizedForManyRows and isinstance(module, MLP):
            module.chunk_size = module.chunk_size or _CHUNK
        for name, child in module.named_children():
            if isinstance(child, nn.Linear | Conv1D) and not child._forward_hooks:
                setattr(module, name, eight(child) if child is output else make(child))
    return model
