"""Weights of eight bits for inference on the CPU: a fourth of what float32 reads for every token that is written.

Each row of a weight is rounded to 255 steps of its own (symmetric, per output channel) and inputs are rounded when they come
(dynamic quantization), so that products are those of integers (Jacob et al. 2018). A model is not the same afterwards: it
answers a little differently, and its weights cannot be saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.core.model import Model
from transept.errors import InputError
from transept.layers.moe import SparseMLP
from transept.layers.packed import Packed

M = TypeVar("M", bound=Model)

# Inputs that the operator of compiled programs takes at a time.
_STEP = 64


def can_quantize() -> bool:
    """Whether this PyTorch and processor multiply integers."""
    return torch.backends.quantized.engine in ("x86", "fbgemm", "onednn")


def quantize(model: M) -> M:
    """Round a model's linear layers to eight bits in place, for inference on the CPU.

    Embeddings stay, and so do a mixture's experts and its routers, whose choices small errors would change.

    Raises:
        InputError: the model is in training mode or not on the CPU, or the processor cannot do it.
    """
    if not can_quantize():
        raise InputError(f"weights of eight bits cannot be multiplied here (engine {torch.backends.quantized.engine!r}).")
    if model.training or model.device.type != "cpu":
        mode = "training" if model.training else "evaluation"
        raise InputError(
            f"a model on {model.device.type!r} in {mode} mode cannot be quantized.",
            hint="Only models on the CPU in evaluation mode can.",
        )
    for module in tuple(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and not isinstance(module, SparseMLP):
                setattr(module, name, QuantizedLinear(child))
    return model


class QuantizedLinear(Packed):
    """A linear layer with a weight (out, in) of eight bits.

    Args:
        source: the layer to round.
    """

    scale: Tensor

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        weight = source.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        scale = scale.bfloat16().float()  # compiled programs multiply by it in that type
        rounded = (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        places = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():
            # PyTorch wants to replace its tensors of integers, and has nothing yet that is as fast as these products.
            warnings.filterwarnings("ignore", ".*quantized tensor creation functions.*", UserWarning)
            tensor = torch._make_per_channel_quantized_tensor(rounded, scale.double(), places, 0)
        self.packed = torch.ops.quantized.linear_prepack(tensor, None)
        self.register_buffer("scale", scale.bfloat16(), persistent=False)
        self.packed_bytes = rounded.nbytes
        bias: Tensor | None = source.bias  # absent where the layer was made without one
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        # Without these instructions, sums of two products of eight bits overflow, and inputs get seven.
        self.narrow = not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in the type of the input."""
        if x.ndim == 1:
            row: Tensor = self(x[None])[0]
            return row
        out: Tensor = x.float()
        if self.plain is not None:
            out = self._compiled(x, self.plain)
        elif x.numel() == self.in_features:
            out = torch.ops.quantized.linear_dynamic(out, self.packed, self.narrow)
        else:
            # The operator has one step for all rows: those of small values would be lost beside others.
            size = out.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            out = torch.ops.quantized.linear_dynamic(out / size, self.packed, self.narrow) * size
        out = out if self.bias is None else out + self.bias
        return out.to(x.dtype)

    def _compiled(self, x: Tensor, plain: Tensor) -> Tensor:
        """As compilers know it: inputs of 16 bits by weights of eight, which reads as little and is more exact."""
        rows = F.pad(x.reshape(-1, self.in_features).bfloat16(), (0, plain.shape[1] - self.in_features))
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, plain, self.scale)
        return out.view(*x.shape[:-1], self.out_features)

    def unpacked(self) -> Tensor:
        """The rounded weight (out, in), with zeros up to a whole step of the operator, which reads on behind other ends."""
        whole: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].int_repr()
        return F.pad(whole, (0, -self.in_features % _STEP))

    @property
    def weight(self) -> NoReturn:
        """There is none any more.

        Raises:
            InputError: always.
        """
        raise _rounded()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        raise _rounded()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise _rounded()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay, as long as the model stays on the CPU.

        Raises:
            InputError: it is moved.
        """
        if (place := fn(torch.empty(0)).device.type) != "cpu":
            raise InputError(f"a model with weights of eight bits cannot be moved to {place!r}.", hint="Load it again.")
        return self  # the bias is added to sums in float32, whatever type the model has

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _rounded() -> InputError:
    return InputError(
        "the model's weights are rounded to eight bits, and are there no more to be read, saved or replaced.",
        hint="Load the model again, without rounding it.",
    )
