"""Autoencoders: a short code of each row from which the row can be made again; rows are pictures or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from transept.core.auto import AutoModelForReconstruction
from transept.errors import ConfigError, InputError
from transept.fields import Count, Deviation
from transept.metrics.numbers import Regression
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.padding import default_data_collator
from transept.training.data.columns import Column, find_columns, opened, told, values_of
from transept.training.recipes.base import MediaRecipe, Options
from transept.training.recipes.media import IMAGE


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_number, value))


class ReconstructionOptions(Options):
    side: Count = 28  # pixels that pictures, in grey, are resized to, in both directions
    # Settings of new weights, which have defaults of their own.
    latent_size: Count | None = None  # numbers of a code
    hidden_sizes: list[Count] | None = None  # layers between a row and its code
    noise: Deviation | None = None  # that inputs are disturbed by in training (denoising)
    variational: bool | None = None  # whether codes are drawn, and
    beta: Deviation | None = None  # the weight of their divergence from a normal distribution

    def of_model(self) -> dict[str, Any]:
        """The settings of the model that are given."""
        return {name: value for name, value in self.own().items() if name != "side" and value is not None}


class Reconstruction(MediaRecipe):
    """Rows that are to be made again: pictures, a list of numbers a row, or the numbers of all columns that hold some.

    Grey values are from 0 to 1; other numbers are taken as they are.
    """

    task = "autoencoder"
    auto = AutoModelForReconstruction
    reader_class = None
    new_model = "autoencoder"
    columns = tuple(
        replace(column, optional=True, by_kind=False)
        for column in (IMAGE, Column("values", ("values", "features", "vector"), is_numbers))
    )
    media = "image"
    options_class = ReconstructionOptions
    batch_size = 32

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        self.found, self.numeric = find_columns(dataset, self.columns, self.given), list[str]()
        columns = dataset.column_names
        if len(self.found) > 1:
            hint = "Choose one with --image or --values."
            raise InputError(f"the rows have both: {told(self.found, {})}", path=dataset.path, hint=hint)
        if not self.found:
            self.numeric = [name for name in columns if (some := values_of(dataset, name)) and all(map(is_number, some))]
        if not self.found and not self.numeric:
            names = ", ".join(columns)
            hint = f"Pass a folder of pictures, or numbers; --image and --values choose a column. Columns: {names}."
            raise InputError("no column holds pictures or numbers.", path=dataset.path, hint=hint)
        self.width = self.options.side**2 if "image" in self.found else len(self.numbers(dataset, 0))
        return f"rows are the numbers of {', '.join(self.numeric)}." if self.numeric else told(self.found, self.given)

    def numbers(self, dataset: TableDataset, index: int) -> list[float]:
        """The numbers of a row (``InputError``: one is missing or infinite)."""
        row = dataset[index]
        numbers = [row[name] for name in self.numeric] or row[self.found["values"]]
        if not all(is_number(value) and np.isfinite(value) for value in numbers):
            raise InputError(f"a row needs finite numbers, but has {numbers!s:.80}.", path=dataset.place(index))
        return [float(value) for value in numbers]

    def new_settings(self) -> dict[str, Any]:
        return {"input_size": self.width, **self.options.of_model()}

    def take(self, reader: Any, model: Any) -> None:
        """Refuse data and options of another model (``InputError``, ``ConfigError``)."""
        super().take(reader, model)
        if model.config.input_size != self.width:
            what = f"a row has {self.width} numbers, but the model reads {model.config.input_size}."
            raise InputError(what, hint="Pass data like those that it was trained on, or begin with new weights.")
        for name, value in self.options.of_model().items():
            if value != (own := getattr(model.config, name)):
                raise ConfigError(f"`{name}` is {value}, but the model has {own}.", hint="It is of new weights only.")

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        if "image" in self.found:
            return super().encode(dataset)
        rows = [{"values": self.numbers(dataset, index)} for index in range(len(dataset))]
        for index, row in enumerate(rows):
            if len(row["values"]) != self.width:
                what = f"there are {len(row['values'])} numbers, but {self.width} in the first row."
                raise InputError(what, path=dataset.place(index))
        return rows

    def targets(self, dataset: TableDataset) -> list[Any]:
        return [None] * len(dataset)

    def load(self, row: tuple[Any, Any, str]) -> Row:
        """A picture as grey values from 0 to 1."""
        image, _, place = row
        side = self.options.side
        picture = opened(image, place).convert("L").resize((side, side))
        return {"values": np.asarray(picture, dtype=np.float32) / 255}

    def collator(self) -> Any:
        return default_data_collator

    def reduce(self, outputs: Any, labels: Any) -> Tensor:
        logits: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return logits.sigmoid() if self.model.config.loss_type == "bernoulli" else logits

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        """The mean squared error of a number, and the share of the rows' variance about their mean that is explained."""
        rows = right.reshape(len(right), -1).astype(np.float64)
        error, spread = Regression()(predicted, right)["mse"], float(rows.var(axis=0).mean())
        return {"mse": error, "explained_variance": 1 - error / spread if spread else float("nan")}

    def arguments(self, rows: int) -> dict[str, Any]:
        arguments = {"include_num_input_tokens_seen": "no", "label_names": ["values"], "learning_rate": 1e-3}
        return arguments | {"num_train_epochs": 20 if rows < 20_000 else 4}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        row = batch["values"][index]
        return {"values": f"{row.numel()}, from {row.min():.3g} to {row.max():.3g}, mean {row.mean():.3g}"}
