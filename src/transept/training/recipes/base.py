"""What recipes share: columns, rows for a model, rows of tokens, batches, metrics, and settings of the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from transept.config.fields import Count, Range, checked, specs
from transept.core.auto import AutoModel
from transept.errors import ConfigError, refuse
from transept.objectives.classification import IGNORED
from transept.preprocess.text.auto import AutoTokenizer
from transept.tables.arrow import RowWriter
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import TrainingArguments
from transept.training.checkpoint.directory import find_last_checkpoint
from transept.training.collate.padding import DataCollatorWithPadding
from transept.training.data.checks import warn_of_tokenizer
from transept.training.data.columns import Column, describe_guesses, find_columns, find_pair
from transept.training.model_card import Answers
from transept.training.trainer import Trainer

FEW_ROWS = 2_000  # data sets with fewer rows are trained on for more epochs
FEW_PARAMETERS = 50_000_000  # models with fewer parameters learn at a higher rate
MOST_LOGS = 100
NO_LIMIT = 2**31


@dataclass(frozen=True)
class Options:
    """Options of a recipe beside the trainer's settings; a subclass adds those of its task."""

    max_length: Count | None = None  # tokens of a row; what the model allows, at most 512, when absent
    eval_share: Annotated[float, Range(0, 1, "()")] = 0.1  # of the rows, held out where no others are given

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        for name, spec in specs(type(self)).items():
            value, limits = getattr(self, name), spec.by_type.get(Range)
            checked(value, spec.kind, name, "the recipe")
            if limits is not None and isinstance(value, int | float) and value not in limits:
                raise ConfigError(f"`{name}` of the recipe must be {limits}, but is {value}.")

    def of_task(self) -> dict[str, Any]:
        """The options that the subclass adds, by name."""
        return {name: value for name, value in vars(self).items() if name not in specs(Options)}


