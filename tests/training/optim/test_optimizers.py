"""Optimizers by name and their groups, against the reference's; Adafactor step by step; averaged weights."""

from __future__ import annotations

import copy
import pickle
import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.optimization import AdafactorSchedule as ReferenceSchedule

from tests.models.families import Family
from tests.models.harness import FIRST, pair
from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import InputError, UnsupportedError
from transept.training.optim.adafactor import Adafactor, AdafactorSchedule, get_adafactor_schedule
from transept.training.optim.optimizers import (
    OPTIMIZERS,
    PACKAGED,
    OptimizerNames,
    WeightAverage,
    get_decay_parameter_names,
    get_optimizer_cls_and_kwargs,
    layerwise_rates,
    make_optimizer,
    parameter_groups,
)

pytestmark = pytest.mark.reference


def arguments(optim: str, optim_args: Any = None) -> Any:
    return SimpleNamespace(
        optim=optim, optim_args=optim_args, learning_rate=0.01, adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-6
    )


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Conv1d(1, 3, 2), nn.Linear(6, 4)).to(dtype)


def train(model: nn.Module, optimizer: Any, steps: int = 8, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
        optimizer.step()


# --- Adafactor --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"warmup_init": True, "beta1": 0.9},
        {"lr": 1e-2, "relative_step": False, "scale_parameter": False, "weight_decay": 0.1},
        {"lr": 1e-2, "relative_step": False, "clip_threshold": 0.3, "decay_rate": -0.5, "beta1": 0.5},
    ],
    ids=str,
)
def test_adafactor_is_the_references_bit_by_bit(options: dict[str, Any], dtype: torch.dtype) -> None:
    ours, theirs = network(dtype), network(dtype)
    optimizers = Adafactor(ours.parameters(), **options), transformers.Adafactor(theirs.parameters(), **options)
    for model, optimizer in zip((ours, theirs), optimizers):
        train(model, optimizer)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(mine, other)
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    assert {*states[0]["state"][0]} == {*states[1]["state"][0]}
    assert {**states[0]["param_groups"][0]} == {**states[1]["param_groups"][0]}
    again = Adafactor(ours.parameters(), **options)
    again.load_state_dict(copy.deepcopy(states[1]))
    for model, optimizer in ((ours, again), (theirs, optimizers[1])):
        train(model, optimizer, 3, seed=1)
    assert all(torch.equal(mine, other) for mine, other in zip(ours.parameters(), theirs.parameters()))


def test_adafactors_own_rates_are_shown() -> None:
    models = network(), network()
    kinds = (Adafactor, AdafactorSchedule), (transformers.Adafactor, ReferenceSchedule)
    seen = []
    for model, (kind, schedule) in zip(models, kinds):
        optimizer = kind(model.parameters())
        shown = schedule(optimizer, 0.25)
        first = shown.get_lr()
        train(model, optimizer, 3)
        seen.append([*first, *map(float, shown.get_lr())])
    assert seen[0] == seen[1]
    assert seen[0][0] == 0.25
    assert get_adafactor_schedule(Adafactor(models[0].parameters())).get_lr() == [0.0]


def test_adafactor_takes_a_closure() -> None:
    weight = nn.Parameter(torch.ones(3))

    def closure() -> torch.Tensor:
        weight.grad = None
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimizer = Adafactor([weight])
    assert optimizer.step(closure).item() == 3.0
    assert optimizer.step(closure).item() < 3.0


def test_adafactor_refuses() -> None:
    parameters = [nn.Parameter(torch.ones(2, 2))]
    for options, message in (
        ({"lr": 0.1}, "`lr` has no effect beside `relative_step=True`"),
        ({"warmup_init": True, "relative_step": False}, "`warmup_init=True` needs `relative_step=True`"),
    ):
        with pytest.raises(InputError, match=message):
            Adafactor(parameters, **options)
    parameters[0].grad = torch.ones(2, 2)
    with pytest.raises(InputError, match="needs a learning rate"):
        Adafactor(parameters, relative_step=False).step()
    parameters[0].grad = torch.ones(2, 2).to_sparse()
    with pytest.raises(InputError, match="cannot use sparse gradients"):
        Adafactor(parameters).step()


