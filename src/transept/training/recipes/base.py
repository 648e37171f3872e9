"""What all recipes share: columns, rows for a model, batches, metrics and defaults."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from transept.core.auto import AutoModel
from transept.errors import ConfigError, InputError, nearest
from transept.fields import Count, Range, checked, specs
from transept.objectives.classification import IGNORED
from transept.preprocess.text.auto import AutoTokenizer
from transept.tables.arrow import RowWriter
from transept.training.arguments.training import TrainingArguments
from transept.training.checkpoint.directory import find_last_checkpoint
from transept.training.collate.padding import DataCollatorWithPadding
from transept.training.data.columns import Column, find_columns, told
from transept.training.data.table import Row, TableDataset
from transept.training.model_card import Answers
from transept.training.trainer import Trainer

# Data sets with fewer rows are gone through more often.
FEW_ROWS = 2_000
# Models with fewer parameters learn faster.
FEW_PARAMETERS = 50_000_000
MOST_LOGS = 100
NO_LIMIT = 2**31


@dataclass(frozen=True)
class Options:
    """Options of a recipe beside the trainer's settings; a subclass adds its own.

    Args:
        max_length: tokens of a row at most; what the model allows, at most 512, when absent.
        eval_share: the share of the rows that are kept for the evaluation, where no others are given.
    """

    max_length: Count | None = None
    eval_share: Annotated[float, Range(0, 1, "()")] = 0.1

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """Options by name (``ConfigError``: one that is not known, of the wrong type or out of range)."""
        known = specs(cls)
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"there is no option {name!r}.", hint=nearest(name, known))
            checked(value, known[name].kind, name, "the recipe")
            limits = known[name].find(Range)
            if limits is not None and isinstance(value, int | float) and value not in limits:
                raise ConfigError(f"`{name}` of the recipe must be {limits}, but is {value}.")
        return cls(**values)


class LazyRows(Sequence[Row]):
    """Rows that are encoded when they are read, as pictures and sounds are, which would fill the memory."""

    def __init__(self, dataset: TableDataset, encode: Callable[[Row, str], Row]) -> None:
        self.dataset, self.encode = dataset, encode

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.encode(self.dataset[index], self.dataset.place(index))


class Recipe(ABC):
    """A task: which columns it reads, how a row is encoded, batches, the class of models, metrics and defaults.

    Args:
        columns: columns that were chosen by hand, by role.
        options: see :class:`Options`.

    A run calls ``look`` with the rows to train on, makes the model with ``settings()``, gives it to ``take``, and then encodes.
    """

    task: ClassVar[str]
    tag: ClassVar[str | None] = None  # the task on the hub
    auto: ClassVar[Any] = AutoModel
    reader_class: ClassVar[Any] = AutoTokenizer
    columns: tuple[Column, ...]
    options_class: ClassVar[type[Options]] = Options
    collator_class: ClassVar[Any] = DataCollatorWithPadding
    trainer_class: ClassVar[type[Trainer]] = Trainer
    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    metric: str = "loss"  # the one that counts
    has_default_model: ClassVar[bool] = False
    new_model: ClassVar[str | None] = None  # the type of new models, where no other is named and no default one is there
    sample_by: ClassVar[str] = "line"  # rows of a text
    splits_encoded: bool = False  # held-out rows are taken after encoding
    batch_size: ClassVar[int] = 16

    def __init__(self, columns: Mapping[str, str | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.given = dict(columns or {})
        self.options: Any = self.options_class.of(options or {})
        self.found: dict[str, str] = {}
        self.reader: Any = None
        self.model: Any = None
        self.truncated = 0

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        """Find the columns in the rows to train on; a sentence about what was guessed.

        ``config`` is the model's, whose classes keep their numbers where they are the data's.
        """
        self.found = find_columns(dataset, self.columns, {**self.guesses(dataset), **self.given})
        return told(self.found, self.given)

    def guesses(self, dataset: TableDataset) -> dict[str, str]:
        """Columns that are found together, such as two texts of a pair."""
        return {}

    def parted(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
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

    def collator(self) -> Callable[[list[Any]], Any]:
        """What makes a batch of rows."""
        collator: Callable[[list[Any]], Any] = self.collator_class(self.reader)
        return collator

    def trainer_options(self) -> dict[str, Any]:
        """Arguments of the trainer's class that are its own."""
        return {}

    def scores(self) -> Callable[[Any], dict[str, float]] | None:
        """Metrics of an evaluation; ``None`` where the loss tells all."""
        return None

    def reduce(self) -> Callable[[Any, Any], Any] | None:
        """What is kept of the logits of a batch (logits, labels -> tensor): the classes, mostly."""
        return None

    def derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Figures that follow from others, such as the perplexity from the loss."""
        return {}

    def answers(self, predictions: Any, labels: Any) -> Answers | None:
        """For the card of a classifier: what was said, and what is right."""
        return None

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        """One row of a batch in words, for a person to check."""
        return {name: _shape(value[index]) for name, value in batch.items()}

    @classmethod
    def last_checkpoint(cls, run: str) -> Path | None:
        """The checkpoint of a run's directory to go on from; ``None`` where there is none."""
        return find_last_checkpoint(run)

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
        return defaults