class Recipe:
    """A task: which columns it reads, how a row is encoded, batches, the class of models, metrics and settings.

    A run calls ``inspect`` with the rows to train on, makes the model, calls ``set_model``, and encodes the rows.
    """

    task: ClassVar[str]
    pipeline_tag: ClassVar[str | None] = None
    model_class: ClassVar[Any] = AutoModel
    has_default_model: ClassVar[bool] = False
    has_perplexity: ClassVar[bool] = False  # whether the loss is that of tokens
    new_model_type: ClassVar[str | None] = None  # of new weights, where neither a model nor a type is named
    processor_class: ClassVar[Any] = AutoTokenizer
    columns: tuple[Column, ...]
    options_class: ClassVar[type[Options]] = Options
    collator_class: ClassVar[Any] = DataCollatorWithPadding
    trainer_class: ClassVar[type[Trainer]] = Trainer
    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    metric: str = "loss"  # by which the best model is chosen
    lower_is_better: ClassVar[bool] = False  # of a metric other than the loss
    batch_size: ClassVar[int] = 16
    trainer_settings: Mapping[str, Any] = {}  # of the trainer, in which the task differs from others
    longest_output: int | None = None  # tokens of the texts that evaluations have the model write
    sample_by: ClassVar[str] = "line"  # what a row of a text file is
    splits_encoded: bool = False  # whether the held-out rows are chosen after encoding
    last_checkpoint = staticmethod(find_last_checkpoint)
    encode: Callable[[TableDataset], Sequence[Row]]  # rows for the model, with labels
    describe: Callable[[Mapping[str, Any], int], dict[str, str]]  # a row of a batch in words, for a person to check
    # Logits and labels of a batch -> what the metrics need of them: the classes, mostly.
    preprocess_logits: Callable[[Any, Any], Any] | None = None
    # Predictions and labels of an evaluation -> metrics by name; absent where the loss tells all.
    compute_metrics: Callable[[Any, Any], dict[str, float]] | None = None
    answers: Answers | None = None  # of a classifier's last evaluation, for the card
    processor: Any = None
    model: Any = None

    def __init__(self, columns: dict[str, str | None] | None = None, options: dict[str, Any] | None = None) -> None:
        self.chosen_columns = dict(columns or {})  # by hand, by role
        self.options: Any = self.options_class(**(options or {}))
        self.column_names: dict[str, str] = {}  # by role

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        """Find the columns in the rows to train on, with the model's ``config``; gives a sentence about guesses."""
        self.find_columns(dataset)
        return describe_guesses(self.column_names, self.chosen_columns)

    def find_columns(self, dataset: TableDataset) -> None:
        is_pair = any(column.role == "text_pair" for column in self.columns)
        pair = find_pair(dataset, self.chosen_columns) if is_pair else {}
        self.column_names = find_columns(dataset, self.columns, {**pair, **self.chosen_columns})

    def column(self, dataset: TableDataset, role: str) -> list[Any]:
        """The values of the column that has a role."""
        return dataset.column(self.column_names[role])

    def take_unlabelled(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
        """Put rows without a label aside; gives the others (``InputError``: the task reads no ``unlabelled``)."""
        hint = "Leave --unlabelled out."
        refuse(unlabelled is not None, f"the task {self.task!r} reads no rows without labels.", hint)
        return dataset

    def model_settings(self, *, is_new: bool) -> dict[str, Any]:
        """Settings of the model, which may have new weights, that follow from the data and the options."""
        return {}

    def set_model(self, processor: Any, model: Any) -> None:
        """Set the model, and the tokenizer or processor of its inputs."""
        self.processor, self.model = processor, model

    def collator(self) -> Any:
        return self.collator_class(self.processor)

    def trainer_options(self) -> dict[str, Any]:
        """Arguments that only the trainer's class has."""
        return {}

    def default_arguments(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        """Settings of the trainer that work on two cores, by the numbers of rows and of parameters."""
        epochs, batch_size = 4 if rows < FEW_ROWS else 2, min(self.batch_size, max(2, rows // 8))
        defaults: dict[str, Any] = {
            "num_train_epochs": epochs,
            "learning_rate": 1e-4 if parameters < FEW_PARAMETERS else 5e-5,
            "per_device_train_batch_size": batch_size,
            "per_device_eval_batch_size": 2 * self.batch_size,
            "warmup_steps": 0.06,
            "weight_decay": 0.01,
            "logging_steps": max(1, math.ceil(rows / batch_size) * epochs // MOST_LOGS),
            "save_strategy": "epoch",
            "save_total_limit": 2,
            "include_num_input_tokens_seen": "non_padding",
        }
        if evaluated:
            defaults |= {"eval_strategy": "epoch", "eval_on_start": True, "load_best_model_at_end": True}
            defaults |= {"metric_for_best_model": self.metric}
            defaults |= {"greater_is_better": False} if self.lower_is_better else {}
        defaults |= self.trainer_settings
        if self.longest_output is not None:
            positions = getattr(self.model.config, "max_target_positions", None) or self.longest_output
            defaults |= {"predict_with_generate": True, "generation_max_length": min(self.longest_output, positions)}
        return defaults


class TextRecipe(Recipe):
    """A recipe whose rows are tokens."""

    batch_size = 32
    trainer_settings: Mapping[str, Any] = {"train_sampling_strategy": "group_by_length"}
    encode_rows: Callable[[TableDataset], Iterable[Row]]  # some of the rows for the model
    needs_pad_token: ClassVar[bool] = False  # the end of text stands for padding, where there is no other token
    limit = NO_LIMIT  # tokens of a row at most
    truncated = 0  # rows that were cut

    def set_model(self, processor: Any, model: Any) -> None:
        super().set_model(processor, model)
        if self.needs_pad_token:
            if processor.pad_token is None:
                hint = "Add one, and save it with the model."
                refuse(processor.eos_token is None, "the tokenizer has no padding token.", hint)
                processor.pad_token = processor.eos_token
            if getattr(model.config, "pad_token_id", None) is None:
                model.config.pad_token_id = processor.pad_token_id
        warn_of_tokenizer(processor, model)
        positions = getattr(model.body, "trained_positions", None) or NO_LIMIT
        self.limit = int(self.options.max_length or min(processor.model_max_length or NO_LIMIT, positions, 512))
        what = f"`max_length` is {self.limit}, but the model has positions for {positions} tokens."
        refuse(self.limit > positions, what, f"Pass max_length={positions} or less.", ConfigError)

    def encode(self, dataset: TableDataset) -> TableDataset:
        return stored((row for chunk in dataset.chunks() for row in self.encode_rows(chunk)), dataset)

    def tokens(self, texts: list[Any], pairs: list[str] | None = None, **options: Any) -> Any:
        """Texts as the tokenizer's columns, cut at the limit; the rows that are cut are counted."""
        encoded = self.processor(texts, pairs, truncation=True, max_length=self.limit, **options)
        for row, ids in enumerate(encoded["input_ids"]):
            if len(ids) >= self.limit:
                pair = None if pairs is None else pairs[row]
                longer = self.processor(texts[row], pair, truncation=True, max_length=self.limit + 1, **options)
                self.truncated += len(longer["input_ids"]) > self.limit
        return encoded

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        ids, mask, labels = batch["input_ids"][index], batch.get("attention_mask"), batch.get("labels")
        real = ids if mask is None else ids[mask[index].bool()]
        words = {"text": self.decode(real), "tokens": f"{len(real)} of {ids.shape[-1]} in the batch"}
        return words if labels is None else words | {"labels": self.describe_labels(labels[index], ids)}

    def describe_labels(self, labels: Any, ids: Any) -> str:
        """The labels of a row in words."""
        return self.decode(labels[labels >= 0])

    def decode(self, ids: Any) -> str:
        return str(self.processor.decode(ids.tolist()))


class LazyRows(Sequence[Row]):
    """Rows that are made of the values of columns when they are read: pictures and sounds would fill the memory."""

    def __init__(self, make: Callable[..., Row], *columns: Sequence[Any]) -> None:
        self.make, self.columns = make, columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        return self.make(*(column[index] for column in self.columns))


def stored(rows: Iterable[Row], source: TableDataset) -> TableDataset:
    """Rows that were made of a data set's, which are kept in files where they are many."""
    writer = RowWriter()
    for row in rows:
        writer.add(row)
    return TableDataset(writer.finish(), list(writer.columns), path=source.path)


def rows_from(encoded: Mapping[str, Any], **more: Sequence[Any]) -> list[Row]:
    """Columns as rows."""
    columns = {**encoded, **more}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def most_likely(logits: Any, labels: Any) -> Any:
    """The classes with the highest logits; other outputs are left out."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def texts_of(tokenizer: Any, rows: Any, *, skip_special_tokens: bool = True, **options: Any) -> list[str]:
    """Rows of tokens as texts, without padding of labels."""
    ids = ([int(token) for token in row if token != IGNORED] for row in rows)
    return [str(tokenizer.decode(row, skip_special_tokens=skip_special_tokens, **options)) for row in ids]
