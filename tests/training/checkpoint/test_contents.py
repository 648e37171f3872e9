"""All parts of a run in the files of a checkpoint, and back."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transept import BertConfig, BertForSequenceClassification
from transept.checkpoint.store import write_tensors
from transept.errors import CheckpointError, FileError, FormatError
from transept.parallel.forms import Form
from transept.training.checkpoint.contents import Collected, checkpoint_bytes, load_generators, load_parts, load_weights
from transept.training.checkpoint.digests import digest_rows
from transept.training.checkpoint.directory import check_checkpoint, write_checkpoint
from transept.training.checkpoint.generators import Generators, Rewind
from transept.training.optim.optimizers import WeightAverage

TINY = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def bert(**settings: Any) -> nn.Module:
    return BertForSequenceClassification(BertConfig(**TINY, **settings))


def foreign() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def parts_of(model: nn.Module, mean: bool = False) -> Any:
    """The parts of a run that a checkpoint holds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return SimpleNamespace(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        scaler=None,
        average=WeightAverage(model, 0.5) if mean else None,
        form=Form(),
        devices=SimpleNamespace(writes_shards=False),
    )


def saved(parts: Any, run: Path) -> Path:
    def fill(stage: Path) -> Any:
        model: Any = parts.model
        with nullcontext() if parts.average is None else parts.average.applied(model):
            if hasattr(model, "save_pretrained"):
                model.save_pretrained(stage)
            else:
                write_tensors(model.state_dict(), stage / "model.safetensors")
        yield from Collected(parts, [Generators.now()]).write(stage)

    return write_checkpoint(run, 1, fill, needed=checkpoint_bytes(parts))


def restore(path: Path, run: Any) -> None:
    load_weights(path, run.model, run.form, run.average)
    load_parts(path, run)


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("make", [bert, foreign])
def test_all_parts_come_back(make: Any, mean: bool, tmp_path: Path) -> None:
    parts = parts_of(make(), mean)
    for parameter in parts.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    parts.optimizer.step()
    parts.scheduler.step()
    if mean:
        parts.average.update(parts.model)
    path = saved(parts, tmp_path)
    expected = torch.randn(3)
    check_checkpoint(path)
    assert (path / "weights.safetensors").exists() is mean
    other = parts_of(make(), mean)
    places = [parameter.data_ptr() for parameter in other.model.parameters()]
    restore(path, other)
    assert [parameter.data_ptr() for parameter in other.model.parameters()] == places
    assert same(parts.model.state_dict(), other.model.state_dict())
    assert not mean or same(parts.average.state_dict(), other.average.state_dict())
    for one, two in zip(parts.model.parameters(), other.model.parameters(), strict=True):
        assert same(parts.optimizer.state[one], other.optimizer.state[two])
    assert parts.scheduler.state_dict() == other.scheduler.state_dict()
    found = load_generators(path)
    assert found is not None
    found.restore()
    assert torch.randn(3).equal(expected)
    assert load_generators(path, rank=1) is None


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = saved(parts_of(bert()), tmp_path)
    with pytest.raises(CheckpointError, match="does not fit BertForSequenceClassification"):
        restore(path, parts_of(bert(num_labels=3)))
    with pytest.raises(CheckpointError, match=r"does not fit Sequential: missing \['0.bias'"):
        restore(path, parts_of(foreign()))
    path = saved(parts_of(foreign()), tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(path, parts_of(nn.Sequential(nn.Linear(3, 4))))


def test_files_that_cannot_be(tmp_path: Path) -> None:
    path = saved(parts_of(bert()), tmp_path)
    (path / "optimizer.json").write_text("[]")
    with pytest.raises(FormatError, match="optimizer.json"):
        restore(path, parts_of(bert()))
    (path / "optimizer.json").write_text(json.dumps({"class": "SGD", "groups": [], "state": {}}))
    with pytest.raises(CheckpointError, match=r"optimizer.json: holds the state of SGD"):
        restore(path, parts_of(bert()))
    (path / "model.safetensors").unlink()
    with pytest.raises(FileError, match="model.safetensors"):
        restore(path, parts_of(bert()))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    model: Any = bert()
    model.save_pretrained(tmp_path)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (tmp_path / name).write_bytes(b"\x80\x04not read")
    assert load_parts(tmp_path, parts_of(bert())) == ["optimizer", "scheduler"]


def test_statistics_and_generators_of_a_moment() -> None:
    model = foreign()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moment = Rewind(model)
    first = model(torch.randn(5, 3)), torch.rand(2)
    assert not same(before, model.state_dict())
    moment.back()
    assert same(before, model.state_dict())
    assert model(torch.randn(5, 3)).equal(first[0])
    assert torch.rand(2).equal(first[1])


# --- what was read ---------------------------------------------------------------------------------------------------------


ROW: dict[str, Any] = {"text": "a", "ids": [1, 2], "pixels": np.zeros(3), "labels": torch.tensor(1), "n": None, "x": object()}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "b"),
        ("ids", (1, 3)),
        ("ids", [1]),
        ("pixels", np.ones(3)),
        ("labels", torch.tensor(2)),
        ("labels", torch.tensor(1.0)),
    ],
)
def test_other_rows_have_another_digest(key: str, value: Any) -> None:
    rows = [ROW] * 100
    first = digest_rows(rows)
    assert first is not None
    assert len(first.looked_at) == 64
    assert first.looked_at[-1] == 99
    assert first == digest_rows(rows) == digest_rows(rows, first.looked_at)
    assert digest_rows([*rows[:-1], ROW | {key: value}]) != first
    assert digest_rows(rows[:-1], first.looked_at) != first


class Drawn:
    """Rows that are drawn: with the global generators, or with one that nobody seeds."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> float:
        found: float = self.generator.random()
        return found


def test_rows_that_are_drawn() -> None:
    before = random.getstate()
    first = digest_rows(Drawn(random))
    assert first == digest_rows(Drawn(random))
    assert first is not None
    assert first.looked_at == [0, 1, 2]
    assert random.getstate() == before
    counted = digest_rows(Drawn(random.Random(0)))
    assert counted == digest_rows(Drawn(random.Random(1)))
    assert counted is not None
    assert counted.looked_at == []


def test_few_rows_and_none() -> None:
    assert digest_rows([]) == digest_rows([]) is not None
    one = digest_rows([1])
    assert one is not None
    assert one.looked_at == [0]
    assert digest_rows(iter([1])) is None
    empty: Tensor = torch.zeros(0)
    assert digest_rows([empty]) != one
