"""Names of the reference: the modules that code imports from, and what to say of a name that is not here."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from types import FunctionType, ModuleType
from typing import Any

from transept.compat.table import ABSENT, FAMILY_FILE, FRAMEWORKS, MODULES, PARTS
from transept.errors import UnsupportedError

PACKAGE = __name__.partition(".")[0]
# What names of a family's models and of its preprocessing end in.
_MODEL = re.compile(r"(PreTrainedModel|LMHeadModel|EncoderModel|DoubleHeadsModel|MTModel|Model|For[A-Z]\w*|Config)$")
_READER = re.compile(r"(TokenizerFast|Tokenizer|ImageProcessorFast|ImageProcessor|FeatureExtractor|Processor)$")
_OUTSIDE = ("tokenizers", "typing")  # places that are no modules of ours
_NOTHING = object()


def is_of_family(name: str) -> bool:
    """Whether a name is one of a family's classes, such as ``BertModel`` or ``BertTokenizer``."""
    return any(ending.sub("", name) not in ("", name) for ending in (_MODEL, _READER))


def explain(name: str, known: Iterable[str], where: str = PACKAGE) -> str:
    """What to say of a name that a module does not have."""
    known = list(known)
    what = f"{where} has no name {name!r}."
    if name in ABSENT:
        return f"{what} {ABSENT[name]}"
    if match := FRAMEWORKS.fullmatch(name):
        return f"{what} Models are PyTorch's: use {name.removeprefix(match[1])}."
    for ending in (_MODEL, _READER):
        family = ending.sub("", name)
        families = {ending.sub("", other) for other in known if ending.search(other)}
        if family not in ("", name) and not difflib.get_close_matches(family, families, n=1, cutoff=0.85):
            return f"{what} Its family is not here (yet); {PACKAGE}.core.auto.model_types() lists those that are."
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"{what} Did you mean {near[0]!r}?" if near else what


def _look_up(name: str, places: Iterable[str]) -> Any:
    """What is called ``name`` in the first of the places of the table that has it, or nothing."""
    for place in places:
        path, _, pairs = place.partition(": ")
        names = {pair.rpartition(" as ")[2]: pair.partition(" as ")[0] for pair in pairs.split(", ")}  # theirs -> ours
        if pairs and name not in names:
            continue
        module = importlib.import_module(path if path in _OUTSIDE else f"{PACKAGE}.{path}")
        if (value := getattr(module, names.get(name, name), _NOTHING)) is not _NOTHING:
            return value
    return _NOTHING


def _is_layer(value: Any) -> bool:
    """Whether a name of a family's file is a class of layers, which the reference builds from a config."""
    kinds = attribute("layers.block", "Block"), attribute("layers.attention", "Attention"), attribute("layers.mlp", "MLP")
    return isinstance(value, type) and issubclass(value, kinds)


def attribute(place: str, name: str) -> Any:
    """What one of our modules has under a name."""
    return getattr(importlib.import_module(f"{PACKAGE}.{place}"), name)


class FamilyModule(ModuleType):
    """A module of a family; what it shows of other files cannot be replaced in it, since models look for it in those files."""

    def __setattr__(self, name: str, value: Any) -> None:
        elsewhere = not name.startswith("_") and name not in vars(self) and not isinstance(value, ModuleType)
        if elsewhere and _is_inner(getattr(self, name, None)):
            what = f"models do not look for {name!r} in {self.__name__}, and what takes its place there would not be used."
            raise UnsupportedError(what, hint="Put modules of your own in the places of those of a model.")
        super().__setattr__(name, value)


def _is_inner(value: Any) -> bool:
    """Whether a name of a family's module is a function or a class of parts, and no model."""
    if not isinstance(value, type):
        return isinstance(value, FunctionType)
    return issubclass(value, attribute("layers.links", "nn").Module) and not issubclass(value, attribute("core.model", "Model"))


