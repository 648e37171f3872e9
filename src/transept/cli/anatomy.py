"""What a checkpoint is made of, without loading its weights: headers are read, and the model is built without memory."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transept.checkpoint.load import check, plan
from transept.checkpoint.store import Store, check_header, open_store
from transept.cli.terminal import cleaned
from transept.config import CONFIG_NAME, Config
from transept.core.auto import AutoConfig, AutoModel, family
from transept.core.initialize import Unfilled
from transept.core.model import Model
from transept.core.pixels import ImageBackbone
from transept.core.waves import AudioBackbone
from transept.errors import CheckpointError, ConfigError, FileError, TranseptError, TranseptWarning
from transept.fields import plain
from transept.source import Source

ERROR, WARNING, NOTE = "error", "warning", "note"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# Keys of config files that say nothing of the model.
_TOLD = {"transformers_version", "auto_map", "gradient_checkpointing", "torchscript"}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_FACTS = (*_SIZES, "max_position_embeddings", "image_size", "patch_size", "problem_type", "dtype")


@dataclass
class Part:
    """A part of a model and how many parameters it has; ``shared`` of them are counted in another part."""

    name: str
    parameters: int
    shared: int = 0
    children: list[Part] = field(default_factory=list)


@dataclass
class Anatomy:
    """A checkpoint.

    ``dtypes`` are stored parameters by type, ``stored_bytes`` those of the weights' files, ``memory`` what the parameters take
    by type; ``files`` are sizes by name. Of ``findings``, an ``error`` keeps it from being loaded.
    """

    path: str
    model_type: str | None = None
    architecture: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    parts: Part | None = None
    memory: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    stored_bytes: int = 0
    preprocessing: dict[str, Any] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, str]] = field(default_factory=list)
    loadable: bool = True

    def find(self, level: str, message: str) -> None:
        """Add something that its user should know, on one line."""
        self.findings.append({"level": level, "message": cleaned(message)})
        self.loadable = self.loadable and level != ERROR


def examine(source: Source) -> Anatomy:
    """Look at a checkpoint.

    Raises:
        FileError: there is no such directory or repository, or it has no config.
    """
    found = Anatomy(source.name)
    path = source.need(CONFIG_NAME)
    _examine_files(found, path.parent)
    try:
        config = AutoConfig.from_pretrained(path)
        found.model_type = config.model_type
        _examine_config(found, config)
        model = build(config, found)
        here = replace(source, local_files_only=True)
        if found.loadable:
            _examine_weights(found, model, here)
        _examine_preprocessing(found, model, here)
    except TranseptError as error:
        found.find(ERROR, str(error))
    return found


def _examine_files(found: Anatomy, directory: Path) -> None:
    with os.scandir(directory) as entries:
        found.files = {entry.name: entry.stat().st_size for entry in sorted(entries, key=attrgetter("name")) if entry.is_file()}
    if code := [name for name in found.files if name.endswith(".py")]:
        found.find(NOTE, f"it brings code, which is never run: {', '.join(code)}.")
    pickles = [name for name in found.files if name.endswith(PICKLES)]
    if pickles and not any(name.endswith(".safetensors") for name in found.files):
        hint = "load it once with use_safetensors=False and save it with save_pretrained."
        found.find(ERROR, f"its weights are pickles only ({', '.join(pickles)}), which are read on request alone: {hint}")


def _examine_config(found: Anatomy, config: Config) -> None:
    found.config = {name: plain(value) for name in _FACTS if (value := getattr(config, name, None)) not in (None, -1)}
    labels = list((config.id2label or {}).values())
    if any(label != f"LABEL_{index}" for index, label in enumerate(labels)):
        found.config["labels"] = labels
    elif any("Classification" in name for name in config.architectures or ()):
        found.config["num_labels"] = config.num_labels
    if "auto_map" in config.extra:
        found.find(NOTE, "its config asks for code of the repository (auto_map), which is never run.")
    unknown = sorted(key for key in config.extra if key not in _TOLD and not key.startswith("_"))
    if unknown:
        found.find(NOTE, f"{type(config).__name__} does not know these keys, and keeps them: {', '.join(unknown)}.")


def build(config: Config, found: Anatomy) -> Model:
    """The model on the meta device: of the class that the checkpoint was saved from, else its backbone.

    Raises:
        ConfigError: no model can be built from the config.
    """
    named = (config.architectures or [""])[0]
    kind = getattr(family(config.model_type), named, None)
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        kind = AutoModel.model_class(config)
        what = f"was saved from {named!r}, which is none of ours" if named else "does not say which class it was saved from"
        found.find(WARNING, f"it {what}; it is shown as {kind.__name__}.")
    try:
        with torch.device("meta"), Unfilled():
            model = kind(config)
    except TranseptError:
        raise
    except Exception as error:  # whatever a layer objects to
        raise ConfigError(f"no {kind.__name__} can be built from the config ({cleaned(str(error))[:200]}).") from error
    found.architecture = kind.__name__
    found.parts = part(kind.__name__, [model], set(), 3)
    numbers = sum(p.numel() for p in model.parameters())
    found.memory = {"float32": 4 * numbers, "bfloat16": 2 * numbers}
    for ours, other in model.checkpoint_names().tied.items():
        found.find(NOTE, f"{ours} is tied to {other}: one tensor.")
    return model


def part(name: str, modules: Sequence[nn.Module], seen: set[int], depth: int) -> Part:
    """Alike modules as one part, and what they are made of.

    Args:
        name: of the part.
        modules: one, or the same part of each layer.
        seen: parameters that are counted already.
        depth: levels below it to show.
    """
    own = {id(p): p.numel() for module in modules for p in module.parameters()}
    new = {key: number for key, number in own.items() if key not in seen}
    whole = Part(name, sum(new.values()), sum(own.values()) - sum(new.values()))
    for child in dict.fromkeys(child for module in modules for child, _ in module.named_children() if depth):
        alike, label = [found for module in modules if (found := getattr(module, child, None)) is not None], child
        if all(isinstance(each, nn.ModuleList) for each in alike):
            alike = [layer for each in alike for layer in each.children()]
            label = f"{child} × {len(alike)}"
        if any(True for each in alike for _ in each.parameters()):
            whole.children.append(part(label, alike, seen, depth - 1))
    for leaf in dict.fromkeys(leaf for module in modules for leaf, _ in module.named_parameters(recurse=False)):
        tensors = [p for module in modules if (p := module._parameters.get(leaf)) is not None]
        if whole.children and (fresh := sum(p.numel() for p in tensors if id(p) not in seen)):
            whole.children.append(Part(leaf, fresh))
    if len(whole.children) == 1:
        whole.children = whole.children[0].children  # it would say the same again
    seen.update(new)
    return whole


def _examine_weights(found: Anatomy, model: Model, source: Source) -> None:
    try:
        store = open_store(source)
        _examine_headers(found, store)
        report, names = plan(model, model.checkpoint_names(), store)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TranseptWarning)
            check(model, names, report, store, strict=True, ignore_mismatched=False)
    except CheckpointError as error:
        counts = [f"{len(some)} {kind}" for kind in ("missing", "unexpected", "mismatched") if (some := getattr(error, kind))]
        first = ", ".join([*error.missing, *error.unexpected, *error.mismatched][:5])
        found.find(ERROR, f"its weights do not fit {type(model).__name__}: {', '.join(counts)} ({first} ...).")
        return
    except TranseptError as error:
        if source.directory is None and isinstance(error, FileError):
            found.find(NOTE, "its weights are not in the cache, so that they are not looked at.")
        else:
            found.find(ERROR, str(error))
        return
    for warning in caught:
        found.find(WARNING, str(warning.message).partition(": ")[2])
    if report.unexpected:
        found.find(NOTE, f"weights that {type(model).__name__} does not use: {', '.join(sorted(report.unexpected))}.")


def _examine_headers(found: Anatomy, store: Store) -> None:
    kinds: Counter[str] = Counter()
    for path in store.files:
        found.stored_bytes += path.stat().st_size
        for entry in check_header(path).values():
            kinds[entry["dtype"]] += math.prod(entry["shape"])
    found.dtypes = dict(kinds.most_common())
    floats = [kind for kind in found.dtypes if "F" in kind]
    if len(floats) > 1:
        found.find(NOTE, f"its weights are of several types, and are loaded as one: {', '.join(floats)}.")


def _examine_preprocessing(found: Anatomy, model: Model, source: Source) -> None:
    from transept.preprocess.processor import AutoProcessor

    kind = "image processor" if isinstance(model.backbone, ImageBackbone) else "feature extractor"
    text = not isinstance(model.backbone, ImageBackbone | AudioBackbone)
    try:
        parts = AutoProcessor.from_pretrained(source.name, revision=source.revision, local_files_only=True)
    except TranseptError as error:
        local = source.directory is not None
        found.find(WARNING if local else NOTE, f"no {'tokenizer' if text else kind} can be loaded: {error}")
        return
    found.preprocessing["class"] = type(parts).__name__
    tokenizer = parts if text else getattr(parts, "tokenizer", None)
    places = dict.fromkeys(("vocab_size", "model_max_length", "padding_side"), tokenizer)
    places |= dict.fromkeys(("size", "sampling_rate", "do_normalize"), getattr(parts, "feature_extractor", parts))
    facts = {name: getattr(place, name, None) for name, place in places.items()}
    endless = [name for name, fact in facts.items() if isinstance(fact, int) and fact >= 10**12]  # a length without a limit
    found.preprocessing |= {name: fact for name, fact in facts.items() if fact is not None and name not in endless}
    if text and len(parts) > (rows := model.config.vocab_size):
        found.find(WARNING, f"the tokenizer has {len(parts)} tokens, but the model has embeddings for {rows}.")
