"""Optimizers, schedules, scalers and generators come back as they were, to the bit."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules

from transept.checkpoint.store import TensorStore, write_tensors
from transept.errors import CheckpointError, FormatError, InputTypeError, UnsupportedError
from transept.parallel.forms import Form
from transept.storage.files import dump_json, parse_json
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.serialization import (
    load_optimizer,
    load_state,
    pack,
    parameter_names,
    save_optimizer,
    save_state,
    state_bytes,
    unpack,
)


def through_files(document: Any, tensors: dict[str, Tensor], folder: Path) -> tuple[Any, Any]:
    write_tensors(tensors, folder / "t.safetensors")
    return parse_json(dump_json(document)), TensorStore([folder / "t.safetensors"])


# --- plain values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0.1 + 0.2,
        float("inf"),
        -0.0,
        2**70,
        [(1, 2.5), [], ()],
        {"a": {1: "x", (2, 3): None}},
        {"tensor": "a name"},
        {"tuple": [1], "b": 2},
        Counter({3: 2}),
        {},
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    tensors: dict[str, Tensor] = {}
    found = unpack(parse_json(dump_json(pack(value, "v", tensors))), tensors)
    assert found == value
    assert type(found) is type(value)
    assert str(found) == str(value) or isinstance(value, dict)  # minus zero; entries are sorted


def test_tensors_stand_beside_them(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    value = {"a": [torch.arange(3), {"b": torch.tensor(1.5, dtype=torch.bfloat16)}], "n": np.float32(0.5)}
    document, store = through_files(pack(value, "v", tensors), tensors, tmp_path)
    assert set(tensors) == {"v.a.0", "v.a.1.b"}
    found = unpack(document, store)
    assert found["a"][0].equal(value["a"][0])
    assert found["a"][1]["b"].dtype is torch.bfloat16
    assert found["n"] == 0.5


@pytest.mark.parametrize("value", [len, object(), {1, 2}, b"bytes", {"f": [len]}])
def test_what_only_pickle_holds_is_refused(value: Any) -> None:
    with pytest.raises(InputTypeError, match="place.*which a checkpoint cannot hold"):
        pack(value, "place", {})


@pytest.mark.parametrize("document", [{"tensor": "absent"}, {"tensor": []}, {"float": "x"}, {"pairs": [1]}, {"tuple": 3}])
def test_documents_that_cannot_be(document: Any) -> None:
    with pytest.raises(FormatError):
        unpack(document, {})


# --- optimizers ------------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 1))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda o: schedules.LambdaLR(o, lambda step: max(0.0, 1 - step / 9)),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=9),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0, factor=0.3),
    "steps": lambda o: schedules.MultiStepLR(o, [2, 4, 4]),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=9, cycle_momentum=False),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.5, 2), schedules.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


def update(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any, step: int) -> str:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (model(x) - x.sum(1, keepdim=True)).square().mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    value = optimizer.step(loss).item()  # type: ignore[arg-type, attr-defined]
    schedule.step(*([value] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
    return value.hex()


def grouped(model: nn.Module, order: int = 1) -> list[dict[str, Any]]:
    """Matrices with weight decay, and the others without, as the trainer makes them."""
    named = list(model.named_parameters())[::order]
    return [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.ndim < 2]},
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_goes_on_to_the_bit(optimizer: str, schedule: str, tmp_path: Path) -> None:
    parameters = (lambda model: list(model.parameters())) if optimizer == "lbfgs" else grouped

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = network()
        made = OPTIMIZERS[optimizer](parameters(model))
        return model, made, SCHEDULES[schedule](made)

    model, made, plan = begin()
    for step in range(3):
        update(model, made, plan, step)
    document, tensors = save_optimizer(made, model, Form())
    plan_tensors: dict[str, Tensor] = {}
    plan_document = save_state(plan, "schedule", plan_tensors)
    weights = copy.deepcopy(model.state_dict())
    document, store = through_files([document, plan_document], tensors | plan_tensors, tmp_path)
    expected = [update(model, made, plan, step) for step in range(3, 7)]

    model, made, plan = begin()
    model.load_state_dict(weights)
    assert load_optimizer(made, model, document[0], store, Form()) == []
    load_state(plan, document[1], store)
    assert [update(model, made, plan, step) for step in range(3, 7)] == expected


def trained(optimizer: str = "adamw", **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    made = OPTIMIZERS[optimizer](grouped(model, **options))
    for step in range(2):
        update(model, made, SCHEDULES["linear"](made), step)
    return model, made


def test_names_not_numbers_tell_parameters() -> None:
    model, made = trained()
    document, tensors = save_optimizer(made, model, Form())
    assert "state.0.weight.exp_avg" in tensors
    other = network()
    other_made = OPTIMIZERS["adamw"](grouped(other, order=-1))
    load_optimizer(other_made, other, document, tensors, Form())
    theirs = {name: made.state[p] for p, name in parameter_names(made, model).items()}
    for parameter, name in parameter_names(other_made, other).items():
        assert other_made.state[parameter]["exp_avg"].equal(theirs[name]["exp_avg"])
    assert state_bytes(made) == state_bytes(other_made) > 0


def test_frozen_ones_are_left_and_new_ones_are_said() -> None:
    model, made = trained()
    document, tensors = save_optimizer(made, model, Form())
    del document["groups"][1]["params"][0]
    other = network()
    less = torch.optim.AdamW(list(other.parameters())[1:], lr=1.0)
    with pytest.raises(CheckpointError, match=r"has in several groups what is one here"):
        load_optimizer(less, other, document, tensors, Form())
    less = torch.optim.AdamW([{**group, "params": group["params"][::-1]} for group in grouped(other)], lr=1.0)
    missing = load_optimizer(less, other, document, tensors, Form())
    assert missing == [name for name in ["0.bias"] if name in missing] == ["0.bias"]
    assert less.param_groups[0]["lr"] == made.param_groups[0]["lr"]


def test_parameters_of_no_model_are_named_by_their_place() -> None:
    model, extra = network(), nn.Parameter(torch.ones(2))
    made = torch.optim.AdamW([*model.parameters(), extra])
    assert list(parameter_names(made, model).values())[-1] == f"groups.0.{len(list(model.parameters()))}"


def test_another_optimizer_is_refused() -> None:
    model, made = trained()
    document, tensors = save_optimizer(made, model, Form())
    sgd = OPTIMIZERS["sgd"](grouped(model))
    with pytest.raises(CheckpointError, match="holds the state of AdamW, but this run's optimizer is SGD"):
        load_optimizer(sgd, model, document, tensors, Form())
    with pytest.raises(FormatError, match="`groups` must be a list"):
        load_optimizer(made, model, document | {"groups": 3}, {}, Form())
    with pytest.raises(FormatError, match="`state` must be an object"):
        load_optimizer(made, model, document | {"state": [1]}, tensors, Form())


def test_a_file_cannot_replace_the_parameters_of_a_group() -> None:
    model, made = trained()
    document, tensors = save_optimizer(made, model, Form())
    before = made.param_groups[0]["params"]
    document["groups"][0]["settings"] |= {"params": [], "unknown": 1}
    load_optimizer(made, model, document, tensors, Form())
    assert made.param_groups[0]["params"] is before
    assert "unknown" not in made.param_groups[0]


def test_other_schedules_and_entries_are_refused() -> None:
    _, made = trained()
    document = save_state(SCHEDULES["cosine"](made), "s", {})
    with pytest.raises(CheckpointError, match="holds the state of CosineAnnealingLR, but this run has LambdaLR"):
        load_state(SCHEDULES["linear"](made), document, {})
    document["state"]["step"] = 1
    with pytest.raises(CheckpointError, match=r"holds \['step'\]"):
        load_state(SCHEDULES["cosine"](made), document, {})
    with pytest.raises(FormatError, match="`state` is missing"):
        load_state(SCHEDULES["cosine"](made), {"class": "CosineAnnealingLR"}, {})


def test_a_scaler_comes_back(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**5, growth_interval=3)
    model, made = network(), torch.optim.SGD(network().parameters())
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        scaler.step(made)
        scaler.update()
    document = json.loads(dump_json(save_state(scaler, "scaler", {})))
    other = torch.amp.GradScaler("cpu")
    load_state(other, document, {})
    assert other.state_dict() == scaler.state_dict()
    assert other.state_dict()["scale"] == 2.0**6


# --- generators ------------------------------------------------------------------------------------------------------------


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal(), *torch.randn(3).tolist()]  # noqa: NPY002


@pytest.mark.parametrize("odd", [False, True])  # the second of a pair of Gaussian numbers waits
def test_generators_go_on(tmp_path: Path, odd: bool) -> None:
    before = Generators.now()
    if odd:
        draw()
    state = Generators.now()
    _, store = through_files({}, state.tensors(), tmp_path)
    expected = [draw(), draw()]
    Generators.of(store).restore()
    assert [draw(), draw()] == expected
    state.restore()
    assert [draw(), draw()] == expected
    before.restore()


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "numpy.position"])
def test_states_that_cannot_be(name: str) -> None:
    tensors = Generators.now().tensors()
    with pytest.raises(FormatError, match="no states of random generators"):
        Generators.of(tensors | {name: tensors[name][:1] - 1})
    del tensors[name]
    with pytest.raises(FormatError):
        Generators.of(tensors)


def test_another_numpy_generator_is_named() -> None:
    state = Generators.now()
    with pytest.raises(UnsupportedError, match="'PCG64'"):
        Generators(state.python, ("PCG64",), state.torch).tensors()
