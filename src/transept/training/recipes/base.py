"""What all recipes share: columns, rows for a model, batches, metrics, and settings of the trainer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from transept.core.auto import AutoModel
from transept.errors import ConfigError, InputError
from transept.fields import Count, Range, checked, specs
from transept.files import PathName
from transept.preprocess.text.auto import AutoTokenizer
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import TrainingArguments
from transept.training.checkpoint.directory import find_last_checkpoint
from transept.training.collate.padding import DataCollatorWithPadding
from transept.training.data.columns import Column, find_columns, find_pair, resolved, told
from transept.training.model_card import Answers
from transept.training.trainer import Trainer

# Data sets with fewer rows are gone through more often.
FEW_ROWS = 2_000
# Models with fewer parameters learn faster.
FEW_PARAMETERS = 50_000_000
MOST_LOGS = 100


@dataclass(frozen=True)
class Options:
    """Options of a recipe beside the trainer's settings; a subclass adds its own.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    max_length: Count | None = None  # tokens of a row; what the model allows, at most 512, when absent
    eval_share: Annotated[float, Range(0, 1, "()")] = 0.1  # of the rows, held out where no others are given

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            value, limits = getattr(self, name), spec.find(Range)
            checked(value, spec.kind, name, "the recipe")
            if limits is not None and isinstance(value, int | float) and value not in limits:
                raise ConfigError(f"`{name}` of the recipe must be {limits}, but is {value}.")

    def own(self) -> dict[str, Any]:
        """The options that the subclass adds, by name."""
        shared = {field.name for field in fields(Options)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in shared}


class Recipe(ABC):
    """A task: which columns it reads, how a row is encoded, batches, the class of models, metrics and settings.

    A run calls ``look`` with the rows to train on, makes the model with ``settings()``, gives it to ``take``, and then
    encodes the rows.

    Args:
        columns: columns that were chosen by hand, by role.
        options: those of ``options_class``, by name.
    """

    task: ClassVar[str]
    tag: ClassVar[str | None] = None  # the task on the hub
    auto: ClassVar[Any] = AutoModel
    has_default_model: ClassVar[bool] = False
    new_model: ClassVar[str | None] = None  # the type of new weights, where none is named and there is no default model
    reader_class: ClassVar[Any] = AutoTokenizer  # what prepares inputs
    columns: tuple[Column, ...]
    options_class: ClassVar[type[Options]] = Options
    collator_class: ClassVar[Any] = DataCollatorWithPadding
    trainer_class: ClassVar[type[Trainer]] = Trainer
    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    metric: str = "loss"  # the one that counts
    less_is_better: ClassVar[bool] = False  # of a metric other than the loss
    batch_size: ClassVar[int] = 16
    sample_by: ClassVar[str] = "line"  # rows of a text
    splits_encoded: bool = False  # held-out rows are taken after encoding
    last_checkpoint: ClassVar[staticmethod[[PathName], Path | None]] = staticmethod(find_last_checkpoint)
    # Logits and labels of a batch -> what is kept for the metrics: the classes, mostly.
    reduce: Callable[[Any, Any], Any] | None = None
    # What an evaluation predicted, and what is right -> metrics by name, where the loss does not tell all.
    scores: Callable[[Any, Any], dict[str, float]] | None = None

    def __init__(self, columns: Mapping[str, str | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.given = dict(columns or {})
        self.options: Any = self.options_class(**(options or {}))
        self.found: dict[str, str] = {}  # columns by role
        self.reader: Any = None
        self.model: Any = None
        self.truncated = 0

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        """Find the columns in the rows to train on; a sentence about what was guessed.

        ``config`` is the model's, whose classes keep their numbers where they are the data's.
        """
        self.choose_columns(dataset)
        return told(self.found, self.given)

    def choose_columns(self, dataset: TableDataset) -> None:
        is_pair = any(column.role == "text_pair" for column in self.columns)
        pair = find_pair(dataset, self.given) if is_pair else {}
        self.found = find_columns(dataset, self.columns, {**pair, **self.given})

    def column(self, dataset: TableDataset, role: str) -> list[Any]:
        """The values of the column that has a role."""
        return dataset.column(self.found[role])

    def labelled(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
        """The rows to train on, without those that have no label and are used in another way.

        ``unlabelled`` has more of those; for most tasks they are an ``InputError``.
        """
        if unlabelled is not None:
            raise InputError(f"the task {self.task!r} reads no rows without labels.", hint="Leave --unlabelled out.")
        return dataset

    def settings(self) -> dict[str, Any]:
        """Settings of the model that follow from the data."""
        return {}

    def new_settings(self) -> dict[str, Any]:
        """Settings of a model with new weights that follow from the data and the options."""
        return {}

    def take(self, reader: Any, model: Any) -> None:
        """Take what prepares inputs, and the model."""
        self.reader, self.model = reader, model

    @abstractmethod
    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        """Rows for the model, with labels."""

    def collator(self) -> Any:
        """What makes a batch of rows."""
        return self.collator_class(self.reader)

    def trainer_options(self) -> dict[str, Any]:
        """Arguments of the trainer's class that are its own."""
        return {}

    def derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Figures that follow from others, such as the perplexity from the loss."""
        return {}

    def answers(self, predicted: Any, right: Any) -> Answers | None:
        """What the card of a classifier tells."""
        return None

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        """One row of a batch in words, for a person to check."""
        raise NotImplementedError

    def arguments(self, rows: int) -> dict[str, Any]:
        """Settings of the trainer for so many rows in which the task differs from others."""
        return {}

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        """Settings of the trainer that work on two cores, by the numbers of rows and of parameters."""
        epochs, batch = 4 if rows < FEW_ROWS else 2, min(self.batch_size, max(2, rows // 8))
        updates = max(1, math.ceil(rows / batch) * epochs)
        defaults: dict[str, Any] = {
            "num_train_epochs": epochs,
            "learning_rate": 1e-4 if parameters < FEW_PARAMETERS else 5e-5,
            "per_device_train_batch_size": batch,
            "per_device_eval_batch_size": 2 * self.batch_size,
            "warmup_steps": 0.06,
            "weight_decay": 0.01,
            "logging_steps": max(1, updates // MOST_LOGS),
            "save_strategy": "epoch",
            "save_total_limit": 2,
            "include_num_input_tokens_seen": "non_padding",
        }
        if evaluated:
            defaults |= {"eval_strategy": "epoch", "eval_on_start": True, "load_best_model_at_end": True}
            defaults |= {"metric_for_best_model": self.metric}
            defaults |= {"greater_is_better": False} if self.less_is_better else {}
        return defaults | self.arguments(rows)


class LazyRows(Sequence[Row]):
    """Rows that are made of items when they are read: pictures and sounds would fill the memory."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Row]) -> None:
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.make(self.items[index])


class MediaRecipe(Recipe):
    """A recipe whose rows hold a picture or a sound, which is read when its turn comes."""

    media: ClassVar[str]  # the role of their column

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        media = [resolved(value, dataset.path) for value in self.column(dataset, self.media)]
        return LazyRows([*zip(media, self.targets(dataset), map(dataset.place, range(len(dataset))))], self.load)

    @abstractmethod
    def targets(self, dataset: TableDataset) -> list[Any]:
        """What is to be learned of each row."""

    @abstractmethod
    def load(self, row: tuple[Any, Any, str]) -> Row:
        """A row for the model, of its picture or sound, what is to be learned of it, and where it stands."""