class ModuleFinder(MetaPathFinder, Loader):
    """Finds the modules of the table, and explains names that are not there.

    ``known`` are the package's public names, and the modules that define them.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module of that name, where there is one (``ImportError``: a class that is not here)."""
        package, _, name = fullname.partition(".")
        if package != PACKAGE:
            return None
        if name in MODULES:
            return ModuleSpec(fullname, self, is_package=True)  # a package, so that absent names come here
        parent, _, last = name.rpartition(".")
        if parent == "models" and last.isidentifier():
            return self._family(fullname, last, path)
        if parent.startswith("models.") and (match := FAMILY_FILE.fullmatch(last)) and parent == f"models.{match[1]}":
            return ModuleSpec(fullname, self, is_package=True)
        if last in ABSENT or (last[:1].isupper() and last not in self.known):
            raise ImportError(explain(last, self.known, fullname.rpartition(".")[0]), name=fullname)
        if parent in MODULES:  # Python would say less; that the error names no module makes it pass through
            raise ModuleNotFoundError(explain(last, self.known, f"{package}.{parent}"))
        return None

    def _family(self, fullname: str, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """The module of a family, below which the reference's files are; of one by another name, a module that is like it."""
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            is_type = name in attribute("core.auto", "model_types")()
            return ModuleSpec(fullname, self, is_package=True) if is_type else None
        folders = spec.submodule_search_locations or []
        loader = _Family(fullname, spec.origin, self)
        return spec_from_file_location(fullname, spec.origin, loader=loader, submodule_search_locations=folders)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module's names be looked up when they are asked for."""
        _, name, *below = module.__name__.split(".", 2)
        path = ".".join([name, *below])
        if path == "as_transformers":
            importlib.import_module(f"{PACKAGE}.compat.{path}").install()
        if path in MODULES:
            self.open(module, MODULES[path])
        else:
            self.open(module, PARTS, below[0].partition(".")[0])

    def open(self, module: ModuleType, places: Sequence[str], family: str | None = None) -> None:
        """Let a module have the names of a family, of some places and of the package beside those that it has."""

        def get(name: str) -> Any:
            if family is not None and not name.startswith("__"):
                source = attribute("core.auto", "family")(family)
                if hasattr(source, name) and not _is_layer(getattr(source, name)):
                    return getattr(source, name)
                config = attribute("core.auto", "config_class")(family)  # of parts without the family's name before them
                if (part := attribute("core.part_classes", "part_class")(name, config)) is not None:
                    return part
            return self.get(name, module.__name__, places)

        module.__getattr__ = get  # type: ignore[method-assign]
        if places is PARTS:
            module.__class__ = FamilyModule

    def _inner(self, name: str, at: int) -> Any:
        """A family's class to derive from, or that of a kind of its parts; ``at`` is where the family's name ends."""
        config, kind = self.get(f"{name[:at]}Config", PACKAGE, ()), name[at:]
        if kind == "PreTrainedModel":
            return attribute("core.custom", "base_class")(name, config)
        return attribute("core.part_classes", "part_class")(kind, config)

    def get(self, name: str, where: str, places: Iterable[str]) -> Any:
        """What a module has under a name (``AttributeError``: nothing)."""
        if name.startswith("__"):  # which tools ask of every module, and nobody misspells
            raise AttributeError(f"{where} has no name {name!r}.")
        if name in self.known:
            return getattr(importlib.import_module(self.known[name]), name)
        if (path := f"{where}.{name}".partition(".")[2]) in MODULES:
            return importlib.import_module(f"{PACKAGE}.{path}")
        for at in range(1, len(name)):
            if f"{name[:at]}Config" in self.known and (found := self._inner(name, at)) is not None:
                return found
        is_package = where.partition(".")[2] not in MODULES
        if is_package and name[0].islower() and find_spec(f"{where}.{name}") is not None:
            return importlib.import_module(f"{where}.{name}")
        if (value := _look_up(name, places)) is not _NOTHING:
            return value
        raise AttributeError(explain(name, self.known, where))


class _Family(SourceFileLoader):
    """Loads a family's file as ever; what else the reference has there is looked up."""

    def __init__(self, fullname: str, path: str, names: ModuleFinder) -> None:
        super().__init__(fullname, path)
        self.names = names

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self.names.open(module, PARTS)


def installed() -> ModuleFinder:
    """The finder of names that the package has put in place."""
    return next(finder for finder in sys.meta_path if isinstance(finder, ModuleFinder))


def find_public(name: str) -> Any:
    """The public class or function of that name."""
    return getattr(importlib.import_module(PACKAGE), name)
