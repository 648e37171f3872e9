"""What a trainer makes for a run: loaders with the order of their rows, the optimizer and the schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, Sampler

from transept.adapt.freeze import layer_groups
from transept.errors import InputTypeError
from transept.parallel.forms import Form
from transept.training.arguments import TrainingArguments
from transept.training.callbacks import length_of
from transept.training.collate.padding import DataCollatorWithPadding, default_data_collator
from transept.training.devices import Devices
from transept.training.loader import Columns, check_rows, lengths_of, make_loader, source_of
from transept.training.optim.greedy import GreedyLR
from transept.training.optim.schedules import get_scheduler
from transept.training.optimizers import (
    OptimizerArguments,
    get_decay_parameter_names,
    get_optimizer_cls_and_kwargs,
    layerwise_rates,
    make_optimizer,
    parameter_groups,
)
from transept.training.order import EpochSampler, LengthSampler, SortedSampler, TokenBudgetSampler
from transept.training.prepare import own_task


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

    # --- what a trainer begins with ---------------------------------------------------------------------------------------

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        pads = hasattr(self.processing_class, "pad")
        return DataCollatorWithPadding(self.processing_class) if pads else default_data_collator

    def _report_callbacks(self) -> list[Any]:
        """The callbacks that ``report_to`` names."""
        if not self.args.report_to:
            return []
        from transept.training.reports import report_callbacks  # it asks for the programs that show runs

        return list(report_callbacks([*self.args.report_to]))

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
        args, kept = self.args, None
        if args.remove_unused_columns and not self._takes_any:
            kept = frozenset([*self._signature_columns, *self.label_names, "label", "label_ids"])
            if hasattr(dataset, "select_columns") and (names := getattr(dataset, "column_names", None)):
                dataset = dataset.select_columns([name for name in names if name in kept])
        iterable = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or length_of(dataset) is None
        options: dict[str, Any] = {"num_workers": args.dataloader_num_workers, "in_order": args.dataloader_in_order}
        if args.dataloader_num_workers:
            options["persistent_workers"] = args.dataloader_persistent_workers
            options["prefetch_factor"] = args.dataloader_prefetch_factor
            options["multiprocessing_context"] = args.dataloader_multiprocessing_context
        return make_loader(
            dataset,
            None if iterable else sampler(dataset),
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
        at_hand = is_read or isinstance(eval_dataset, list | tuple)
        with contextlib.suppress(InputTypeError):
            if at_hand and self.args.eval_do_concat_batches:
                return SortedSampler(lengths_of(eval_dataset, self.args.length_column_name, self.main_input_name))
        return EpochSampler(len(eval_dataset), 0, shuffle=False)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The number of rows behind a loader, as far as it is known."""
        return length_of(source_of(dataloader)) or (length_of(dataloader) or 0) * self.args.train_batch_size

    # --- optimizer and schedule ---------------------------------------------------------------------------------------------

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule, where there are none."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the parameters that weight decay applies to."""
        return get_decay_parameter_names(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer that the arguments name, and what it is made with."""
        return get_optimizer_cls_and_kwargs(cast(OptimizerArguments, args))

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The optimizer, made where there is none."""
        if self.optimizer is None:
            model = self.model if model is None else model
            kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            rate = options.get("lr", self.args.learning_rate)
            rates, decay = None, self.args.layerwise_lr_decay
            if decay is not None:
                rates = layerwise_rates(layer_groups(own_task(self.model, "layerwise_lr_decay")), decay)
            decayed = self.get_decay_parameter_names(model)
            groups = parameter_groups(model, rate, self.args.weight_decay, decayed, rates)
            self.optimizer = make_optimizer(kind, groups, options, self.form.optimizer)
        elif self.given_optimizers[0] is not None:
            self.devices.check_given(self.optimizer, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule, made where there is none."""
        if self.lr_scheduler is None:
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                self.optimizer if optimizer is None else optimizer,
                self.args.get_warmup_steps(num_training_steps),
                num_training_steps,
                cast("dict[str, Any] | None", self.args.lr_scheduler_kwargs),
            )
        return self.lr_scheduler

    @property
    def follows_metric(self) -> bool:
        """Whether the schedule is told a metric after evaluations, and nothing after updates."""
        return isinstance(self.lr_scheduler, ReduceLROnPlateau | GreedyLR)

    def _get_learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])
