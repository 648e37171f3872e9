"""Lets ``import transformers`` find this package, for a program and for the libraries that it imports.

``import transept.as_transformers`` does so as the first line of a program, ``python -m transept --as-transformers PROGRAM``
for one that is not changed. Nothing else does. Processes that a program starts anew (``spawn``) need the first form.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from transept.compat.names import PACKAGE, is_of_family
from transept.environment.packages import REFERENCE_VERSION
from transept.errors import MissingNameError, UnsupportedError, refuse

THEIRS = "transformers"


class AsTransformers(DistributionFinder, Loader):
    """Finds our modules under the reference's names, and tells its version to those who ask."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Our module for one of the reference's (``ImportError``: a class that is not here)."""
        package, _, name = fullname.partition(".")
        if package != THEIRS:
            return None
        try:
            is_there = not name or find_spec(f"{PACKAGE}.{name}") is not None
        except ImportError as error:
            if not is_of_family(name):
                raise
            # Libraries import classes of many families and use those of the model at hand: that is when to say it.
            setattr(sys.modules[THEIRS], name, AbsentClass(name, (), {"why": str(error)}))
            return None
        return ModuleSpec(fullname, self, is_package=True) if is_there else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Our module itself, so that classes are the same under both names; the package alone is another, for its version."""
        _, _, name = spec.name.partition(".")
        if not name:
            return _Package(spec.name)
        module = importlib.import_module(f"{PACKAGE}.{name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave a module of ours the specification that importing it under another name replaced."""
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state

    def find_distributions(self, context: DistributionFinder.Context = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        """The reference's version, as ``importlib.metadata`` tells it."""
        if context.name in (THEIRS, None):
            yield _Installed()


class AbsentClass(type):
    """A class of a family that is not here: it can be imported and asked for, and says so where it is used."""

    why: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(cls.why)

    def __getattr__(cls, name: str) -> NoReturn:
        raise MissingNameError(cls.why)


class _Package(ModuleType):
    __version__ = REFERENCE_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(importlib.import_module(PACKAGE), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(PACKAGE))


class _Installed(Distribution):
    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: {THEIRS}\nVersion: {REFERENCE_VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Nothing: there are no files."""
        raise UnsupportedError(f"{THEIRS} is {PACKAGE} here, and has no file {path}.")


def install() -> None:
    """Let ``import transformers`` find this package from now on (``UnsupportedError``: the other one was imported before)."""
    if any(isinstance(finder, AsTransformers) for finder in sys.meta_path):
        return
    if THEIRS in sys.modules:
        hint = f"Let `import {PACKAGE}.as_transformers` be the first line of the program."
        raise UnsupportedError(f"{THEIRS} was imported before, so that {PACKAGE} cannot stand in for it.", hint=hint)
    sys.meta_path.insert(0, AsTransformers())


def run(arguments: Sequence[str]) -> None:
    """Run a program, a file or (after ``-m``) a module, with its arguments."""
    is_module = arguments[:1] == ["-m"]
    program, *rest = arguments[is_module:] or [""]
    usage = f"Pass a file, or -m and a module: python -m {PACKAGE} --as-transformers PROGRAM ARGUMENTS."
    refuse(not program, "--as-transformers names no program.", usage)
    install()
    sys.argv = [program, *rest]
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(program)
        runpy.run_path(program, run_name="__main__")