# --- names and groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_names_give_the_references_classes_and_settings(name: str) -> None:
    text = {"sgd": "momentum=0.9,nesterov=True", "rmsprop": "alpha=0.9, centered=true", "adagrad": "lr_decay=0.1"}.get(name)
    ours = get_optimizer_cls_and_kwargs(arguments(name, text))
    theirs = transformers.Trainer.get_optimizer_cls_and_kwargs(arguments(name, text))
    assert ours[0].__name__ == theirs[0].__name__
    assert ours[1] == theirs[1]
    models = network(), network()
    for model, (cls, given) in zip(models, (ours, theirs)):
        train(model, make_optimizer(cls, [{"params": [*model.parameters()]}], given))
    assert all(torch.equal(mine, other) for mine, other in zip(models[0].parameters(), models[1].parameters()))


def test_all_names_of_the_reference_are_known() -> None:
    from transformers.training_args import OptimizerNames as Reference

    assert {each.value for each in Reference} == {each.value for each in OptimizerNames}
    for each in OptimizerNames:
        if each not in OPTIMIZERS and not (each in PACKAGED and find_spec(PACKAGED[each][0])):
            why = f"needs the package '{PACKAGED[each][0]}'" if each in PACKAGED else "is an optimizer of a package that"
            with pytest.raises(UnsupportedError, match=f"{each.value!r}` {why}"):
                get_optimizer_cls_and_kwargs(arguments(each.value))


@pytest.mark.parametrize("name", [*PACKAGED])
def test_optimizers_of_packages_are_made_as_by_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, kind = PACKAGED[name]
    module: Any = ModuleType(f"{package}.optim")
    for other in ("AdamW", "Lion", "RMSprop", "AdamW4bit", "AdamW8bit", "AdEMAMix"):
        setattr(module, other, type(other, (torch.optim.SGD,), {}))
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.optim", module)
    for there in ("bitsandbytes", "torchao"):
        monkeypatch.setattr(f"transformers.trainer_optimizer.is_{there}_available", lambda: True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    found = get_optimizer_cls_and_kwargs(arguments(name))
    _, theirs = transformers.Trainer.get_optimizer_cls_and_kwargs(arguments(name))
    theirs.pop("alpha", None)  # the default
    assert found == (getattr(module, kind), theirs)


@pytest.mark.parametrize(
    ("optim", "given", "message"),
    [
        ("adamw", None, "no optimizer is called 'adamw'. Did you mean"),
        ("sgd", "momentun=0.9", "SGD has no argument 'momentun'. Did you mean 'momentum'"),
        ("sgd", "momentum", "`optim_args` holds 'momentum'. Write name=value"),
        ("sgd", "momentum=", "`optim_args` holds 'momentum='"),
        ("sgd", "momentum=much", "'momentum' of SGD cannot be 'much'. Its default is 0"),
        ("sgd", "nesterov=3", "'nesterov' of SGD cannot be 3"),
        ("sgd", "momentum=true", "'momentum' of SGD cannot be True"),
        ("sgd", "lr=3", "sets 'lr', which has no effect there. Set `learning_rate`"),
        ("rmsprop", {"weight_decay": 3}, "sets 'weight_decay', which has no effect"),
        ("adamw_torch", {"betas": 0.9}, "'betas' of AdamW cannot be 0.9"),
        ("sgd", "momentum=__import__('os')", "cannot be"),
    ],
)
def test_what_cannot_be_is_named(optim: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        get_optimizer_cls_and_kwargs(arguments(optim, given))


def test_the_fused_kernel_is_left_out_where_there_is_none() -> None:
    model = network()
    cls, given = get_optimizer_cls_and_kwargs(arguments("adamw_torch_fused", "amsgrad=true"))
    optimizer = make_optimizer(cls, [{"params": [*model.parameters()]}, {"params": []}], given)
    assert optimizer.defaults["fused"]
    assert optimizer.defaults["amsgrad"]
    assert len(optimizer.param_groups) == 1
    odd = [nn.Parameter(torch.ones(2, dtype=torch.complex64))]
    assert not make_optimizer(cls, [{"params": odd}], given).defaults["fused"]
    with pytest.raises(InputError, match="no parameter can be trained"):
        make_optimizer(cls, [{"params": []}], given)


# A norm that its name hides: the reference decays its weight.
HIDDEN_NORMS = dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "nemotron_h"), ("norm_f.",))
HIDDEN_NORMS |= {"resnet": ("normalization.",), "detr": ("norm", "bn")}


