"""The loaders of a trainer, and the orders in which they read rows."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from torch.utils.data import DataLoader, Sampler

from transept.errors import ConfigError, InputTypeError
from transept.parallel.processes import Replicas
from transept.tables.dataset import TableDataset
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import length_of
from transept.training.data.loader import Columns, lengths_of, make_loader
from transept.training.data.order import EpochSampler, LengthSampler, SortedSampler, TokenBudgetSampler

WORKERS_PER_CORE = 8  # at most; more only take turns, and each holds a copy of this process


def loader_of(
    dataset: Any,
    sampler: Sampler[int] | None,
    collate: Any,
    columns: frozenset[str] | None,
    args: TrainingArguments,
    replicas: Replicas,
    batch_size: int,
    drop_last: bool,
) -> DataLoader[Any]:
    """A loader of a data set as the arguments say; ``columns`` are those that stay (``None``: all)."""
    workers, cores = args.dataloader_num_workers, os.cpu_count() or 1
    if workers > WORKERS_PER_CORE * cores:
        what = f"`dataloader_num_workers` is {workers}, but this machine has {cores} cores."
        raise ConfigError(what, hint=f"Pass {WORKERS_PER_CORE * cores} at most: {WORKERS_PER_CORE} a core.")
    if columns is not None and hasattr(dataset, "select_columns") and getattr(dataset, "column_names", None):
        dataset = dataset.select_columns([name for name in dataset.column_names if name in columns])
    options: dict[str, Any] = {"num_workers": workers, "in_order": args.dataloader_in_order}
    if workers:
        options["persistent_workers"] = args.dataloader_persistent_workers
        options["prefetch_factor"] = args.dataloader_prefetch_factor
        options["multiprocessing_context"] = args.dataloader_multiprocessing_context
    return make_loader(
        dataset,
        sampler,
        collate,
        Columns(columns),
        seed=data_seed(args),
        batch_size=batch_size,
        drop_last=drop_last,
        rank=replicas.rank,
        ranks=replicas.size,
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        **options,
    )


def data_seed(args: TrainingArguments) -> int:
    return args.seed if args.data_seed is None else args.data_seed


def train_sampler(dataset: Any, args: TrainingArguments, input_name: str, replicas: int) -> Sampler[int] | None:
    """The order of the rows in training, by ``train_sampling_strategy``; ``None`` for an iterable."""
    size, seed = length_of(dataset), data_seed(args)
    if size is None:
        return None
    if args.train_sampling_strategy in ("random", "sequential"):
        return EpochSampler(size, seed, shuffle=args.train_sampling_strategy == "random")
    lengths = lengths_of(dataset, args.length_column_name, input_name)
    if args.max_tokens_per_batch is not None:
        return TokenBudgetSampler(lengths, seed, args.max_tokens_per_batch)
    return LengthSampler(lengths, seed, args.train_batch_size * args.gradient_accumulation_steps * replicas)


def eval_sampler(dataset: Any, args: TrainingArguments, input_name: str) -> Sampler[int]:
    """The order of the rows in an evaluation: by length where rows are at hand; the answers are put back in order."""
    is_read = args.length_column_name in (getattr(dataset, "column_names", None) or ())
    at_hand = is_read or isinstance(dataset, list | tuple | TableDataset)
    with contextlib.suppress(InputTypeError):
        if at_hand and args.eval_do_concat_batches:
            return SortedSampler(lengths_of(dataset, args.length_column_name, input_name))
    return EpochSampler(len(dataset), 0, shuffle=False)
