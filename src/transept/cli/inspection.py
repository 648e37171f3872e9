"""What a checkpoint is made of, without loading its weights: headers are read, and the model is built without memory."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.load import check, plan
from transept.checkpoint.quantized import unpacked
from transept.checkpoint.store import TensorStore, check_header, open_store
from transept.config.fields import plain
from transept.config.model import CONFIG_NAME, Config
from transept.core.auto import AutoConfig, AutoModel, saved_class
from transept.core.loading import Unfilled
from transept.core.model import Model
from transept.errors import CheckpointError, FileError, TranseptError, TranseptWarning
from transept.kinds.audio import AudioBackbone
from transept.kinds.image import ImageBackbone
from transept.storage.gguf import gguf_of
from transept.storage.source import Source

Report = dict[str, Any]
Tensors = list[tuple[list[str], nn.Parameter]]
ERROR, WARNING, NOTE = "error", "warning", "note"
_DEPTH = 3  # levels of parts that are shown
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# Keys of config files that say nothing of the model.
_TOLD = {"transformers_version", "auto_map", "gradient_checkpointing", "torchscript"}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_FACTS = (*_SIZES, "max_position_embeddings", "image_size", "patch_size", "problem_type", "dtype")
_INPUTS = ("vocab_size", "model_max_length", "padding_side", "size", "sampling_rate", "do_normalize")


def examine(source: Source) -> Report:
    """Look at a checkpoint; a ``FileError`` where there is none, or it has no config.

    Of the report, ``parts`` is a tree of ``name``, ``parameters``, how many of them are ``shared`` with another part, and
    ``children``; ``dtypes`` are stored parameters by type, ``stored_bytes`` the size of the weights' files, ``memory`` what the
    parameters take by type, ``files`` sizes by name. Of ``findings``, an ``error`` keeps it from being loaded.
    """
    gguf = gguf_of(source)
    path = source.need(CONFIG_NAME) if gguf is None else gguf.paths[0]
    paths = [each for each in sorted(path.parent.iterdir()) if each.is_file()] if gguf is None else gguf.paths
    files = {path.name: path.stat().st_size for path in paths}
    found: Report = {
        "path": source.location,
        "model_type": None,
        "architecture": None,
        "config": {},
        "parts": None,
        "memory": {},
    }
    found |= {"dtypes": {}, "stored_bytes": 0, "preprocessing": {}, "files": files, "findings": [], "loadable": True}
    pickles = [name for name in files if name.endswith(PICKLES)]
    if pickles and not any(name.endswith(".safetensors") for name in files):
        what = f"its weights are pickles only ({', '.join(pickles)}), which are read as plain tensors, and slowly:"
        _find(found, WARNING, f"{what} load it once and save it with save_pretrained.")
    try:
        config = AutoConfig.from_pretrained(path)
        _examine_config(found, config)
        model = _build(found, config)
        here = replace(source, local_files_only=True)
        if found["loadable"]:
            _examine_weights(found, model, here)
        _examine_preprocessing(found, model, here)
    except TranseptError as error:
        _find(found, ERROR, str(error))
    return found


def _find(found: Report, level: str, message: str) -> None:
    found["findings"].append({"level": level, "message": " ".join(message.split())})
    found["loadable"] = found["loadable"] and level != ERROR


def _examine_config(found: Report, config: Config) -> None:
    found["model_type"] = config.model_type
    given = {name: getattr(config, name, None) for name in _FACTS}
    facts = found["config"] = {name: plain(value) for name, value in given.items() if value not in (None, -1)}
    labels = list((config.id2label or {}).values())
    if any(label != f"LABEL_{index}" for index, label in enumerate(labels)):
        facts["labels"] = labels
    elif any("Classification" in name for name in config.architectures or ()):
        facts["num_labels"] = config.num_labels
    code = [name for name in found["files"] if name.endswith(".py")]
    if code := [*code, *["auto_map in its config"][: "auto_map" in config.extra]]:
        _find(found, NOTE, f"it brings code, which is never run: {', '.join(code)}.")
    if unknown := sorted(key for key in config.extra if key not in _TOLD and not key.startswith("_")):
        _find(found, NOTE, f"{type(config).__name__} does not know these keys, and keeps them: {', '.join(unknown)}.")


def _build(found: Report, config: Config) -> Model:
    """The model on the meta device: of the class that the checkpoint was saved from, else its backbone."""
    if (kind := saved_class(config)) is None:
        named, kind = (config.architectures or [""])[0], AutoModel.model_class(config)
        what = f"was saved from {named!r}, which is none of ours" if named else "does not say which class it was saved from"
        _find(found, WARNING, f"it {what}; it is shown as {kind.__name__}.")
    with torch.device("meta"), Unfilled():
        model = kind(config)
    tensors = [(name.split("."), tensor) for name, tensor in model.named_parameters(remove_duplicate=False)]
    parts = _part(kind.__name__, tensors, set(), _DEPTH)
    memory = {"float32": 4 * parts["parameters"], "bfloat16": 2 * parts["parameters"]}
    found |= {"architecture": kind.__name__, "parts": parts, "memory": memory}
    for ours, other in model.checkpoint_names().tied.items():
        _find(found, NOTE, f"{ours} is tied to {other}: one tensor.")
    return model


def _part(name: str, tensors: Tensors, seen: set[int], depth: int) -> Report:
    """Parameters by their paths as a tree, layers of a list as one part; ``seen`` are parameters that are counted already."""
    own = {id(tensor): tensor.numel() for _, tensor in tensors}
    new = sum(number for key, number in own.items() if key not in seen)
    below: dict[str, Tensors] = {}
    if depth and any(len(path) > 1 for path, _ in tensors):
        for path, tensor in tensors:
            below.setdefault(path[0], []).append((path[1:], tensor))
    children = []
    for child, parts in below.items():
        if layers := {path[0] for path, _ in parts if path and path[0].isdecimal()}:
            child, parts = f"{child} × {len(layers)}", [(path[1:], tensor) for path, tensor in parts]
        children.append(_part(child, parts, seen, depth - 1))
    seen.update(own)
    if len(children) == 1:  # it would say the same again
        name, children = f"{name}.{children[0]['name']}" if depth < _DEPTH else name, children[0]["children"]
    return {"name": name, "parameters": new, "shared": sum(own.values()) - new, "children": children}


def _examine_weights(found: Report, model: Model, source: Source) -> None:
    kind, kinds = type(model).__name__, Counter[str]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TranseptWarning)  # of pickles, which is among the findings
            store = open_store(source)
        found["stored_bytes"] = sum(path.stat().st_size for path in store.files)
        for path in store.files if isinstance(store, TensorStore) else ():
            for entry in check_header(path).values():
                kinds[entry["dtype"]] += math.prod(entry["shape"])
        for stored in store.gguf.tensors.values() if isinstance(store, GGUFStore) else ():
            kinds[stored.encoding.name] += math.prod(stored.shape)
        found["dtypes"] = dict(kinds.most_common())
        whole = unpacked(store, model.config.extra.get("quantization_config"))
        report, names = plan(model, whole.names(model), whole)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TranseptWarning)
            check(model, names, report, whole, strict=True, ignore_mismatched=False)
    except CheckpointError as error:
        counts = [f"{len(some)} {what}" for what in ("missing", "unexpected", "mismatched") if (some := getattr(error, what))]
        first = ", ".join([*error.missing, *error.unexpected, *error.mismatched][:5])
        _find(found, ERROR, f"its weights do not fit {kind}: {', '.join(counts)} ({first} ...).")
    except TranseptError as error:
        absent = source.directory is None and isinstance(error, FileError)
        told = "its weights are not in the cache, so that they are not looked at." if absent else str(error)
        _find(found, NOTE if absent else ERROR, told)
    else:
        for warning in caught:
            _find(found, WARNING, str(warning.message).partition(": ")[2])
        if report.unexpected:
            _find(found, NOTE, f"weights that {kind} does not use: {', '.join(sorted(report.unexpected))}.")


def _examine_preprocessing(found: Report, model: Model, source: Source) -> None:
    from transept.preprocess.auto import AutoProcessor

    text = not isinstance(model.body, ImageBackbone | AudioBackbone)
    try:
        parts = AutoProcessor.from_pretrained(source.name, **source.options())
    except TranseptError as error:
        noun = "tokenizer" if text else "preprocessor"
        _find(found, NOTE if source.directory is None else WARNING, f"no {noun} can be loaded: {error}")
        return
    places = [part for name in ("feature_extractor", "tokenizer") if (part := getattr(parts, name, None))] or [parts]
    facts = {name: fact for name in _INPUTS for place in places if (fact := getattr(place, name, None)) is not None}
    # A length without a limit is an enormous number.
    facts = {name: fact for name, fact in facts.items() if not isinstance(fact, int) or fact < 10**12}
    found["preprocessing"] = {"class": type(parts).__name__} | facts
    if text and len(parts) > (rows := model.config.vocab_size):
        _find(found, WARNING, f"the tokenizer has {len(parts)} tokens, but the model has embeddings for {rows}.")
