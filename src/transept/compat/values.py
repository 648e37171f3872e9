"""Kinds of values, and what turns one into another, as code of the reference asks for them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import Any

import numpy as np

from transept.environment.packages import copy_func, strtobool
from transept.training.state import ExplicitEnum

__all__ = [
    "ContextManagers",
    "PaddingStrategy",
    "TensorType",
    "TruncationStrategy",
    "cached_property",
    "copy_func",
    "strtobool",
]
__all__ += ["can_return_tuple", "is_numpy_array", "is_tensor", "is_torch_device", "is_torch_dtype", "is_torch_tensor"]
__all__ += ["to_numpy", "to_py_obj"]


class PaddingStrategy(ExplicitEnum):
    LONGEST = "longest"
    MAX_LENGTH = "max_length"
    DO_NOT_PAD = "do_not_pad"


class TensorType(ExplicitEnum):
    PYTORCH = "pt"
    NUMPY = "np"


class TruncationStrategy(ExplicitEnum):
    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"
    LONGEST_FIRST = "longest_first"
    DO_NOT_TRUNCATE = "do_not_truncate"


class ContextManagers:
    """Enters several contexts together, and leaves them in the opposite order."""

    def __init__(self, context_managers: Iterable[AbstractContextManager[Any]]) -> None:
        self.context_managers, self.stack = list(context_managers), ExitStack()

    def __enter__(self) -> None:
        for context in self.context_managers:
            self.stack.enter_context(context)

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)


def _is_of_torch(value: Any, kind: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, kind))


def is_torch_tensor(x: Any) -> bool:
    return _is_of_torch(x, "Tensor")


def is_torch_device(x: Any) -> bool:
    return _is_of_torch(x, "device")


def is_torch_dtype(x: Any) -> bool:
    """Whether it is a type of tensors, or the name of one."""
    return _is_of_torch(getattr(sys.modules.get("torch"), x, None) if isinstance(x, str) else x, "dtype")


def is_numpy_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def is_tensor(x: Any) -> bool:
    return is_torch_tensor(x) or is_numpy_array(x)


def to_numpy(obj: Any) -> Any:
    """An array of a tensor or of a list; of a mapping, one of such."""
    if isinstance(obj, Mapping):
        return {name: to_numpy(value) for name, value in obj.items()}
    if isinstance(obj, list | tuple):
        return np.array(obj)
    return obj.detach().cpu().numpy() if is_torch_tensor(obj) else obj


def to_py_obj(obj: Any) -> Any:
    """Numbers and lists of a tensor or an array; within lists, tuples and mappings, too."""
    if isinstance(obj, Mapping):
        return {name: to_py_obj(value) for name, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_py_obj(value) for value in obj]
    return obj.tolist() if is_tensor(obj) or isinstance(obj, np.number) else obj


def can_return_tuple(func: Any) -> Any:
    """Let a method with ``return_dict=False``, or of a model whose config says so, give a tuple in place of an output."""
    from functools import wraps

    @wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("return_dict", None)
        wanted = getattr(getattr(self, "config", None), "return_dict", True) if wanted is None else wanted
        output = func(self, *args, **kwargs)
        return output if wanted or isinstance(output, tuple) else output.to_tuple()

    return wrapper
