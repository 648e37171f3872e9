"""The reference's tables from model types and configurations to classes: ``CONFIG_MAPPING``, ``MODEL_FOR_CAUSAL_LM_MAPPING``.

They are what the ``Auto`` classes choose, as mappings: ``MODEL_FOR_..._MAPPING`` has a class of configurations as its keys,
``..._MAPPING_NAMES`` model types and the names of classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

from transept.compat.names import attribute, find_public
from transept.config.model import Config
from transept.core import auto
from transept.errors import UnsupportedError

_NAME = re.compile(r"(MODEL(?:_\w+)?)_MAPPING")
# Of what the reference calls otherwise than the class that chooses by it.
_CALLED = {
    "MODEL_FOR_BACKBONE": "AutoBackbone",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MODEL_WITH_LM_HEAD": "AutoModelForPreTraining",
}
_PREPROCESSORS = {
    "FEATURE_EXTRACTOR_MAPPING": ("preprocess.classes", "FEATURE_EXTRACTORS_OF_TYPES"),
    "IMAGE_PROCESSOR_MAPPING": ("preprocess.classes", "IMAGE_PROCESSORS_OF_TYPES"),
    "PROCESSOR_MAPPING": ("preprocess.classes", "PROCESSORS_OF_TYPES"),
    "TOKENIZER_MAPPING": ("preprocess.text.auto", "MODEL_TYPES"),
}


class Table(Mapping[Any, Any]):
    """A mapping that is made when it is first looked into."""

    def __init__(self, name: str, entries: Any) -> None:
        self.name, self.make = name, cache(entries)

    def __getitem__(self, key: Any) -> Any:
        return self.make()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())

    def __repr__(self) -> str:
        return f"{self.name}({len(self)} entries)"


@cache
def _configs() -> dict[str, type[Config]]:
    """The classes of configurations by model type, those of the parts of composed models among them."""
    classes = [model.config_class for name in auto.model_types() for model in auto.models_of(auto.family(name))]
    return {cls.model_type: cls for cls in classes if cls.model_type}


def model_type_to_module_name(key: str) -> str:
    """The name of the module of a model type."""
    return key.replace("-", "_")


def get_values(model_mapping: Mapping[Any, Any]) -> list[Any]:
    """The classes of a table, or their names, one by one where a model type has several."""
    values = model_mapping.values()
    return [one for value in values for one in (value if isinstance(value, list | tuple) else (value,))]


def _models(chooser: Any) -> dict[type[Config], type[Any]]:
    found = {}
    for model_type, config in _configs().items():
        try:
            model = auto.resolve(model_type, *chooser.tasks)
        except UnsupportedError:
            continue
        if model.config_class is config and hasattr(model, chooser.has or "forward"):
            found[config] = model
    return {**found, **chooser.registered}


def _named(make: Any) -> dict[str, str]:
    return {config.model_type: cls.__name__ for config, cls in make().items()}


def _preprocessors(place: str, table: str) -> dict[type[Config], Any]:
    names = {model_type.replace("-", "_"): name for model_type, name in attribute(place, table).items()}
    configs = {config: model_type.replace("-", "_") for model_type, config in _configs().items()}
    return {config: find_public(names[kind]) for config, kind in configs.items() if kind in names}


@cache
def __getattr__(name: str) -> Any:
    if name == "CONFIG_MAPPING":
        return Table(name, _configs)
    if name in ("CONFIG_MAPPING_NAMES", "MODEL_NAMES_MAPPING"):
        return Table(name, lambda: {model_type: cls.__name__ for model_type, cls in _configs().items()})
    kind = name.removesuffix("_NAMES")
    if kind in _PREPROCESSORS:
        make = partial(_preprocessors, *_PREPROCESSORS[kind])
    elif (match := _NAME.fullmatch(kind)) and (chooser := _chooser(match[1])) is not None:
        make = partial(_models, chooser)
    else:
        raise AttributeError(f"{__name__} has no name {name!r}.")
    return Table(name, make if kind == name else partial(_named, make))


def _chooser(name: str) -> Any:
    wanted = _CALLED.get(name, f"Auto{name.replace('_', '')}").casefold()
    return next((cls for name, cls in auto.CHOOSERS.items() if name.casefold() == wanted), None)
