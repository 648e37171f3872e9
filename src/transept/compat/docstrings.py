"""Decorators with which the reference's code writes docstrings. Of models of users' own they add what they are passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Decorator = Callable[[Any], Any]


def add_start_docstrings(*docstr: str) -> _Decorator:
    """Put texts before a docstring."""

    def add(fn: Any) -> Any:
        fn.__doc__ = "".join(docstr) + (fn.__doc__ or "")
        return fn

    return add


def add_end_docstrings(*docstr: str) -> _Decorator:
    """Put texts after a docstring."""

    def add(fn: Any) -> Any:
        fn.__doc__ = (fn.__doc__ or "") + "".join(docstr)
        return fn

    return add


add_start_docstrings_to_model_forward = add_start_docstrings


def _as_it_is(*texts: Any, **named: Any) -> _Decorator:
    """Leave a docstring as it is: what the reference would add describes its own classes."""
    return lambda fn: fn


add_code_sample_docstrings = replace_return_docstrings = _as_it_is


def auto_docstring(obj: Any = None, **named: Any) -> Any:
    """Leave a docstring as it is, with arguments and without."""
    return (lambda fn: fn) if obj is None else obj
