"""What code of the reference derives its own collators from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transept.errors import InputError

InputDataClass = Any
DataCollator = Callable[[list[Any]], dict[str, Any]]


class DataCollatorMixin:
    """Lets ``torch_call`` make batches of tensors, and ``numpy_call`` of arrays; ``return_tensors`` says which."""

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        wanted = return_tensors or self.return_tensors
        if wanted not in ("pt", "np"):
            raise InputError(f"return_tensors is {wanted!r}.", hint='Pass "pt" or "np".')
        return self.torch_call(features) if wanted == "pt" else self.numpy_call(features)

    def torch_call(self, features: list[Any]) -> Any:
        """A batch of tensors; a subclass makes it."""
        raise NotImplementedError

    def numpy_call(self, features: list[Any]) -> Any:
        """A batch of arrays; a subclass makes it."""
        raise NotImplementedError
