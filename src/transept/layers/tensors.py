"""The tensors that models compute with: dense ones of the usual types, with values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError

_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def check_tensors(inputs: Mapping[str, Any], model: Any = None, *, unsigned: bool = False) -> None:
    """Refuse tensors among a model's inputs, also in lists and mappings, that it cannot compute with (``InputError``).

    These are nested, sparse and quantized ones, those of rare types, and those on the meta device unless the model is there.
    ``unsigned`` integers of more than 8 bits pass where the caller converts them.
    """
    for name, value in inputs.items():
        inner = _tensors(value) if isinstance(value, Mapping | list | tuple) else ()
        for tensor in (value,) if isinstance(value, Tensor) else inner:
            if tensor.is_nested:
                hint = f"Pass torch.nested.to_padded_tensor({name}, 0), and an attention mask where the model takes one."
                raise InputError(f"`{name}` must be a dense tensor, but is nested.", hint=hint)
            if tensor.layout != torch.strided:
                hint = f"Pass {name}.to_dense()."
                raise InputError(f"`{name}` must be a dense tensor, but is {tensor.layout}.", hint=hint)
            if tensor.dtype not in _DTYPES and not (unsigned and tensor.dtype in _UNSIGNED):
                hint = f"Pass {name}.{'dequantize()' if tensor.is_quantized else 'float() or .long()'}."
                raise InputError(f"`{name}` is of {tensor.dtype}, which models do not compute with.", hint=hint)
            if tensor.is_meta and (model is None or model.device.type != "meta"):
                raise InputError(f"`{name}` has no values (it is on the meta device).", hint="Pass a tensor of numbers.")


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a list or a mapping."""
    if isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, Tensor):
            yield item
        else:
            yield from _tensors(item)


def is_plain_call(x: Tensor) -> bool:
    """Whether a layer computes numbers of float32 on the CPU, and nothing records or traces it."""
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return not watched and type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu"
