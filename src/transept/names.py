"""Names of the reference: the modules that scripts import from, and what to say of a name that is not here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = __name__.partition(".")[0]
# Modules of the reference -> ours that have their names, beside the package's public ones. Folders end in a dot.
MODULES: dict[str, tuple[str, ...]] = {
    "cache_utils": ("layers.cache", "layers.caches", "layers.quantized_cache"),
    "configuration_utils": ("config",),
    "modeling_utils": ("core.model",),
    "tokenization_utils": (),
    "tokenization_utils_base": ("preprocess.text.encoding",),
    "tokenization_utils_fast": (),
    "image_processing_utils": ("preprocess.features",),
    "feature_extraction_utils": ("preprocess.features",),
    "processing_utils": ("preprocess.processor", "preprocess.auto"),
    "hf_argparser": ("cli.dataclass_parser",),
    "trainer": ("training.trainer", "training.arguments.training"),
    "trainer_seq2seq": ("training.trainers.seq2seq",),
    "trainer_callback": ("training.callbacks.base", "training.callbacks.progress", "training.state"),
    "trainer_utils": (
        *("environment", "training.state", "training.checkpoint.directory", "training.evaluation", "training.search"),
        *("training.callbacks.base", "metrics.nested"),
    ),
    "trainer_pt_utils": ("metrics.nested", "objectives.classification", "training.data.order", "adapt.freeze"),
    "training_args": ("training.arguments.training", "training.state"),
    "training_args_seq2seq": ("training.arguments.training",),
    "utils.": ("environment", "outputs"),
    "utils.logging": ("logging",),
    "utils.import_utils": ("environment",),
    "utils.generic": ("outputs",),
}
# Names that scripts ask for -> what there is in their place.
_QUANTIZE = "Load the model as it is, then call transept.adapt.quantize.quantize(model)."
ABSENT = {
    **dict.fromkeys(("BitsAndBytesConfig", "GPTQConfig"), _QUANTIZE),
    "AdamW": "Use torch.optim.AdamW.",
}
# What names of a family's models and of its preprocessing end in.
_MODEL = re.compile(r"(PreTrainedModel|LMHeadModel|EncoderModel|DoubleHeadsModel|MTModel|Model|For[A-Z]\w*|Config)$")
_READER = re.compile(r"(TokenizerFast|Tokenizer|ImageProcessorFast|ImageProcessor|FeatureExtractor|Processor)$")


def explain(name: str, known: Iterable[str]) -> str:
    """What to say of a name that the package does not have."""
    import difflib

    known = list(known)
    what = f"{PACKAGE} has no name {name!r}."
    if name in ABSENT:
        return f"{what} {ABSENT[name]}"
    for ending in (_MODEL, _READER):
        family = ending.sub("", name)
        families = {ending.sub("", each) for each in known if ending.search(each)}
        if family not in ("", name) and not difflib.get_close_matches(family, families, n=1, cutoff=0.85):
            return f"{what} Its family is not here (yet); {PACKAGE}.core.auto.model_types() lists those that are."
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"{what} Did you mean {near[0]!r}?" if near else what


class Names(MetaPathFinder, Loader):
    """Finds the modules of the table, and explains names that are imported from the package and are not among ``known``."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = frozenset(known)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module of that name, where the table has it (``ImportError``: a class or a function that is not here)."""
        package, _, name = fullname.partition(".")
        if package != PACKAGE:
            return None
        if name in MODULES or f"{name}." in MODULES:
            return ModuleSpec(fullname, self, is_package=f"{name}." in MODULES)
        if name in ABSENT or (name.isidentifier() and name[0].isupper() and name not in self.known):
            raise ImportError(explain(name, self.known), name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Let the module's names be looked up when they are asked for."""
        name = module.__name__.partition(".")[2]
        places = MODULES[name] if name in MODULES else MODULES[f"{name}."]

        def lookup(wanted: str) -> Any:
            for place in () if wanted.startswith("__") else places:
                found = importlib.import_module(f"{PACKAGE}.{place}")
                if hasattr(found, wanted):
                    return getattr(found, wanted)
            if wanted in self.known:
                return getattr(importlib.import_module(PACKAGE), wanted)
            raise AttributeError(f"{module.__name__} has no name {wanted!r}.")

        module.__getattr__ = lookup  # type: ignore[method-assign]
