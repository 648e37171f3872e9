"""The module that made the first value that is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transept.core.model import Model
from transept.models.bert import BertConfig, BertForMaskedLM, BertForSequenceClassification
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.t5 import T5Config, T5ForConditionalGeneration
from transept.training.checkpoint.generators import Generators
from transept.training.not_finite import Fault, find_fault

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}
LAYERS = 3


def _models() -> list[Model]:
    torch.manual_seed(0)
    seq2seq = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": LAYERS, "num_heads": 2, "vocab_size": 30}
    return [
        BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=LAYERS)),
        LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=LAYERS)),
        T5ForConditionalGeneration(T5Config(**seq2seq, decoder_start_token_id=0)),
    ]


def _batches() -> list[dict[str, Any]]:
    ids = torch.arange(3, 27).view(4, 6)
    each = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return [{name: value[start : start + 2] for name, value in each.items()} for start in (0, 2)]


def _step(model: nn.Module) -> Callable[[dict[str, Any]], Tensor]:
    def step(batch: dict[str, Any]) -> Tensor:
        loss: Tensor = model(**batch).loss
        loss.backward()
        return loss.detach()

    return step


def _leaves(model: Model) -> list[str]:
    """The modules of each layer that give states."""
    named = dict(model.named_modules())
    parts = [path for path in named if {"layer", "layers", "block"} & {*path.split(".")}]
    return [path for path in parts if isinstance(named[path], nn.Linear | nn.LayerNorm)]


@pytest.mark.parametrize("place", range(3))
def test_the_module_that_gives_no_number_is_named(place: int) -> None:
    model = _models()[place]
    second = [stack.layers[1] for stack in model.stacks]
    paths = [*_leaves(model)[::8], *(path for path, module in model.named_modules() if module in second)]
    assert len(paths) >= LAYERS
    for path in paths:
        module, calls = model.get_submodule(path), []

        def plant(module: nn.Module, args: Any, output: Tensor, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            if len(calls) % 2:
                return output  # of the first micro-batch
            output = output.clone()
            output[1, 3] = torch.nan
            return output

        handle = module.register_forward_hook(plant)
        fault = find_fault(model, _batches(), _step(model))
        handle.remove()
        assert fault is not None
        assert (fault.what, fault.path, fault.kind) == ("output", path, type(module).__name__)
        assert (fault.batch, fault.rows, fault.inside) == (1, (1,), False)
        assert 0 < fault.bad < fault.total
    assert find_fault(model, _batches(), _step(model)) is None
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("place", range(3))
def test_the_module_whose_gradient_is_no_number_is_named(place: int) -> None:
    model = _models()[place]
    for path in _leaves(model)[::8]:

        def plant(module: nn.Module, given: Any, arrived: Any) -> Any:
            return tuple(each if each is None else each * torch.inf for each in given)

        handle = model.get_submodule(path).register_full_backward_hook(plant)
        fault = find_fault(model, _batches(), _step(model))
        handle.remove()
        assert fault is not None
        assert (fault.what, fault.path, fault.batch) == ("gradient of the input", path, 0)


def test_weights_inputs_losses_and_gradients_of_weights_are_named() -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES, num_hidden_layers=1, num_labels=1))
    ids = torch.arange(3, 27).view(4, 6)
    batch: dict[str, Any] = {"input_ids": ids, "labels": torch.rand(4)}
    step = _step(model)

    batch["labels"][2] = torch.nan
    assert find_fault(model, [batch], step) == Fault("input", "labels", "", 1, 4, 0, (2,))
    batch["labels"][2] = 0.5

    def root(batch: dict[str, Any]) -> Tensor:
        loss: Tensor = (model(**batch).loss.detach() - 1e9).sqrt()
        return loss

    assert find_fault(model, [batch], root) == Fault("loss", "", "", 1, 1, 0)
    handle = model.head.out_proj.bias.register_hook(lambda gradient: gradient / 0)
    assert find_fault(model, [batch], step) == Fault("gradient of the parameter", "classifier.bias", "", 1, 1, 0)
    handle.remove()
    weight = model.head.out_proj.weight
    with torch.no_grad():
        weight[0, 5] = torch.inf
    found = find_fault(model, [batch], step)
    assert found == Fault("parameter", "classifier.weight", "", 1, 16)
    assert str(found) == "the parameter 'classifier.weight' has 1 of 16 values that are not finite"


def test_what_is_made_between_modules_is_told_from_what_they_make() -> None:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) / 0).sum()

    model = Divides()
    fault = find_fault(model, [{"x": torch.ones(3, 2)}], lambda batch: model(**batch))
    assert fault is not None
    assert str(fault) == (
        "the output of 'last' (Linear) has 6 of 6 values that are not finite, in the rows 0, 1, 2 of micro-batch 0; "
        "they came in with what it was given"
    )


def test_compiled_blocks_are_looked_into() -> None:
    model = BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=2))
    for layer in model.backbone.layers:
        layer.compile(backend="eager")
    handle = model.backbone.layers[1].mlp.register_forward_hook(lambda module, args, output: output * torch.nan)
    fault = find_fault(model, _batches()[:1], _step(model))
    handle.remove()
    assert fault is not None
    assert fault.path == "bert.encoder.layer.1.mlp"


def test_dropout_is_drawn_as_in_the_update() -> None:
    model, seen = BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=1)).train(), []
    generators = Generators.now()

    def step(batch: dict[str, Any]) -> Tensor:
        loss = _step(model)(batch)
        seen.append(float(loss))
        return loss

    wanted = [float(step(batch)) for batch in _batches()]
    assert find_fault(model, _batches(), step, generators) is None
    assert seen[2:] == wanted * 2
