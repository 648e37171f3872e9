"""What a trainer makes for a run: loaders with the order of their rows, the optimizer and the schedule."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Sampler

from transept.errors import ConfigError, InputTypeError
from transept.parallel.forms import Form
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import length_of
from transept.training.data.loader import Columns, check_rows, lengths_of, make_loader, reads_by_number, source_of
from transept.training.data.order import EpochSampler, LengthSampler, SortedSampler, TokenBudgetSampler
from transept.training.data.table import TableDataset
from transept.training.devices import Devices

WORKERS_PER_CORE = 8  # at most; more only take turns, and each holds a copy of this process


class Builders:
    """Methods of the trainer that make the parts of a run; each can be overridden."""

    args: TrainingArguments
    devices: Devices
    form: Form
    model: Any
    data_collator: Any
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: Any
    given_optimizers: Any
    label_names: list[str]
    main_input_name: str
    _signature_columns: list[str]
    _takes_any: bool

    # --- data ---------------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of the training set."""
        check_rows(self.train_dataset, "train_dataset")
        return self._loader(
            self.train_dataset, self._get_train_sampler, self.args.train_batch_size, self.args.dataloader_drop_last
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The loader of a set, of the one of that name, or of ``eval_dataset``."""
        if eval_dataset is None or isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset if eval_dataset is None else self.eval_dataset[eval_dataset]
        return self.get_test_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        check_rows(test_dataset, "eval_dataset")
        return self._loader(test_dataset, self._get_eval_sampler, self.args.eval_batch_size, False)

    def _loader(self, dataset: Any, sampler: Callable[[Any], Any], batch_size: int, drop_last: bool) -> DataLoader[Any]:
        args, kept, workers = self.args, None, self.args.dataloader_num_workers
        cores = os.cpu_count() or 1
        if workers > WORKERS_PER_CORE * cores:
            what = f"`dataloader_num_workers` is {workers}, but this machine has {cores} cores."
            raise ConfigError(what, hint=f"Pass {WORKERS_PER_CORE * cores} at most: {WORKERS_PER_CORE} a core.")
        if args.remove_unused_columns and not self._takes_any:
            kept = frozenset([*self._signature_columns, *self.label_names, "label", "label_ids"])
            if hasattr(dataset, "select_columns") and (names := getattr(dataset, "column_names", None)):
                dataset = dataset.select_columns([name for name in names if name in kept])
        options: dict[str, Any] = {"num_workers": workers, "in_order": args.dataloader_in_order}
        if workers:
            options["persistent_workers"] = args.dataloader_persistent_workers
            options["prefetch_factor"] = args.dataloader_prefetch_factor
            options["multiprocessing_context"] = args.dataloader_multiprocessing_context
        return make_loader(
            dataset,
            sampler(dataset) if reads_by_number(dataset) else None,
            self.data_collator,
            Columns(kept),
            seed=self._data_seed,
            batch_size=batch_size,
            drop_last=drop_last,
            rank=self.devices.replicas.rank,
            ranks=self.devices.replicas.size,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            **options,
        )

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        """The order of the rows in training, by ``train_sampling_strategy``."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        args, size = self.args, length_of(dataset)
        if size is None:
            return None
        if args.train_sampling_strategy in ("random", "sequential"):
            return EpochSampler(size, self._data_seed, shuffle=args.train_sampling_strategy == "random")
        lengths = lengths_of(dataset, args.length_column_name, self.main_input_name)
        if args.max_tokens_per_batch is not None:
            return TokenBudgetSampler(lengths, self._data_seed, args.max_tokens_per_batch)
        return LengthSampler(lengths, self._data_seed, self._rows_of_update)

    @property
    def _rows_of_update(self) -> int:
        """The rows of an update, over all processes."""
        each: int = self.args.train_batch_size
        return each * self.args.gradient_accumulation_steps * self.devices.replicas.size

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        """The order of the rows in an evaluation: by length where rows are at hand; the answers are put back in order."""
        is_read = self.args.length_column_name in (getattr(eval_dataset, "column_names", None) or ())
        at_hand = is_read or isinstance(eval_dataset, list | tuple | TableDataset)
        with contextlib.suppress(InputTypeError):
            if at_hand and self.args.eval_do_concat_batches:
                return SortedSampler(lengths_of(eval_dataset, self.args.length_column_name, self.main_input_name))
        return EpochSampler(len(eval_dataset), 0, shuffle=False)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The number of rows behind a loader, as far as it is known."""
        return length_of(source_of(dataloader)) or (length_of(dataloader) or 0) * self.args.train_batch_size
