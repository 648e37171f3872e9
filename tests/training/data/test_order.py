"""Which row comes when, and what it becomes: functions of the place alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from tests.training.small import head, ours, quiet, rows
from transept import Trainer, TrainingArguments
from transept.errors import ConfigError, InputTypeError
from transept.training.data import order
from transept.training.data.loader import Columns, begin_epoch, lengths_of, make_loader

CASE = head("BertForSequenceClassification")


@pytest.mark.reference
@pytest.mark.parametrize(("size", "batch"), [(7, 2), (103, 4), (1000, 3), (3, 8)])
def test_rows_grouped_by_length_come_as_in_the_reference(size: int, batch: int) -> None:
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = torch.randint(1, 50, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    mine = order.grouped_by_length(lengths, batch, torch.Generator().manual_seed(1))
    assert mine.tolist() == get_length_grouped_indices(lengths, batch, generator=torch.Generator().manual_seed(1))
    assert sorted(mine) == list(range(size))
    assert lengths[mine[0]] == max(lengths)


class Numbers(Dataset[Any]):
    """Rows that say their number."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.tensor([index]), "noise": torch.rand(1), "other": random.random(), "third": np.random.rand()}  # noqa: NPY002


@pytest.mark.reference
def test_random_rows_come_as_in_the_reference(tmp_path: Path) -> None:
    import transformers

    for settings in ({"seed": 3}, {"seed": 3, "data_seed": 11}):
        mine = Trainer(ours(CASE), TrainingArguments(**quiet(tmp_path, **settings)), list, train_dataset=Numbers())
        theirs = transformers.Trainer(
            torch.nn.Linear(1, 1),
            transformers.TrainingArguments(**quiet(tmp_path, remove_unused_columns=False, **settings)),
            lambda batch: batch,
            train_dataset=Numbers(),
        )
        loaders = mine.get_train_dataloader(), theirs.get_train_dataloader()
        for epoch in range(3):
            loaders[1].set_epoch(epoch)
            found = [
                [[int(row["input_ids"]) for row in batch] for batch in each]
                for each in (begin_epoch(loaders[0], epoch, 0), loaders[1])
            ]
            assert found[0] == found[1]


def batches(epoch: int, start: int, **options: Any) -> list[Any]:
    sampler = order.EpochBatches(order.EpochSampler(23, 5), 4)
    loader = make_loader(
        Numbers(),
        sampler,
        lambda batch: (batch, random.random(), torch.rand(1)),
        Columns(None),
        seed=1,
        batch_size=4,
        drop_last=False,
        **options,
    )
    return list(begin_epoch(loader, epoch, start))


def test_a_row_is_the_same_wherever_it_is_read() -> None:
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    whole = batches(2, 0)
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    random.seed(2)
    assert repr(batches(2, 3)) == repr(whole[3:])
    assert repr(batches(2, 0, num_workers=2)) == repr(whole)
    assert repr(batches(3, 0)) != repr(whole)
    noise = [float(row["noise"]) for batch, *_ in whole for row in batch]
    assert len(set(noise)) == 23


@pytest.mark.parametrize("seed", range(5))
def test_batches_stay_within_a_number_of_tokens(seed: int) -> None:
    lengths = torch.randint(1, 60, (500,), generator=torch.Generator().manual_seed(seed)).tolist()
    found = order.token_budget(lengths, 256, seed, 1)
    assert sorted(row for batch in found for row in batch) == list(range(500))
    assert all(len(batch) * max(lengths[row] for row in batch) <= 256 for batch in found)
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in found)
    assert sum(lengths) / padded > 0.85
    assert [*found] == [*order.token_budget(lengths, 256, seed, 1)] != [*order.token_budget(lengths, 256, seed, 2)]
    with pytest.raises(ConfigError, match="has 59 tokens, but"):
        order.token_budget(lengths, 58, seed, 1)


def test_a_run_with_a_number_of_tokens(tmp_path: Path) -> None:
    data = [{n: v[: 3 + i % 9] if v.ndim else v for n, v in row.items()} for i, row in enumerate(rows("class", 40))]

    def collate(batch: list[Any]) -> dict[str, torch.Tensor]:
        return {n: torch.nn.utils.rnn.pad_sequence([row[n] for row in batch], True) if batch[0][n].ndim else torch.stack([row[n] for row in batch]) for n in batch[0]}  # fmt: skip

    args = TrainingArguments(
        **quiet(tmp_path, num_train_epochs=3), train_sampling_strategy="token_budget", max_tokens_per_batch=48
    )
    trainer = Trainer(ours(CASE), args, collate, data)
    assert trainer.train().global_step == trainer.state.max_steps
    assert trainer.state.epoch == 3.0


def test_other_data_sets(tmp_path: Path) -> None:
    data = rows("class", 12)

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(data)

    class Columnar:
        """Offers what Arrow tables do."""

        column_names = ("input_ids", "attention_mask", "labels", "text")

        def __init__(self, names: Any = column_names) -> None:
            self.column_names = names

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: Any) -> Any:
            return {name: data[index][name] for name in self.column_names}

        def select_columns(self, names: Any) -> Any:
            return Columnar(names)

    made = {}
    for name, dataset in {"list": data, "stream": Stream(), "generator": (row for row in data), "columns": Columnar()}.items():
        args = TrainingArguments(
            **quiet(tmp_path, max_steps=3, per_device_train_batch_size=4), train_sampling_strategy="sequential"
        )
        made[name] = Trainer(ours(CASE), args, train_dataset=dataset).train().training_loss
    assert len(set(made.values())) == 1
    again = TrainingArguments(**quiet(tmp_path, max_steps=7, per_device_train_batch_size=4))
    trainer = Trainer(ours(CASE), again, train_dataset=Stream())
    trainer.train()
    assert trainer.state.global_step == 7
    with pytest.warns(match="gave no batch"):
        result = Trainer(ours(CASE), again, train_dataset=(row for row in data)).train()
    assert result.global_step == 3


def test_lengths_are_found_or_missed() -> None:
    assert lengths_of(rows("class", 3), "length", "input_ids").tolist() == [12, 12, 12]
    with pytest.raises(InputTypeError, match="lengths of rows"):
        lengths_of([{"text": "a"}], "length", "input_ids")


def test_an_own_loader_and_sampler(tmp_path: Path) -> None:
    data = rows("class", 8)

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(data, batch_size=2)

    class Weighted(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return torch.utils.data.WeightedRandomSampler([1.0] * 7 + [9.0], 20)

    args = TrainingArguments(**quiet(tmp_path, num_train_epochs=1, per_device_train_batch_size=2))
    assert Own(ours(CASE), args, train_dataset=data).train().global_step == 4
    assert Weighted(ours(CASE), args, train_dataset=data).train().global_step == 10
