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


def completed(init: Callable[..., None], cls: type) -> Callable[..., None]:
    """A constructor of ``cls`` that ends with a whole model: initialised, placed and tied, once the outermost one has ended.

    A class that a user derives from one of a family begins with a whole model, and says in ``post_init`` when it has the rest.
    """

    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        is_outermost = self.__dict__.setdefault("_constructor", cls) is cls
        init(self, *args, **kwargs)
        if type(self).of_user and family_class(type(self)) is cls:
            self.ready()
            self.__dict__["_whole"] = {*self._modules, *self._parameters, *self._buffers}
        if is_outermost:
            del self.__dict__["_constructor"]
            (self.tie_weights if type(self).of_user else self.built)()

    call.completes = True  # type: ignore[attr-defined]
    return call


def complete(cls: Any) -> None:
    """Let the constructor of a class of models end with a whole model, and that of a family that a user derives it from."""
    base = family_class(cls)
    cls.of_user = cls.of_user or (base is not None and base is not cls)
    if "__init__" in cls.__dict__ or not hasattr(cls.__init__, "completes"):
        cls.__init__ = completed(cls.__init__, cls)
    if cls.of_user and base is not None and "__init__" not in base.__dict__:
        base.__init__ = completed(base.__init__, base)


def sign(cls: Any) -> None:
    """Give the forward pass of a class of models the signature that its ``arguments`` and ``options`` say."""
    names = cls.arguments()
    if names and "main_input_name" not in cls.__dict__:
        cls.main_input_name = names[0]
    if names and "forward" not in cls.__dict__:
        cls.forward = explicit(own_forward(cls), names, None if cls.passes_on else cls.options())
