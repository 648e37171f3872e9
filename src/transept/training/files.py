"""What a trainer writes beside its checkpoints: models, metrics, and what it publishes."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from transept.checkpoint.store import save_checkpoint
from transept.core.model import Model
from transept.files import PathName, dump_json, load_object, make_directory, safe_join, write_text
from transept.parallel.forms import Form
from transept.parallel.streams import ModelFiles
from transept.publish import CARD_NAME, Pushable
from transept.training.state import json_value

ARGUMENTS_NAME = "training_args.json"


def whole_weights(model: Any, form: Form, average: Any, *, elsewhere: bool = False) -> ModelFiles | dict[str, Any] | None:
    """The weights that are saved, where processes have parts of them; ``None``: they are the model's own.

    All processes must call this together. Those of a model of this library are put together while they are written; those of
    another are whole, on the first process. With ``elsewhere`` shards have them, and only what stands beside them is written.
    """
    if elsewhere:
        return {}
    if not form.same_passes:
        return None
    state = model.state_dict()
    if average is not None:
        state |= {name: mean.to(state[name].dtype) for name, mean in average.state_dict().items()}
    if not isinstance(model, Model):
        return form.collect(state)
    names = model.checkpoint_names()
    own = {name: tensor for name, tensor in state.items() if name not in names.tied}
    return ModelFiles(form.pieces(own), names.keys, order=form.stored)


def write_model(
    directory: PathName, model: Any, form: Form, weights: ModelFiles | dict[str, Any] | None, reader: Any, arguments: str
) -> None:
    """Write a model with these weights or its own, what prepares its inputs, and the arguments it was trained with."""
    folder = make_directory(directory)
    if weights == {}:
        for name, text in (model.texts() if isinstance(model, Model) else {}).items():
            write_text(folder / name, text)
    elif isinstance(weights, ModelFiles):
        with form.ordinary(model):
            weights.write(model.texts(), folder)
    elif hasattr(model, "save_pretrained"):
        with form.ordinary(model):
            model.save_pretrained(folder, **({} if weights is None else {"state_dict": weights}))
    else:
        save_checkpoint(weights or model.state_dict(), {}, folder)
    if hasattr(reader, "save_pretrained"):
        reader.save_pretrained(folder)
    write_text(folder / ARGUMENTS_NAME, arguments)


class TrainedModel(Pushable):
    """A trained model as it is published: what ``save`` writes into a directory, and a card."""

    def __init__(self, save: Callable[[PathName], None], card: str) -> None:
        self.save, self.card = save, card

    def save_pretrained(self, directory: Any) -> None:
        self.save(directory)
        write_text(Path(directory, CARD_NAME), self.card)


def readable(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics for people: times as hours, minutes and seconds, operations in 2^30."""

    def shown(name: str, value: Any) -> Any:
        if "_runtime" in name:
            return f"{datetime.timedelta(seconds=int(value))}.{int(abs(value - int(value)) * 100):02d}"
        if name == "total_flos":
            return f"{int(value) >> 30}GF"
        return round(value, 4) if isinstance(value, float) else value

    return {name: shown(name, value) for name, value in metrics.items()}


def print_metrics(split: str, metrics: dict[str, Any]) -> None:
    """Print metrics as a table."""
    shown = {name: str(value) for name, value in metrics.items()}
    width, right = max(map(len, shown), default=0), max(map(len, shown.values()), default=0)
    lines = [f"  {name: <{width}} = {shown[name]:>{right}}" for name in sorted(shown)]
    tqdm.write("\n".join([f"***** {split} metrics *****", *lines]))


def write_metrics(directory: PathName, split: str, metrics: dict[str, Any], *, combined: bool) -> None:
    """Write ``SPLIT_results.json``, and with ``combined`` add the metrics to ``all_results.json``."""
    folder, metrics = make_directory(directory), json_value(metrics, split)
    write_text(safe_join(folder, f"{split}_results.json"), dump_json(metrics))
    if combined:
        path = folder / "all_results.json"
        earlier = load_object(path, finite=False) if os.path.exists(path) else {}
        write_text(path, dump_json(earlier | metrics))
