"""What preprocessors return: a dictionary whose values are also attributes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from transept.errors import InputError, InputTypeError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BatchFeature(dict[str, Any]):
    """A model's inputs by name, such as ``pixel_values`` (B, C, H, W) or ``input_values`` (B, T).

    ``tensor_type`` is ``"pt"`` for torch tensors, ``"np"`` for numpy arrays, ``None`` to leave values as they are.
    ``InputError``: another one, or rows of unequal lengths that make no tensor.
    """

    def __init__(self, data: Mapping[str, Any] | None = None, tensor_type: str | None = None) -> None:
        super().__init__(data or {})
        self.convert_to_tensors(tensor_type)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self) or 'nothing'}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> Self:
        """Turn every value into a tensor, in place, with an axis for one row first where asked to."""
        check_tensor_type(tensor_type)
        if tensor_type is not None:
            for name, value in self.items():
                self[name] = _as_tensor(name, [value] if prepend_batch_axis else value, tensor_type)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """``torch.Tensor.to`` of every tensor, in place; a dtype is for those of floating point alone."""
        import torch

        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        for name, value in self.items():
            if isinstance(value, torch.Tensor):
                floating = value.is_floating_point()
                self[name] = value.to(*args, **kwargs) if floating else value.to(device, non_blocking=non_blocking)
        return self


def needed(module: str, package: str, extra: str, purpose: str) -> Any:
    """An optional module, whose absence is a ``MissingExtraError``."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # soundfile raises OSError where its C library is missing
        raise MissingExtraError(package, extra, purpose) from error


def check_tensor_type(tensor_type: str | None) -> None:
    """Raise ``InputError`` unless ``tensor_type`` is known."""
    if tensor_type not in ("pt", "np", None):
        raise InputError(f"return_tensors is {tensor_type!r}.", hint='Pass "pt", "np" or None.')


def as_numpy(value: Any) -> NDArray[Any] | None:
    """``value`` as a numpy array if it is an array or a tensor, else ``None``. Imports no torch."""
    np, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if np is not None and isinstance(value, np.ndarray):
        return value  # type: ignore[no-any-return]
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # type: ignore[no-any-return]


def _as_tensor(name: str, value: Any, tensor_type: str) -> Any:
    """A value, or rows of one shape, as a tensor or an array (``InputError``: unequal rows; ``InputTypeError``: no numbers)."""
    import numpy as np

    rows = list(value) if isinstance(value, list | tuple) else []
    try:
        if tensor_type == "pt":
            import torch

            if isinstance(value, torch.Tensor):
                return value
            if rows and all(isinstance(row, torch.Tensor) for row in rows):
                return torch.stack(rows)
        array = as_numpy(value)
        if array is None:
            array = np.asarray([row if (found := as_numpy(row)) is None else found for row in rows] if rows else value)
        if array.dtype.kind in "OUS":
            raise ValueError("it holds what is no number")
    except (ValueError, RuntimeError) as error:
        sizes = {row.shape if hasattr(row, "shape") else len(row) for row in rows if hasattr(row, "__len__")}
        if len(sizes) > 1:
            some = ", ".join(map(str, sorted(sizes)[:4])) + (", ..." if len(sizes) > 4 else "")
            what = f"has rows of different {'lengths' if isinstance(min(sizes), int) else 'shapes'} ({some})"
            hint = (
                "Pad texts and sounds with padding=True, and truncation=True where they are too long; give pictures one size."
            )
            raise InputError(f"{name!r} {what} and makes no tensor.", hint=hint) from error
        raise InputTypeError(f"{name!r} makes no tensor: {error}.") from error
    array = array if array.size else array.astype(np.int64)
    if tensor_type == "np":
        return array
    return torch.from_numpy(array) if array.dtype != np.float64 else torch.tensor(value)
