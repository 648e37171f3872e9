"""How a trainer reads its data: loaders, the columns of a row, and the order of rows."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Sampler

from transept.errors import ConfigError, InputTypeError, refuse
from transept.tables.dataset import TableDataset
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import length_of
from transept.training.data.loader import Columns, check_rows, lengths_of, make_loader, reads_by_number, source_of
from transept.training.data.order import EpochSampler, TokenBudgetSampler, by_falling_length, grouped_by_length
from transept.training.devices import Devices

WORKERS_PER_CORE = 8  # at most; more only take turns, and each holds a copy of this process


class TrainerData:
    """The part of a trainer that reads; see :class:`transept.training.trainer.Trainer`."""

    args: TrainingArguments
    devices: Devices
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    label_names: list[str]
    main_input_name: str
    _inputs: list[str]  # what the model takes
    _signature_columns: list[str] | None = None
    _takes_any: bool

    def get_train_dataloader(self) -> DataLoader[Any]:
        check_rows(self.train_dataset, "train_dataset")
        sampler = self._get_train_sampler(self.train_dataset) if reads_by_number(self.train_dataset) else None
        return self._loader(self.train_dataset, sampler, self.args.train_batch_size, self.args.dataloader_drop_last)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The loader of a set, of the one of that name, or of ``eval_dataset``."""
        if eval_dataset is None or isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset if eval_dataset is None else self.eval_dataset[eval_dataset]
        return self.get_test_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        check_rows(test_dataset, "eval_dataset")
        sampler = self._get_eval_sampler(test_dataset) if reads_by_number(test_dataset) else None
        return self._loader(test_dataset, sampler, self.args.eval_batch_size, False)

    def _loader(self, dataset: Any, sampler: Any, batch_size: int, drop_last: bool) -> DataLoader[Any]:
        """A loader of a data set as the arguments say, of the columns that the model takes."""
        args, cores, workers = self.args, os.cpu_count() or 1, self.args.dataloader_num_workers
        most = WORKERS_PER_CORE * cores
        what = f"`dataloader_num_workers` is {workers}, but this machine has {cores} cores."
        refuse(workers > most, what, f"Pass {most} at most: {WORKERS_PER_CORE} a core.", ConfigError)
        dataset = self._remove_unused_columns(dataset)
        options: dict[str, Any] = {"num_workers": workers, "in_order": args.dataloader_in_order}
        if workers:
            options["persistent_workers"] = args.dataloader_persistent_workers
            options["prefetch_factor"] = args.dataloader_prefetch_factor
            options["multiprocessing_context"] = args.dataloader_multiprocessing_context
        return make_loader(
            dataset,
            sampler,
            self.data_collator,
            self._columns(),
            seed=self._data_seed,
            batch_size=batch_size,
            drop_last=drop_last,
            rank=self.devices.replicas.rank,
            ranks=self.devices.replicas.size,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            **options,
        )

    def _columns(self) -> Columns:
        """The columns that the model takes."""
        if not self.args.remove_unused_columns or self._takes_any:
            return Columns(None)
        self._set_signature_columns_if_needed()
        return Columns(frozenset(self._signature_columns or ()))

    def _set_signature_columns_if_needed(self) -> None:
        """Note what the model takes in ``_signature_columns``, where nothing is noted."""
        if self._signature_columns is None:
            self._signature_columns = [*self._inputs, *self.label_names, "label", "label_ids"]

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        kept, names = self._columns().kept, getattr(dataset, "column_names", None)
        if kept is None or not names or not hasattr(dataset, "select_columns"):
            return dataset
        return dataset.select_columns([name for name in names if name in kept])

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        return partial(self._columns().collate, data_collator)

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        """The order of the rows in training, by ``train_sampling_strategy``; ``None`` for an iterable."""
        dataset, args = self.train_dataset if train_dataset is None else train_dataset, self.args
        if (size := length_of(dataset)) is None:
            return None
        if args.train_sampling_strategy in ("random", "sequential"):
            return EpochSampler(size, self._data_seed, shuffle=args.train_sampling_strategy == "random")
        lengths = lengths_of(dataset, args.length_column_name, self.main_input_name)
        if args.max_tokens_per_batch is not None:
            return TokenBudgetSampler(lengths, self._data_seed, args.max_tokens_per_batch)
        by_length = partial(grouped_by_length, lengths, self.get_total_train_batch_size(args))
        return EpochSampler(len(lengths), self._data_seed, order=by_length)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        """The order of the rows in an evaluation: by length where rows are at hand; answers are put back in order."""
        column = self.args.length_column_name
        has_lengths = column in (getattr(eval_dataset, "column_names", None) or ())
        at_hand = has_lengths or isinstance(eval_dataset, list | tuple | TableDataset)
        if at_hand and self.args.eval_do_concat_batches:
            with contextlib.suppress(InputTypeError):
                lengths = lengths_of(eval_dataset, column, self.main_input_name)
                return EpochSampler(len(lengths), 0, order=lambda _: by_falling_length(lengths))
        return EpochSampler(len(eval_dataset), 0, shuffle=False)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The number of rows behind a loader, as far as it is known."""
        return length_of(source_of(dataloader)) or (length_of(dataloader) or 0) * self.args.train_batch_size

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """The rows of an update."""
        rows: int = args.train_batch_size * args.gradient_accumulation_steps * self.devices.replicas.size
        return rows