def _shape(value: Any) -> str:
    return f"{type(value).__name__} {tuple(value.shape)}" if getattr(value, "ndim", 0) else str(value)


class TextRecipe(Recipe):
    """A recipe whose rows are tokens."""

    batch_size = 32

    def encode(self, dataset: TableDataset) -> TableDataset:
        """Rows for the model, which are encoded in parts and kept in files where they are many."""
        writer = RowWriter()
        for chunk in dataset.chunks():
            for row in self.encode_rows(chunk):
                writer.add(row)
        return TableDataset(writer.finish(), list(writer.columns), path=dataset.path)

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        """Some of the rows for the model."""
        raise NotImplementedError

    @property
    def limit(self) -> int:
        """Tokens of a row at most (``ConfigError``: more than the model has positions for)."""
        positions = getattr(self.model.backbone, "trained_positions", None) or NO_LIMIT
        most = min(self.reader.model_max_length or NO_LIMIT, positions)
        wanted = self.options.max_length
        if wanted is not None and wanted > positions:
            what = f"`max_length` is {wanted}, but the model has positions for {positions} tokens."
            raise ConfigError(what, hint=f"Pass max_length={positions} or less.")
        return int(min(most, 512) if wanted is None else wanted)

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        return super().defaults(rows, parameters, evaluated=evaluated) | {"train_sampling_strategy": "group_by_length"}

    def tokens(self, texts: list[Any], pairs: list[str] | None = None, **options: Any) -> Any:
        """Texts as the tokenizer's columns, cut at the limit; those that are cut are counted."""
        limit = self.limit
        encoded = self.reader(texts, pairs, truncation=True, max_length=limit, **options)
        full = [row for row, ids in enumerate(encoded["input_ids"]) if len(ids) >= limit]
        for row in full:
            pair = None if pairs is None else pairs[row]
            longer = self.reader(texts[row], pair, truncation=True, max_length=limit + 1, **options)
            self.truncated += len(longer["input_ids"]) > limit
        return encoded

    def rows(self, encoded: Mapping[str, Any], **more: Sequence[Any]) -> list[Row]:
        """Columns as rows."""
        columns = {**{name: encoded[name] for name in encoded}, **more}
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        ids, mask, labels = batch["input_ids"][index], batch.get("attention_mask"), batch.get("labels")
        real = ids if mask is None else ids[mask[index].bool()]
        words = {"text": self.reader.decode(real.tolist()), "tokens": f"{len(real)} of {ids.shape[-1]} in the batch"}
        return words if labels is None else words | {"labels": self.shown_labels(labels[index], ids)}

    def shown_labels(self, labels: Any, ids: Any) -> str:
        """The labels of a row in words."""
        return str(labels.tolist())

    def need_pad_token(self) -> None:
        """Let the end of text stand for padding, where a tokenizer has none (``InputError``: it has no such token either)."""
        if self.reader.pad_token is None:
            if self.reader.eos_token is None:
                raise InputError("the tokenizer has no padding token.", hint="Add one, and save it with the model.")
            self.reader.pad_token = self.reader.eos_token
        if getattr(self.model.config, "pad_token_id", None) is None:
            self.model.config.pad_token_id = self.reader.pad_token_id


def texts_of(tokenizer: Any, rows: Any) -> list[str]:
    """Rows of tokens as texts, without special tokens and padding."""
    return [tokenizer.decode([int(token) for token in row if token != IGNORED], skip_special_tokens=True) for row in rows]


def written_at_evaluation(model: Any, longest: int) -> dict[str, Any]:
    """Settings of a trainer whose evaluations have the model write texts of so many tokens at most."""
    positions = getattr(model.config, "max_target_positions", None) or longest
    return {"predict_with_generate": True, "generation_max_length": min(longest, positions)}


def option_names(recipe: type[Recipe]) -> list[str]:
    """The names of a recipe's options."""
    return [field.name for field in dataclasses.fields(recipe.options_class)]
