"""How the classes of models are made: their signatures, and constructors that end with a whole model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transept.core.inputs import explicit

FAMILIES = "transept.models."  # what the modules of families begin with


def own_forward(cls: type) -> Callable[..., Any]:
    """The forward pass that was written by hand: a base may have been given its own before others were joined to it."""
    found = (each.__dict__["forward"] for each in cls.__mro__ if "forward" in each.__dict__)
    own: Callable[..., Any] = next(each for each in found if inspect.unwrap(each) is each)
    return own


def family_class(cls: type) -> Any:
    """The class of a family that a class is or begins with, where its constructor leaves a whole model."""
    bases = (base for base in cls.__mro__ if f"{base.__module__}.".startswith(FAMILIES) and hasattr(base, "of_user"))
    base = next((base for base in bases if not base.of_user), None)
    return base if base is not None and base.names is cls.names else None  # type: ignore[attr-defined]


def _completed(init: Callable[..., None], cls: type) -> Callable[..., None]:
    """A constructor of a family that ends with a whole model where one of a user's begins with it."""

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self).of_user and family_class(type(self)) is cls:
            self.ready()
            self.__dict__["_whole"] = {*self._modules, *self._parameters, *self._buffers}

    return call


class Built(type):
    """Gives a class its explicit signature, and makes a call of it end with the initialisation of what it built.

    A class that a user derives from one of a family begins with a whole model, and says in ``post_init`` when it has the rest.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace)
        base: Any = family_class(cls)
        if base is not None and base is not cls:
            type.__setattr__(cls, "of_user", True)
            if not getattr(base.__dict__.get("__init__"), "completes", False):
                base.__init__ = _completed(base.__init__, base)
                base.__init__.completes = True
        names = cls.arguments()  # type: ignore[attr-defined]
        if names and "main_input_name" not in namespace:
            type.__setattr__(cls, "main_input_name", names[0])
        if "forward" not in namespace and names:
            options = None if cls.passes_on else cls.options()  # type: ignore[attr-defined]
            type.__setattr__(cls, "forward", explicit(own_forward(cls), names, options))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = super().__call__(*args, **kwargs)
        (model.tie_weights if cls.of_user else model.built)()  # type: ignore[attr-defined]
        return model