@pytest.mark.parametrize(("family", "cls"), in_turn(FIRST, 45))
def test_weight_decay_leaves_out_what_the_reference_leaves_out(family: Family, cls: type[Model]) -> None:
    def short(names: Iterable[str]) -> set[str]:
        return {re.sub(r"(text|vision)_model\.", "", name) for name in names}

    ours, theirs = pair(family, cls)
    decayed = short(get_decay_parameter_names(ours))
    expected = short(transformers.Trainer.get_decay_parameter_names(None, theirs))  # type: ignore[arg-type]
    shared = short(name for name, _ in ours.named_parameters()) & short(name for name, _ in theirs.named_parameters())
    assert len(shared) > 5 or family.model_type == "segformer"  # which the reference loads under other names
    hidden = HIDDEN_NORMS.get(family.model_type, ())
    assert not [
        name for name in shared & (decayed ^ expected) if name not in expected or not any(each in name for each in hidden)
    ]


def test_groups_by_decay_and_by_layer() -> None:
    model = network()
    model[3].bias.requires_grad_(False)
    names = get_decay_parameter_names(model)
    assert names == ["0.weight", "2.weight", "3.weight"]
    plain = parameter_groups(model, 0.01, 0.1, names)
    assert [group["param_names"] for group in plain] == [names, ["0.bias", "1.weight", "1.bias", "2.bias"]]
    assert [group["weight_decay"] for group in plain] == [0.1, 0.0]
    assert "lr" not in plain[0]
    rates = layerwise_rates([["0.weight", "0.bias"], ["1.weight", "1.bias", "2.weight", "2.bias"], ["3.weight", "3.bias"]], 0.5)
    groups = parameter_groups(model, 0.01, 0.1, names, rates)
    found = {name: (group["lr"], group["weight_decay"]) for group in groups for name in group["param_names"]}
    expected = {"3.weight": (0.01, 0.1), "2.weight": (0.005, 0.1), "0.weight": (0.0025, 0.1)}
    expected |= {"2.bias": (0.005, 0.0), "1.weight": (0.005, 0.0), "1.bias": (0.005, 0.0), "0.bias": (0.0025, 0.0)}
    assert found == expected
    optimizer = make_optimizer(torch.optim.AdamW, groups, {"lr": 0.01})
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.0025, 0.005, 0.01]
    with pytest.raises(InputError, match="`layerwise_lr_decay` must be above 0 and at most 1, but is 1.5"):
        layerwise_rates([], 1.5)


# --- averaged weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_averaged_weights_are_the_recurrence(dtype: torch.dtype) -> None:
    model = network(dtype)
    model[0].bias.requires_grad_(False)
    average = WeightAverage(model, 0.9)
    expected = {name: weight.detach().double().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for seed in range(5):
        train(model, optimizer, 1, seed)
        average.update(model)
        expected = {name: 0.9 * old + 0.1 * model.get_parameter(name).detach().double() for name, old in expected.items()}
    for name, value in expected.items():
        torch.testing.assert_close(average.weights[name].double(), value, rtol=1e-6, atol=1e-7)  # float32's rounding
    own = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError), average.applied(model):
        assert torch.equal(model[3].weight, average.weights["3.weight"].to(dtype))
        assert torch.equal(model[0].bias, own["0.bias"])
        raise ZeroDivisionError
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    again = WeightAverage(model, 0.9)
    again.load_state_dict(pickle.loads(pickle.dumps(average.state_dict())))
    assert all(torch.equal(value, average.weights[name]) for name, value in again.weights.items())


def test_averages_of_another_model_are_refused() -> None:
    average = WeightAverage(network(), 0.5)
    with pytest.raises(InputError, match=r"another model: '2\.bias' differs"):
        average.load_state_dict({name: value for name, value in average.state_dict().items() if name != "2.bias"})
    with pytest.raises(InputError, match="`ema_decay` must be at least 0 and below 1, but is 1"):
        WeightAverage(network(), 1)
