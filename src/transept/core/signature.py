"""Explicit signatures: a model's forward pass takes its inputs by name and by position, and says which they are.

A backbone declares in ``reads`` the names of its inputs, in the order in which they are passed by position, with ``labels``
where tasks take theirs. A task puts its own labels there and leaves out what it does not take. From this one declaration
follow the signature that ``inspect`` and libraries see, the arguments by position, and the error about an unknown one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from transept.errors import InputTypeError, nearest

# What was an argument of the reference once, and what to do in its place.
GONE = {
    "cache_position": "Leave it out: positions follow from the cache, or pass `position_ids`.",
    "head_mask": "Leave it out: heads cannot be masked; remove their weights in place of it.",
}


def generic_forward(cls: type) -> Callable[..., Any]:
    """The forward pass that a class inherits or has, without an explicit signature around it."""
    found = (vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base))
    forward: Callable[..., Any] = next(each for each in found if not hasattr(each, "__wrapped__"))
    return forward


def explicit(forward: Callable[..., Any], names: Sequence[str], more: Sequence[str] = ()) -> Callable[..., Any]:
    """The forward pass with these arguments.

    Args:
        forward: takes them by keyword.
        names: the arguments that may be passed by position, in their order.
        more: others, which are passed by keyword.
    """
    known, most = {*names, *more}, len(names)

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **inputs: Any) -> Any:
        if args:
            if len(args) > most:
                raise InputTypeError(f"{type(self).__name__} takes {most} inputs by position, but got {len(args)}.")
            for name, value in zip(names, args):
                if name in inputs:
                    raise InputTypeError(f"{type(self).__name__} got `{name}` twice: by position and by name.")
                inputs[name] = value
        if not inputs.keys() <= known:
            name = next(name for name in inputs if name not in known)
            hint = GONE.get(name) or nearest(name, [*names, *more])
            raise InputTypeError(f"{type(self).__name__} takes no input `{name}`.", hint=hint)
        return forward(self, **inputs)

    usual = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in names]
    others = [name for name in dict.fromkeys(more) if name not in names]
    rest = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in others]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([own, *usual, *rest])  # type: ignore[attr-defined]
    return call
