"""The states of a frozen backbone, computed once before a run, that its head is trained on in place of the rows."""

from __future__ import annotations

from typing import Any, cast

from torch import nn
from torch.utils.data import DataLoader

from transept.adapt.features import Features, Row, precompute
from transept.core.task import TaskModel
from transept.errors import InputError
from transept.training.data.loader import Columns, make_loader
from transept.training.data.order import EpochBatches
from transept.training.loss import precision
from transept.training.objective import own_task, to_device


def computed_once(trainer: Any, loader: DataLoader[Any]) -> tuple[DataLoader[Any], nn.Module]:
    """A loader of states in the order of a loader of rows, and the head, which is trained on them.

    Raises:
        InputError: the rows have no numbers, or some of the backbone is trained.
        UnsupportedError: the model has no head that could be told from its backbone.
    """
    task, args = own_task(trainer.model, "precompute"), trainer.args
    source = trainer.get_test_dataloader(trainer.train_dataset)
    if not all(isinstance(each.batch_sampler, EpochBatches) for each in (loader, source)):
        raise InputError("`precompute` needs rows that can be read by number.", hint="Leave it out.")
    with precision(args):
        found, head = precompute(cast(TaskModel[Any], task), (to_device(batch, args.device) for batch in source))
    order = [row for batch in source.batch_sampler.all() for row in batch]
    rows: list[Row] = [row for _, row in sorted(zip(order, found.rows, strict=True), key=lambda pair: pair[0])]
    states = make_loader(
        rows,
        loader.batch_sampler,
        Features(rows, found.padding).collate,
        Columns(None),
        seed=args.seed,
        batch_size=args.train_batch_size,
        drop_last=args.dataloader_drop_last,
    )
    return states, head
