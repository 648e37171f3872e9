"""Autoencoders: a short code of each row from which the row can be made again; rows are pictures or numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from transept.core.auto import AutoModelForReconstruction
from transept.errors import ConfigError, InputError
from transept.fields import Count, Deviation
from transept.training.collate.padding import default_data_collator
from transept.training.data.columns import Column, find_columns, told, values_of
from transept.training.data.media import opened, resolved
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.regression import Regression
from transept.training.recipes.base import LazyRows, Options, Recipe
from transept.training.recipes.images import IMAGE

BERNOULLI = "bernoulli"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_number, value))


class ReconstructionOptions(Options):
    """Options of autoencoders; those without a value here are settings of the model, with its defaults.

    Args:
        side: pixels that pictures, in grey, are resized to, in both directions.
        latent_size: numbers of a code.
        hidden_sizes: layers between a row and its code.
        noise: the deviation of the noise that inputs are disturbed by in training (denoising).
        variational: whether codes are drawn, and
        beta: the weight of their divergence from a normal distribution.
    """

    side: Count = 28
    latent_size: Count | None = None
    hidden_sizes: list[Count] | None = None
    noise: Deviation | None = None
    variational: bool | None = None
    beta: Deviation | None = None


OF_MODEL = ("latent_size", "hidden_sizes", "noise", "variational", "beta")


class Reconstruction(Recipe):
    """Rows that are to be made again: pictures, a list of numbers a row, or the numbers of all columns that hold some.

    Grey values are from 0 to 1; other numbers are taken as they are.
    """

    task = "autoencoder"
    auto = AutoModelForReconstruction
    reader_class = None
    new_model = "autoencoder"
    columns = (IMAGE, Column("values", ("values", "features", "vector"), is_numbers))
    options_class = ReconstructionOptions
    batch_size = 32
    width = 0

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        wanted = [replace(column, optional=True, by_kind=False) for column in self.columns]
        self.found = find_columns(dataset, wanted, self.given)
        if len(self.found) > 1:
            hint = "Choose one with --image or --values."
            raise InputError(f"the rows have both: {told(self.found, {})}", path=dataset.path, hint=hint)
        self.numeric = [] if self.found else numeric_columns(dataset)
        if not self.found and not self.numeric:
            columns = ", ".join(dataset.column_names)
            hint = f"Pass a folder of pictures, or numbers; --image and --values choose a column. Columns: {columns}."
            raise InputError("no column holds pictures or numbers.", path=dataset.path, hint=hint)
        self.width = self.options.side**2 if "image" in self.found else len(self.numbers(dataset, 0))
        return told(self.found, self.given) or (f"rows are the numbers of {', '.join(self.numeric)}." if self.numeric else None)

    def numbers(self, dataset: TableDataset, index: int) -> list[float]:
        """The numbers of a row (``InputError``: one is missing or infinite)."""
        row = dataset[index]
        numbers = [row[name] for name in self.numeric] or row[self.found["values"]]
        if not all(is_number(value) and np.isfinite(value) for value in numbers):
            raise InputError(f"a row needs finite numbers, but has {numbers!s:.80}.", path=dataset.place(index))
        return [float(value) for value in numbers]

    def new_settings(self) -> dict[str, Any]:
        given = {name: getattr(self.options, name) for name in OF_MODEL if getattr(self.options, name) is not None}
        return {"input_size": self.width} | given

    def take(self, reader: Any, model: Any) -> None:
        """Refuse data and options of another model (``InputError``, ``ConfigError``)."""
        super().take(reader, model)
        if model.config.input_size != self.width:
            what = f"a row has {self.width} numbers, but the model reads {model.config.input_size}."
            raise InputError(what, hint="Pass data like those that it was trained on, or begin with new weights.")
        for name in OF_MODEL:
            own, given = getattr(model.config, name), getattr(self.options, name)
            if given is not None and given != own:
                raise ConfigError(f"`{name}` is {given}, but the model has {own}.", hint="It is of new weights only.")

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        if "image" not in self.found:
            rows = [{"values": self.numbers(dataset, index)} for index in range(len(dataset))]
            for index, row in enumerate(rows):
                if len(row["values"]) != self.width:
                    what = f"there are {len(row['values'])} numbers, but {self.width} in the first row."
                    raise InputError(what, path=dataset.place(index))
            return rows
        images = [{"image": resolved(value, dataset.path)} for value in dataset.column(self.found["image"])]
        return LazyRows(TableDataset(images, path=dataset.path, lines=dataset.lines), self.pixels)

    def pixels(self, row: Row, place: str) -> Row:
        """A picture as grey values from 0 to 1."""
        side = self.options.side
        picture = opened(row["image"], place).convert("L").resize((side, side))
        return {"values": np.asarray(picture, dtype=np.float32) / 255}

    def collator(self) -> Callable[[list[Any]], Any]:
        return default_data_collator

    def reduce(self) -> Callable[[Any, Any], Any]:
        return self.reconstructed

    def reconstructed(self, outputs: Any, labels: Any) -> Tensor:
        logits: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return logits.sigmoid() if self.model.config.loss_type == BERNOULLI else logits

    def scores(self) -> Callable[[Any], dict[str, float]]:
        return reconstruction_scores

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        defaults = super().defaults(rows, parameters, evaluated=evaluated)
        defaults |= {"include_num_input_tokens_seen": "no", "label_names": ["values"], "learning_rate": 1e-3}
        return defaults | {"num_train_epochs": 20 if rows < 20_000 else 4}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        row = batch["values"][index]
        return {"values": f"{row.numel()}, from {row.min():.3g} to {row.max():.3g}, mean {row.mean():.3g}"}


def numeric_columns(dataset: TableDataset) -> list[str]:
    """The columns whose values are numbers."""
    return [name for name in dataset.column_names if (some := values_of(dataset, name)) and all(map(is_number, some))]


def reconstruction_scores(prediction: Any) -> dict[str, float]:
    """The mean squared error of a number, and the share of the rows' variance about their mean that is explained."""
    rows = prediction.label_ids.reshape(len(prediction.label_ids), -1).astype(np.float64)
    error, spread = Regression()(prediction.predictions, prediction.label_ids)["mse"], float(rows.var(axis=0).mean())
    return {"mse": error, "explained_variance": 1 - error / spread if spread else float("nan")}
